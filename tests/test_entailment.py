"""SNLI's files, words and trees of parses, and the commands, on small data written here."""

import json
from pathlib import Path

import pytest
import torch
from inferences import SETTINGS, parse, rows, write_entailment, write_rows
from torch.testing import assert_close

from structattn import cli
from structattn.recipes.entailment.data import LABELS, read_pairs, split_file, statement, words_of
from structattn.recipes.entailment.lexicon import Lexicon
from structattn.recipes.entailment.model import (
    STRUCTURES,
    EntailmentModel,
    EntailmentModelSettings,
)
from structattn.recipes.entailment.pretraining import PretrainingSettings, parsed_sentences, pretrain
from structattn.recipes.entailment.scores import label_scores, random_trees, tree_scores
from structattn.recipes.entailment.table import PAPER, Table4
from structattn.recipes.entailment.trees import head_child, heads_of, source_of_trees, tree_of, trees_of
from structattn.recipes.errors import UserError
from structattn.recipes.run_folder import read_tensors
from structattn.recipes.running import open_run
from structattn.recipes.tasks import preset
from structattn.recipes.treebank import Sentence, is_projective, write_treebank, wrong_head
from structattn.show.entailment import view_entailment

REAL = Path(__file__).parents[2] / "shared" / "data"
real = pytest.mark.skipif(not REAL.is_dir(), reason="the real SNLI is not beside the checkout")


@pytest.fixture
def folder(tmp_path):
    """A data folder: SNLI, and vectors of all words but one."""
    return write_entailment(tmp_path / "data")


SMALL = ["--threads", "1", "--quiet", "--set", *SETTINGS, "training.epochs=2", "batch_size=4"]


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


@pytest.mark.parametrize("name", ["a.jsonl", "a.txt", "a.jsonl.gz", "a.txt.gz"])
def test_all_forms_of_the_files_hold_the_same_pairs(tmp_path, name):
    pairs = read_pairs(write_rows(tmp_path / name, rows()))
    assert len(pairs) == 54, "rows without a gold label are left out"
    assert [pair.label for pair in pairs[:3]] == ["entailment", "contradiction", "neutral"]
    assert pairs[0].premise.words == ("the", "man", "sleeps", "in", "the", "park", ".")
    assert pairs[0].premise is pairs[1].premise, "a premise is kept once"
    line = 3 if ".txt" in name else 2
    assert pairs[1].origin == f"{tmp_path / name}, line {line}"


def test_rows_without_parses_are_cut_into_words(tmp_path):
    bare = ({key: row[key] for key in ("gold_label", "sentence1", "sentence2")} for row in rows())
    pairs = read_pairs(write_rows(tmp_path / "a.jsonl", bare))
    assert pairs[0].premise.words == ("the", "man", "sleeps", "in", "the", "park", ".")
    assert pairs[0].premise.parse == ""


GOOD = {"gold_label": "neutral", "sentence1": "A man.", "sentence2": "A dog."}


@pytest.mark.parametrize(
    ("name", "text", "what"),
    [
        ("a.jsonl", json.dumps(GOOD) + "\n{\n", "line 2: no JSON"),
        ("a.jsonl", '{"gold_label": "neutral"}\n', "line 1: expected an object with texts"),
        ("a.jsonl", "[1]\n", "line 1: expected an object with texts"),
        (
            "a.jsonl",
            json.dumps({**GOOD, "gold_label": "neutrl"}),
            'line 1: unknown label "neutrl"; did you mean',
        ),
        (
            "a.jsonl",
            json.dumps({**GOOD, "sentence1_parse": "(ROOT (NN man)"}),
            "line 1: the parse is no balanced",
        ),
        ("a.jsonl", json.dumps({**GOOD, "gold_label": "-"}), "holds no labelled pairs"),
        (
            "a.txt",
            "gold_label\tsentence1\n",
            "line 1: expected the names of the fields, sentence2 among them",
        ),
        (
            "a.txt",
            "gold_label\tsentence1\tsentence2\nneutral\tA man.\n",
            "line 2: expected 3 fields, found 2",
        ),
        ("a.csv", "x", "expected a file that ends in .jsonl"),
        ("a.jsonl.gz", "x", "the archive is damaged"),
    ],
)
def test_malformed_files_are_refused_with_file_line_and_reason(tmp_path, name, text, what):
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        read_pairs(path)
    assert what in str(caught.value)
    assert str(path) in str(caught.value)


