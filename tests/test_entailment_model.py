"""Decomposable attention over words and parents: against loops over words, and padding that changes nothing."""

import pytest
import torch
from torch.testing import assert_close

from structattn.recipes.entailment.model import (
    STRUCTURES,
    Dropout,
    EntailmentModel,
    EntailmentModelSettings,
)


def model_and_batch(attention, **settings):
    """A model in float64, and premises of 4, 3 and 5 words with hypotheses of 2, 5 and 3."""
    torch.manual_seed(0)
    chosen = EntailmentModelSettings(attention=attention, size=5, hidden=6, lstm=3, arc_size=4, **settings)
    model = EntailmentModel(chosen, 7).double().eval()
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.7)
    lengths = torch.tensor([4, 3, 5, 2, 5, 3])
    words = torch.randint(9, (6, 5)) * (torch.arange(5) < lengths.unsqueeze(1))
    heads = torch.tensor(
        [[0, 0, 1, 1, 0], [0, 2, 0, 0, 0], [0, 0, 1, 2, 3], [0] * 5, [0, 4, 4, 4, 0], [0] * 5]
    )
    batch = torch.randn(9, 7, dtype=torch.double), words, lengths
    return model, batch, heads if attention == "hard" else None


def naive_logits(model, vectors, premise, hypothesis):
    """A pair of sentences (words and parents' weights), by loops over words."""
    both = []
    for words, parents in (premise, hypothesis):
        x = [model.projection(vectors[word]) for word in words]
        if parents is not None:
            x = [torch.cat([x[j], sum(parents[i, j] * x[i] for i in range(len(x)))]) for j in range(len(x))]
        both.append(x)
    totals = []
    for mine, other in (both, both[::-1]):
        total = 0
        for x in mine:
            weights = torch.stack([model.attend(x) @ model.attend(y) for y in other]).softmax(0)
            aligned = sum(weight * y for weight, y in zip(weights, other, strict=True))
            total = total + model.compare(torch.cat([x, aligned]))
        totals.append(total)
    return model.output(model.combine(torch.cat(totals)))


@pytest.mark.parametrize("attention", STRUCTURES)
def test_the_model_is_the_papers_pair_by_pair(attention):
    model, (vectors, words, lengths), heads = model_and_batch(attention)
    logits = model.logits(vectors, words, lengths, heads)
    for pair in range(3):
        sentences = []
        for row in (pair, pair + 3):
            mine = words[row, : lengths[row]]
            parents = None
            if attention == "hard":
                parents = torch.zeros(len(mine), len(mine), dtype=torch.double)
                for child in range(1, len(mine)):
                    parents[heads[row, child], child] = 1
            elif attention != "none":
                parents = model.marginals(vectors, mine.unsqueeze(0), lengths[row : row + 1])[0]
                assert_close(parents.sum(0)[1:], torch.ones(len(mine) - 1, dtype=torch.double))
            sentences.append((mine, parents))
        assert_close(logits[pair], naive_logits(model, vectors, *sentences))


@pytest.mark.parametrize("attention", STRUCTURES)
def test_padding_changes_nothing_and_everything_is_trained(attention):
    model, (vectors, words, lengths), heads = model_and_batch(attention)
    together = model.logits(vectors, words, lengths, heads)
    for pair in range(3):
        rows = [pair, pair + 3]
        longest = int(lengths[rows].max())
        alone = words[rows, :longest], lengths[rows], None if heads is None else heads[rows, :longest]
        assert_close(model.logits(vectors, *alone), together[pair : pair + 1])
    model(vectors, words, lengths, torch.tensor([0, 1, 2]), heads).backward()
    for name, weights in model.named_parameters():
        assert weights.grad.isfinite().all(), name
        assert weights.grad.any(), name


def test_dropout_keeps_its_share_and_the_mean():
    dropout = Dropout(0.2)
    x = torch.ones(300, 401)
    dropped = dropout(x)
    assert abs((dropped == 0).double().mean() - 0.2) < 0.01
    assert dropped.max() == pytest.approx(1.25, abs=1e-4)
    assert abs(dropped.mean() - 1) < 0.01
    assert dropout.eval()(x) is x
    assert Dropout(0.0)(x) is x
