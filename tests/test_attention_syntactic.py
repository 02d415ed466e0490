"""Soft parents and children in latent trees against enumeration, and the scorers against their formulas."""

import re

import oracle
import pytest
import torch
from torch import nn
from torch.autograd import gradcheck

from structattn import SyntacticAttention
from structattn.attention import BiaffineScorer, MLPScorer

B, n, d = 3, 5, 4
LENGTHS = [5, 3, 1]


def made(**options):
    options = {"lstm_dim": 3, "hidden_dim": 6, "dtype": torch.float64} | options
    return SyntacticAttention(d, **options), torch.randn(B, n, d, dtype=torch.float64)


def test_the_mlp_scorer_is_the_printed_formula():
    scorer, hidden = MLPScorer(4, 6).double(), torch.randn(2, 5, 4, dtype=torch.float64)
    theta, W1, W2, b = scorer(hidden), scorer.parent.weight, scorer.child.weight, scorer.child.bias
    for sentence, h in enumerate(hidden):
        for i in range(5):
            for j in range(5):
                expected = torch.tanh(scorer.s @ torch.tanh(W1 @ h[i] + W2 @ h[j] + b))
                torch.testing.assert_close(theta[sentence, i, j], expected)
    assert len([*scorer.parameters()]) == 4


def test_the_biaffine_scorer_is_its_formula():
    scorer, hidden = BiaffineScorer(4, 6).double(), torch.randn(2, 5, 4, dtype=torch.float64)
    parents, children = scorer.parent(hidden).relu(), scorer.child(hidden).relu()
    U, u = scorer.bilinear.weight, scorer.bilinear.bias
    expected = torch.einsum("bip,pc,bjc->bij", parents, U, children) + (parents @ u).unsqueeze(2)
    torch.testing.assert_close(scorer(hidden), expected)


@pytest.mark.parametrize("scorer", [MLPScorer, BiaffineScorer])
def test_gradients_of_scorers(scorer):
    made = scorer(3, 4).double()
    names = dict(made.named_parameters())

    def call(hidden, *values):
        return torch.func.functional_call(made, dict(zip(names, values, strict=True)), (hidden,))

    hidden = torch.randn(2, 3, 3, dtype=torch.float64, requires_grad=True)
    assert gradcheck(call, (hidden, *names.values()))
    assert torch.autograd.gradgradcheck(call, (hidden, *names.values()))


@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("structure", ["projective", "nonprojective"])
def test_marginals_heads_and_contexts_are_those_of_the_trees(structure, single_root):
    attention, words = made(structure=structure, single_root=single_root, select="both", scorer="biaffine")
    value = torch.randn(B, n, 2, dtype=torch.float64)
    lengths = torch.tensor(LENGTHS)
    context, marginals = attention(words, lengths, value)
    arcs, heads = attention.scores(words, lengths), attention.heads(words, lengths)
    parents, children = context.chunk(2, -1)
    for b in range(B):
        judge = oracle.tree(arcs[b], structure == "projective", single_root, LENGTHS[b])
        torch.testing.assert_close(marginals[b], judge.marginals)
        assert torch.equal(heads[b], judge.mode)
        for j in range(n):
            torch.testing.assert_close(
                parents[b, j], sum(judge.marginals[i, j] * value[b, i] for i in range(n))
            )
            torch.testing.assert_close(
                children[b, j], sum(judge.marginals[j, i] * value[b, i] for i in range(n))
            )
    assert (context[2] == 0).all()
    trees = attention.distribution(words, lengths)
    assert (trees.log_prob(heads) <= 0).all()


def test_softmax_over_all_words_of_the_sentence():
    attention, words = made(structure="softmax")
    lengths = torch.tensor(LENGTHS)
    context, marginals = attention(words, lengths)
    theta = attention.scores(words, lengths)
    for b, length in enumerate(LENGTHS):
        expected = torch.zeros(n, n, dtype=torch.float64)
        expected[:length, :length] = theta[b, :length, :length].softmax(0)
        torch.testing.assert_close(marginals[b], expected)
        torch.testing.assert_close(context[b], expected.T @ words[b])
    expected = torch.stack([expected.argmax(0) for expected in marginals])
    expected[:, 0] = 0
    assert torch.equal(attention.heads(words, lengths), expected)


