"""What holds for every structure, written once. `PAIRS` lists each law with each case that it applies to.

Expected values come from enumeration (oracle.py) wherever enumeration says more than an invariance would.
"""

import math

import torch
from cases import CASES, CHAINS, TREES

PAIRS = []
LENGTHS = torch.tensor([[4, 1, 3], [2, 4, 0]])


def law(cases=CASES):
    def register(check):
        PAIRS.extend((check, case) for case in cases)
        return check

    return register


def close(actual, expected, tolerance=1e-9):
    torch.testing.assert_close(actual, expected, rtol=tolerance, atol=tolerance)


def leaves(potentials):
    return tuple(p.detach().clone().requires_grad_() for p in potentials)


def forbid(potentials, rate=0.3):
    return tuple(p.masked_fill(torch.rand(p.shape) < rate, -math.inf) for p in potentials)


def same_gradients(ours, theirs, potentials, tolerance=1e-9):
    weights = torch.randn(ours.shape, dtype=ours.dtype)
    close(*(gradients((value * weights).sum(), potentials) for value in (ours, theirs)), tolerance)


def gradients(value, potentials):
    """Zeros where the value is a constant, as it is for the enumeration of what has one structure or none."""
    if not value.requires_grad:
        return tuple(torch.zeros_like(p) for p in potentials)
    return torch.autograd.grad(value, potentials, allow_unused=True, materialize_grads=True)


# --- log Z, marginals and their gradients -----------------------------------------------------------------


@law()
def log_partition_and_marginals_equal_enumeration(case):
    potentials = case.potentials((2, 3))
    for lengths in (None, LENGTHS):
        d = case.distribution(potentials, lengths)
        close(d.log_partition, case.stacked(potentials, "log_partition", lengths))
        close(d.marginals, case.stacked(potentials, "marginals", lengths))


@law()
def marginals_are_the_gradient_of_the_log_partition(case):
    potentials = leaves(case.potentials((2,)))
    d = case.distribution(potentials)
    gradients = torch.autograd.grad(d.log_partition.sum(), potentials)
    close(gradients[0], d.marginals)
    if len(gradients) > 1:
        edges = d.edge_marginals
        close(gradients[1], edges if gradients[1].shape == edges.shape else edges.sum((0, 1)))


@law()
def gradients_through_the_marginals_equal_enumeration(case):
    """Also with forbidden parts and lengths: what a network trains on."""
    for lengths in (None, LENGTHS):
        potentials = leaves(forbid(case.potentials((2, 3)), 0.2))
        ours = case.distribution(potentials, lengths).marginals
        same_gradients(ours, case.stacked(potentials, "marginals", lengths), potentials)


@law(CHAINS)
def edge_marginals_and_their_gradients_equal_enumeration(case):
    for lengths in (None, LENGTHS):
        potentials = leaves(forbid(case.potentials((2, 3)), 0.1))
        ours = case.distribution(potentials, lengths).edge_marginals
        theirs = case.stacked(potentials, "edge_marginals", lengths)
        close(ours, theirs)
        same_gradients(ours, theirs, potentials)


@law(CHAINS)
def each_position_is_in_one_state_and_edges_agree_with_nodes(case):
    d = case.distribution(case.potentials((2,)))
    close(d.marginals.sum(-1), torch.ones(2, 4, dtype=torch.float64))
    close(d.edge_marginals.sum(-1), d.marginals[:, :-1])
    close(d.edge_marginals.sum(-2), d.marginals[:, 1:])


@law(TREES)
def each_word_has_one_head_and_the_root_symbol_none(case):
    marginals = case.distribution(case.potentials((2,))).marginals
    close(marginals.sum(-2), torch.tensor([0.0, 1, 1, 1], dtype=torch.float64).expand(2, 4))
    assert not marginals.diagonal(dim1=-2, dim2=-1).any()
    assert not marginals[..., 0].any()
    if case.single_root:
        close(marginals[:, 0].sum(-1), torch.ones(2, dtype=torch.float64))


@law()
def the_hessian_is_symmetric_and_equals_enumeration(case):
    first, *rest = case.potentials(n=3)

    def ours(flat):
        return case.distribution((flat.view_as(first), *rest)).log_partition

    def theirs(flat):
        return case.enumerate_one((flat.view_as(first), *rest), None).log_partition

    hessian = torch.autograd.functional.hessian(ours, first.flatten())
    close(hessian, hessian.mT)
    close(hessian, torch.autograd.functional.hessian(theirs, first.flatten()))


