"""Formulas, their two notations, the metric and the model of the tree transduction recipe."""

import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from structattn.recipes.data_folder import DataFolder
from structattn.recipes.errors import UserError
from structattn.recipes.tasks import preset
from structattn.recipes.transduction.data import (
    TransductionData,
    depth_of,
    draw_splits,
    draw_tree,
    infix,
    parse_prefix,
    prefix,
    read_pairs,
    vocabulary,
    write_pairs,
)
from structattn.recipes.transduction.model import STRUCTURES, TransductionModel, TransductionModelSettings
from structattn.recipes.transduction.recipe import (
    TransductionConfig,
    TransductionRecipe,
    share_before_failure,
)
from structattn.recipes.transduction.table import PAPER, Table1

PRINTED = "( * ( + ( + 15 7 ) 1 8 ) ( + 19 0 11 ) )"
SMALL = TransductionData(train_per_depth=20, valid_per_depth=5, test_per_depth=6)


def test_the_printed_example():
    tree = parse_prefix(PRINTED.split())
    assert " ".join(prefix(tree)) == PRINTED
    assert " ".join(infix(tree)) == "( ( 15 + 7 ) + 1 + 8 ) * ( 19 + 0 + 11 )"
    assert depth_of(PRINTED.split()) == 3


@given(depth=st.integers(1, 6), seed=st.integers(0, 10_000))
def test_a_drawn_formula_has_its_depth_and_both_notations_agree(depth, seed):
    settings = TransductionData()
    tree = draw_tree(settings, depth, random.Random(seed))
    source, target = prefix(tree), infix(tree)
    assert depth_of(source) == depth == depth_of(["(", *target, ")"])
    assert parse_prefix(source) == tree
    assert set(source) | set(target) <= set(vocabulary(settings))
    operands = count_operands(tree)
    assert min(operands) >= 2
    assert max(operands) <= 4
    numbers = [int(symbol) for symbol in source if symbol.isdigit()]
    assert eval(" ".join(target)) == value_of(tree)
    assert numbers == [int(symbol) for symbol in target if symbol.isdigit()]


def count_operands(tree):
    if isinstance(tree, int):
        return []
    return [len(tree[1]), *(count for operand in tree[1] for count in count_operands(operand))]


def value_of(tree):
    if isinstance(tree, int):
        return tree
    values = [value_of(operand) for operand in tree[1]]
    return sum(values) if tree[0] == "+" else math.prod(values)


def test_the_splits_are_what_the_paper_says_and_share_nothing():
    splits = draw_splits(SMALL)
    assert [len(splits[name]) for name in ("train", "valid", "test")] == [60, 15, 30]
    assert sorted({pair.depth for pair in splits["train"]}) == [2, 3, 4]
    assert sorted({pair.depth for pair in splits["test"]}) == [2, 3, 4, 5, 6]
    sources = [tuple(pair.source) for pairs in splits.values() for pair in pairs]
    assert len(set(sources)) == len(sources)
    assert splits == draw_splits(SMALL)
    more = draw_splits(TransductionData(train_per_depth=30, valid_per_depth=5, test_per_depth=6))
    assert more["test"] == splits["test"]


def test_the_full_preset_is_the_papers_setting():
    config = preset("transduction", "full")
    training, data = config.training, config.data
    assert (training.epochs, training.batch_size, training.learning_rate, training.decay) == (
        13,
        20,
        1.0,
        0.5,
    )
    assert (training.decay_after, training.decay_when_worse, training.gradient_norm) == (9, True, 1.0)
    assert (training.initialisation, training.initial_scale) == ("uniform", 0.1)
    assert (data.train_per_depth, data.train_depths) == (5000, [2, 3, 4])
    assert (data.test_per_depth, data.test_depths) == (200, [2, 3, 4, 5, 6])
    assert (data.most_operands, data.largest_number) == (4, 20)
    assert (config.model.size, config.decoding.beam) == (50, 5)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"least_operands": 3, "most_operands": 2}, "least_operands"),
        ({"leaf_probability": 1.5}, "probability"),
        ({"train_depths": [0]}, "depth"),
        (
            {"largest_number": 0, "most_operands": 2, "train_depths": [1], "train_per_depth": 99},
            "no new formula",
        ),
    ],
)
def test_impossible_data_is_refused(settings, what):
    with pytest.raises(UserError, match=what):
        draw_splits(TransductionData(**settings, test_per_depth=0, valid_per_depth=0))


def test_files_are_read_as_they_were_written(tmp_path):
    pairs = draw_splits(SMALL)["test"]
    write_pairs(pairs, tmp_path / "new" / "test.txt")
    assert read_pairs(tmp_path / "new" / "test.txt") == pairs


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("( + 1 2 )\n", "line 1: expected source, one tab"),
        ("( + 1 2 )\t1 + 2\n( 1 2 )\t3\n", r"line 2: .*expected \+ or \*"),
        ("( + 1 2\t1 + 2\n", "not closed"),
        ("( + 1 2 ) 3\t1 + 2\n", "after the end"),
        ("( + 1 x )\t1 + 2\n", "'x'"),
        ("5\t5\n", "parentheses"),
        ("( + )\t5\n", "closes no expression"),
        ("\t5\n", "empty"),
        ("( + 1 2 )\t\n", "target is empty"),
        ("", "no pairs"),
        (b"\xff\xfe", "UTF-8"),
    ],
)
def test_what_is_wrong_with_a_file_is_said_with_its_line(tmp_path, text, what):
    path = tmp_path / "pairs.txt"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UserError, match=what):
        read_pairs(path)


