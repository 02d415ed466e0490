"""bAbI's format, stacked seeds, and the commands."""

import json
import math
from pathlib import Path

import pytest
import torch
from stories import STORY, write_task
from torch.testing import assert_close

from structattn import cli
from structattn.recipes.data_folder import DataFolder
from structattn.recipes.errors import UserError
from structattn.recipes.qa.data import (
    Encoder,
    Question,
    parse_questions,
    read_questions,
    supporting_ages,
    task_file,
    vocabulary,
)
from structattn.recipes.qa.model import QAModelSettings
from structattn.recipes.qa.recipe import QAConfig, QAData, QARecipe
from structattn.recipes.qa.table import PAPER, Table3, facts_of_best
from structattn.recipes.run_folder import read_tensors
from structattn.recipes.tasks import preset

REAL = Path(__file__).parents[2] / "shared" / "data" / "babi" / "en"


@pytest.fixture
def folder(tmp_path):
    path = tmp_path / "data" / "babi" / "en"
    path.mkdir(parents=True)
    write_task(path)
    return path


def test_questions_are_asked_of_the_facts_before_them():
    first, second, third = parse_questions(STORY.splitlines(), "story")
    assert first.facts == ("Ann went to the shed.", "Ann took the ball there.", "Ben went to the attic.")
    assert (first.text, first.answer, first.supporting) == ("Where is the ball?", "shed", (1, 0))
    assert len(second.facts) == 4, "a question is no fact"
    assert second.supporting == (1, 3)
    assert (third.facts, third.answer) == (("Ben took the ball.",), "ball,nothing")
    assert supporting_ages(second) == [2, 0]
    words = vocabulary([first, second, third])
    assert words[0] == ""
    assert "ball,nothing" in words
    assert len(words) == len(set(words))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1 Ann slept.\n3 Ben slept.\n", "line 2: number 3 follows 1; expected 2 or 1"),
        ("2 Ann slept.\n", "line 1: number 2 follows 0"),
        ("1 Ann slept.\n2 Who slept?\n", "line 2: a question needs a tab"),
        ("1 Who slept?\tAnn\t1\n", "line 1: a question without a fact before it"),
        ("1 Ann slept.\n2 Who slept?\t\t1\n", "line 2: the question has no answer"),
        ("1 Ann slept.\n2 Who slept?\tAnn\t7\n", "line 2: supporting fact 7 is no fact"),
        ("1 Ann slept.\n2 Who slept?\tAnn\tx\n", "line 2: supporting fact x is no fact"),
        ("Ann slept.\n", "line 1: expected a number"),
        ("1 Ann slept.\n\n", "line 2: expected a number"),
        ("1 Ann slept.\n", "holds no questions"),
    ],
)
def test_malformed_files_are_refused_with_file_line_and_reason(tmp_path, text, what):
    path = tmp_path / "qa9_x_test.txt"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_questions(path)
    assert what in str(caught.value)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path):
    path = tmp_path / "qa9_x_test.txt"
    path.write_bytes(b"1 Ann slept.\n2 Ben \xff slept.\n")
    with pytest.raises(UserError, match="line 2: not UTF-8"):
        read_questions(path)
    with pytest.raises(UserError, match="cannot read"):
        read_questions(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"no qa3_\*_train\.txt"):
        task_file(tmp_path, 3, "train")


def test_an_answer_that_the_model_cannot_know_is_named():
    questions = parse_questions(STORY.splitlines(), "story")
    encoder = Encoder(vocabulary(questions), 25, "longest", 2.0, 6)
    with pytest.raises(UserError, match="story, line 9: the answer 'well' is unknown"):
        encoder.encode([questions[0]._replace(answer="well", origin="story, line 9")])


def config_of(folder, kind="binary", seeds=1, seed=1, **model):
    config = QAConfig(data=QAData(folder=str(folder)))
    config.training.seeds, config.training.seed = seeds, seed
    config.model = QAModelSettings(kind=kind, size=4, **model)
    return config


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


SMALL = ["--threads", "1", "--quiet", "--set", "epochs=4", "linear_start=2", "size=6", "batch_size=4"]


