"""Attention over sequences of facts against the appendix's potentials, enumerated."""

import itertools
import re

import pytest
import torch
from torch.autograd import gradcheck

from structattn import ChainAttention

B, n, d = 2, 4, 3


def made(steps, **options):
    attention = ChainAttention(d, steps, dtype=torch.float64, **options)
    query = torch.randn(B, d, dtype=torch.float64)
    key, value = (
        torch.randn(B, steps, n, d, dtype=torch.float64),
        torch.randn(B, steps, n, 2, dtype=torch.float64),
    )
    return attention, query, key, value


def enumerated(attention, query, x, count):
    """Every sequence of facts with its probability, from theta_{k,k+1}(i, j) as printed; x (K, n, d)."""
    K, q = attention.steps, [query]
    while len(q) < K:
        q.append(attention.transition @ q[-1])
    unary = [[x[k, i] @ q[k] for i in range(count)] for k in range(K)]
    scores = {}
    for z in itertools.product(range(count), repeat=K):
        if attention.potentials == "unary" or K == 1:
            scores[z] = sum(unary[k][z[k]] for k in range(K))
            continue
        pairs = list(enumerate(itertools.pairwise(z)))
        if attention.forbid_repeats and any(i == j for _, (i, j) in pairs):
            continue
        scores[z] = sum(unary[k][i] + x[k, i] @ x[k + 1, j] + unary[k + 1][j] for k, (i, j) in pairs)
    total = sum(score.exp() for score in scores.values())
    return {z: score.exp() / total for z, score in scores.items()}


@pytest.mark.parametrize("steps", [1, 2, 3])
@pytest.mark.parametrize(("potentials", "forbid"), [("unary", True), ("binary", True), ("binary", False)])
def test_marginals_context_best_and_topk_are_those_of_the_printed_potentials(steps, potentials, forbid):
    attention, query, key, value = made(steps, potentials=potentials, forbid_repeats=forbid)
    lengths = [4, 3]
    counted = torch.tensor(lengths)
    context, marginals = attention(query, key, value, counted)
    edges = attention.edge_marginals(query, key, counted)
    best, probability = attention.best(query, key, counted)
    sequences, probabilities = attention.topk(3, query, key, counted)
    for b in range(B):
        table = enumerated(attention, query[b], key[b], lengths[b])
        expected = torch.zeros(steps, n, dtype=torch.float64)
        expected_edges = torch.zeros(steps - 1, n, n, dtype=torch.float64)
        for z, p in table.items():
            for k in range(steps):
                expected[k, z[k]] += p.item()
            for k in range(steps - 1):
                expected_edges[k, z[k], z[k + 1]] += p.item()
        torch.testing.assert_close(marginals[b], expected)
        torch.testing.assert_close(edges[b], expected_edges)
        torch.testing.assert_close(context[b], (expected.unsqueeze(2) * value[b]).sum((0, 1)))
        ranked = sorted(table, key=table.get, reverse=True)
        assert tuple(best[b].tolist()) == ranked[0]
        torch.testing.assert_close(probability[b], table[ranked[0]])
        assert [tuple(z) for z in sequences[b].tolist()] == ranked[:3]
        torch.testing.assert_close(probabilities[b], torch.stack([table[z] for z in ranked[:3]]))


def test_how_often_a_unary_potential_counts():
    multiplicities = {"printed": [1, 2, 1], "once": [1, 1, 1], "twice": [2, 2, 2]}
    for name, times in multiplicities.items():
        attention, query, key, _ = made(3, count_unaries=name)
        unary = (key @ attention.queries(query).unsqueeze(-1)).squeeze(-1)
        counted = unary * torch.tensor(times).view(3, 1)
        torch.testing.assert_close(attention.distribution(query, key).unary, counted)