def test_bytes_that_are_no_text_are_refused_with_their_line(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(json.dumps(GOOD).encode() + b"\n\xff\n")
    with pytest.raises(UserError, match="line 2: not UTF-8"):
        read_pairs(path)
    with pytest.raises(UserError, match="cannot read"):
        read_pairs(tmp_path / "nothing.jsonl")


def test_a_folder_is_taken_as_the_archive_unpacks_it(folder):
    assert split_file(folder / "snli", "train").name == "snli_1.0_train.jsonl"
    assert split_file(folder / "snli", "dev").name == "snli_1.0_dev.txt"
    with pytest.raises(UserError, match=r"holds no \*_test.jsonl"):
        split_file(folder / "snli", "test")
    (folder / "snli" / "snli_1.0_train.jsonl").rename(folder / "snli" / "snli_1.0_train_partial.jsonl")
    assert split_file(folder / "snli", "train").name == "snli_1.0_train_partial.jsonl"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("They don't; we can't.", "They do n't ; we ca n't ."),
        ("A man's dog, isn't it?", "A man 's dog , is n't it ?"),
        ('He says "stop" (twice)', "He says `` stop '' ( twice )"),
        ("Mt. Fuji at 10:30 a.m. in a t-shirt...", "Mt. Fuji at 10:30 a.m. in a t-shirt ..."),
        ("I cannot pay $5,000", "I can not pay $ 5,000"),
        ("", ""),
    ],
)
def test_words_without_a_parse(text, words):
    assert words_of(text) == words.split()


@pytest.mark.parametrize(
    ("bracketing", "heads"),
    [
        (parse("man", "sleeps", "park"), [2, 3, 0, 3, 6, 4, 3]),
        ("(ROOT (NP (NP (DT A) (NN man)) (CC and) (NP (DT a) (NN dog))))", [2, 0, 2, 5, 2]),
        ("(ROOT (NP (DT A) (NN man) (CC and) (NN dog)))", [2, 0, 2, 2]),
        ("(ROOT (S (NP-SBJ (PRP He)) (VP (MD will) (VP (VB go)))))", [2, 0, 2]),
        ("(ROOT (NP (NP (DT a) (NN man) (POS 's)) (NN hat)))", [3, 3, 4, 0]),
        ("(ROOT (. .))", [0]),
        (
            "( (S (NP (PRP It)) (VP (VBZ is) (SBAR (IN that) (S (NP (PRP we)) (VP (VBP go)))))))",
            [2, 0, 2, 5, 3],
        ),
    ],
)
def test_heads_by_the_rules(bracketing, heads):
    assert heads_of(bracketing) == heads
    assert wrong_head(heads) is None


def test_the_head_is_never_punctuation_unless_there_is_nothing_else():
    assert head_child("S", [",", "NP", "."]) == 1
    assert head_child("X", [",", "UH", "."]) == 1
    assert head_child("NP", [".", "."]) in (0, 1)


@pytest.mark.parametrize("bracketing", ["", "(ROOT", "(ROOT ())", "(A b))", "(A b) (C d)"])
def test_what_is_no_bracketing_is_refused(bracketing):
    with pytest.raises(ValueError, match="bracket"):
        heads_of(bracketing)


def test_a_treebank_gives_trees_by_characters(tmp_path):
    path = tmp_path / "trees.conllu"
    write_treebank([Sentence(["Do", "not", "go", "."], [3, 3, 0, 3], ["_"] * 4, [])], path)
    find = source_of_trees(str(path))
    found = trees_of([statement("Do not go.")], find, str(path))
    assert (found[0].words, found[0].heads) == (("Do", "not", "go", "."), (3, 3, 0, 3))
    with pytest.raises(UserError, match="has no tree for 'Go!'"):
        trees_of([statement("Go!")], find, str(path))
    with pytest.raises(UserError, match="it has no parse for 'Go!'; train a parser"):
        trees_of([statement("Go!")], source_of_trees("parses"), "parses")
    with pytest.raises(UserError, match="no file or run"):
        source_of_trees(str(tmp_path / "nothing"))


def test_a_word_is_looked_up_as_it_is_then_in_lowercase_then_hashed(folder):
    lexicon = Lexicon(folder / "vectors" / "vectors.txt", 6, 100, True)
    lexicon.learn(["The", "the", "man"])
    before = lexicon.encode(["The", "the", "man"])
    lexicon.learn(["Zyzzyva", "dog"])
    assert lexicon.encode(["The", "the", "man"]) == before
    assert before.rows[1] == before.rows[2] != before.rows[3]
    assert 0 < lexicon.encode(["Zyzzyva"]).rows[1] <= 100
    assert_close(lexicon.table.norm(dim=1), torch.ones(len(lexicon.table)))
    vectors, words, lengths = lexicon.batch([before, lexicon.encode(["dog"])])
    assert lengths.tolist() == [4, 2]
    assert_close(vectors[words[0]], lexicon.table[before.rows])


