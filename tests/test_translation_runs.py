"""Translation by command: a run on made-up text, what is done with it, the presets, and the real pairs."""

import io
import json
import math
import sys
from pathlib import Path

import pytest
from parallel import parallel_pairs, write_parallel

from structattn import cli
from structattn.recipes.data_folder import DataFolder
from structattn.recipes.optimisation import TrainingSettings
from structattn.recipes.tasks import preset
from structattn.recipes.translation.bleu import bleu
from structattn.recipes.translation.data import TranslationData, read_pairs, symbols_of
from structattn.recipes.translation.recipe import TranslationConfig, TranslationRecipe
from structattn.recipes.translation.table import PAPER, Table2
from structattn.show import style

REAL = Path(__file__).parents[2] / "shared" / "data" / "enja"
SMALL = [
    "least_count=1",
    "held_out=20",
    "size=16",
    "layers=1",
    "dropout=0",
    "epochs=4",
    "training.batch_size=8",
]
SMALL = ["--threads", "1", "--quiet", "--set", *SMALL, "learning_rate=0.02"]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Nothing is kept in the cache of whoever runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run on made-up text, whose training files are gone."""
    folder = tmp_path_factory.mktemp("translation")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        files = write_parallel(folder, parallel_pairs())
        arguments = ["--attention", "structured", "--source", "char", *SMALL, "epochs=10", "size=32"]
        arguments += ["decay=0.7", "decay_after=6"]
        assert run("train", "translation", "--run", folder / "run", "--train", *files, *arguments) == 0
        assert run("evaluate", folder / "run") == 0
        for file in files:
            file.unlink()
    return folder / "run"


def test_a_model_learns_and_says_how_well(trained):
    lines = [json.loads(line) for line in (trained / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["valid_bleu"] > 40
    assert lines[-1]["valid_perplexity"] == pytest.approx(math.exp(lines[-1]["valid_loss"]))
    found = json.loads((trained / "evaluation.json").read_text())
    assert (found["attention"], found["source"], found["pairs"]) == ("structured", "char", 20)
    assert found["bleu"] == bleu(found["translations"], found["references"])["bleu"]


def test_predict_streams_in_order_without_the_training_data(trained, monkeypatch, capsys):
    sources = [source for source, _ in parallel_pairs()[:12]]
    lines = [*sources[:5], "", "  ", *sources[5:], "珍"]
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(f"{line}\n" for line in lines)))
    assert run("predict", trained) == 0
    together = capsys.readouterr().out.split("\n")
    assert together.pop() == ""
    assert len(together) == len(lines)
    assert together[5:7] == ["", ""]
    assert run("predict", trained, *sources) == 0
    assert capsys.readouterr().out.splitlines() == [*together[:5], *together[7:-1]]
    assert run("predict", trained, sources[0].replace(" ", "")) == 0
    assert capsys.readouterr().out.strip() == together[0], "spaces do not matter to characters"


def test_n_best(trained, capsys):
    source = parallel_pairs()[0][0]
    assert run("predict", trained, source) == 0
    best = capsys.readouterr().out.strip()
    assert run("predict", trained, "", source, "--n-best", 7) == 0
    lines = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [number for number, _, _ in lines] == ["2"] * 7, "more than the beam, and none for the empty line"
    scores = [float(score) for _, score, _ in lines]
    assert scores == sorted(scores, reverse=True)
    assert lines[0][2] == best
    assert len({text for _, _, text in lines}) == 7
    assert run("predict", trained, source, "--n-best", 0) == 2
    assert "--n-best must be at least 1" in capsys.readouterr().err


def test_evaluate_files_against_another_run(trained, tmp_path, capsys):
    files = write_parallel(tmp_path, parallel_pairs()[:30])
    other = tmp_path / "other"
    assert (
        run("train", "translation", "--run", other, "--train", *files, *SMALL, "epochs=1", "held_out=5") == 0
    )
    numbers = tmp_path / "numbers.json"
    assert run("evaluate", trained, "--data", *files, "--against", other, "--json", numbers) == 0
    found = json.loads(numbers.read_text())
    assert found["pairs"] == 30
    assert found["against"]["bleu"] < found["bleu"]
    assert found["against"]["p"] < 0.05
    assert "difference" in capsys.readouterr().out
    assert run("evaluate", other, "--against", other) == 0
    assert run("evaluate", trained, "--data", *files, files[0]) == 2
    assert "not 3 files" in capsys.readouterr().err


def test_a_run_goes_on_with_its_own_words_only(tmp_path, capsys):
    files = write_parallel(tmp_path, parallel_pairs()[:40])
    path = tmp_path / "run"
    assert run("train", "translation", "--run", path, "--train", *files, *SMALL, "epochs=1") == 0
    assert run("train", "translation", "--run", path, "--resume", "--quiet") == 0
    write_parallel(tmp_path, [(f"{source} 新", target) for source, target in parallel_pairs()[:40]])
    assert run("train", "translation", "--run", path, "--resume", "--quiet") == 2
    assert "are not those that this run began with" in capsys.readouterr().err


def test_mixed_precision_trains(tmp_path):
    files = write_parallel(tmp_path, parallel_pairs()[:40])
    arguments = ["--run", tmp_path / "run", "--train", *files, "--precision", "bf16-mixed", *SMALL]
    assert run("train", "translation", *arguments, "epochs=2") == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert lines[1]["loss"] < lines[0]["loss"]


def test_the_picture_shows_target_words_over_characters(trained, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(style, "JAPANESE_FONTS", ())  # with one of these, letters are outlines
    picture = tmp_path / "attention.svg"
    source, target = parallel_pairs()[0]
    arguments = ["plot", trained, f"{source} ||| {target}", "--beside", trained, trained, "--out", picture]
    assert run(*arguments) == 0
    drawn = picture.read_text()
    assert drawn.count(">structured</text>") == 3
    assert all(f">{symbol}</text>" in drawn for symbol in [*symbols_of(source, "char"), *target.split()])
    assert capsys.readouterr().err.count("no installed font has") == 1
    assert run("plot", trained, source, "--arcs", "--out", picture) == 2
    assert "--arcs" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--attention", "simpel"], 'did you mean "simple"'),
        (["--source", "chars"], 'did you mean "char"'),
        (["--train", "a", "b", "c"], "not 3 files"),
        (["--train", "a", "b"], "cannot read a"),
        (["--set", "decoder_start=first"], 'unknown value "first"'),
        (["--set", "dropout=1.0"], "model.dropout is a probability below 1"),
        (["--set", "held_out=-1"], "are not negative"),
        ([], "no enja in the data folder"),
    ],
)
def test_wrong_questions_to_the_command_line(tmp_path, capsys, arguments, what):
    assert run("train", "translation", "--run", tmp_path / "run", "--data-dir", tmp_path, *arguments) == 2
    assert what in capsys.readouterr().err


def test_the_full_preset_is_the_papers_setting():
    config = preset("translation", "full")
    training, data, model = config.training, config.data, config.model
    assert (training.epochs, training.batch_size, training.learning_rate) == (30, 128, 1.0)
    assert (training.optimizer, training.decay, training.decay_when_worse) == ("sgd", 0.5, True)
    assert (training.gradient_norm, training.initialisation, training.initial_scale) == (1.0, "uniform", 0.1)
    assert (data.least_count, data.longest_source, data.longest_target) == (10, 50, 50)
    assert (model.size, model.layers, model.dropout, model.input_feeding) == (500, 2, 0.3, False)
    assert (model.normalize, model.pairwise_penalty, config.decoding.beam) == (2.0, 0.005, 5)
    for name in ("quick", "laptop"):
        assert preset("translation", name).data.held_out == 500


def test_table_2_stands_beside_the_papers():
    table = Table2()
    jobs = table.jobs(2)
    assert len(jobs) == 12
    evaluations = {}
    for number, job in enumerate(jobs):
        source, attention, _ = job.name.split("-")
        evaluations[job.name] = {"source": source, "attention": attention, "bleu": 20.0 + number}
    rows = table.table(evaluations, "title").rows
    assert rows[0] == ["char", "23.0 ± 4.2", "12.6", "24.0 ± 4.2", "13.1", "25.0 ± 4.2", "14.6"]
    assert [row[-1] for row in rows] == [str(printed["structured"]) for printed in PAPER.values()]


@pytest.mark.skipif(not REAL.is_dir(), reason="the real pairs are not beside the checkout")
def test_the_real_pairs_are_read():
    config = TranslationConfig(TrainingSettings(), TranslationData(pairs=2000))
    recipe = TranslationRecipe(config, DataFolder(REAL.parent))
    assert len(recipe.prepared.train) + len(recipe.prepared.valid) <= 2000
    assert len(read_pairs(recipe.files("test"))) == 500
    assert len(read_pairs(recipe.files("train"))) == 50_000
    source, lengths, target = recipe.collate(recipe.training_examples()[:8])
    assert source.shape == (8, int(lengths.max()))
    assert (target[:, 0] == 2).all()