# --- invariances ------------------------------------------------------------------------------------------


@law()
def a_constant_added_to_the_scores_shifts_the_log_partition_only(case):
    first, *rest = case.potentials((2,))
    before, after = case.distribution((first, *rest)), case.distribution((first + 1000, *rest))
    parts = before.marginals.sum((-1, -2)).round()
    close(after.log_partition, before.log_partition + 1000 * parts)
    close(after.marginals, before.marginals)
    close(after.entropy(), before.entropy())


@law()
def reading_the_sentence_backwards_mirrors_the_marginals(case):
    potentials = case.potentials((2,), n=5)
    forwards, backwards = case.distribution(potentials), case.distribution(case.mirror(potentials))
    close(backwards.log_partition, forwards.log_partition)
    close(backwards.marginals, case.mirror_marginals(forwards.marginals))


@law()
def a_padded_batch_equals_its_sentences_one_by_one_whatever_the_padding_holds(case):
    clean = case.potentials((2, 3))
    lengths = LENGTHS.clamp(min=1)
    for garbage in (math.nan, math.inf, -math.inf, 1e300):
        potentials = leaves(case.spoiled(clean, lengths, garbage))
        d = case.distribution(potentials, lengths)
        weights = torch.randn(d.marginals.shape, dtype=torch.float64)
        gradients = torch.autograd.grad(
            (d.marginals * weights).sum() + d.log_partition.sum() + d.entropy().sum(), potentials
        )
        for index in case.indices(potentials):
            length = int(lengths[index])
            sentence = leaves(case.sentence(clean, index, length))
            alone = case.distribution(sentence)
            window = tuple(map(slice, alone.marginals.shape))
            close(d.log_partition[index], alone.log_partition)
            close(d.entropy()[index], alone.entropy())
            close(d.marginals[index][window], alone.marginals)
            assert d.marginals[index].count_nonzero() == alone.marginals.count_nonzero(), "not zero beyond"
            assert d.mode[index].tolist() == [*alone.mode.tolist(), *[0] * (4 - length)]
            loss = (alone.marginals * weights[index][window]).sum()
            (gradient, *_) = torch.autograd.grad(loss + alone.log_partition + alone.entropy(), sentence)
            close(gradients[0][index][window], gradient)
            assert gradients[0][index].count_nonzero() == gradient.count_nonzero(), "gradient beyond"


@law()
def memory_layout_does_not_matter(case):
    potentials = case.potentials((3, 2))
    strange = [p.transpose(0, 1).contiguous().transpose(0, 1) if p.dim() > 2 else p.mT for p in potentials]
    strange[0] = strange[0].mT.contiguous().mT
    straight = tuple(p.contiguous() for p in strange)
    assert not strange[0].is_contiguous()
    ours, expected = case.distribution(strange), case.distribution(straight)
    close(ours.log_partition, expected.log_partition)
    close(ours.marginals, expected.marginals)
    close(case.stacked(straight, "marginals"), expected.marginals)
    assert ours.mode.equal(expected.mode)
    expanded = strange[0][:1, :1].expand_as(strange[0])
    close(*(case.distribution([t, *straight[1:]]).marginals for t in (expanded, expanded.contiguous())))


@law()
def the_callers_tensors_are_left_alone(case):
    potentials = leaves(forbid(case.potentials((2,)), 0.1))
    before, versions = [p.detach().clone() for p in potentials], [p._version for p in potentials]
    lengths = torch.tensor([4, 2])
    d = case.distribution(potentials, lengths)
    (d.log_partition.sum() + d.marginals.sum() + d.entropy().sum()).backward()
    _ = d.mode, d.sample((2,)), d.topk(2), d.score(d.mode), d.cross_entropy(d)
    assert all(p.detach().equal(b) for p, b in zip(potentials, before, strict=True))
    assert [p._version for p in potentials] == versions
    assert lengths.tolist() == [4, 2]
    frozen = case.potentials((2,))
    _ = case.distribution(frozen).marginals
    assert not any(p.requires_grad for p in frozen)


# --- the edges of the domain ------------------------------------------------------------------------------


@law()
def forbidden_parts_are_never_used_and_cause_no_nan(case):
    potentials = leaves(forbid(case.potentials((6,))))
    d = case.distribution(potentials)
    expected = case.stacked(potentials, "log_partition")
    close(d.log_partition, expected)
    close(d.marginals, case.stacked(potentials, "marginals"))
    close(d.entropy(), case.stacked(potentials, "entropy"))
    assert not d.marginals[potentials[0] == -math.inf].any()
    for gradient in torch.autograd.grad(d.entropy().sum() + d.marginals.square().sum(), potentials):
        assert gradient.isfinite().all()
    close(d.score(d.mode)[expected.isfinite()], case.stacked(potentials, "mode_score")[expected.isfinite()])


