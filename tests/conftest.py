"""One thread a worker (xdist supplies the parallelism), and no test that depends on the ones before it."""

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _same_start_for_every_test(monkeypatch):
    torch.manual_seed(20170424)
    # The first torch.compile of a process switches the checks of all torch distributions off.
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)
