"""Table 1 and Figures 2, 5 and 6 of the paper, held against real arithmetic and against enumeration.

The oracle lists every structure that scores above -inf: log Z is the logsumexp of their scores, the marginals
are its gradient, and autograd differentiates those once more. It shares no step with what it judges.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

from structattn import paper
from structattn.paper import SignedLog

F64 = {"dtype": torch.float64}


def assert_equal(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=1e-11)


# Table 1


REALS = torch.tensor([0.0, -0.0, 1.5, -1.5, 0.25, -0.25, 3e-9, -3e-9, 7e8, -7e8], **F64)


def test_signed_log_and_real_numbers_are_the_same():
    numbers = SignedLog.from_real(REALS)
    assert_equal(numbers.signexp(), REALS)
    assert_equal((-numbers).signexp(), -REALS)
    zero = SignedLog.from_real(torch.zeros(1, **F64))
    assert zero.log.item() == -math.inf
    assert zero.sign.item() == 1


@pytest.mark.parametrize(("operation", "on_reals"), [("oplus", torch.add), ("otimes", torch.mul)])
def test_table_1_for_every_pair_of_signs(operation, on_reals):
    a, b = REALS[:, None].expand(10, 10), REALS[None, :].expand(10, 10)
    result = getattr(SignedLog.from_real(a), operation)(SignedLog.from_real(b))
    assert_equal(result.signexp(), on_reals(a, b))
    assert ((result.sign == 1) | (result.sign == -1)).all()


def test_opposite_numbers_cancel_to_zero():
    a = SignedLog.from_real(torch.tensor([-2.0, 2.0, 0.0], **F64))
    total = a.oplus(-a)
    assert (total.log == -math.inf).all()
    assert (total.sign == 1).all()


def test_oplus_neither_overflows_nor_underflows():
    a = SignedLog(torch.tensor([1e5, -1e5], **F64), torch.tensor([1.0, -1.0], **F64))
    b = SignedLog(a.log - 1, -a.sign)
    total = a.oplus(b)
    assert_equal(total.log, a.log + math.log1p(-math.exp(-1)))
    assert_equal(total.sign, a.sign)


@pytest.mark.parametrize("dim", [0, 1, (0, 1)])
def test_sum_over_dimensions(dim):
    real = torch.randn(5, 4, 3, **F64)
    real[:, 2] = 0
    assert_equal(SignedLog.from_real(real).oplus_over(dim).signexp(), real.sum(dim))


# Enumeration


def sequences(length: int, states: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(states), repeat=length))


def is_projective_tree(heads: tuple[int, ...]) -> bool:
    """heads[m - 1] is the parent of word m; each word between parent and child descends from the parent."""

    def ancestors(word: int) -> set[int]:
        seen = {word}
        while word != 0:
            word = heads[word - 1]
            if word in seen:
                return set()
            seen.add(word)
        return seen

    return all(
        head in ancestors(word)
        for child, head in enumerate(heads, start=1)
        for word in range(min(head, child), max(head, child) + 1)
    )


def trees(length: int, single_root: bool) -> list[tuple[int, ...]]:
    vectors = itertools.product(range(length), repeat=max(length - 1, 0))
    return [
        heads for heads in vectors if is_projective_tree(heads) and not (single_root and heads.count(0) > 1)
    ]


def chain_score(unary: Tensor, transitions: Tensor, states: tuple[int, ...]) -> Tensor:
    score = sum((unary[i, c] for i, c in enumerate(states)), start=unary.new_zeros(()))
    return score + sum(transitions[i, a, c] for i, (a, c) in enumerate(itertools.pairwise(states)))


def tree_score(arcs: Tensor, heads: tuple[int, ...]) -> Tensor:
    return sum((arcs[head, word] for word, head in enumerate(heads, start=1)), start=arcs.new_zeros(()))


def by_enumeration(scores: list[Tensor], marginals_of: Tensor) -> tuple[Tensor, Tensor]:
    """log Z, and its gradient by `marginals_of`, of the structures that are not forbidden."""
    scores = [score for score in scores if score > -math.inf]
    if not scores:
        return marginals_of.new_tensor(-math.inf), torch.zeros_like(marginals_of)
    log_partition = torch.logsumexp(torch.stack(scores), dim=0)
    if not log_partition.requires_grad:
        return log_partition, torch.zeros_like(marginals_of)
    (marginals,) = torch.autograd.grad(log_partition, marginals_of, create_graph=True, materialize_grads=True)
    return log_partition, marginals


def assert_same_values_and_gradients(actual, expected, inputs) -> None:
    """Compares (log Z (B,), marginals) and the gradients of a random weighting of both by the inputs."""
    for a, e in zip(actual, expected, strict=True):
        assert_equal(a, e)
    log_partition, marginals = expected
    weight = torch.randn_like(marginals)
    weight_of_log_partition = torch.randn_like(log_partition).masked_fill(log_partition.isinf(), 0)

    def gradients(log_partition, marginals):
        finite = torch.where(log_partition.isinf(), 0, log_partition)
        loss = (marginals * weight).sum() + (finite * weight_of_log_partition).sum()
        if not loss.requires_grad:  # the oracle's empty structure is a constant
            return tuple(torch.zeros_like(each) for each in inputs)
        return torch.autograd.grad(loss, inputs, materialize_grads=True)

    for a, e in zip(gradients(*actual), gradients(*expected), strict=True):
        assert_equal(a, e)


def check_chain(unary: Tensor, transitions: Tensor, lengths: list[int] | None = None) -> None:
    inputs = (unary.requires_grad_(), transitions.requires_grad_())
    batch, n, C = unary.shape
    everywhere = transitions.expand(batch, n - 1, C, C)
    expected = [
        by_enumeration([chain_score(unary[b], everywhere[b], z) for z in sequences(length, C)], unary)
        for b, length in enumerate(lengths or [n] * batch)
    ]
    log_partition = torch.stack([each[0] for each in expected])
    marginals = torch.stack([each[1][b] for b, each in enumerate(expected)])
    actual = paper.chain(unary, transitions, lengths and torch.tensor(lengths))
    assert_same_values_and_gradients(actual, (log_partition, marginals), inputs)


def check_projective(arcs: Tensor, lengths: list[int] | None = None, single_root: bool = False) -> None:
    arcs.requires_grad_()
    batch, n, _ = arcs.shape
    expected = [
        by_enumeration([tree_score(arcs[b], heads) for heads in trees(length, single_root)], arcs)
        for b, length in enumerate(lengths or [n] * batch)
    ]
    log_partition = torch.stack([each[0] for each in expected])
    marginals = torch.stack([each[1][b] for b, each in enumerate(expected)])
    actual = paper.projective(arcs, lengths and torch.tensor(lengths), single_root)
    assert_same_values_and_gradients(actual, (log_partition, marginals), (arcs,))


def test_the_oracle_counts_projective_trees():
    assert [len(trees(n, False)) for n in (1, 2, 3, 4, 5)] == [1, 1, 3, 12, 55]
    assert [len(trees(n, True)) for n in (1, 2, 3, 4, 5)] == [1, 1, 2, 7, 30]


# Figure 2


@pytest.mark.parametrize(("n", "C"), [(1, 3), (2, 1), (2, 3), (4, 2), (4, 3)])
def test_chain(n, C):
    check_chain(torch.randn(2, n, C, **F64), torch.randn(2, n - 1, C, C, **F64))


@pytest.mark.parametrize("shape", [(1, 1, 2, 2), (3, 1, 2, 2), (1, 4, 2, 2), (3, 4, 2, 2)])
def test_chain_broadcasts_transitions(shape):
    check_chain(torch.randn(3, 5, 2, **F64), torch.randn(shape, **F64), lengths=[5, 3, 1])


def test_chain_of_one_position_takes_transitions_that_broadcast_to_none():
    unary = torch.randn(2, 1, 3, **F64)
    log_partition, marginals = paper.chain(unary, torch.randn(1, 1, 3, 3, **F64), None)
    assert_equal(log_partition, unary.logsumexp(-1)[:, 0])
    assert_equal(marginals, unary.softmax(-1))


def test_chain_lengths():
    check_chain(torch.randn(5, 4, 3, **F64), torch.randn(5, 3, 3, 3, **F64), lengths=[4, 3, 2, 1, 0])


def test_chain_forbidden_potentials():
    unary, transitions = torch.randn(3, 4, 3, **F64), torch.randn(3, 3, 3, 3, **F64)
    unary[0, 1, 2] = unary[0, 3, 0] = -math.inf
    transitions[0, 0, 1] = transitions[0, 2, :, 1] = -math.inf
    unary[1, 2] = -math.inf  # nothing left
    transitions[2] = torch.eye(3, **F64).log()  # only constant sequences
    check_chain(unary, transitions, lengths=[4, 4, 3])


def test_chain_beyond_the_length_is_exactly_zero():
    unary = torch.randn(1, 5, 2, requires_grad=True)
    transitions = torch.randn(1, 4, 2, 2, requires_grad=True)
    log_partition, marginals = paper.chain(unary, transitions, torch.tensor([3]))
    (log_partition.sum() + marginals.square().sum()).backward()
    for beyond in (marginals[0, 3:], unary.grad[0, 3:], transitions.grad[0, 2:]):
        assert (beyond == 0).all()


# Figures 5 and 6


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_projective(n, single_root):
    check_projective(torch.randn(2, n, n, **F64), single_root=single_root)


@pytest.mark.parametrize("single_root", [False, True])
def test_projective_lengths(single_root):
    check_projective(torch.randn(5, 4, 4, **F64), lengths=[4, 3, 2, 1, 0], single_root=single_root)


@pytest.mark.parametrize("single_root", [False, True])
def test_projective_forbidden_arcs(single_root):
    arcs = torch.randn(3, 5, 5, **F64)
    arcs[0, 2, 4] = arcs[0, 0, 3] = arcs[0, 3, 1] = -math.inf
    arcs[1, :, 2] = -math.inf  # nothing left
    arcs[2, 1:] = -math.inf  # every word hangs on the root, which a single root forbids
    check_projective(arcs, single_root=single_root)


def test_projective_ignores_column_zero_the_diagonal_and_the_padding():
    arcs = torch.randn(1, 5, 5, **F64)
    other = arcs.clone()
    other[0, :, 0] = math.nan
    other[0].fill_diagonal_(math.nan)
    other[0, 4] = other[0, :, 4] = math.nan
    other.requires_grad_()
    results = [paper.projective(each, torch.tensor([4]), False) for each in (arcs, other)]
    for expected, actual in zip(*results, strict=True):
        assert torch.equal(actual, expected)
    results[1][1].square().sum().backward()
    assert (other.grad[other.isnan()] == 0).all()
    assert not other.grad.isnan().any()


# What both promise


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtype_is_kept(dtype):
    unary, transitions = torch.randn(2, 4, 3, dtype=dtype), torch.randn(1, 1, 3, 3, dtype=dtype)
    arcs = torch.randn(2, 4, 4, dtype=dtype)
    inputs = [each.requires_grad_() for each in (unary, transitions, arcs)]
    results = (*paper.chain(unary, transitions, None), *paper.projective(arcs, None, False))
    gradients = torch.autograd.grad(sum(each.float().square().sum() for each in results), inputs)
    assert {each.dtype for each in (*results, *gradients)} == {dtype}
    exact = paper.chain(unary.double(), transitions.double(), None)
    assert torch.equal(results[1], exact[1].to(dtype))


def test_no_structure_left_gives_zeros_whatever_the_loss():
    unary = torch.full((1, 3, 2), -math.inf, requires_grad=True)
    arcs = torch.full((1, 3, 3), -math.inf, requires_grad=True)
    transitions = torch.randn(1, 2, 2, 2, requires_grad=True)
    for log_partition, marginals in (
        paper.chain(unary, transitions, None),
        paper.projective(arcs, None, False),
    ):
        assert log_partition.item() == -math.inf
        assert (marginals == 0).all()
        (log_partition.sum() + marginals.sum()).backward()
    for each in (unary, transitions, arcs):
        assert (each.grad == 0).all()


def test_large_potentials():
    unary, transitions = 1e4 * torch.randn(2, 4, 3, **F64), 1e4 * torch.randn(2, 3, 3, 3, **F64)
    check_chain(unary, transitions)
    check_projective(1e4 * torch.randn(2, 4, 4, **F64))


def test_empty_batch():
    log_partition, marginals = paper.chain(torch.randn(0, 3, 2), torch.randn(1, 1, 2, 2), None)
    assert log_partition.shape == (0,)
    assert marginals.shape == (0, 3, 2)
    arcs = torch.randn(0, 3, 3, requires_grad=True)
    log_partition, marginals = paper.projective(arcs, None, True)
    assert log_partition.shape == (0,)
    assert marginals.shape == (0, 3, 3)
    marginals.sum().backward()
    assert arcs.grad.shape == arcs.shape


def test_a_second_derivative_raises():
    arcs = torch.randn(1, 3, 3, requires_grad=True)
    _, marginals = paper.projective(arcs, None, False)
    (grad,) = torch.autograd.grad(marginals.square().sum(), arcs, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


# The procedures under their printed names


def test_forward_backward_and_its_backprop_alone():
    n, C = 3, 2
    theta = torch.randn(n + 1, C + 1, C + 1, 1, **F64).requires_grad_()
    t = C
    paths = [(t, *z, t) for z in sequences(n, C + 1)]  # <t> may stand inside, too
    edges = [enumerate(itertools.pairwise(path)) for path in paths]
    scores = torch.stack([sum(theta[i, y, c, 0] for i, (y, c) in path) for path in edges])
    holds = torch.tensor([[[z[i + 1] == c for z in paths] for c in range(C)] for i in range(n)], **F64)
    expected = holds @ scores.softmax(0)
    p, A, alpha, beta = paper.forward_backward(theta.detach())
    assert_equal(A[0], scores.logsumexp(0))
    assert_equal(p[..., 0], expected)
    weight = torch.randn(n, C, 1, **F64)
    grad_A = torch.randn(1, **F64)
    actual = paper.backprop_forward_backward(theta.detach(), p, weight, grad_A, alpha, beta)
    loss = (expected * weight[..., 0]).sum() + (scores.logsumexp(0) * grad_A).sum()
    assert_equal(actual, torch.autograd.grad(loss, theta)[0])


def test_inside_outside_and_its_backprop_alone():
    n = 4
    theta = torch.randn(n, n, 1, **F64)
    theta[:, 0] = -math.inf
    theta.requires_grad_()
    vectors = trees(n, single_root=False)
    scores = torch.stack([tree_score(theta[..., 0], heads) for heads in vectors])
    holds = torch.zeros(n, n, len(vectors), **F64)
    for index, heads in enumerate(vectors):
        holds[heads, range(1, n), index] = 1
    expected = holds @ scores.softmax(0)
    lengths = torch.tensor([n])
    p, A, alpha, beta = paper.inside_outside(theta.detach(), lengths)
    assert_equal(A[0], scores.logsumexp(0))
    assert_equal(p[..., 0], expected)
    weight = torch.randn(n, n, 1, **F64)
    grad_A = torch.randn(1, **F64)
    actual = paper.backprop_inside_outside(theta.detach(), p, weight, grad_A, alpha, beta, lengths)
    loss = (expected * weight[..., 0]).sum() + (scores.logsumexp(0) * grad_A).sum()
    assert_equal(actual, torch.autograd.grad(loss, theta)[0])