@pytest.mark.parametrize("kind", ["memn2n", "unary", "binary"])
def test_stacked_seeds_train_as_each_does_alone(folder, tmp_path, kind):
    common = ["--data-dir", folder.parents[1], "--precision", "64-true", *SMALL, "learning_rate=0.05"]
    assert run("train", "qa", "--model", kind, "--run", tmp_path / "all", *common, "seeds=3") == 0
    stacked, _ = read_tensors(tmp_path / "all" / "model.safetensors")
    losses = [json.loads(line) for line in (tmp_path / "all" / "metrics.jsonl").read_text().splitlines()]
    for number in range(3):
        alone = tmp_path / f"seed{number + 1}"
        assert run("train", "qa", "--model", kind, "--seed", number + 1, "--run", alone, *common) == 0
        weights, _ = read_tensors(alone / "model.safetensors")
        for name, tensor in weights.items():
            assert_close(stacked[name][number : number + 1], tensor, rtol=1e-9, atol=1e-11)
        lines = [json.loads(line) for line in (alone / "metrics.jsonl").read_text().splitlines()]
        assert [line["loss"] for line in lines] == pytest.approx([line["loss"][number] for line in losses])
    assert not torch.equal(stacked["embedding"][0], stacked["embedding"][1])


def test_each_seed_keeps_its_best_epoch_after_the_linear_start(folder, tmp_path):
    path = tmp_path / "run"
    assert (
        run("train", "qa", "--run", path, "--data-dir", folder.parents[1], *SMALL, "epochs=6", "seeds=4") == 0
    )
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    json_file = tmp_path / "numbers.json"
    assert run("evaluate", path, "--data-dir", folder.parents[1], "--json", json_file) == 0
    found = json.loads(json_file.read_text())
    for number, one in enumerate(found["seeds"]):
        best = max(line["valid_accuracy"][number] for line in lines[2:])
        assert one["valid_accuracy"] == pytest.approx(best)
    best = max(range(4), key=lambda number: found["seeds"][number]["valid_accuracy"])
    assert (found["best_seed"], found["accuracy"]) == (best + 1, found["seeds"][best]["accuracy"])
    assert found == json.loads((path / "evaluation.json").read_text())


def test_predict_and_plot_follow_the_best_model(folder, tmp_path, capsys):
    path = tmp_path / "run"
    data = ["--data-dir", folder.parents[1]]
    assert run("train", "qa", "--run", path, *data, *SMALL, "seeds=2") == 0
    story = ["Ann took the ball.", "Ben went to the hall.", "Ann went to the shed.", "Where is the ball?"]
    capsys.readouterr()
    assert run("predict", path, *data, *story) == 0
    *facts, answer = capsys.readouterr().out.split("\n")[:4]
    assert facts == ["", "", ""]
    word, probability, followed, likelihood = answer.split("\t")
    assert word
    assert 0 < float(probability) <= 1
    assert set(followed.split()) <= {"1", "2", "3"}
    assert len(followed.split()) == 2
    assert 0 < float(likelihood) <= 1
    picture = tmp_path / "lattice.svg"
    assert run("plot", path, " / ".join(story), *data, "--out", picture) == 0
    drawn = picture.read_text()
    assert all(
        text in drawn for text in ("Ben went to the hall.", "Where is the ball?", "binary CRF, task 2")
    )
    assert run("plot", path, "Ann slept.", *data, "--out", picture) == 2
    assert "a story ends with a question" in capsys.readouterr().err


def test_what_is_followed_is_the_chain_of_the_stacked_model(folder):
    recipe = QARecipe(config_of(folder, seeds=2), DataFolder(folder))
    torch.manual_seed(0)
    model = recipe.build_model()
    for weights in model.parameters():
        torch.nn.init.normal_(weights)
    question = recipe.splits["test"][0]
    found = recipe.follow(model, question, sequences=100)
    count = len(question.facts)
    assert sum(p for _, p in found.sequences) == pytest.approx(1, abs=1e-5)
    assert len(found.sequences) == count * (count - 1), "no fact twice in a row"
    assert_close(found.nodes.sum(1), torch.ones(2))
    best, probability = found.sequences[0]
    i, j = (found.facts.index(fact) for fact in best)
    assert float(found.edges[0, i, j]) == pytest.approx(probability, rel=1e-4)


