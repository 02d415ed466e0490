"""The same bits at any thread count, and from several Python threads at once."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from cases import CASES


@pytest.fixture
def _restored_threads():
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def everything(case, potentials):
    leaves = tuple(p.clone().requires_grad_() for p in potentials)
    d = case.distribution(leaves)
    gradients = torch.autograd.grad(d.marginals.square().sum() + d.log_partition.sum(), leaves)
    return [d.log_partition.detach(), d.marginals.detach(), d.mode, d.entropy().detach(), *gradients]


def assert_same_bits(results, expected):
    assert all(a.equal(b) for a, b in zip(results, expected, strict=True))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.usefixtures("_restored_threads")
def test_one_and_two_threads_give_the_same_bits(case):
    potentials = case.potentials((37,), n=12, dtype=torch.float32)
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        results.append(everything(case, potentials))
    assert_same_bits(results[1], results[0])
    assert_same_bits(results[2], results[0])


def test_several_python_threads_at_once_do_not_disturb_each_other():
    jobs = [(case, case.potentials((5,), n=6)) for case in CASES for _ in range(4)]
    expected = [everything(*job) for job in jobs]
    with ThreadPoolExecutor(8) as pool:
        for results, wanted in zip(pool.map(lambda job: everything(*job), jobs), expected, strict=True):
            assert_same_bits(results, wanted)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_several_threads_may_ask_one_distribution(case):
    potentials = case.potentials((3,))
    expected = case.distribution(potentials).marginals
    d = case.distribution(potentials)
    with ThreadPoolExecutor(8) as pool:
        for marginals in pool.map(lambda _: d.marginals, range(16)):
            assert marginals.equal(expected)