def test_one_set_of_facts_serves_every_step_and_queries_may_be_given():
    attention, query, key, value = made(3)
    same = key[:, :1].expand(-1, 3, -1, -1)
    torch.testing.assert_close(attention(query, key[:, 0]), attention(query, same))
    torch.testing.assert_close(attention(query, key, value[:, 0])[1], attention(query, key)[1])
    given = attention.queries(query)
    assert given.shape == (B, 3, d)
    torch.testing.assert_close(attention(given, key, value), attention(query, key, value))


@pytest.mark.parametrize("potentials", ["unary", "binary"])
def test_gradients(potentials):
    attention, *tensors = made(3, potentials=potentials)

    def call(query, key, value, transition):
        parameters = {"transition": transition}
        return torch.func.functional_call(attention, parameters, (query, key, value, torch.tensor([4, 2])))

    assert gradcheck(call, (*(t.requires_grad_() for t in tensors), attention.transition))


@pytest.mark.parametrize("potentials", ["unary", "binary"])
def test_without_facts_or_without_a_chain_of_them_everything_is_zero(potentials):
    attention, query, key, value = made(2, potentials=potentials)
    key.requires_grad_()
    # With a single fact, binary potentials forbid the only sequence.
    few = 1 if potentials == "binary" else 0
    context, marginals = attention(query, key, value, torch.tensor([few, 4]))
    (context.sum() + marginals.square().sum()).backward()
    assert (context[0] == 0).all()
    assert (marginals[0] == 0).all()
    assert (key.grad[0] == 0).all()
    assert key.grad[1].abs().max() > 0
    assert attention.transition.grad.isfinite().all()


def test_topk_pads_with_probability_zero():
    attention, query, key, _ = made(1)
    sequences, probabilities = attention.topk(6, query, key)
    assert sequences.shape == (B, 6, 1)
    torch.testing.assert_close(probabilities.sum(1), torch.ones(B, dtype=torch.float64))
    assert (probabilities[:, 4:] == 0).all()


def test_half_precision_dropout_and_repr():
    attention = ChainAttention(d, 2, dropout=0.5).to(torch.bfloat16)
    query, key = torch.randn(B, d).bfloat16(), torch.randn(B, n, d).bfloat16()
    context, marginals = attention.eval()(query, key)
    assert context.dtype == marginals.dtype == torch.bfloat16
    assert (attention.train()(query, key)[1] == 0).any()
    assert "steps=2, potentials='binary', forbid_repeats=True, count_unaries='printed'" in repr(attention)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"query": torch.zeros(2, 4)}, "query: expected shape (B, 3), got (2, 4)"),
        ({"query": torch.zeros(2, 3, 3)}, "query: expected shape (B, 2, 3), got (2, 3, 3)"),
        ({"key": torch.zeros(2, 3, 4, 3)}, "key: expected shape (2, 2, n, 3), got (2, 3, 4, 3)"),
        ({"key": torch.zeros(1, 4, 3)}, "key: expected shape (2, n, 3), got (1, 4, 3)"),
        ({"value": torch.zeros(2, 2, 5, 3)}, "value: expected shape (2, 2, 4, value_dim), got (2, 2, 5, 3)"),
        ({"lengths": torch.tensor([5, 1])}, "lengths: expected values from 0 to 4, got values from 1 to 5"),
    ],
)
def test_errors_say_what_is_expected(arguments, message):
    given = {"query": torch.zeros(2, 3), "key": torch.zeros(2, 2, 4, 3)} | arguments
    with pytest.raises(ValueError, match=re.escape(message)):
        ChainAttention(3, 2)(**given)


def test_constructor_errors():
    with pytest.raises(ValueError, match="potentials: expected one of binary, unary, got 'ternary'"):
        ChainAttention(3, 2, potentials="ternary")
    with pytest.raises(ValueError, match="count_unaries: expected one of printed, once, twice, got 'thrice'"):
        ChainAttention(3, 2, count_unaries="thrice")
    with pytest.raises(ValueError, match="steps: expected a whole number of at least 1, got 0"):
        ChainAttention(3, 0)
