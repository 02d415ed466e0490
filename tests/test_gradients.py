"""Derivatives of every order and by every road that torch offers: right, or an error, never a silent zero."""

import math

import pytest
import torch
from cases import CASES, CHAINS
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import gradcheck, gradgradcheck

LENGTHS = torch.tensor([3, 2])
VARIANTS = ["plain", "lengths", "forbidden"]
QUANTITIES = {
    "log_partition": lambda d, other: d.log_partition,
    "marginals": lambda d, other: d.marginals,
    "entropy": lambda d, other: d.entropy(),
    "cross_entropy": lambda d, other: d.cross_entropy(other),
    "kl_divergence": lambda d, other: torch.distributions.kl_divergence(d, other),
    "log_prob": lambda d, other: d.log_prob(d.mode),
}


def problem(case, variant, quantity):
    """A function of free potentials, and where to differentiate it; what is forbidden is set inside."""
    first, *rest = case.potentials((2,), n=3)
    other = case.distribution(case.potentials((2,), n=3), LENGTHS if variant == "lengths" else None)
    forbidden = torch.zeros_like(first, dtype=torch.bool)
    if variant == "forbidden":
        forbidden[0, 1, 2] = forbidden[1, 2, 1] = True

    def function(first, *rest):
        potentials = (first.masked_fill(forbidden, -math.inf), *rest)
        return quantity(case.distribution(potentials, LENGTHS if variant == "lengths" else None), other)

    return function, tuple(p.requires_grad_() for p in (first, *rest))


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("quantity", QUANTITIES)
@pytest.mark.parametrize("case", CASES, ids=str)
def test_first_and_second_derivatives(case, quantity, variant):
    function, inputs = problem(case, variant, QUANTITIES[quantity])
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("case", CHAINS, ids=str)
def test_first_and_second_derivatives_of_edge_marginals(case, variant):
    function, inputs = problem(case, variant, lambda d, other: d.edge_marginals)
    assert gradcheck(function, inputs)
    assert gradgradcheck(function, inputs)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_cross_entropy_reaches_both_distributions(case):
    theirs = case.potentials((2,), n=3)[0].requires_grad_()
    rest = case.potentials((2,), n=3)[1:]
    p = case.distribution(case.potentials((2,), n=3))
    assert gradcheck(lambda first: p.cross_entropy(case.distribution((first, *rest))), (theirs,))


# --- torch.func -------------------------------------------------------------------------------------------


def scalar(case, weights):
    """A function that a network might minimise, of the first potential of one sentence."""

    def function(first, *rest):
        d = case.distribution((first, *rest), validate_args=False)
        return (d.marginals * weights).sum() + d.log_partition + d.entropy()

    return function


@pytest.fixture(params=CASES, ids=str)
def setting(request):
    case = request.param
    first, *rest = case.potentials(n=3)
    function = scalar(case, torch.randn_like(first))
    direction, step = torch.randn_like(first), 1e-5
    ahead, behind = (function(first + s * direction, *rest) for s in (step, -step))
    slope = (ahead - behind) / (2 * step)
    return case, function, first, rest, direction, slope


def test_func_grad_agrees_with_finite_differences(setting):
    _, function, first, rest, direction, slope = setting
    gradient = torch.func.grad(function)(first, *rest)
    torch.testing.assert_close((gradient * direction).sum(), slope, rtol=1e-6, atol=1e-8)


def test_jvp_agrees_with_finite_differences_or_raises(setting):
    _, function, first, rest, direction, slope = setting
    try:
        _, tangent = torch.func.jvp(lambda x: function(x, *rest), (first,), (direction,))
    except (RuntimeError, NotImplementedError):
        return
    torch.testing.assert_close(tangent, slope, rtol=1e-6, atol=1e-8)


def test_forward_mode_duals_agree_with_finite_differences_or_raise(setting):
    _, function, first, rest, direction, slope = setting
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(first, direction)
        try:
            tangent = torch.autograd.forward_ad.unpack_dual(function(dual, *rest)).tangent
        except (RuntimeError, NotImplementedError):
            return
    assert tangent is not None, "the tangent was lost in silence"
    torch.testing.assert_close(tangent, slope, rtol=1e-6, atol=1e-8)


def test_vmap_and_vmap_of_grad_equal_a_loop(setting):
    _, function, first, rest, _, _ = setting
    firsts = torch.randn(4, *first.shape, dtype=torch.float64)
    for transformed in (function, torch.func.grad(function)):
        mapped = torch.func.vmap(lambda x, f=transformed: f(x, *rest))(firsts)
        torch.testing.assert_close(mapped, torch.stack([transformed(x, *rest) for x in firsts]))


def test_vmap_over_the_last_dimension_equals_a_loop(setting):
    case, _, first, rest, _, _ = setting
    firsts = torch.randn(*first.shape, 4, dtype=torch.float64)

    def marginals(x):
        return case.distribution((x, *rest), validate_args=False).marginals

    mapped = torch.func.vmap(marginals, in_dims=-1)(firsts)
    torch.testing.assert_close(mapped, torch.stack([marginals(x) for x in firsts.unbind(-1)]))


def test_hessian_by_func_equals_the_one_by_autograd(setting):
    _, function, first, rest, _, _ = setting
    expected = torch.autograd.functional.hessian(lambda x: function(x, *rest), first)
    try:
        hessian = torch.func.jacrev(torch.func.grad(function))(first, *rest)
    except RuntimeError:
        return
    torch.testing.assert_close(hessian, expected)


# --- tracing ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", [CASES[1], CASES[3], CASES[5]], ids=str)
def test_compiled_without_graph_breaks_it_computes_the_same(case):
    potentials = tuple(p.requires_grad_() for p in case.potentials((2,), n=3))
    weights = torch.randn_like(potentials[0])

    def loss(*potentials):
        d = case.distribution(potentials, LENGTHS)
        return (d.marginals * weights).sum() + d.log_partition.sum() + d.entropy().sum()

    torch.compiler.reset()
    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    actual, expected = compiled(*potentials), loss(*potentials)
    torch.testing.assert_close(actual, expected)
    assert actual.requires_grad
    torch.testing.assert_close(
        torch.autograd.grad(actual, potentials), torch.autograd.grad(expected, potentials)
    )


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("pretence", ["meta", "fake"])
def test_shapes_propagate_without_data(case, pretence):
    potentials = case.potentials((2,), n=3)
    with FakeTensorMode() if pretence == "fake" else torch.device("meta"):
        hollow = tuple(torch.empty(p.shape, dtype=p.dtype) for p in potentials)
        d = case.distribution(hollow, validate_args=False)
        assert d.marginals.shape == potentials[0].shape
        assert d.log_partition.shape == (2,)
