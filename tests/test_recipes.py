"""Settings, batches, rules of decay and renormalisation, run folders, data folders and downloads."""

import errno
import functools
import hashlib
import http.server
import io
import json
import pickle
import random
import tarfile
import threading
import tomllib
import zipfile
from dataclasses import dataclass, field

import pytest
import torch

from structattn.recipes import fetching
from structattn.recipes.batching import bucketed_batches, chunks, pad, sorted_batches
from structattn.recipes.config import build, override, read_toml, write_toml
from structattn.recipes.data_folder import DataFolder
from structattn.recipes.errors import UserError, did_you_mean
from structattn.recipes.jobs import comma_separated, markdown
from structattn.recipes.optimisation import OPTIMIZERS, Decay, TrainingSettings, initialise, renormalise
from structattn.recipes.progress import print_table
from structattn.recipes.recipe import Table
from structattn.recipes.reproduction import mean_and_spread
from structattn.recipes.run_folder import RunFolder, read_tensors, write_tensors
from structattn.recipes.running import chosen_by_options, default_path


@dataclass
class Inner:
    size: int = 3
    rate: float = 0.5
    names: list[str] = field(default_factory=lambda: ["a"])
    note: str | None = None
    loud: bool = False


@dataclass
class Outer:
    size: int = 1
    first: Inner = field(default_factory=Inner)
    second: Inner = field(default_factory=Inner)


def test_toml_and_back():
    config = Outer(2, Inner(names=['with "quotes"', "and \\"], note="ünï"), Inner(loud=True))
    text = write_toml(config, "a command")
    assert text.startswith("# a command\n")
    assert build(Outer, tomllib.loads(text)) == config


def test_settings_from_the_command_line():
    config = override(
        Outer(), ["first.size=7", "second.rate=2", "first.names=['x','y']", "second.note=plain text"]
    )
    assert config == Outer(first=Inner(7, names=["x", "y"]), second=Inner(rate=2.0, note="plain text"))


@pytest.mark.parametrize(
    ("setting", "what"),
    [
        ("frist.size=1", 'unknown key "frist.size"; did you mean "first.size"'),
        ("rate=1", "could be first.rate or second.rate"),
        ("first.size=big", "first.size must be int, not 'big'"),
        ("first.size=true", "must be int"),
        ("first.loud=1", "must be bool"),
        ("first.names=[1]", "must be str"),
        ("first.size", "lacks a value"),
    ],
)
def test_wrong_settings_say_what_is_near(setting, what):
    with pytest.raises(UserError) as caught:
        override(Outer(), [setting])
    assert what in str(caught.value)


def test_wrong_files_are_named(tmp_path):
    path = tmp_path / "config.toml"
    with pytest.raises(UserError, match="there is no file"):
        read_toml(path)
    path.write_text("a = = 1")
    with pytest.raises(UserError, match=r"config\.toml is not valid TOML"):
        read_toml(path)
    with pytest.raises(UserError, match=r'there: unknown key "first\.sise"; did you mean "first\.size"'):
        build(Outer, {"first": {"sise": 1}}, "there")
    with pytest.raises(UserError, match="first is a section"):
        build(Outer, {"first": 3})


def test_did_you_mean():
    assert did_you_mean("epoch", ["training.epochs", "data.seed"]) == '; did you mean "training.epochs"?'
    assert did_you_mean("zzz", ["one", "two"]) == "; there is one, two"


def test_every_example_is_in_one_batch_of_similar_sizes():
    sizes = [random.Random(7).randint(1, 90) for _ in range(1003)]
    batches = bucketed_batches(sizes, 20, random.Random("1 1"))
    assert sorted(index for batch in batches for index in batch) == list(range(1003))
    assert sorted(map(len, batches), reverse=True)[:50] == [20] * 50
    spread = [max(sizes[i] for i in batch) - min(sizes[i] for i in batch) for batch in batches]
    assert sum(spread) / len(spread) < 5
    assert batches == bucketed_batches(sizes, 20, random.Random("1 1"))
    assert batches != bucketed_batches(sizes, 20, random.Random("1 2"))
    assert [index for batch in sorted_batches([3, 1, 2], 2) for index in batch] == [1, 2, 0]


