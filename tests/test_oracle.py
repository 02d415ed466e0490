"""The oracle itself, against counts that anyone can look up and the definitions of its quantities."""

import math

import oracle
import pytest
import torch


@pytest.mark.parametrize(("words", "count"), list(enumerate((1, 3, 12, 55, 273), start=1)))
def test_projective_trees_are_the_ternary_numbers(words, count):
    assert len(oracle.trees(words + 1, projective=True, single_root=False)) == count


@pytest.mark.parametrize(("words", "count"), list(enumerate((1, 2, 7, 30, 143), start=1)))
def test_projective_trees_with_one_root(words, count):
    assert len(oracle.trees(words + 1, projective=True, single_root=True)) == count


@pytest.mark.parametrize("words", range(1, 6))
def test_labelled_trees_follow_cayley(words):
    n = words + 1
    assert len(oracle.trees(n, projective=False, single_root=False)) == n ** (n - 2)
    assert len(oracle.trees(n, projective=False, single_root=True)) == words ** (words - 1)


@pytest.mark.parametrize("n", [2, 4, 6])
def test_projective_means_that_no_two_arcs_cross(n):
    def crosses(heads):
        spans = [sorted((heads[m], m)) for m in range(1, n)]
        return any(a < c < b < d for a, b in spans for c, d in spans)

    free = oracle.trees(n, projective=False, single_root=False)
    assert oracle.trees(n, projective=True, single_root=False) == [h for h in free if not crosses(h)]


def test_there_is_one_empty_structure():
    for n in (0, 1):
        assert oracle.trees(n, projective=True, single_root=True) == [(0,) * n]
    empty = oracle.chain(torch.randn(3, 2), length=0)
    assert empty.structures.tolist() == [[0, 0, 0]]
    assert empty.log_partition == 0
    assert not empty.marginals.any()


def test_marginals_are_the_gradient_of_the_log_partition():
    arcs = torch.randn(4, 4, dtype=torch.float64, requires_grad=True)
    arcs.data[0, 2] = -math.inf
    trees = oracle.tree(arcs, projective=False, single_root=False)
    (gradient,) = torch.autograd.grad(trees.log_partition, arcs)
    torch.testing.assert_close(gradient, trees.marginals)


def test_nothing_possible_is_minus_infinity_and_zeros():
    unary = torch.randn(3, 2, dtype=torch.float64)
    unary[1] = -math.inf
    paths = oracle.chain(unary)
    assert paths.log_partition == -math.inf
    assert paths.entropy == 0
    assert not paths.probabilities.any()
    assert not paths.marginals.any()
    assert not paths.mode.any()
    assert len(paths.ranked()[0]) == 0


def test_two_chains_by_hand():
    unary = torch.tensor([[0.0, math.log(3)]], dtype=torch.float64)
    other = torch.zeros(1, 2, dtype=torch.float64)
    p, q = oracle.chain(unary), oracle.chain(other)
    torch.testing.assert_close(p.log_partition.exp().item(), 4.0)
    torch.testing.assert_close(p.probabilities.tolist(), [0.25, 0.75])
    torch.testing.assert_close(p.entropy.item(), -0.25 * math.log(0.25) - 0.75 * math.log(0.75))
    torch.testing.assert_close(p.cross_entropy(q).item(), math.log(2))
    torch.testing.assert_close(p.kl(q).item(), math.log(2) - p.entropy.item())
    assert p.ranked()[0].tolist() == [[1], [0]]