def test_given_heads():
    attention, words = made(structure="hard", select="both")
    heads = torch.tensor([[7, 0, 1, 1, 2], [0, 2, 0, 9, 9], [0, 0, 0, 0, 0]]).clamp_max(4)
    context, marginals = attention(words, torch.tensor(LENGTHS), heads=heads)
    parents, children = context.chunk(2, -1)
    torch.testing.assert_close(parents[0, 1:], words[0, [0, 1, 1, 2]])
    torch.testing.assert_close(children[0, 1], words[0, 2] + words[0, 3])
    assert (parents[:, 0] == 0).all()
    torch.testing.assert_close(parents[1, 1:3], words[1, [2, 0]])
    assert (context[1, 3:] == 0).all()
    assert (context[2] == 0).all()
    assert marginals.sum() == 6
    assert not [*attention.parameters()]


@pytest.mark.parametrize("structure", ["projective", "nonprojective", "softmax", "hard"])
@pytest.mark.parametrize("select", ["parents", "children", "both"])
def test_a_learned_root_is_a_word_before_the_first(structure, select):
    attention, words = made(structure=structure, root="learned", select=select)
    first, _ = made(structure=structure, select=select)
    first.load_state_dict({k: v for k, v in attention.state_dict().items() if k != "root"})
    lengths = torch.tensor([5, 3, 0])
    given = {}
    if structure == "hard":
        given = {"heads": torch.tensor([[0, 0, 1, 1, 3, 4], [0, 3, 3, 0, 0, 0], [0, 0, 0, 0, 0, 0]])}
    with_root = torch.cat([attention.root.expand(B, 1, -1), words], 1)
    expected, expected_marginals = first(with_root, lengths + 1, **given)
    context, marginals = attention(words, lengths, **given)
    torch.testing.assert_close(marginals, expected_marginals)
    torch.testing.assert_close(context, expected[:, 1:])
    if structure != "hard":
        assert torch.equal(attention.heads(words, lengths), first.heads(with_root, lengths + 1))
    value = torch.randn(B, n, 2, dtype=torch.float64)
    context, _ = attention(words, lengths, value, **given)
    zero_root = torch.cat([value.new_zeros(B, 1, 2), value], 1)
    torch.testing.assert_close(context, first(with_root, lengths + 1, zero_root, **given)[0][:, 1:])


def test_it_compiles_with_lengths():
    attention, words = made()
    attention, words = attention.float(), words.float()  # of float numbers torch.compile cannot take an LSTM
    lengths = torch.tensor([words.shape[1]] + [2] * (len(words) - 1))
    context, marginals = torch.compile(attention)(words, lengths)
    expected_context, expected_marginals = attention(words, lengths)
    torch.testing.assert_close(context, expected_context)
    torch.testing.assert_close(marginals, expected_marginals)


@pytest.mark.parametrize("num_layers", [1, 2])
def test_a_padded_batch_equals_its_sentences(num_layers):
    attention, words = made(num_layers=num_layers)
    context, marginals = attention(words, torch.tensor(LENGTHS))
    for b, length in enumerate(LENGTHS):
        alone_context, alone_marginals = attention(words[b : b + 1, :length])
        torch.testing.assert_close(context[b, :length], alone_context[0])
        torch.testing.assert_close(marginals[b, :length, :length], alone_marginals[0])


@pytest.mark.parametrize("structure", ["projective", "softmax"])
def test_an_empty_sentence_gives_zeros_and_no_gradient(structure):
    attention, words = made(structure=structure)
    words.requires_grad_()
    context, marginals = attention(words, torch.tensor([0, 5, 2]))
    (context.sum() + marginals.square().sum()).backward()
    assert (context[0] == 0).all()
    assert (marginals[0] == 0).all()
    assert (words.grad[0] == 0).all()
    assert (words.grad[2, 2:] == 0).all()
    assert all(p.grad.isfinite().all() for p in attention.parameters())