def test_padding_and_chunks():
    assert pad([[1, 2, 3], [4]]).tolist() == [[1, 2, 3], [4, 0, 0]]
    assert pad([[]]).tolist() == [[0]]
    lines = iter("abcde")
    assert next(chunks(lines, 2)) == ["a", "b"]
    assert next(lines) == "c", "no more is read than is needed"


def decays(watched, **settings):
    decay = Decay(TrainingSettings(**settings))
    steps = [decay.epoch_ended(epoch, [value]) for epoch, value in enumerate(watched, 1)]
    return [(factor, best) for factor, (best,) in steps]


def test_every_one_of_several_models_has_its_own_best_epoch():
    decay = Decay(TrainingSettings(watch="accuracy"))
    found = [decay.epoch_ended(epoch, values)[1] for epoch, values in enumerate([[1, 5], [2, 4], [1, 6]], 1)]
    assert found == [[True, True], [True, False], [False, True]]


def test_the_papers_decay_starts_after_an_epoch_or_when_validation_worsens():
    factors = [factor for factor, _ in decays([9, 8, 7, 6, 5], decay_after=3)]
    assert factors == [1, 1, 0.5, 0.5, 0.5]
    factors = [factor for factor, _ in decays([9, 8, 8.5, 6, 5], decay_after=9, decay_when_worse=True)]
    assert factors == [1, 1, 0.5, 0.5, 0.5]
    factors = [factor for factor, _ in decays([1, 1, 1, 1], decay_every=2)]
    assert factors == [1, 0.5, 1, 0.5]
    improved = [best for _, best in decays([0.1, 0.3, 0.2, 0.4], watch="accuracy")]
    assert improved == [True, True, False, True]


