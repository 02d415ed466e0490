"""Two processes take the steps of one, with stochastic gradient descent, which does not enlarge rounding; and each of
them reads only its part of the examples."""

import json
import shutil
import socket
from pathlib import Path

import pytest
import torch
from inferences import SETTINGS as ENTAILMENT
from inferences import write_entailment
from parallel import parallel_pairs, write_parallel
from trainings import command, run, weights

from structattn.recipes.transduction.data import TransductionData, draw_splits, write_pairs

TREEBANK = Path(__file__).parents[1] / "examples" / "sentences.conllu"
READING = Path(__file__).with_name("reading.py")
SETTINGS = ["--preset", "quick", "--threads", "1", "--quiet", "--set", "training.batch_size=5", "epochs=2"]
SETTINGS += ["optimizer=sgd", "learning_rate=0.1"]
PARSER = [
    "dropout=0",
    "word_dropout=0",
    "least_affixes=1",
    "lstm_size=24",
    "arc_size=24",
    "word_size=16",
    "affix_size=16",
]
TRANSLATION = ["dropout=0", "least_count=1", "size=12", "held_out=5", "pairs=33"]


def arguments_of(task, data):
    """What trains it, on files in the folder `data`."""
    data.mkdir()
    if task == "parser":
        treebank = shutil.copy(TREEBANK, data)
        vectors = data / "vectors.txt"
        vectors.write_text("the 1 2 3\na 3 2 1\n")
        settings = [*SETTINGS, *PARSER, f"vectors={vectors}"]
        return ["--treebank", treebank, "--valid", treebank, *settings]
    if task == "translation":
        return ["--train", *write_parallel(data, parallel_pairs()), *SETTINGS, *TRANSLATION]
    if task == "transduction":
        for name, pairs in draw_splits(TransductionData(train_per_depth=9, valid_per_depth=2)).items():
            write_pairs(pairs, data / f"{name}.txt")
        return [*SETTINGS, "size=12", f"folder={data}"]
    folder = write_entailment(data / "all")
    return ["--attention", "pretrained", "--data-dir", folder, *SETTINGS, "dropout=0", *ENTAILMENT]


@pytest.mark.parametrize("task", ["parser", "translation", "entailment", "transduction"])
def test_two_processes_equal_one_and_each_reads_its_part(tmp_path, monkeypatch, task):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("NOTES", str(tmp_path))
    arguments = arguments_of(task, tmp_path / "data")
    assert run("train", task, "--run", tmp_path / "one", *arguments) == 0
    two = ["train", task, "--run", tmp_path / "two", "--devices", 2, *arguments]
    with command(*two, program=[READING]) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-5)

    first, second = (json.loads((tmp_path / f"{number}.json").read_text()) for number in (0, 1))
    assert any(str(tmp_path / "data") in path for path in first["opened"])
    assert not any(str(tmp_path / "data") in path for path in second["opened"])
    for epoch in (0, 1):
        read = [half(notes["rows"], epoch) for notes in (first, second)]
        assert sorted(read[0] + read[1]) == list(range(len(first["rows"] + second["rows"]) // 2))
        assert abs(len(read[0]) - len(read[1])) <= len(read[0]) // 2


def test_two_machines_train_one_model(tmp_path, monkeypatch, capsys):
    """Both are this one; what tells them apart, and where the first one is, they learn from their environment."""
    small = [*SETTINGS, "train_per_depth=8", "valid_per_depth=2", "test_per_depth=2", "epochs=1"]
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    with socket.create_server(("127.0.0.1", 0)) as free:
        monkeypatch.setenv("MASTER_PORT", str(free.getsockname()[1]))
    two = ["train", "transduction", "--nodes", 2, *small]
    machines = []
    for number in "01":
        monkeypatch.setenv("NODE_RANK", number)
        machines.append(command(*two, "--run", tmp_path / "two"))
    for process in machines:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    monkeypatch.delenv("NODE_RANK")
    assert run(*two, "--run", tmp_path / "nobody") == 2
    assert "--nodes 2: NODE_RANK must be set on each machine" in capsys.readouterr().err
    assert run("train", "transduction", "--run", tmp_path / "one", *small) == 0
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-5)


def half(numbers, which):
    middle = len(numbers) // 2
    return numbers[middle:] if which else numbers[:middle]
