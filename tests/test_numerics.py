"""Sizes and magnitudes at which careless arithmetic breaks."""

import math

import pytest
import torch
from cases import CASES, CHAINS, TREES
from torch.utils._python_dispatch import TorchDispatchMode

import structattn as sa

NONPROJECTIVE = TREES[2:]


class Largest(TorchDispatchMode):
    """The number of elements of the largest tensor that any operation made."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        made = [t for t in torch.utils._pytree.tree_leaves(result) if isinstance(t, torch.Tensor)]
        self.elements = max([self.elements, *(t.untyped_storage().nbytes() // t.itemsize for t in made)])
        return result


close = torch.testing.assert_close


@pytest.fixture(params=["plain", "auto"], autouse=True)
def _backend(request):
    with sa.backend(request.param):
        yield


@pytest.mark.parametrize("case", TREES, ids=str)
def test_a_thirty_word_float32_tree_with_huge_scores(case):
    arcs = (1000 * torch.randn(2, 30, 30)).requires_grad_()
    marginals = case.distribution((arcs,)).marginals
    assert ((marginals >= 0) & (marginals <= 1)).all()
    close(marginals.sum(-2)[:, 1:], torch.ones(2, 29), rtol=0, atol=1e-4)
    (gradient,) = torch.autograd.grad((marginals * torch.randn(2, 30, 30)).sum(), arcs)
    assert gradient.isfinite().all()
    exact = case.distribution((arcs.double(),)).marginals
    close(marginals.double(), exact, rtol=0, atol=1e-6)


@pytest.mark.parametrize("case", CHAINS[:2], ids=str)
def test_a_chain_of_twenty_thousand_steps(case):
    single = case.potentials(n=20_000, dtype=torch.float32)
    ours, exact = (case.distribution(tuple(p.to(t) for p in single)) for t in (torch.float32, torch.float64))
    close(ours.marginals.double(), exact.marginals, rtol=0, atol=1e-4)
    close(ours.log_partition.double(), exact.log_partition, rtol=1e-6, atol=0)
    assert ours.mode.equal(exact.mode)
    close(exact.marginals.sum(-1), torch.ones(20_000, dtype=torch.float64))


def test_shared_transitions_are_never_expanded():
    batch, n, states = 4, 8, 16
    unary, transitions = torch.randn(batch, n, states), torch.randn(states, states, requires_grad=True)
    with sa.backend("plain"), Largest() as building:
        d = sa.LinearChain(unary, transitions)
    with sa.backend("plain"), Largest() as computing:
        torch.autograd.grad(d.marginals.square().sum() + d.log_partition.sum(), transitions)
    assert building.elements <= unary.numel()
    assert computing.elements < batch * (n - 1) * states * states


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_an_impossible_sentence_leaves_its_neighbours_bit_for_bit_alone(case, dtype):
    first, *rest = case.potentials((3,), n=6, dtype=dtype)
    weights = torch.randn_like(first)
    results = []
    for blocked in (False, True):
        leaf = first.clone()
        leaf[1] = -math.inf if blocked else leaf[1]
        d = case.distribution((leaf.requires_grad_(), *rest))
        (gradient,) = torch.autograd.grad((d.marginals * weights).sum() + d.log_partition.sum(), leaf)
        results.append((d.log_partition, d.marginals, d.mode, d.entropy(), gradient))
    assert results[1][0][1] == -math.inf
    for before, after in zip(*results, strict=True):
        assert before[::2].equal(after[::2])
    for zero in results[1][1:]:
        assert not zero[1].any()


@pytest.mark.parametrize("case", TREES, ids=str)
def test_a_hundred_and_sixty_words_with_half_of_the_arcs_forbidden(case):
    arcs = torch.randn(161, 161, dtype=torch.float64).masked_fill(torch.rand(161, 161) < 0.5, -math.inf)
    arcs[torch.arange(160), torch.arange(1, 161)] = 0.0  # one tree, a path, is possible at least
    arcs.requires_grad_()
    d = case.distribution((arcs,))
    assert d.log_partition.isfinite()
    close(d.marginals.sum(-2)[1:], torch.ones(160, dtype=torch.float64))
    assert not d.marginals[arcs == -math.inf].any()
    (gradient,) = torch.autograd.grad(d.log_partition, arcs, retain_graph=True)
    close(gradient, d.marginals, rtol=1e-9, atol=1e-12)
    (gradient,) = torch.autograd.grad(d.marginals.square().sum(), arcs)
    assert gradient.isfinite().all()
    assert (d.score(d.mode) <= d.log_partition).all()
    assert d.log_prob(d.mode).isfinite()


@pytest.mark.parametrize("case", NONPROJECTIVE, ids=str)
@pytest.mark.parametrize("deep", [-30.0, -200.0, -800.0])
def test_tiny_determinants_do_not_cancel(case, deep):
    """Two words that want each other and a root that hardly anybody reaches: the Laplacian's diagonal then
    equals its off-diagonal to the last bit, and a factorisation that subtracts is left with noise or zero."""
    arcs = torch.zeros(4, 4, dtype=torch.float64)
    arcs[0] = deep * torch.tensor([1.0, 1.0, 1.01, 1.02])
    arcs[1, 2], arcs[2, 1] = 40.0, 41.0
    arcs[1:3, 3] = -20.0
    arcs[3, 1:3] = deep / 2
    arcs.requires_grad_()
    d = case.distribution((arcs,))
    expected = case.stacked((arcs,), "log_partition")
    close(d.log_partition, expected, rtol=1e-9, atol=1e-9)
    close(d.marginals, case.stacked((arcs,), "marginals"), rtol=1e-9, atol=1e-9)
    (ours,) = torch.autograd.grad(d.marginals.square().sum(), arcs, retain_graph=True)
    (theirs,) = torch.autograd.grad(case.stacked((arcs,), "marginals").square().sum(), arcs)
    close(ours, theirs, rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("scale", [1e-30, 1e3, 1e6, 1e12, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_any_magnitude(case, scale, dtype):
    potentials = tuple(p.requires_grad_() for p in case.potentials((4,), dtype=dtype, scale=scale))
    d = case.distribution(potentials)
    eps = torch.finfo(dtype).eps
    expected = case.stacked(potentials, "log_partition")
    close(d.log_partition.double(), expected, rtol=2 * eps, atol=scale * 1e-14)
    close(d.marginals.double(), case.stacked(potentials, "marginals"), rtol=1e-6, atol=1e-9)
    assert d.mode.equal(case.stacked(potentials, "mode"))
    gradients = torch.autograd.grad(d.marginals.square().sum() + d.entropy().sum(), potentials)
    assert all(g.isfinite().all() for g in gradients)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize(("scale", "offset"), [(3.0, 0.0), (300.0, 0.0), (1.0, 1000.0)])
def test_float32_results_are_float64_results_rounded(case, scale, offset):
    """With the offset, log Z is large, the entropy small: float32 sums would leave nothing of it."""
    batches = [case.potentials((3,), n=12, dtype=torch.float32, scale=scale) for _ in range(2)]
    single, other = (tuple(p + offset for p in potentials) for potentials in batches)
    results = []
    for dtype in (torch.float32, torch.float64):
        potentials = tuple(p.to(dtype).requires_grad_() for p in single)
        d = case.distribution(potentials)
        gradients = torch.autograd.grad(d.marginals.square().sum(), potentials)
        q = case.distribution(tuple(p.to(dtype) for p in other))
        verbs = d.entropy(), d.cross_entropy(q), torch.distributions.kl_divergence(d, q), d.log_prob(q.mode)
        results.append((d.log_partition, d.marginals, *verbs, *gradients))
    for ours, exact in zip(*results, strict=True):
        close(ours.double(), exact, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_scores_far_apart_within_one_sentence(case):
    """One part weighs e^700 more than the rest: products of exponentials would overflow, and e^-700 still
    counts when it is all that a structure has."""
    potentials = case.potentials((4,))
    for row, (i, j) in enumerate([(0, 1), (1, 2), (2, 1), (1, 0)]):
        potentials[0][row, i, j] += 700.0
        potentials[0][row, 3] -= 700.0
    d = case.distribution(potentials)
    close(d.log_partition, case.stacked(potentials, "log_partition"), rtol=1e-12, atol=1e-9)
    close(d.marginals, case.stacked(potentials, "marginals"), rtol=1e-9, atol=1e-12)