def test_gradients_are_renormalised_only_above_the_limit():
    weights = [torch.nn.Parameter(torch.zeros(2)), torch.nn.Parameter(torch.zeros(1))]
    weights[0].grad, weights[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert renormalise(weights, 10.0) == pytest.approx([5.0])
    assert weights[1].grad.item() == 4.0
    assert renormalise(weights, 1.0) == pytest.approx([5.0])
    torch.testing.assert_close(weights[0].grad, torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(weights[1].grad, torch.tensor([0.8]))


def test_gradients_of_several_models_are_renormalised_each_by_its_own_norm():
    weights = [torch.nn.Parameter(torch.zeros(2, 2)), torch.nn.Parameter(torch.zeros(2, 1))]
    weights[0].grad, weights[1].grad = torch.tensor([[3.0, 0.0], [0.3, 0.0]]), torch.tensor([[4.0], [0.4]])
    assert renormalise(weights, 1.0, models=2) == pytest.approx([5.0, 0.5])
    torch.testing.assert_close(weights[0].grad, torch.tensor([[0.6, 0.0], [0.3, 0.0]]))
    torch.testing.assert_close(weights[1].grad, torch.tensor([[0.8], [0.4]]))


def test_initialisation_keeps_padding_zero():
    model = torch.nn.Sequential(torch.nn.Embedding(50, 40, padding_idx=0), torch.nn.Linear(40, 40))
    initialise(model, TrainingSettings(initial_scale=0.1))
    values = torch.cat([weights.detach().flatten() for weights in model.parameters()])
    assert values.abs().max() <= 0.1
    assert values.std().item() == pytest.approx(0.2 / 12**0.5, rel=0.05)
    assert not model[0].weight[0].any()
    initialise(model, TrainingSettings(initialisation="gaussian", initial_scale=0.01))
    assert model[1].weight.std().item() == pytest.approx(0.01, rel=0.1)


@pytest.mark.parametrize(
    "settings",
    [{"optimizer": "sdg"}, {"epochs": 0}, {"learning_rate": 0.0}, {"keep": "first"}, {"loss_per": "x"}],
)
def test_impossible_training_settings(settings):
    with pytest.raises(UserError):
        TrainingSettings(**settings)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_checkpoint_brings_back_weights_and_optimiser(tmp_path, name):
    def made():
        torch.manual_seed(1)
        model = torch.nn.Linear(3, 2)
        return model, OPTIMIZERS[name](
            model.parameters(), TrainingSettings(optimizer=name, learning_rate=0.1)
        )

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    run = RunFolder(tmp_path)
    model, optimizer = made()
    assert run.load_checkpoint(model, optimizer) is None
    step(model, optimizer)
    run.save_checkpoint(model, optimizer, {"epoch": 1, "loss": 0.1 + 0.2})
    other, other_optimizer = made()
    assert run.load_checkpoint(other, other_optimizer) == {"epoch": 1, "loss": 0.1 + 0.2}
    for _ in range(3):
        step(model, optimizer)
        step(other, other_optimizer)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")], (
        "no half-written files are left"
    )


def test_damaged_files_are_refused_by_name(tmp_path):
    run, model = RunFolder(tmp_path), torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    run.save_weights(model)
    whole = (tmp_path / "model.safetensors").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", pickle.dumps({"weight": 1}), b"\xff" * 100):
        for name in ("model.safetensors", "checkpoint.safetensors"):
            (tmp_path / name).write_bytes(damaged)
        with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
            run.load_weights(model)
        with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged"):
            run.load_checkpoint(model, optimizer)
    run.save_weights(torch.nn.Linear(4, 2))
    with pytest.raises(UserError, match="does not fit the model"):
        run.load_weights(model)
    run.save_weights(torch.nn.Linear(3, 2, dtype=torch.complex64))
    with pytest.raises(UserError, match=r"weight is of torch\.complex64"):
        run.load_weights(model)
    (tmp_path / "metrics.jsonl").write_text('{"epoch": 1}\n{"epo')
    with pytest.raises(UserError, match=r"metrics\.jsonl is damaged"):
        run.metrics()
    with pytest.raises(UserError, match="no run folder"):
        RunFolder(tmp_path / "nowhere").task()


def test_a_failed_write_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    write_tensors(path, {"a": torch.ones(2)}, {"step": 1})

    def disk_full(*_):
        raise OSError(errno.ENOSPC, "no space left on device")

    monkeypatch.setattr("os.fsync", disk_full)
    with pytest.raises(UserError, match=r"cannot write .*x\.safetensors: no space left on device"):
        write_tensors(path, {"a": torch.zeros(2)}, {"step": 2})
    tensors, state = read_tensors(path)
    assert state == {"step": 1}
    assert tensors["a"].tolist() == [1, 1]
    assert [file.name for file in tmp_path.iterdir()] == ["x.safetensors"]


def test_two_writers_of_one_run_folder(tmp_path):
    run = RunFolder(tmp_path / "run")
    with run.locked(), pytest.raises(UserError, match="in use"), RunFolder(tmp_path / "run").locked():
        pass


def test_where_data_is_looked_up(tmp_path, monkeypatch):
    monkeypatch.setenv("STRUCTATTN_DATA", str(tmp_path / "variable"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    assert DataFolder.find(tmp_path).path == tmp_path
    assert DataFolder.find().path == tmp_path / "variable"
    monkeypatch.delenv("STRUCTATTN_DATA")
    assert DataFolder.find().path == tmp_path / "cache" / "structattn"
    with pytest.raises(UserError, match="--data-dir"):
        DataFolder.find(tmp_path / "missing")
    with pytest.raises(UserError, match="structattn data fetch snli"):
        DataFolder(tmp_path).need("snli")
    (tmp_path / "enja").mkdir()
    (tmp_path / "enja" / "dev.en").write_text("hello")
    there = {part: size for part, _, found, size in DataFolder(tmp_path).contents() if found}
    assert there == {"enja": 5}


def zip_of(**members):
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, text in members.items():
            archive.writestr(name, text)
    return buffer.getvalue()


def tar_of(**members):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, text in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def sha256(content):
    return hashlib.sha256(content if isinstance(content, bytes) else content.encode()).hexdigest()


@pytest.fixture
def server(tmp_path):
    """A folder, and the address at which a local server serves it; /away redirects."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Handler(http.server.SimpleHTTPRequestHandler):
        def do_GET(self):
            if self.path == "/away":
                self.send_response(302)
                self.send_header("Location", "/archive")
                self.end_headers()
            else:
                super().do_GET()

        def log_message(self, *_):
            pass

    handler = functools.partial(Handler, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as served:
        threading.Thread(target=served.serve_forever, daemon=True).start()
        yield folder, f"http://127.0.0.1:{served.server_port}"
        served.shutdown()


def fetch(monkeypatch, server, archive, source, path="/archive"):
    folder, address = server
    (folder / "archive").write_bytes(archive)
    monkeypatch.setattr(fetching, "sources", lambda: {"snli": source})
    return fetching.fetch("snli", DataFolder(folder.parent / "data"), address + path, lambda _: None)


def test_a_download_is_checked_and_unpacked_under_bare_names(monkeypatch, server):
    archive = zip_of(
        **{"snli_1.0/snli_1.0_dev.txt": "dev", "../snli_1.0/snli_1.0_x": "evil", "snli_1.0/Icon": "no"}
    )
    source = fetching.Source("unused", "snli", "snli_1.0/snli_1.0_*", sha256(archive))
    (written,) = fetch(monkeypatch, server, archive, source)
    assert written == server[0].parent / "data" / "snli" / "snli_1.0_dev.txt"
    assert [path.name for path in written.parent.iterdir()] == ["snli_1.0_dev.txt"]


def test_members_are_checked_where_the_archive_has_no_published_sum(monkeypatch, server):
    archive = tar_of(
        **{"top/en/qa1_train.txt": "one", "top/hn/qa1_train.txt": "other", "../../en/qa2.txt": "no"}
    )
    wanted = fetching.Source("unused", "babi/en", "*/en/qa*.txt", members={"qa1_train.txt": sha256("one")})
    (written,) = fetch(monkeypatch, server, archive, wanted)
    assert written.read_text() == "one"
    written.unlink()
    altered = fetching.Source("unused", "babi/en", "*/en/qa*.txt", members={"qa1_train.txt": sha256("two")})
    with pytest.raises(UserError, match=r"qa1_train\.txt: expected sha256"):
        fetch(monkeypatch, server, archive, altered)
    lacking = fetching.Source("unused", "babi/en", "*/en/qa*.txt", members={"qa9.txt": sha256("two")})
    with pytest.raises(UserError, match=r"lacks 1 files, qa9\.txt"):
        fetch(monkeypatch, server, archive, lacking)
    assert list(written.parent.iterdir()) == []


@pytest.mark.parametrize("path", ["/archive", "/away", "/missing"])
def test_wrong_bytes_redirects_and_missing_files_are_refused(monkeypatch, server, path):
    source = fetching.Source("unused", "snli", "*", sha256("something else"))
    with pytest.raises(UserError, match="could not download"):
        fetch(monkeypatch, server, zip_of(a="b"), source, path)
    assert list((server[0].parent / "data" / "snli").iterdir()) == []


def test_what_is_no_archive_and_no_corpus(monkeypatch, server):
    with pytest.raises(UserError, match="is no archive"):
        fetch(monkeypatch, server, b"hello", fetching.Source("unused", "snli", "*", sha256("hello")))
    with pytest.raises(UserError, match='did you mean "snli"'):
        fetching.fetch("snil", DataFolder(server[0]))


def test_the_official_sources_are_complete():
    sources = fetching.sources()
    assert set(sources) == {"babi", "snli", "glove"}
    assert len(sources["babi"].members) == 40
    assert all(source.sha256 or source.members for source in sources.values())


def test_a_wide_table_is_whole_where_there_is_no_terminal(capsys):
    print_table(Table("wide", [f"column {number}" for number in range(20)], [["12.345"] * 20]))
    assert capsys.readouterr().out.count("12.345") == 20


def test_tables_as_markdown_and_csv():
    table = Table("title", ["depth", "ours"], [["2", "99.1 ± 0.2"], ["3", "a, b"]])
    assert markdown(table) == "title\n\n| depth | ours |\n| --- | ---: |\n| 2 | 99.1 ± 0.2 |\n| 3 | a, b |\n"
    assert comma_separated(table) == 'depth,ours\n2,99.1 ± 0.2\n3,"a, b"\n'
    assert mean_and_spread([1.0]) == "1.0"
    assert json.dumps(table._asdict())


def test_options_are_short_for_keys_and_runs_are_named_after_what_was_set():
    assert chosen_by_options("transduction", {"attention": "none", "seed": 3, "model": None}) == [
        "model.attention=none",
        "training.seed=3",
    ]
    with pytest.raises(UserError, match="--model means nothing to transduction; it has --attention, --seed"):
        chosen_by_options("transduction", {"model": "unary"})
    path = default_path("transduction", "quick", ["training.learning_rate=0.5", 'data.folder="a/b"'])
    assert path.parts == ("runs", "transduction-quick-learning_rate-0.5-folder-a-b")
