"""Softmax, sigmoid and segmentation attention against the paper's formulas, written out and enumerated."""

import itertools
import re

import oracle
import pytest
import torch
from torch.autograd import gradcheck

from structattn import SegmentationAttention, SigmoidAttention, SoftmaxAttention

LAYERS = (SoftmaxAttention, SigmoidAttention, SegmentationAttention)
B, m, n, dq, dk = 3, 4, 5, 6, 7


def layer(kind, **options):
    made = kind(dq, dk, dtype=torch.float64, **options)
    if kind is SegmentationAttention:
        torch.nn.init.normal_(made.pairwise)
    return made


def inputs(dtype=torch.float64):
    return torch.randn(B, m, dq, dtype=dtype), torch.randn(B, n, dk, dtype=dtype)


def potential(attention, h, query):
    """h W h', digit by digit."""
    return sum(h[a] * attention.weight[a, b] * query[b] for a in range(dk) for b in range(dq))


def written_out(attention, query, keys):
    """The weights of one query over the keys that count."""
    theta = torch.stack([potential(attention, h, query) for h in keys])
    if type(attention) is SoftmaxAttention:
        return theta.exp() / theta.exp().sum()
    if type(attention) is SigmoidAttention:
        return 1 / (1 + (-theta).exp())
    p, total = torch.zeros(len(theta), dtype=theta.dtype), 0
    for z in itertools.product((0, 1), repeat=len(theta)):
        pairs = sum(attention.pairwise[a, b] for a, b in itertools.pairwise(z))
        weight = (sum(theta[i] * z[i] for i in range(len(z))) + pairs).exp()
        p, total = p + weight * torch.tensor(z), total + weight
    p = p / total
    return p if attention.normalize is None else p / (p.sum() / attention.normalize)


@pytest.mark.parametrize("kind", LAYERS)
def test_the_weights_are_the_formula_and_the_context_their_sum(kind):
    attention, (query, key) = layer(kind), inputs()
    value, lengths = torch.randn(B, n, 2, dtype=torch.float64), [5, 2, 1]
    context, weights = attention(query, key, value, lengths=torch.tensor(lengths))
    assert context.shape == (B, m, 2)
    assert weights.shape == (B, m, n)
    for b, j in itertools.product(range(B), range(m)):
        expected = written_out(attention, query[b, j], key[b, : lengths[b]])
        torch.testing.assert_close(weights[b, j, : lengths[b]], expected)
        assert (weights[b, j, lengths[b] :] == 0).all()
        torch.testing.assert_close(context[b, j], expected @ value[b, : lengths[b]])


def test_gamma_scales_to_lambda_or_not_at_all():
    plain = layer(SegmentationAttention, normalize=None)
    scaled = layer(SegmentationAttention)
    scaled.load_state_dict(plain.state_dict())
    query, key = inputs()
    p, weights = plain(query, key)[1], scaled(query, key)[1]
    torch.testing.assert_close(weights.sum(-1), torch.full((B, m), 2.0, dtype=torch.float64))
    torch.testing.assert_close(weights, 2 * p / p.sum(-1, keepdim=True))
    assert SigmoidAttention(4).normalize is None


def test_with_zero_pairwise_potentials_positions_are_independent():
    segmentation, sigmoid = SegmentationAttention(4, normalize=None), SigmoidAttention(4)
    sigmoid.weight = segmentation.weight
    query, key = torch.randn(2, 3, 4), torch.randn(2, 5, 4)
    torch.testing.assert_close(segmentation(query, key)[1], sigmoid(query, key)[1])
    assert (
        sum(p.numel() for p in segmentation.parameters()) == sum(p.numel() for p in sigmoid.parameters()) + 4
    )