def test_pretraining_learns_trees(folder):
    torch.manual_seed(0)
    lexicon = Lexicon(folder / "vectors" / "vectors.txt", 6, 100, True)
    trees = parsed_sentences(folder / "snli" / "snli_1.0_train.jsonl")
    assert len({tree.words for tree in trees}) == len(trees) == 18 + 9 + 9
    model = EntailmentModel(
        EntailmentModelSettings(attention="pretrained", size=4, hidden=4, lstm=8, arc_size=8), 6
    )
    before = {name: weights.clone() for name, weights in model.named_parameters()}

    def mean_log_prob():
        each = [model.log_prob(*lexicon.batch([lexicon.encode(*tree)])).item() for tree in trees]
        return sum(each) / len(each)

    lexicon.learn(word for tree in trees for word in tree.words)
    untrained = mean_log_prob()
    pretrain(model, lexicon, trees, PretrainingSettings(passes=5, sentences=8), seed=1)
    assert mean_log_prob() > untrained + 1
    for name, weights in model.named_parameters():
        assert torch.equal(weights, before[name]) != name.startswith("parents."), name


def test_scores_by_hand():
    found = label_scores([0, 0, 1, 2], [0, 1, 1, 1])
    assert (found["pairs"], found["accuracy"]) == (4, 50.0)
    assert found["labels"]["entailment"] == {"pairs": 2, "precision": 100.0, "recall": 50.0}
    assert found["labels"]["neutral"]["precision"] == pytest.approx(100 / 3)
    assert found["labels"]["contradiction"] == {"pairs": 1, "precision": 0.0, "recall": 0.0}
    assert found["confusion"]["entailment"] == {"entailment": 1, "neutral": 1, "contradiction": 0}
    gold = [[2, 0, 2], [0]]
    trees = tree_scores(gold, [[2, 0, 1], [0]])
    assert trees["uas"] == 75.0
    assert (trees["left_branching"], trees["right_branching"]) == (50.0, 50.0)
    assert (trees["sentences"], trees["words"]) == (2, 4)
    drawn = random_trees([5, 2, 5, 9])
    assert drawn == random_trees([5, 2, 5, 9])
    assert [len(heads) for heads in drawn] == [5, 2, 5, 9]
    assert all(wrong_head(heads) is None and is_projective(heads) for heads in drawn)


def test_train_evaluate_predict_and_plot(folder, tmp_path, capsys):
    path, data = tmp_path / "run", ["--data-dir", folder]
    arguments = [*SMALL, "training.epochs=15", "learning_rate=0.01", "optimizer=adam", "dropout=0.0"]
    assert run("train", "entailment", "--run", path, *data, *arguments) == 0
    lines = [json.loads(line) for line in (path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["valid_accuracy"] > 60, "a third by chance"
    assert run("evaluate", path, *data) == 0
    found = json.loads((path / "evaluation.json").read_text())
    assert found["data"] == "snli_1.0_dev.txt"
    assert found["accuracy"] == pytest.approx(lines[-1]["valid_accuracy"])
    assert found["trees"]["random"] > 0
    printed = capsys.readouterr().out
    assert "precision" in printed
    assert "left-branching" in printed
    test = write_rows(tmp_path / "test.jsonl.gz", rows())
    assert run("evaluate", path, *data, "--data", test, "--json", tmp_path / "numbers.json") == 0
    assert json.loads((tmp_path / "numbers.json").read_text())["pairs"] == 54
    capsys.readouterr()
    assert run("predict", path, *data, "The man sleeps in the park.\tThe man sleeps.", "", "A\tB") == 0
    first, second, third = capsys.readouterr().out.splitlines()
    assert second == ""
    for line in (first, third):
        label, probabilities = line.split("\t")
        shares = dict(zip(probabilities.split()[::2], map(float, probabilities.split()[1::2]), strict=True))
        assert max(shares, key=shares.get) == label
        assert sum(shares.values()) == pytest.approx(1, abs=2e-3)
        assert tuple(shares) == LABELS
    assert run("predict", path, *data, "no tab") == 2
    assert "line 1: expected a premise, one tab" in capsys.readouterr().err
    for picture, arcs in (("a.svg", ["--arcs"]), ("b.svg", [])):
        assert (
            run("plot", path, "The man waits.\tA dog sings.", *data, "--out", tmp_path / picture, *arcs) == 0
        )
        drawn = (tmp_path / picture).read_text()
        assert all(word in drawn for word in ("man", "waits", "dog", "sings", "structured"))
    view = view_entailment(open_run(path, folder), None, 1.0)
    assert view.answer.splitlines()[0] in LABELS
    assert set(view.pictures) == {"best trees", "heat map", "arcs"}
    sharp = view_entailment(open_run(path, folder), None, 0.05)
    for near, far in zip(sharp.numbers["parents"], view.numbers["parents"], strict=True):
        assert torch.tensor(near).max(0).values.sum() > torch.tensor(far).max(0).values.sum()
    view.pictures["arcs"](tmp_path / "c.svg")
    drawn = (tmp_path / "c.svg").read_text()
    titles = ("structured: premise", "guitar", "structured: hypothesis", "Somebody")
    assert [drawn.index(text) for text in titles] == sorted(drawn.index(text) for text in titles)


@pytest.mark.parametrize("attention", [name for name in STRUCTURES if name != "structured"])
def test_every_attention_trains_and_goes_on_where_it_stopped(folder, tmp_path, attention):
    common = ["train", "entailment", "--attention", attention, "--data-dir", folder, *SMALL]
    assert run(*common, "--run", tmp_path / "whole", "--then-evaluate") == 0
    found = json.loads((tmp_path / "whole" / "evaluation.json").read_text())
    assert (found["trees"] is None) == (attention in ("none", "hard"))
    assert run(*common, "training.epochs=1", "--run", tmp_path / "resumed") == 0
    config = tmp_path / "resumed" / "config.toml"
    config.write_text(config.read_text().replace("epochs = 1\n", "epochs = 2\n"))
    assert (
        run("train", "entailment", "--run", tmp_path / "resumed", "--data-dir", folder, "--resume", "--quiet")
        == 0
    )
    weights = [read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("whole", "resumed")]
    for name, tensor in weights[0].items():
        assert torch.equal(tensor, weights[1][name]), name
    if attention == "pretrained":
        assert weights[0]["is_pretrained"] == 1


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--attention", "structure"], 'unknown attention "structure"; did you mean "structured"'),
        (["--set", "pairs=-1"], "data.pairs at least 0"),
        (["--set", "vector_size=5"], "line 1: expected a word and 5 numbers"),
        (["--attention", "hard", "--set", "trees=nothing"], 'there is no file or run "nothing"'),
        (["--set", 'pretraining.files=["a"]', "attention=pretrained"], "no a in the data folder"),
    ],
)
def test_wrong_questions_to_the_command_line(folder, tmp_path, capsys, arguments, what):
    wrong = ["train", "entailment", "--run", tmp_path / "run", "--data-dir", folder, *SMALL]
    assert run(*wrong, *arguments) == 2
    assert what in capsys.readouterr().err


