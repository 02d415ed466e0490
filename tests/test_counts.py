"""At zero potentials the partition function counts structures: numbers that anyone can look up."""

import math

import pytest
import torch

import structattn as sa

PROJECTIVE = {False: [1, 3, 12, 55, 273, 1428, 7752], True: [1, 2, 7, 30, 143, 728, 3876]}
pytestmark = pytest.mark.parametrize("backend", ["plain", "auto"])


@pytest.mark.parametrize("single_root", [False, True])
def test_projective_trees(backend, single_root):
    for words, count in enumerate(PROJECTIVE[single_root], start=1):
        arcs = torch.zeros(words + 1, words + 1, dtype=torch.float64)
        with sa.backend(backend):
            counted = sa.ProjectiveTree(arcs, single_root=single_root).log_partition
        assert counted.item() == pytest.approx(math.log(count), abs=1e-12)


@pytest.mark.parametrize("words", [1, 2, 3, 4, 5, 20, 100])
def test_nonprojective_trees(backend, words):
    n = words + 1
    arcs = torch.zeros(n, n, dtype=torch.float64)
    with sa.backend(backend):
        free = sa.NonProjectiveTree(arcs).log_partition
        single = sa.NonProjectiveTree(arcs, single_root=True).log_partition
    assert free.item() == pytest.approx((n - 2) * math.log(n), rel=1e-12, abs=1e-12)
    assert single.item() == pytest.approx((words - 1) * math.log(words), rel=1e-12, abs=1e-12)


@pytest.mark.parametrize(("n", "states"), [(1, 1), (1, 5), (7, 1), (7, 4), (300, 3)])
def test_chains(backend, n, states):
    with sa.backend(backend):
        d = sa.LinearChain(torch.zeros(n, states, dtype=torch.float64))
        assert d.log_partition.item() == pytest.approx(n * math.log(states), rel=1e-12, abs=1e-12)
        torch.testing.assert_close(d.marginals, torch.full((n, states), 1 / states, dtype=torch.float64))