def test_the_distribution_is_the_chain():
    attention, (query, key) = layer(SegmentationAttention), inputs()
    chain = attention.distribution(query, key, torch.tensor([5, 3, 2]))
    theta = attention.potentials(query, key)[1, 2]
    unary = torch.stack([torch.zeros_like(theta), theta], 1)
    judge = oracle.chain(unary, attention.pairwise.expand(n - 1, 2, 2), 3)
    torch.testing.assert_close(chain.log_partition[1, 2], judge.log_partition)
    assert torch.equal(chain.mode[1, 2], judge.mode)


def test_the_penalty_is_half_a_percent_of_the_squares():
    attention = layer(SegmentationAttention)
    torch.testing.assert_close(attention.pairwise_penalty(), 0.005 * (attention.pairwise**2).sum())
    attention.pairwise_penalty().backward()
    torch.testing.assert_close(attention.pairwise.grad, 0.01 * attention.pairwise)


@pytest.mark.parametrize("kind", LAYERS)
def test_one_query_at_a_time_gives_the_same_numbers(kind):
    attention, (query, key) = layer(kind), inputs()
    lengths = torch.tensor([5, 0, 3])
    context, weights = attention(query, key, lengths=lengths)
    for j in range(m):
        one_context, one_weights = attention(query[:, j], key, lengths=lengths)
        torch.testing.assert_close(one_context, context[:, j], rtol=0, atol=1e-12)
        torch.testing.assert_close(one_weights, weights[:, j], rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", LAYERS)
def test_what_is_masked_out_is_not_there(kind):
    attention, (query, key) = layer(kind), inputs()
    mask = torch.tensor([[0, 0, 0, 1, 1], [1, 0, 1, 0, 0], [1, 1, 1, 1, 1]]).bool()
    context, weights = attention(query, key, key_padding_mask=mask)
    for b in range(2):
        alone_context, alone_weights = attention(query[b : b + 1], key[b : b + 1, ~mask[b]])
        torch.testing.assert_close(context[b], alone_context[0])
        torch.testing.assert_close(weights[b][:, ~mask[b]], alone_weights[0])
    assert (weights[mask.unsqueeze(1).expand(-1, m, -1)] == 0).all()
    at_the_end = attention(query[:1], key[:1], lengths=torch.tensor([3]))
    torch.testing.assert_close(at_the_end[1][0], weights[0])


@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("kind", LAYERS)
def test_a_fully_padded_row_gives_zeros_and_no_gradient(kind, masked):
    attention, (query, key) = layer(kind), inputs()
    query.requires_grad_(), key.requires_grad_()
    lengths = torch.tensor([0, 5, 0])
    ignored = (lengths == 0).unsqueeze(1).expand(-1, n)
    where = {"key_padding_mask": ignored} if masked else {"lengths": lengths}
    context, weights = attention(query, key, **where)
    (context.square().sum() + weights.sum()).backward()
    for empty in (0, 2):
        assert (context[empty] == 0).all()
        assert (weights[empty] == 0).all()
        assert (query.grad[empty] == 0).all()
        assert (key.grad[empty] == 0).all()
    assert all(parameter.grad.isfinite().all() for parameter in attention.parameters())
    assert key.grad[1].abs().max() > 0


@pytest.mark.parametrize("kind", LAYERS)
def test_gradients(kind):
    attention, (query, key) = layer(kind), inputs()
    parameters = dict(attention.named_parameters())

    def call(query, key, *values):
        return torch.func.functional_call(
            attention, dict(zip(parameters, values, strict=True)), (query, key, None, torch.tensor([5, 2, 0]))
        )

    assert gradcheck(call, (query.requires_grad_(), key.requires_grad_(), *parameters.values()))


def test_hopeless_scores_give_no_nan():
    attention = SegmentationAttention(1, 1)
    with torch.no_grad():
        attention.weight.fill_(1.0)
    query, key = torch.full((1, 2, 1), 1000.0), torch.tensor([[[-1.0], [-1.0], [-1.0]]], requires_grad=True)
    context, _ = attention(query, key)
    context.sum().backward()
    assert context.isfinite().all()
    assert key.grad.isfinite().all()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", LAYERS)
def test_half_precision_comes_back_as_such(kind, dtype):
    attention, (query, key) = layer(kind), inputs()
    expected = attention(query, key)[0]
    context, weights = attention.to(dtype)(query.to(dtype), key.to(dtype))
    assert context.dtype == weights.dtype == dtype
    torch.testing.assert_close(context.double(), expected, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("kind", LAYERS)
def test_dropout_in_training_only(kind):
    attention, (query, key) = layer(kind, dropout=0.5), inputs()
    _, kept = attention.eval()(query, key)
    context, weights = attention.train()(query, key)
    dropped = weights == 0
    assert 0 < dropped.double().mean() < 1
    torch.testing.assert_close(weights[~dropped], 2 * kept[~dropped])
    torch.testing.assert_close(context, weights @ key)


def test_potentials_start_with_variance_one():
    attention = SegmentationAttention(40, 90)
    theta = attention.potentials(torch.randn(20, 30, 40), torch.randn(20, 50, 90))
    assert 0.8 < theta.std() < 1.2


def test_repr_and_state_dict():
    attention = SegmentationAttention(6, 7, dropout=0.1)
    assert repr(attention) == "SegmentationAttention(query_dim=6, key_dim=7, dropout=0.1, normalize=2.0)"
    assert {name: tuple(v.shape) for name, v in attention.state_dict().items()} == {
        "weight": (7, 6),
        "pairwise": (2, 2),
    }


QUERY, KEY = torch.zeros(3, 4, 6), torch.zeros(3, 5, 7)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"query": torch.zeros(3, 4, 5)}, ValueError, "query: expected shape (B, m, 6), got (3, 4, 5)"),
        ({"query": [1.0]}, TypeError, "query: expected a floating-point tensor, got a list"),
        ({"query": QUERY.long()}, TypeError, "query: expected a floating-point tensor, got int64"),
        (
            {"query": QUERY.double()},
            TypeError,
            "query: expected float32 as the layer's parameters are, got float64",
        ),
        ({"key": torch.zeros(2, 5, 7)}, ValueError, "key: expected shape (3, n, 7), got (2, 5, 7)"),
        (
            {"value": torch.zeros(3, 4, 7)},
            ValueError,
            "value: expected shape (3, 5, value_dim), got (3, 4, 7)",
        ),
        ({"lengths": torch.zeros(3)}, TypeError, "lengths: expected a tensor of integers, got float32"),
        ({"lengths": [5, 5, 5]}, TypeError, "lengths: expected a tensor of integers, got a list"),
        ({"lengths": torch.tensor([1, 2])}, ValueError, "lengths: expected shape (3,), got (2,)"),
        (
            {"lengths": torch.tensor([1, 6, 2])},
            ValueError,
            "lengths: expected values from 0 to 5, got values from 1 to 6",
        ),
        (
            {"key_padding_mask": torch.zeros(3, 5)},
            TypeError,
            "key_padding_mask: expected a tensor of bool, got float32",
        ),
        (
            {"key_padding_mask": torch.zeros(3, 4).bool()},
            ValueError,
            "key_padding_mask: expected shape (3, 5), got (3, 4)",
        ),
        (
            {"lengths": torch.tensor([5, 5, 5]), "key_padding_mask": torch.zeros(3, 5).bool()},
            ValueError,
            "lengths and key_padding_mask: expected at most one of them, got both",
        ),
    ],
)
@pytest.mark.parametrize("kind", LAYERS)
def test_errors_say_what_is_expected(kind, arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        kind(6, 7)(**{"query": QUERY, "key": KEY} | arguments)


def test_normalize_is_a_positive_number():
    with pytest.raises(ValueError, match=r"normalize: expected a number above 0, or None, got 0"):
        SegmentationAttention(4, normalize=0)
