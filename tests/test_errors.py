"""Every bad input is refused with a message that names the argument, what was expected and what was given."""

import math
import re

import pytest
import torch

import structattn as sa

LAYERS = {"projective": sa.ProjectiveTree, "nonprojective": sa.NonProjectiveTree}
UNARY, TRANSITIONS, ARCS = torch.zeros(2, 4, 3), torch.zeros(2, 3, 3, 3), torch.zeros(2, 4, 4)


def spoil(potentials, garbage):
    potentials = potentials.clone()
    potentials[1, 2, 1] = garbage
    return potentials


def chain(unary=UNARY, transitions=None, lengths=None, **options):
    return lambda: sa.LinearChain(unary, transitions, lengths, **options).log_partition


def ask(question, d=None):
    return lambda: question(d or sa.LinearChain(UNARY, TRANSITIONS))


def refused(call, argument, given):
    with pytest.raises((ValueError, TypeError)) as caught:
        call()
    message = str(caught.value)
    for part in (rf"\b{argument}\b", "expected", rf"got.*{given}"):
        assert re.search(part, message, re.DOTALL), f"no {part!r} in: {message}"


BAD_CHAINS = {
    "NaN score": (chain(spoil(UNARY, math.nan)), "unary", "NaN"),
    "infinite score": (chain(spoil(UNARY, math.inf)), "unary", r"\+inf"),
    "NaN transition": (chain(transitions=spoil(TRANSITIONS, math.nan)), "transitions", "NaN"),
    "infinite transition": (chain(transitions=spoil(TRANSITIONS, math.inf)), "transitions", r"\+inf"),
    "NaN shared transition": (chain(transitions=torch.full((3, 3), math.nan)), "transitions", "NaN"),
    "integer scores": (chain(UNARY.long()), "unary", "int64"),
    "boolean scores": (chain(UNARY.bool()), "unary", "bool"),
    "complex scores": (chain(UNARY.to(torch.complex64)), "unary", "complex64"),
    "integer transitions": (chain(transitions=TRANSITIONS.int()), "transitions", "int32"),
    "a list": (chain([[0.0, 1.0]]), "unary", "list"),
    "too few dimensions": (chain(torch.zeros(4)), "unary", r"\(4,?\)"),
    "other number of states": (chain(transitions=torch.zeros(2, 2)), "transitions", r"\(2, 2\)"),
    "n instead of n - 1 transitions": (
        chain(transitions=torch.zeros(4, 3, 3)),
        "transitions",
        r"\(4, 3, 3\)",
    ),
    "other batch of transitions": (
        chain(transitions=torch.zeros(5, 3, 3, 3)),
        "transitions",
        r"\(5, 3, 3, 3\)",
    ),
    "more batch dimensions in transitions": (
        chain(UNARY[0], transitions=torch.zeros(2, 3, 3, 3)),
        "transitions",
        r"\(2, 3, 3, 3\)",
    ),
    "one-dimensional transitions": (chain(transitions=torch.zeros(3)), "transitions", r"\(3,?\)"),
    "transitions as a list": (chain(transitions=[[0.0]]), "transitions", "list"),
    "lengths beyond n": (chain(lengths=torch.tensor([4, 5])), "lengths", "5"),
    "negative lengths": (chain(lengths=torch.tensor([-1, 4])), "lengths", "-1"),
    "float lengths": (chain(lengths=torch.tensor([1.0, 4.0])), "lengths", "float32"),
    "boolean lengths": (chain(lengths=torch.tensor([True, True])), "lengths", "bool"),
    "lengths of another batch": (chain(lengths=torch.tensor([1, 2, 3])), "lengths", r"\(3,?\)"),
    "lengths with a dimension too many": (chain(lengths=torch.ones(2, 1).long()), "lengths", r"\(2, 1\)"),
}


@pytest.mark.parametrize("name", BAD_CHAINS)
@pytest.mark.parametrize("backend", ["plain", "auto", "paper"])
def test_bad_chains(name, backend):
    with sa.backend(backend):
        refused(*BAD_CHAINS[name])


BAD_TREES = {
    "NaN score": (spoil(ARCS, math.nan), None, "arcs", "NaN"),
    "infinite score": (spoil(ARCS, math.inf), None, "arcs", r"\+inf"),
    "integer scores": (ARCS.long(), None, "arcs", "int64"),
    "not square": (torch.zeros(2, 4, 3), None, "arcs", r"\(2, 4, 3\)"),
    "too few dimensions": (torch.zeros(4), None, "arcs", r"\(4,?\)"),
    "a list": ([[0.0]], None, "arcs", "list"),
    "lengths beyond n": (ARCS, torch.tensor([5, 4]), "lengths", "5"),
    "negative lengths": (ARCS, torch.tensor([2, -2]), "lengths", "-2"),
    "float lengths": (ARCS, torch.tensor([2.0, 1.0]), "lengths", "float32"),
    "lengths of another batch": (ARCS, torch.tensor([1, 2, 3]), "lengths", r"\(3,?\)"),
}


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("structure", LAYERS)
@pytest.mark.parametrize("name", BAD_TREES)
@pytest.mark.parametrize("backend", ["plain", "auto"])
def test_bad_trees(name, structure, single_root, backend):
    arcs, lengths, argument, given = BAD_TREES[name]
    with sa.backend(backend):
        refused(lambda: LAYERS[structure](arcs, lengths, single_root).log_partition, argument, given)


