"""What was seen to go wrong in other libraries, each with the answer that is right."""

import math

import pytest
import torch
from cases import CASES, TREES, Chain

import structattn as sa

NONPROJECTIVE = TREES[2:]
close = torch.testing.assert_close


@pytest.fixture(params=["plain", "auto"], autouse=True)
def _backend(request):
    with sa.backend(request.param):
        yield


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_log_prob_is_never_positive_at_large_scores(case, dtype):
    """torch-struct #61: score and log Z were rounded apart, and log_prob came out positive."""
    for scale in (10.0, 1e3, 1e5):
        potentials = case.potentials((8,), n=5, dtype=dtype, scale=scale)
        d = case.distribution(potentials)
        log_prob = d.log_prob(d.mode)
        assert (log_prob <= 0).all()
        assert (d.topk(2)[1] <= 0).all()
        expected = case.stacked(potentials, "mode_score") - case.stacked(potentials, "log_partition")
        close(log_prob.double(), expected, rtol=0, atol=100 * scale * torch.finfo(dtype).eps)


@pytest.mark.parametrize("case", TREES, ids=str)
def test_a_loss_on_tree_marginals_reaches_the_arcs(case):
    """torch-struct #72: the gradient through the marginals of DependencyCRF did not arrive."""
    arcs = case.potentials((2,), n=5)[0].requires_grad_()
    weights = torch.randn(2, 5, 5, dtype=torch.float64)
    gradients = [
        torch.autograd.grad((marginals * weights).sum(), arcs)[0]
        for marginals in (case.distribution((arcs,)).marginals, case.stacked((arcs,), "marginals"))
    ]
    assert gradients[0].abs().max() > 1e-3
    close(*gradients)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_one_forbidden_part_leaves_all_gradients_finite_and_right(case):
    """torch-struct, SuPar: one -inf arc turns a sentence's gradients to NaN. SynJax: one -inf unary gives
    wrong marginals in silence."""
    potentials = case.potentials((2,), n=4)
    potentials[0][0, 1, 2] = -math.inf
    potentials = tuple(p.requires_grad_() for p in potentials)
    d, expected = case.distribution(potentials), case.stacked(potentials, "marginals")
    expected_log_partition = case.stacked(potentials, "log_partition")
    close(d.marginals, expected)
    assert d.marginals[0, 1, 2] == 0
    for ours, theirs in ((d.marginals, expected), (d.log_partition, expected_log_partition)):
        actual = torch.autograd.grad(ours.square().sum(), potentials, retain_graph=True)
        close(actual, torch.autograd.grad(theirs.square().sum(), potentials, retain_graph=True))
        assert actual[0][0, 1, 2] == 0


@pytest.mark.parametrize("case", NONPROJECTIVE, ids=str)
@pytest.mark.parametrize("scale", [100.0, 1e4])
def test_nonprojective_scores_may_be_large(case, scale):
    """x100: torch-struct and SuPar give NaN, SynJax clips the scores and gives wrong marginals."""
    arcs = case.potentials((6,), n=5, scale=scale)[0].requires_grad_()
    d = case.distribution((arcs,))
    close(d.log_partition, case.stacked((arcs,), "log_partition"), rtol=1e-12, atol=0)
    close(d.marginals, case.stacked((arcs,), "marginals"), rtol=1e-9, atol=1e-9)
    (gradient,) = torch.autograd.grad(d.marginals.square().sum(), arcs)
    close(gradient, torch.autograd.grad(case.stacked((arcs,), "marginals").square().sum(), arcs)[0])


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, torch.enable_grad])
def test_marginals_need_no_gradient(case, mode):
    """torch-struct computes marginals by autograd, and raises when nothing requires a gradient."""
    potentials = case.potentials((2,), n=4)
    with mode():
        inside = case.potentials((2,), n=4)
        for each in (potentials, inside):
            d = case.distribution(each)
            marginals, entropy = d.marginals, d.entropy()
            assert not marginals.requires_grad
            close(marginals, case.stacked(each, "marginals"))
            close(entropy, case.stacked(each, "entropy"))
            assert d.mode.equal(case.stacked(each, "mode"))


def test_a_result_first_asked_for_without_gradients_does_not_spoil_training():
    """What no_grad computed must not be kept as it is: the distribution may be trained on afterwards."""
    for case in CASES:
        potentials = tuple(p.requires_grad_() for p in case.potentials((2,)))
        d = case.distribution(potentials)
        with torch.no_grad():
            _ = d.marginals, d.log_partition, d.entropy()
        (gradient, *_) = torch.autograd.grad(d.marginals.square().sum() + d.log_partition.sum(), potentials)
        assert gradient.any()


@pytest.mark.parametrize("transitions", ["own", "shared"])
def test_long_float32_chains_keep_their_precision(transitions):
    """Peers lose 5e-5 to 1e-2 in the marginals of 1,000 steps, and up to all of the transition gradient."""
    case = Chain(transitions, states=5)
    single = case.potentials((2,), n=1000, dtype=torch.float32, scale=2.0)
    weights = torch.randn(2, 1000, 5)
    results = []
    for dtype in (torch.float32, torch.float64):
        potentials = tuple(p.to(dtype).requires_grad_() for p in single)
        marginals = case.distribution(potentials).marginals
        gradients = torch.autograd.grad((marginals * weights.to(dtype)).sum(), potentials)
        results.append((marginals, gradients))
    (marginals, gradients), (exact, exact_gradients) = results
    close(marginals.double(), exact, rtol=0, atol=2e-6)
    for actual, expected in zip(gradients, exact_gradients, strict=True):
        close(actual.double(), expected, rtol=0, atol=1e-5 * expected.abs().max().item())
