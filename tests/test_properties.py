"""Hypothesis looks for a batch that goes wrong: shapes, lengths, forbidden parts, magnitudes up to 1e3."""

import math

import pytest
import torch
from cases import CASES, Chain
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from laws import same_gradients

import structattn as sa

EXAMPLES = settings(
    max_examples=12, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


@st.composite
def batches(draw, case):
    """Potentials and lengths. Entries come from a drawn seed: what shrinks is the shape of things."""
    torch.manual_seed(draw(st.integers(0, 2**31)))
    batch = draw(st.sampled_from([(), (1,), (3,), (2, 2)]))
    n = draw(st.integers(1, 5 if isinstance(case, Chain) else 4))
    magnitude = draw(st.sampled_from([1e-3, 1.0, 30.0, 1e3]))
    forbidden = draw(st.sampled_from([0.0, 0.1, 0.5, 0.95]))
    potentials = case.potentials(batch, n, scale=magnitude)
    if draw(st.booleans()):  # many equal scores: ties and exact cancellation
        potentials = tuple(p.sign() * magnitude for p in potentials)
    potentials = tuple(p.masked_fill(torch.rand(p.shape) < forbidden, -math.inf) for p in potentials)
    lengths = torch.randint(0, n + 1, batch) if draw(st.booleans()) else None
    return potentials, lengths


def agrees(case, potentials, lengths):
    leaves = tuple(p.requires_grad_() for p in potentials)
    d = case.distribution(leaves, lengths)
    quantities = ("log_partition", "marginals", "entropy", "mode_score")
    expected = {quantity: case.stacked(leaves, quantity, lengths) for quantity in quantities}
    close = torch.testing.assert_close
    close(d.log_partition, expected["log_partition"], rtol=1e-9, atol=1e-9)
    close(d.marginals, expected["marginals"], rtol=1e-9, atol=1e-9)
    close(d.entropy(), expected["entropy"], rtol=1e-9, atol=1e-8)
    possible = expected["log_partition"].isfinite()
    close(d.score(d.mode)[possible], expected["mode_score"][possible], rtol=1e-12, atol=1e-9)
    for sample in d.sample((3,)):
        assert d.log_prob(sample)[possible].isfinite().all()
    same_gradients(d.marginals, expected["marginals"], leaves, tolerance=1e-8)


@pytest.mark.parametrize("backend", ["plain", "auto"])
@pytest.mark.parametrize("case", CASES, ids=str)
def test_any_batch_agrees_with_enumeration(case, backend):
    @EXAMPLES
    @given(batches(case))
    def search(batch):
        with sa.backend(backend):
            agrees(case, *batch)

    search()
