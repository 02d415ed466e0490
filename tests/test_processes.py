"""Two processes take the steps of one: with stochastic gradient descent, which does not enlarge rounding."""

from pathlib import Path

import pytest
import torch
from parallel import parallel_pairs, write_parallel
from trainings import command, run, weights

TREEBANK = Path(__file__).parents[1] / "examples" / "sentences.conllu"
SETTINGS = ["--preset", "quick", "--threads", "1", "--quiet", "--set", "training.batch_size=5", "epochs=2"]
SETTINGS += ["optimizer=sgd", "learning_rate=0.1", "dropout=0"]
PARSER = ["least_affixes=1", "lstm_size=24", "arc_size=24", "word_size=16", "affix_size=16", "vectors="]
TRANSLATION = ["least_count=1", "size=12", "held_out=5", "pairs=33"]


def arguments_of(task, folder):
    if task == "parser":
        return ["--treebank", TREEBANK, "--valid", TREEBANK, *SETTINGS, "word_dropout=0", *PARSER]
    return ["--train", *write_parallel(folder, parallel_pairs()), *SETTINGS, *TRANSLATION]


@pytest.mark.parametrize("task", ["parser", "translation"])
def test_two_processes_equal_one(tmp_path, monkeypatch, task):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    arguments = arguments_of(task, tmp_path / "data")
    assert run("train", task, "--run", tmp_path / "one", *arguments) == 0
    with command("train", task, "--run", tmp_path / "two", "--devices", 2, *arguments) as process:
        _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    one, two = weights(tmp_path / "one"), weights(tmp_path / "two")
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(two[name], one[name], rtol=0, atol=1e-5)