@pytest.mark.parametrize(
    ("predicted", "share"), [("1 + 2", 1.0), ("1 + 3", 2 / 3), ("", 0.0), ("1 + 2 + 3", 1.0), ("2 + 2", 0.0)]
)
def test_the_metric_counts_symbols_before_the_first_failure(predicted, share):
    assert share_before_failure(predicted.split(), ["1", "+", "2"]) == pytest.approx(share)


def small_recipe(attention="structured", beam=5):
    config = TransductionConfig(data=SMALL, model=TransductionModelSettings(attention, size=6))
    config.decoding.beam = beam
    recipe = TransductionRecipe(config, DataFolder(None))
    return recipe, recipe.build_model().eval()


@pytest.mark.parametrize("attention", STRUCTURES)
def test_a_padded_batch_is_its_sentences_one_by_one(attention):
    recipe, model = small_recipe(attention)
    model = model.double()
    examples = recipe.training_examples()[:8]
    alone = sum(model(*recipe.collate([example])) for example in examples)
    together = model(*recipe.collate(examples))
    torch.testing.assert_close(together, alone)
    assert together > 0


def test_the_shapes_of_the_weights_are_the_printed_ones():
    model = TransductionModel(TransductionModelSettings("structured", size=50), 30)
    assert model.attention.weight.shape == (100, 50)
    assert model.combine.weight.numel() == 150 * 50
    assert model.parents.encoder.input_size == model.parents.encoder.hidden_size == 50
    plain = TransductionModel(TransductionModelSettings("none", size=50), 30)
    assert plain.attention.weight.shape == (50, 50)
    assert plain.combine.weight.numel() == 100 * 50
    shared = TransductionModel(TransductionModelSettings(share_decoder_embeddings=True), 30)
    assert shared.embedding is shared.target_embedding


@pytest.mark.parametrize("attention", ["simple", "structured"])
def test_parents_are_distributions(attention):
    recipe, model = small_recipe(attention)
    source, lengths, _ = recipe.collate(recipe.training_examples()[:4])
    marginals = model.parent_marginals(source, lengths)
    for sentence, length in enumerate(lengths.tolist()):
        columns = marginals[sentence, :, 1:length].sum(0)
        torch.testing.assert_close(columns, torch.ones_like(columns))


def test_without_attention_the_order_of_the_source_is_unknown():
    recipe, model = small_recipe("none")
    source = torch.tensor([recipe.numbers(["$", *PRINTED.split()])])
    target, lengths = torch.tensor([[1, 5, 6, 2]]), torch.tensor([source.shape[1]])
    torch.testing.assert_close(model(source, lengths, target), model(source.flip(1), lengths, target))
    with pytest.raises(UserError, match="no parents"):
        model.parent_marginals(source, lengths)


def test_one_step_of_the_decoder_at_a_time_gives_the_numbers_of_all_at_once():
    recipe, model = small_recipe()
    source, lengths, target = recipe.collate(recipe.training_examples()[:3])
    memory = model.encode(source, lengths)
    expected, _ = model.decode(memory, target, None)
    state, parts = None, []
    for column in target.unbind(1):
        logits, state = model.decode(memory, column.unsqueeze(1), state)
        parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, 1), expected)


@torch.no_grad()
def test_predictions_keep_their_order_and_do_not_depend_on_the_batch():
    recipe, model = small_recipe(beam=3)
    for weights in model.parameters():
        weights.uniform_(-1, 1)
    lines = [" ".join(pair.source) for pair in recipe.splits["test"][:7]] + ["", PRINTED.replace(" ", "")[:0]]
    together = list(recipe.predict(model, lines))
    alone = [next(recipe.predict(model, [line])) for line in lines]
    assert together == alone
    assert together[-2:] == ["", ""]


def test_a_formula_may_be_typed_without_spaces_and_a_wrong_one_is_explained():
    recipe, _ = small_recipe()
    assert recipe.formula("$(+(*1 2)3)") == ["(", "+", "(", "*", "1", "2", ")", "3", ")"]
    for text, what in (
        ("(+ 1 21)", "'21'"),
        ("(+ 1 2", "not closed"),
        ("1", "parentheses"),
        ("(- 1 2)", "'-'"),
    ):
        with pytest.raises(UserError, match=what):
            recipe.formula(text)


def test_the_table_stands_beside_the_papers():
    table = Table1()
    jobs = table.jobs(2)
    assert len(jobs) == 6
    evaluations = {
        job.name: {
            "attention": job.settings[0].partition("=")[2],
            "depths": {str(depth): {"prefix": 10.0 * depth + number} for depth in range(2, 7)},
        }
        for number, job in enumerate(jobs)
    }
    rows = table.table(evaluations, "title").rows
    assert rows[0] == ["2", "21.5 ± 2.1", "7.6", "22.5 ± 2.1", "87.4", "23.5 ± 2.1", "99.2"]
    assert [row[-1] for row in rows] == [str(value) for value in PAPER["structured"].values()]
