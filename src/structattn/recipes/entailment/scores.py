"""What an evaluation counts: labels right and wrong, and latent trees against those of the parses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from structattn.recipes.entailment.data import LABELS
from structattn.structures.projective import ProjectiveTree

_SEED = 2017
"""Of the random trees."""


def label_scores(gold: Sequence[int], predicted: Sequence[int]) -> dict[str, Any]:
    """Accuracy, precision and recall in percent, and how often which label was taken for which."""
    counts = torch.zeros(len(LABELS), len(LABELS), dtype=torch.int64)
    counts.index_put_((torch.tensor(gold), torch.tensor(predicted)), torch.tensor(1), accumulate=True)
    right, of_gold, of_predicted = counts.diag().tolist(), counts.sum(1).tolist(), counts.sum(0).tolist()
    return {
        "pairs": len(gold),
        "accuracy": _percent(sum(right), len(gold)),
        "labels": {
            label: {
                "pairs": of_gold[number],
                "precision": _percent(right[number], of_predicted[number]),
                "recall": _percent(right[number], of_gold[number]),
            }
            for number, label in enumerate(LABELS)
        },
        "confusion": {
            label: dict(zip(LABELS, row, strict=True))
            for label, row in zip(LABELS, counts.tolist(), strict=True)
        },
    }


def tree_scores(gold: Sequence[Sequence[int]], predicted: Sequence[Sequence[int]]) -> dict[str, Any]:
    """The share of words with the right head (UAS, %), beside what trees reach that look at no word.

    Heads are those of the words, without the root symbol's. Left-branching: each word's head is the next one;
    right-branching: the one before; random: drawn evenly from all projective trees.
    """
    baselines = {
        "left_branching": [[*range(2, len(heads) + 1), 0] for heads in gold],
        "right_branching": [list(range(len(heads))) for heads in gold],
        "random": random_trees([len(heads) for heads in gold]),
    }
    return {
        "sentences": len(gold),
        "words": sum(map(len, gold)),
        "uas": attachment(gold, predicted),
        **{name: attachment(gold, trees) for name, trees in baselines.items()},
    }


def attachment(gold: Sequence[Sequence[int]], predicted: Sequence[Sequence[int]]) -> float:
    """The share of right heads (%) over all words."""
    hits = [
        mine == right
        for trees in zip(gold, predicted, strict=True)
        for right, mine in zip(*trees, strict=True)
    ]
    return _percent(sum(hits), len(hits))


def random_trees(sizes: Sequence[int]) -> list[list[int]]:
    """A projective tree over so many words for each size, the same ones every time."""
    drawn: dict[int, list[list[int]]] = {}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(_SEED)
        for size in sorted(set(sizes)):
            arcs = torch.zeros(sizes.count(size), size + 1, size + 1)
            drawn[size] = ProjectiveTree(arcs).sample()[:, 1:].tolist()
    return [drawn[size].pop() for size in sizes]


def _percent(part: int, whole: int) -> float:
    return 100 * part / whole if whole else 0.0