def test_the_last_questions_validate_or_random_ones(folder):
    questions = read_questions(task_file(folder, 2, "train"))
    last = QARecipe(config_of(folder), DataFolder(folder)).splits
    assert (last["train"], last["valid"]) == (questions[:27], questions[27:])
    config = config_of(folder)
    config.data.hold_out = "random"
    drawn = QARecipe(config, DataFolder(folder)).splits
    assert sorted(drawn["train"] + drawn["valid"]) == sorted(questions)
    assert drawn["valid"] != last["valid"]


def test_the_memory_holds_the_most_recent_facts():
    facts = tuple(f"Fact {number}." for number in range(40))
    encoder = Encoder(vocabulary([Question(facts, "Which?")]), 25, "longest", 2.0, 2)
    batch = encoder.encode([Question(facts, "Which?")])
    assert batch.lengths.tolist() == [25]
    assert batch.facts[0].unique().numel() == 25
    first = batch.sentences[batch.facts[0, 0]].view(2, -1)
    assert first[:, encoder.number_of["39"]].any(), "the youngest is first"


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--model", "trinary"], 'model.kind: unknown value "trinary"; did you mean "binary"'),
        (["--attention", "simple"], "--attention means nothing to qa"),
        (["--set", "hold_out=lats"], 'data.hold_out: unknown value "lats"; did you mean "last"'),
        (["--set", "position_encoding=short"], "model.position_encoding: unknown value"),
        (["--set", "position_scale=0"], "model.position_scale must be positive, not 0"),
        (["--set", "epochs=5"], "must be more than model.linear_start"),
        (["--set", "decay_when_worse=true", "seeds=2"], "is about one model"),
        (["--task", "77"], "holds no qa77_*_train.txt"),
    ],
)
def test_wrong_questions_to_the_command_line(folder, tmp_path, capsys, arguments, what):
    wrong = ["train", "qa", "--run", tmp_path / "run", "--data-dir", folder.parents[1], *arguments]
    assert run(*wrong) == 2
    assert what in capsys.readouterr().err


def test_the_presets_are_the_papers():
    full = preset("qa", "full")
    assert (full.training.epochs, full.training.decay_every, full.training.decay) == (100, 25, 0.5)
    assert (full.training.learning_rate, full.training.gradient_norm) == (0.01, 40.0)
    assert (full.model.size, full.model.memory, full.model.linear_start) == (20, 25, 20)
    assert preset("qa", "quick").training.epochs < 100


def test_table_3_stands_beside_the_papers():
    table = Table3()
    assert len(table.jobs(20)) == 36
    assert [job.name for job in table.jobs(20, [15])] == ["task15-memn2n", "task15-binary", "task15-unary"]
    assert statistics_of("binary", 0) == pytest.approx(81.0, abs=0.05), "the printed averages"
    assert statistics_of("binary", 1) == pytest.approx(53.7, abs=0.05)
    assert statistics_of("unary", 0) == pytest.approx(73.8, abs=0.05)
    assert statistics_of("memn2n", 0) == pytest.approx(81.4, abs=0.05)
    seeds = [{"seed": n, "facts": float(n), "valid_accuracy": 1, "accuracy": 1} for n in range(20)]
    assert facts_of_best({"seeds": seeds}) == pytest.approx(14.5), "the mean of the ten best of twenty"
    evaluations = {
        model: {"babi_task": 15, "model": model, "steps": 2, "accuracy": 50.0, "seeds": seeds}
        for model in ("memn2n", "binary", "unary")
    }
    found = table.table(evaluations, "title")
    assert found.rows[0][:5] == ["15", "2", "50.0", "100.0", "14.5"]
    assert found.rows[-1][0] == "average"


def statistics_of(model, column):
    values = [printed[model][column] for printed in PAPER.values() if printed[model][column] is not None]
    return math.fsum(values) / len(values)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real bAbI is not beside the checkout")
@pytest.mark.parametrize("task", range(1, 21))
def test_the_real_files_are_read(task):
    for part in ("train", "test"):
        questions = read_questions(task_file(REAL, task, part))
        assert len(questions) == 1000
        assert all(question.supporting for question in questions)