def answer(d, question, arguments):
    result = getattr(d, question)
    return result(*arguments) if callable(result) else result


@pytest.mark.parametrize("question", ["marginals", "mode", "entropy", "sample", "topk", "log_prob"])
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_bad_scores_are_refused_by_whatever_is_asked_first(question, garbage):
    arguments = {"topk": (2,), "log_prob": (torch.zeros(2, 4, dtype=torch.long),)}
    for structure, potentials in ((sa.LinearChain, UNARY), *((t, ARCS) for t in LAYERS.values())):
        with pytest.raises(ValueError, match=r"(unary|arcs).*NaN or \+inf"):
            answer(structure(spoil(potentials, garbage)), question, arguments.get(question, ()))


VALUES = {
    "a state too high": (torch.tensor([[0, 1, 2, 3]] * 2), "3"),
    "a negative state": (torch.tensor([[0, -1, 2, 1]] * 2), "-1"),
    "too short": (torch.zeros(2, 3, dtype=torch.long), r"\(2, 3\)"),
    "another batch": (torch.zeros(3, 4, dtype=torch.long), r"\(3, 4\)"),
    "floats": (torch.zeros(2, 4), "float32"),
    "a list": ([[0, 0, 0, 0]] * 2, "list"),
}


@pytest.mark.parametrize("verb", ["log_prob", "score"])
@pytest.mark.parametrize("name", VALUES)
def test_values_that_cannot_be_structures(name, verb):
    value, given = VALUES[name]
    refused(lambda: getattr(sa.LinearChain(UNARY), verb)(value), "value", given)
    heads = value + (value == 3) if name == "a state too high" else value
    given = "4" if name == "a state too high" else given
    for structure in LAYERS.values():
        refused(lambda s=structure: getattr(s(ARCS), verb)(heads), "value", given)


OTHER_LENGTHS = sa.LinearChain(UNARY, lengths=torch.tensor([4, 3]))


@pytest.mark.parametrize(
    ("call", "argument", "given"),
    [
        (ask(lambda d: d.topk(0)), "k", "0"),
        (ask(lambda d: d.topk(-2)), "k", "-2"),
        (ask(lambda d: d.topk(1.5)), "k", "1.5"),
        (ask(lambda d: d.cross_entropy(sa.LinearChain(UNARY[:, :3]))), "q", r"\(?3"),
        (ask(lambda d: d.cross_entropy(sa.ProjectiveTree(ARCS))), "q", "ProjectiveTree"),
        (ask(lambda d: d.cross_entropy(OTHER_LENGTHS)), "q", ""),
        (lambda: sa.backend("fast").__enter__(), "backend", "fast"),
    ],
    ids=["k = 0", "k < 0", "k no integer", "q's size", "q's kind", "q's lengths", "backend"],
)
def test_bad_questions(call, argument, given):
    refused(call, argument, given)


def test_kl_needs_distributions_over_the_same_structures():
    p = sa.LinearChain(UNARY)
    for q in (OTHER_LENGTHS, sa.LinearChain(UNARY[:, :3]), sa.LinearChain(UNARY[..., :2])):
        with pytest.raises(ValueError, match="expected"):
            torch.distributions.kl_divergence(p, q)
    for structure in LAYERS.values():
        with pytest.raises(ValueError, match="expected"):
            torch.distributions.kl_divergence(structure(ARCS), structure(ARCS, single_root=True))


@pytest.mark.parametrize("structure", [sa.LinearChain, *LAYERS.values()])
@pytest.mark.parametrize("garbage", [math.nan, math.inf])
def test_value_checks_can_be_skipped_and_shape_checks_cannot(structure, garbage):
    potentials = spoil(UNARY if structure is sa.LinearChain else ARCS, garbage)
    assert structure(potentials, validate_args=False).log_partition.shape == (2,)
    with pytest.raises(ValueError, match="expected"):
        _ = structure(torch.zeros(4), validate_args=False).log_partition
    with pytest.raises(TypeError, match="expected"):
        _ = structure(potentials.nan_to_num().long(), validate_args=False).log_partition


def test_checks_stay_on_after_torch_compile(monkeypatch):
    """The first torch.compile of a process sets this default for all distributions, without being asked."""
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", False)
    for structure, potentials in ((sa.LinearChain, UNARY), *((t, ARCS) for t in LAYERS.values())):
        with pytest.raises(ValueError, match="NaN"):
            _ = structure(spoil(potentials, math.nan)).log_partition
        with pytest.raises(ValueError, match="lengths"):
            structure(potentials, lengths=torch.tensor([4, 5]))
        with pytest.raises(ValueError, match="value"):
            structure(potentials).log_prob(torch.full((2, 4), 9))
    for structure in LAYERS.values():
        assert structure(ARCS[0]).log_prob(torch.tensor([0, 2, 3, 1])) == -math.inf, "a cycle is no tree"


@pytest.mark.parametrize("structure", [sa.LinearChain, *LAYERS.values()])
def test_expanding_to_what_does_not_fit_raises(structure):
    with pytest.raises((ValueError, RuntimeError)):
        structure(torch.zeros(2, 3, 3)).expand((3,))
