"""What goes wrong on the way: full disks, damaged files, numbers that are none, processes that die, planted code."""

import json
import pickle
import re
import resource
import shutil

import pytest
import torch
from trainings import LONGER, SMALL, command, run, same, wait_for, weights

from structattn.recipes.errors import UserError
from structattn.recipes.run_folder import RunFolder, read_tensors
from structattn.recipes.running import open_run

RESUME = ["--resume", "--threads", 1, "--quiet"]


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "unbroken"
    assert run("train", "transduction", "--run", folder, *LONGER) == 0
    return folder


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """The folder of a run that was stopped after some checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "stopped"
    with command("train", "transduction", "--run", folder, *LONGER) as process:
        wait_for(folder / "previous.safetensors", process)
        process.terminate()
        process.communicate(timeout=60)
    assert process.returncode == 130
    return folder


@pytest.fixture
def interrupted(stopped, tmp_path):
    """A copy of it."""
    return shutil.copytree(stopped, tmp_path / "interrupted")


def test_a_full_disk_ends_a_training_in_words_and_loses_nothing(tmp_path, unbroken):
    """No file of the process may grow beyond 1 kB any more: what a full disk does, without one."""
    folder = tmp_path / "full"
    with command("train", "transduction", "--run", folder, *LONGER) as process:
        wait_for(folder / "checkpoint.safetensors", process)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1000, 1000))
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 2, errors
    assert re.fullmatch(
        r"structattn: cannot write \S+: .*File too large.*; what was there before is untouched\n", errors
    )
    assert [path.name for path in folder.iterdir() if path.name.startswith(".")] == [".lock"]
    assert run("train", "transduction", "--run", folder, *RESUME) == 0
    assert same(weights(folder), weights(unbroken))


@pytest.mark.parametrize("what", ["truncated", "altered", "emptied", "missing"])
def test_of_a_damaged_checkpoint_the_one_before_it_is_used(interrupted, unbroken, what, capsys):
    path = interrupted / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    middle = len(content) // 2
    content[middle] ^= 1
    if what == "missing":
        path.unlink()
    else:
        path.write_bytes({"truncated": content[:middle], "altered": content, "emptied": b""}[what])
    assert run("train", "transduction", "--run", interrupted, *RESUME) == 0
    told = capsys.readouterr().err
    if what != "missing":  # which is what a kill between two moves leaves
        assert told.startswith(f"structattn: {path} is damaged")
        assert told.endswith("going on from previous.safetensors\n")
    assert same(weights(interrupted), weights(unbroken))


def test_without_a_good_checkpoint_the_damaged_file_is_named(interrupted, capsys):
    for name in ("checkpoint", "previous"):
        path = interrupted / f"{name}.safetensors"
        path.write_bytes(path.read_bytes()[:-1])
    assert run("train", "transduction", "--run", interrupted, *RESUME) == 2
    assert f"{interrupted / 'previous.safetensors'} is damaged" in capsys.readouterr().err


@pytest.mark.parametrize("place", [0.3, 0.6, 0.99])
def test_one_altered_bit_of_the_weights_is_noticed(tmp_path, place):
    saved = RunFolder(tmp_path)
    model = torch.nn.Linear(30, 20)
    saved.save_weights(model)
    path = tmp_path / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[round(place * len(content))] ^= 1
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"model\.safetensors is damaged"):
        saved.load_weights(model)


@pytest.mark.parametrize(
    ("name", "content", "question"),
    [
        ("config.toml", 'task = "transduction"\n[model', ["evaluate"]),
        ("config.toml", 'task = "transduction"\n[model]\nsise = 3', ["evaluate"]),
        ("config.toml", "task = 3", ["evaluate"]),
        ("metrics.jsonl", '{"epoch": 1}\n{"ep', ["plot", "--curves", "--out", "x.svg"]),
        ("model.safetensors", "", ["predict", "(+ 1 2)"]),
    ],
)
def test_a_damaged_run_folder_is_refused_with_the_file_named(
    tmp_path, unbroken, capsys, name, content, question
):
    folder = shutil.copytree(unbroken, tmp_path / "damaged")
    (folder / name).write_text(content)
    assert run(question[0], folder, *question[1:]) == 2
    error = capsys.readouterr().err
    assert str(folder / name) in error
    assert error.count("\n") == 1


class Planted:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


def test_a_run_folder_from_a_stranger_runs_no_code(tmp_path, unbroken, capsys):
    mark = tmp_path / "planted code has run"
    torch.save({"weight": Planted(mark)}, tmp_path / "saved.pt")
    code = [pickle.dumps(Planted(mark)), (tmp_path / "saved.pt").read_bytes()]
    for content in code:
        for name in ("model", "checkpoint", "previous"):
            folder = shutil.copytree(unbroken, tmp_path / "stranger", dirs_exist_ok=True)
            (folder / f"{name}.safetensors").write_bytes(content)
            (folder / "checkpoint.pt").write_bytes(content)
            with pytest.raises(UserError, match="is damaged"):
                read_tensors(folder / f"{name}.safetensors")
            assert run("predict", folder, "(+ 1 2)") == (2 if name == "model" else 0)
            assert run("train", "transduction", "--run", folder, *RESUME) == 0
    assert not mark.exists()
    pickle.loads(code[0]).close()
    assert mark.exists(), "the code would have run"


def test_the_last_weights_before_a_loss_that_is_no_number_are_kept(tmp_path, capsys):
    """After the first epoch the learning rate becomes so large that no second batch of steps can be computed."""
    folder = tmp_path / "poisoned"
    settings = [*SMALL, "training.batch_size=4", "decay=1e30", "decay_after=1"]
    assert run("train", "transduction", "--run", folder, *settings) == 2
    message = capsys.readouterr().err
    epoch, batch = map(int, re.search(r"epoch (\d+), batch (\d+): the loss is", message).groups())
    assert epoch == 2
    assert batch > 1
    tensors, state = read_tensors(folder / "checkpoint.safetensors")
    assert (state["epoch"], state["batch"]) == (epoch, batch - 1)
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert all(tensor.isfinite().all() for tensor in open_run(folder).model.state_dict().values()), (
        "the first epoch's"
    )
    assert [json.loads(line)["epoch"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [1]
    assert run("train", "transduction", "--run", folder, *RESUME) == 2
    assert f"epoch {epoch}, batch {batch}: the loss is" in capsys.readouterr().err


def test_a_second_process_in_a_run_folder_is_refused(tmp_path, capsys):
    folder = tmp_path / "run"
    with command("train", "transduction", "--run", folder, *LONGER, "epochs=1000") as process:
        wait_for(folder / "checkpoint.safetensors", process)
        assert run("train", "transduction", "--run", folder, *RESUME) == 2
        assert f"{folder} is in use by another process" in capsys.readouterr().err
        process.kill()