def test_the_full_preset_is_the_papers_setting():
    full = preset("entailment", "full")
    training, model = full.training, full.model
    assert (training.epochs, training.batch_size, training.optimizer) == (100, 32, "adagrad")
    assert (training.learning_rate, training.initial_accumulator, training.gradient_norm) == (0.05, 0.1, 5.0)
    assert (training.initialisation, training.initial_scale) == ("gaussian", 0.01)
    assert (model.size, model.hidden, model.lstm, model.dropout) == (300, 300, 100, 0.2)
    assert (full.data.vector_size, full.data.buckets) == (300, 100)
    assert (full.pretraining.passes, full.pretraining.rate) == (1, 0.01)
    assert (full.pretraining.beta1, full.pretraining.beta2) == (0.9, 0.999)


def test_table_4_stands_beside_the_papers():
    table = Table4()
    assert [job.name for job in table.jobs(1)] == [f"{attention}-seed1" for attention in PAPER]
    evaluations = {
        f"{attention}-seed{seed}": {
            "attention": attention,
            "accuracy": 70.0 + seed,
            "data": "dev",
            "trees": None if attention in ("none", "hard") else {"uas": 30.0},
        }
        for attention in PAPER
        for seed in (1, 2, 3)
    }
    found = table.table(evaluations, "title")
    assert found.rows[0] == ["none", "72.00 ± 1.00", "85.8", "-"]
    assert found.rows[3] == ["structured", "72.00 ± 1.00", "86.8", "30.0 ± 0.0"]


@real
def test_the_real_parses_are_read_and_become_trees():
    pairs = read_pairs(split_file(REAL / "snli", "dev"))
    assert len(pairs) == 9842
    sentences = {one: None for pair in pairs for one in pair.statements}
    for one in sentences:
        tree = tree_of(one)
        assert len(tree.heads) == len(one.words)
        assert wrong_head(tree.heads) is None
        assert is_projective(tree.heads)
        assert tree.heads.count(0) == 1
    same = sum(tuple(words_of(one.text)) == one.words for one in sentences)
    assert same > 0.999 * len(sentences), "the tokeniser agrees with the parses"


@real
def test_the_real_training_files_are_read():
    assert len(read_pairs(split_file(REAL / "snli", "train"))) == 24_495
    assert len(read_pairs(REAL / "snli_parsed" / "snli_1.0_train_first1024.jsonl.gz")) == 1022
