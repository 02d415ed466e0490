"""The parser: words as numbers, the loss against sums over all trees, scores by hand, and the commands."""

import json
from pathlib import Path

import oracle
import pytest
import torch
from torch.testing import assert_close

from structattn import cli
from structattn.recipes.data_folder import DataFolder
from structattn.recipes.errors import UserError
from structattn.recipes.parser.data import (
    AFFIXES,
    UNKNOWN,
    Encoder,
    ParserData,
    affixes_of,
    expressible,
    shape_of,
)
from structattn.recipes.parser.model import ParserModel, ParserModelSettings
from structattn.recipes.parser.parsing import parse_sentences
from structattn.recipes.parser.recipe import ParserConfig, ParserRecipe, scores_of
from structattn.recipes.running import create, open_run
from structattn.recipes.tasks import preset
from structattn.recipes.treebank import Sentence, is_projective, parse_conllu, read_treebank, wrong_head
from structattn.recipes.vectors import WordVectors
from structattn.show.parser import EXAMPLE, parsed, view_parser

TREEBANK = Path(__file__).parents[1] / "examples" / "sentences.conllu"
REAL = Path(__file__).parents[2] / "shared" / "data"
SMALL = ["--threads", "1", "--quiet", "--set", "batch_size=4", "decay_after=0", "least_affixes=1"]
SMALL += ["lstm_size=24", "arc_size=24", "word_size=16", "affix_size=16", "learning_rate=0.01"]
SMALL += ["dropout=0.1", "word_dropout=0.1"]
ALONE = [*SMALL, "vectors="]


