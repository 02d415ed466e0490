"""Short forms of tests/soak.py; and forks after the kernels were used, and workers that load data, do not hang."""

import os
import signal

import pytest
import torch
from cases import CASES
from soak import soak_kernels, soak_kills, soak_processes
from torch.utils.data import DataLoader, Dataset

import structattn as sa


def test_kernels_in_four_threads_give_the_bits_of_one_thread():
    lines = []
    soak_kernels(calls=6_000, shapes=100, report=lines.append)
    assert lines[-1].startswith("kernel calls: 6,0"), "each thread ends its last problem"
    assert "after warming up" in lines[-1]


def test_a_training_killed_at_random_moments_ends_with_the_same_weights(tmp_path):
    lines = []
    soak_kills(tmp_path, kills=3, epochs=60, report=lines.append)
    assert lines[-1].startswith("kills: 3 in")


def test_two_processes_end_well_and_one_that_is_killed_goes_on(tmp_path):
    lines = []
    soak_processes(tmp_path, trainings=2, report=lines.append)
    assert lines[-1].startswith("trainings on two processes: 2 in")


class Marginals(Dataset):
    """Trees whose marginals are computed where the data is loaded."""

    def __len__(self):
        return 12

    def __getitem__(self, index):
        arcs = torch.randn(6, 6, generator=torch.Generator().manual_seed(index))
        return sa.ProjectiveTree(arcs).marginals


@pytest.fixture
def _threads_were_used():
    """Several of torch's threads have worked, and ours have: the state that a fork copies, without the threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    for case in CASES:
        leaves = tuple(p.requires_grad_() for p in case.potentials((64,), n=12))
        case.distribution(leaves).marginals.sum().backward()
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("_threads_were_used")
def test_workers_of_a_data_loader_compute_marginals():
    alone = [Marginals()[index] for index in range(12)]
    loader = DataLoader(Marginals(), batch_size=3, num_workers=2, timeout=60, multiprocessing_context="fork")
    assert torch.equal(torch.cat(list(loader)), torch.stack(alone))


@pytest.mark.usefixtures("_threads_were_used")
@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_fork_after_use_computes_and_does_not_hang(case):
    """Nonprojective trees are torch's own linear algebra, which hangs in a child that it may use several threads in."""
    potentials = case.potentials((64,), n=12)
    expected = case.distribution(potentials).marginals
    child = os.fork()
    if child == 0:
        signal.alarm(20)  # a child that hangs is ended by it
        if "nonprojective" in case.name:
            torch.set_num_threads(1)
        os._exit(0 if case.distribution(potentials).marginals.equal(expected) else 1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