@law()
def when_nothing_is_possible_all_is_zero_and_the_log_partition_minus_infinity(case):
    potentials = leaves(case.potentials((3,)))
    case.block(potentials, row=1)
    d = case.distribution(potentials)
    neighbours = case.distribution(case.rows(potentials, slice(0, 3, 2)))
    assert d.log_partition[1] == -math.inf
    for zero in (d.marginals[1], d.entropy()[1], d.mode[1], d.sample((20,))[:, 1]):
        assert not zero.any()
    assert (d.topk(2)[1][1] == -math.inf).all()
    assert d.log_prob(d.mode)[1] == -math.inf
    assert d.log_partition[::2].equal(neighbours.log_partition)
    assert d.marginals[::2].equal(neighbours.marginals)
    gradient, *others = torch.autograd.grad(
        d.marginals.square().sum() + d.log_partition.sum() + d.entropy().sum(), potentials
    )
    assert not gradient[1].any()
    assert gradient[::2].isfinite().all()
    assert gradient[::2].any()
    assert all(other.isfinite().all() for other in others)


@law()
def one_position_and_no_position(case):
    potentials = leaves(case.potentials((2,), n=1))
    for lengths in (None, torch.tensor([1, 0])):
        d = case.distribution(potentials, lengths)
        for quantity in ("log_partition", "marginals"):
            close(getattr(d, quantity), case.stacked(potentials, quantity, lengths))
        close(d.entropy(), case.stacked(potentials, "entropy", lengths))
        assert d.mode.equal(case.stacked(potentials, "mode", lengths))
        assert d.sample((3,)).shape == (3, 2, 1)
        assert d.log_prob(d.mode).shape == (2,)
        (gradient, *_) = torch.autograd.grad(
            d.log_partition.sum(), potentials, allow_unused=True, materialize_grads=True
        )
        close(gradient, d.marginals)
    assert case.distribution(potentials, torch.tensor([0, 0])).log_partition.tolist() == [0, 0]


@law()
def an_empty_batch_gives_empty_results(case):
    potentials = leaves(case.potentials((0, 2)))
    d = case.distribution(potentials, torch.zeros(0, 2, dtype=torch.long))
    assert d.log_partition.shape == d.entropy().shape == d.log_prob(d.mode).shape == (0, 2)
    assert d.marginals.shape == potentials[0].shape
    assert d.mode.shape == (0, 2, 4)
    assert d.sample((3,)).shape == (3, 0, 2, 4)
    assert [t.shape for t in d.topk(2)] == [(0, 2, 2, 4), (0, 2, 2)]
    (gradient, *_) = torch.autograd.grad(d.marginals.sum() + d.log_partition.sum(), potentials[:1])
    assert gradient.shape == potentials[0].shape


@law()
def results_come_in_the_callers_dtype_and_are_as_good_as_it_can_hold(case):
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16):
        potentials = leaves(case.potentials((3,), dtype=dtype))
        d = case.distribution(potentials)
        eps = max(torch.finfo(dtype).eps, 1e-10)
        for quantity in ("log_partition", "marginals"):
            actual, expected = getattr(d, quantity), case.stacked(potentials, quantity)
            torch.testing.assert_close(actual, expected.to(dtype), rtol=2 * eps, atol=min(eps, 1e-6))
        torch.testing.assert_close(
            d.entropy(), case.stacked(potentials, "entropy").to(dtype), rtol=4 * eps, atol=4 * min(eps, 1e-6)
        )
        assert d.log_prob(d.mode).dtype == d.topk(2)[1].dtype == d.score(d.mode).dtype == dtype
        assert d.mode.dtype == d.sample().dtype == d.topk(2)[0].dtype == torch.long
        gradients = torch.autograd.grad(d.marginals.square().sum(), potentials)
        assert all(g.dtype == dtype and g.isfinite().all() for g in gradients)


PAPER = [
    log_partition_and_marginals_equal_enumeration,
    marginals_are_the_gradient_of_the_log_partition,
    gradients_through_the_marginals_equal_enumeration,
    edge_marginals_and_their_gradients_equal_enumeration,
    a_constant_added_to_the_scores_shifts_the_log_partition_only,
    reading_the_sentence_backwards_mirrors_the_marginals,
]