def sentence(words, *heads, tags=None):
    words = words.split()
    return Sentence(words, list(heads), tags or ["X"] * len(words), [])


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run that has learned the example treebank by heart."""
    path = tmp_path_factory.mktemp("runs") / "parser"
    files = ["--treebank", TREEBANK, "--valid", TREEBANK]
    assert run("train", "parser", "--run", path, *files, *ALONE, "epochs=14") == 0
    return path


def test_words_are_known_by_number_vector_and_spelling():
    vectors = WordVectors(["bark", "dogs"], torch.eye(2))
    given = [sentence("Dogs bark", 2, 0), sentence("dogs sleep", 2, 0)]
    encoder = Encoder(given, vectors, ParserData(least_count=2, least_affixes=2))
    assert encoder.words == {"dogs": 1}
    assert encoder.affixes.keys() == {"=", "d-", "do-", "dog-", "-s", "-gs", "-ogs", "-dogs"}
    alone = Encoder([sentence("ab", 0)], None, ParserData(least_affixes=2))
    assert not alone.affixes, "its last two letters are its last three, too, but in one word only"
    dogs, bark, sleeps = encoder.features(["DOGS", "bark", "Sleeps"]).tolist()
    assert dogs[:2] == [1, 2]
    assert bark[:2] == [UNKNOWN, 1]
    assert sleeps[:2] == [UNKNOWN, UNKNOWN]
    assert len(dogs) == len(sleeps) == 2 + AFFIXES
    assert sum(number != UNKNOWN for number in sleeps) == 1, "its last letter"
    cased = Encoder(given, vectors, ParserData(vectors_lowercase=False))
    assert [cased.row("Dogs")[1], cased.row("dogs")[1]] == [UNKNOWN, 2]


def test_spelling():
    assert [shape_of(word) for word in ("a", "At", "USA", "B-52", "...", "x1")] == [
        "",
        "C",
        "CU",
        "CU9-",
        ".",
        "9",
    ]
    assert affixes_of("Ab") == ["=C", "a-", "ab-", "ab-", "-b", "-ab", "-ab", "-ab"]
    assert len(affixes_of("")) == AFFIXES


def test_trees_that_a_parser_cannot_learn_are_left_out_or_lifted():
    crossing, two_roots, plain = sentence("a b c d", 3, 4, 0, 3), sentence("a b", 0, 0), sentence("a b", 2, 0)
    given = [crossing, two_roots, plain]
    assert expressible(given, "projective", True, "skip") == [plain]
    assert expressible(given, "projective", False, "skip") == [two_roots, plain]
    assert expressible(given, "nonprojective", True, "skip") == [crossing, plain]
    lifted, same = expressible(given, "projective", True, "lift")
    assert (lifted.heads, same) == ([3, 3, 0, 3], plain)


def small_model(**settings):
    torch.manual_seed(5)
    sizes = {"word_size": 3, "affix_size": 3, "lstm_size": 4, "arc_size": 4, "lstm_layers": 2}
    encoder = Encoder([sentence("a b c d", 2, 0, 2, 3)], None, ParserData(least_count=1, least_affixes=1))
    chosen = ParserModelSettings(**sizes, **settings)
    model = ParserModel(chosen, len(encoder.words), len(encoder.affixes), torch.randn(2, 5)).double()
    for weights in model.parameters():
        torch.nn.init.normal_(weights)
    return model, encoder


@pytest.mark.parametrize("structure", ["projective", "nonprojective"])
@pytest.mark.parametrize("scorer", ["biaffine", "mlp"])
@pytest.mark.parametrize("single_root", [True, False])
def test_the_loss_is_that_of_the_sum_over_all_trees(structure, scorer, single_root):
    model, encoder = small_model(structure=structure, scorer=scorer, single_root=single_root)
    model.eval()
    features, heads = encoder.features(["a", "b", "c", "d"]).unsqueeze(0), torch.tensor([[0, 2, 0, 2, 3]])
    lengths = torch.tensor([4])
    arcs = model.arcs.scores(model.encode(features, lengths), lengths)[0]
    trees = oracle.tree(arcs, structure == "projective", single_root)
    gold = (trees.structures == heads).all(1).nonzero().item()
    assert_close(model(features, lengths, heads), -trees.log_probs[gold])
    assert model.trees(features, lengths).mode[0].tolist() == trees.mode.tolist()


@pytest.mark.parametrize("structure", ["projective", "nonprojective"])
def test_a_sentence_does_not_depend_on_its_batch_and_everything_is_trained(structure):
    model, encoder = small_model(structure=structure, dropout=0.0, word_dropout=0.0)
    recipe = ParserRecipe(ParserConfig(), DataFolder(Path()))
    given = [sentence("a b c d", 2, 0, 2, 3), sentence("d", 0), sentence("c a", 0, 1)]
    batch = recipe.collate([encoder.example(one) for one in given])
    alone = [model(*recipe.collate([encoder.example(one)])) for one in given]
    loss = model(*batch)
    assert_close(loss, sum(alone))
    loss.backward()
    for name, weights in model.named_parameters():
        assert weights.grad.isfinite().all(), name
        assert weights.grad.any(), name
    assert "vectors" not in model.state_dict(), "they are in a file already"


def test_what_training_drops_is_there_afterwards():
    model, encoder = small_model(dropout=0.0, word_dropout=1.0)
    features = encoder.features(["a", "b"]).unsqueeze(0)
    unknown = features.clone()
    unknown[:, :, 0] = UNKNOWN
    model.train()
    assert_close(model.embed(features), model.embed(unknown))
    model.eval()
    assert not torch.equal(model.embed(features), model.embed(unknown))
    model, _ = small_model(dropout=0.5, word_dropout=0.0)
    lengths = torch.tensor([2])
    assert not torch.equal(model.encode(features, lengths), model.encode(features, lengths))


def test_scores_by_hand():
    given = [
        sentence("a b .", 2, 0, 2, tags=["X", "X", "PUNCT"]),
        sentence("a b", 0, 1, tags=["X", "X"]),
    ]
    found = scores_of(given, [[2, 0, 1], [0, 1]])
    assert found.uas == pytest.approx(80)
    assert found.uas_without_punctuation == 100
    assert found.exact == 50


def test_a_treebank_is_learned_and_evaluated(trained, tmp_path, capsys):
    assert run("evaluate", trained) == 0
    assert "exact match" in capsys.readouterr().out
    found = json.loads((trained / "evaluation.json").read_text())
    last = max(json.loads(line)["valid_uas"] for line in (trained / "metrics.jsonl").read_text().splitlines())
    assert found["uas"] == pytest.approx(last)
    assert found["uas"] > 95
    part = tmp_path / "part.conllu"
    part.write_text("\n\n".join(TREEBANK.read_text().split("\n\n")[:3]) + "\n")
    numbers = tmp_path / "numbers.json"
    assert run("evaluate", trained, "--data", part, "--json", numbers) == 0
    assert json.loads(numbers.read_text())["sentences"] == 3


def test_predictions_are_conllu(trained, capsys):
    lines = ["The dog sleeps .", "", "Nobody knows the unheard-of word"]
    capsys.readouterr()
    assert run("predict", trained, *lines) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("# text = The dog sleeps .\n1\tThe\t")
    found = list(parse_conllu(printed.split("\n"), "output"))
    assert [one.words for one in found] == [line.split() for line in lines if line]
    assert found[0].heads == read_treebank(TREEBANK)[0].heads
    for one in found:
        assert is_projective(one.heads)
        assert one.heads.count(0) == 1


def test_sentences_are_parsed_in_order(trained):
    sentences = [one.words for one in read_treebank(TREEBANK)] + [[], ["Go"]]
    found = parse_sentences(trained, sentences)
    assert [len(heads) for heads in found] == [len(words) for words in sentences]
    assert found[-2:] == [[], [0]]
    assert found == [parse_sentences(trained, [words])[0] for words in sentences[:2]] + found[2:]
    assert all(wrong_head(heads) is None for heads in found)


def test_pictures_of_the_best_tree_and_of_the_marginals(trained, tmp_path, capsys):
    picture = tmp_path / "tree.svg"
    assert run("plot", trained, "The dog sleeps .", "--arcs", "--out", picture) == 0
    drawn = picture.read_text()
    assert "projective: best tree, p = " in drawn
    assert drawn.count('stroke-opacity="1.00"') == 4
    assert run("plot", trained, "--out", picture) == 0
    assert "brother" in picture.read_text()
    assert run("plot", trained, " ", "--out", picture) == 2
    assert "no words to parse" in capsys.readouterr().err
    opened = open_run(trained)
    found = parsed(opened, "The dog sleeps .")
    assert_close(found.marginals.marginals[:, 1:].sum(0), torch.ones(4))
    assert (
        parsed(opened, EXAMPLE, 0.01).marginals.marginals.max()
        > parsed(opened, EXAMPLE, 9.0).marginals.marginals.max()
    )
    view = view_parser(opened, None, 1.0)
    assert view.numbers["heads"] == parsed(opened, EXAMPLE).heads
    assert "1\tA\t" in view.answer
    json.dumps(view.numbers)
    for name, draw in view.pictures.items():
        draw(tmp_path / f"{name}.svg")


def test_a_nonprojective_parser_is_trained_with_vectors_and_a_held_out_share(tmp_path):
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("the 1 0\ndog 0 1\n")
    path = tmp_path / "run"
    settings = [*SMALL, "epochs=1", f"vectors={vectors}", "structure=nonprojective", "held_out=0.2"]
    assert run("train", "parser", "--treebank", TREEBANK, "--run", path, *settings) == 0
    opened = open_run(path)
    everything = read_treebank(TREEBANK)
    valid = opened.recipe.splits["valid"]
    assert len(valid) == round(0.2 * len(everything))
    assert sorted(one.origin for part in opened.recipe.splits.values() for one in part) == sorted(
        one.origin for one in everything
    )
    assert opened.model.vectors.tolist() == [[0, 0], [1, 0], [0, 1]]
    heads = opened.recipe.parse(opened.model, [one.words for one in valid])
    assert all(wrong_head(one) is None and one.count(0) == 1 for one in heads)


@pytest.mark.parametrize(
    ("arguments", "what"),
    [
        (["--treebank", "nothing.conllu"], "cannot read nothing.conllu"),
        ([], "no ud_ewt/train.conllu.gz in the data folder"),
        (["--attention", "simple"], "--attention means nothing to parser"),
        (["--set", "structure=projektive"], 'did you mean "projective"'),
        (["--set", "scorer=bilinear"], 'model.scorer: unknown value "bilinear"'),
        (["--set", "crossing=drop"], 'data.crossing: unknown value "drop"'),
        (["--set", "held_out=1.0"], "data.held_out is a share"),
        (["--treebank", TREEBANK], "no vectors/glove.6B.50d.filtered.txt.gz in the data folder"),
        (["--treebank", TREEBANK, "--set", "vectors=", "held_out=0.001"], "0 of 23 sentences"),
    ],
)
def test_wrong_questions_to_the_command_line(tmp_path, capsys, arguments, what):
    wrong = ["train", "parser", "--quiet", "--run", tmp_path / "run", "--data-dir", tmp_path, *arguments]
    assert run(*wrong) == 2
    assert what in capsys.readouterr().err


def test_a_treebank_without_a_tree_to_learn_is_refused(tmp_path, capsys):
    path = tmp_path / "crossing.conllu"
    rows = "".join(f"{word}\tw\t_\t_\t_\t_\t{head}\t_\t_\t_\n" for word, head in enumerate((3, 4, 0, 3), 1))
    path.write_text(f"{rows}\n{rows}\n")
    files = ["--treebank", path, "--valid", path]
    assert run("train", "parser", "--run", tmp_path / "run", *files, *ALONE) == 2
    assert "no sentence has a tree that a projective parser can learn" in capsys.readouterr().err


def test_a_run_of_another_task_is_no_parser(tmp_path):
    create(tmp_path / "run", "transduction", "quick", [], "a test")
    with pytest.raises(UserError, match="is a run of transduction, not of parser"):
        parse_sentences(tmp_path / "run", [["Go"]])


def test_the_presets_are_projective_and_keep_the_best_epoch():
    for name in ("quick", "full"):
        config = preset("parser", name)
        assert (config.model.structure, config.model.single_root) == ("projective", True)
        assert (config.training.watch, config.training.keep) == ("uas", "best")
    assert preset("parser", "quick").training.epochs < preset("parser", "full").training.epochs


@pytest.mark.skipif(not REAL.is_dir(), reason="the real treebank is not beside the checkout")
def test_the_real_treebank_is_the_default():
    recipe = ParserRecipe(ParserConfig(), DataFolder(REAL))
    assert {name: len(sentences) for name, sentences in recipe.splits.items()} == {
        "train": 12544,
        "valid": 2001,
    }
    assert len(expressible(recipe.splits["train"], "projective", True, "skip")) == 12544 - 288, "arcs cross"
    assert recipe.vectors.size == 50