def test_gradients():
    attention, words = made(select="both")
    names = dict(attention.named_parameters())

    def call(words, *values):
        return torch.func.functional_call(attention, dict(zip(names, values, strict=True)), (words[:2, :4],))

    assert gradcheck(call, (words.requires_grad_(), *names.values()))


def test_without_an_lstm_and_with_a_scorer_of_ones_own():
    class Dot(nn.Module):
        def forward(self, hidden):
            return hidden @ hidden.mT

    attention = SyntacticAttention(4, lstm_dim=None, scorer=Dot())
    words = torch.randn(2, 4, 4)
    torch.testing.assert_close(attention.scores(words), words @ words.mT)
    judge = oracle.tree((words @ words.mT)[1], True, False)
    torch.testing.assert_close(attention(words)[1][1].double(), judge.marginals, rtol=1e-5, atol=1e-6)


def test_a_parser_learns_through_log_prob():
    attention, words = made(scorer="biaffine")
    heads = torch.tensor([[0, 2, 0, 2, 3]] * B)
    optimizer = torch.optim.Adam(attention.parameters(), 0.05)
    for _ in range(60):
        loss = -attention.distribution(words).log_prob(heads).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert torch.equal(attention.heads(words), heads)


def test_half_precision_dropout_and_repr():
    attention = SyntacticAttention(d, 3, 6, dropout=0.5).to(torch.bfloat16)
    words = torch.randn(B, n, d).bfloat16()
    context, marginals = attention.eval()(words)
    assert context.dtype == marginals.dtype == torch.bfloat16
    assert (attention.train()(words)[1][:, :, 1:].sum(1) - 1).abs().max() > 0.1
    assert "4, structure='projective', root='first', select='parents', single_root=False" in repr(attention)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"structure": "planar"},
            "structure: expected one of projective, nonprojective, softmax, hard, got 'planar'",
        ),
        ({"scorer": "dot"}, "scorer: expected one of mlp, biaffine, got 'dot'"),
        ({"root": "last"}, "root: expected one of first, learned, got 'last'"),
        ({"select": "siblings"}, "select: expected one of parents, children, both, got 'siblings'"),
    ],
)
def test_constructor_errors(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        SyntacticAttention(4, **options)


WORDS = torch.zeros(2, 3, 4)


@pytest.mark.parametrize(
    ("structure", "arguments", "error", "message"),
    [
        (
            "projective",
            {"words": torch.zeros(2, 3)},
            ValueError,
            "words: expected shape (B, n, 4), got (2, 3)",
        ),
        (
            "projective",
            {"words": WORDS.long()},
            TypeError,
            "words: expected a floating-point tensor, got int64",
        ),
        ("projective", {"words": WORDS.double()}, TypeError, "words: expected float32"),
        (
            "projective",
            {"value": torch.zeros(2, 4, 4)},
            ValueError,
            "value: expected shape (2, 3, value_dim)",
        ),
        ("projective", {"lengths": torch.tensor([3, 4])}, ValueError, "lengths: expected values from 0 to 3"),
        ("projective", {"heads": torch.zeros(2, 3).long()}, ValueError, "heads: expected None for structure"),
        ("hard", {}, TypeError, "heads: expected a tensor of integers, got a NoneType"),
        ("hard", {"heads": torch.zeros(2, 3)}, TypeError, "heads: expected a tensor of integers"),
        ("hard", {"heads": torch.zeros(2, 4).long()}, ValueError, "heads: expected shape (2, 3), got (2, 4)"),
        (
            "hard",
            {"heads": torch.full((2, 3), 3)},
            ValueError,
            "heads: expected values from 0 to 2, got values",
        ),
    ],
)
def test_errors_say_what_is_expected(structure, arguments, error, message):
    with pytest.raises(error, match=re.escape(message)):
        SyntacticAttention(4, structure=structure)(**{"words": WORDS} | arguments)


def test_what_has_no_distribution_says_so():
    with pytest.raises(ValueError, match="structure: expected one of projective, nonprojective"):
        SyntacticAttention(4, structure="softmax").distribution(WORDS)
    with pytest.raises(ValueError, match="structure: expected one that scores arcs, got 'hard'"):
        SyntacticAttention(4, structure="hard").heads(WORDS)
