"""Greedy and beam search, batched over sentences, for any decoder that maps symbols and a state to scores.

    step(symbols (A, K), state, sentences (A)) -> (log-probabilities (A, K, symbols), state)

A sentences are still being decoded, `sentences` says which, and each has K hypotheses. `state` is a tensor or
a tuple of tensors whose dimension `state_dimension` counts the A * K hypotheses, sentence by sentence; it is
None at the start. A decoder can therefore let the K hypotheses of a sentence share what the encoder found, as
K queries of one attention call.

Finished hypotheses are kept apart and leave the beam. A sentence is done once its best finished hypotheses
can no longer be beaten, which is certain when no open one scores higher: probabilities only fall. So what a
sentence gets does not depend on who shares its batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from structattn.recipes.errors import UserError

Step = Callable[[Tensor, Any, Tensor], tuple[Tensor, Any]]


@dataclass
class DecodingSettings:
    """[decoding]"""

    beam: int = 5
    """1 is greedy search"""
    length_normalisation: float = 0.0
    """hypotheses are compared by log-probability / length ** this; 0: not normalised"""
    longest_factor: float = 2.0
    """a target has at most this many symbols for each symbol of its source, and"""
    longest_extra: int = 10
    """so many more"""
    batch_size: int = 100
    """sentences decoded together"""

    def __post_init__(self) -> None:
        if min(self.beam, self.batch_size) < 1:
            raise UserError("decoding.beam and decoding.batch_size must be at least 1")

    def longest(self, lengths: Tensor) -> Tensor:
        return (lengths * self.longest_factor).long() + self.longest_extra


class Hypothesis(NamedTuple):
    """The symbols without start and end, and the score that hypotheses are compared by."""

    symbols: list[int]
    score: float


def beam_search(
    step: Step,
    longest: Tensor,
    start: int,
    end: int,
    beam: int = 5,
    n_best: int = 1,
    length_normalisation: float = 0.0,
    state_dimension: int = 0,
) -> list[list[Hypothesis]]:
    """The n_best best hypotheses found for each sentence, best first; a beam of 1 is greedy search.

    longest (B) caps the lengths, the end symbol included. A hypothesis that reaches its cap counts as
    finished there.
    """
    n_best = min(n_best, beam)
    device = longest.device
    finished = _Finished(len(longest), n_best)
    sentences = torch.arange(len(longest), device=device)
    scores = torch.zeros(len(longest), 1, dtype=torch.float64, device=device)
    symbols = torch.full((len(longest), 1), start, device=device)
    history = torch.empty(len(longest), 1, 0, dtype=torch.int64, device=device)
    state: Any = None
    while len(sentences):
        log_probs, state = step(symbols, state, sentences)
        # Twice the beam: if each of its hypotheses ends, as many others are there to go on. The best of all are
        # among the best of each hypothesis, so that most symbols are never added up.
        log_probs, following = log_probs.topk(min(2 * beam, log_probs.shape[2]), 2)
        width, count = log_probs.shape[1:]
        candidates = (scores.unsqueeze(2) + log_probs.double()).flatten(1)
        scores, best = candidates.topk(min(2 * beam, width * count), 1)
        parents, symbols = best // count, following.flatten(1).gather(1, best)
        history = torch.cat([_columns(history, parents), symbols.unsqueeze(2)], 2)
        caps = longest[sentences]
        ended = (symbols == end) | (history.shape[2] >= caps).unsqueeze(1)
        finished.add(sentences, scores / history.shape[2] ** length_normalisation, history, ended, end)
        scores, columns = scores.masked_fill(ended, -torch.inf).topk(min(beam, scores.shape[1]), 1)
        # The best that an open hypothesis can still become: nothing more lost, and the largest divisor.
        going_on = scores[:, 0] / caps**length_normalisation > finished.to_beat(sentences)
        rows = going_on.nonzero().flatten()
        from_rows = rows.unsqueeze(1) * width + parents.gather(1, columns)[rows]
        state = _select(state, from_rows.flatten(), state_dimension)
        sentences, scores, columns = sentences[rows], scores[rows], columns[rows]
        symbols, history = symbols[rows].gather(1, columns), _columns(history[rows], columns)
    return finished.found


class _Finished:
    """The best hypotheses of each sentence that came to an end."""

    def __init__(self, sentences: int, n_best: int) -> None:
        self.n_best = n_best
        self.found: list[list[Hypothesis]] = [[] for _ in range(sentences)]

    def add(self, sentences: Tensor, scores: Tensor, history: Tensor, ended: Tensor, end: int) -> None:
        rows, columns = (ended & (scores > -torch.inf)).nonzero(as_tuple=True)
        for sentence, score, symbols in zip(
            sentences[rows].tolist(),
            scores[rows, columns].tolist(),
            history[rows, columns].tolist(),
            strict=True,
        ):
            without_end = symbols[:-1] if symbols[-1] == end else symbols
            hypotheses = [*self.found[sentence], Hypothesis(without_end, score)]
            self.found[sentence] = sorted(hypotheses, key=lambda one: -one.score)[: self.n_best]

    def to_beat(self, sentences: Tensor) -> Tensor:
        """The score of each sentence's n_best-th best; -inf where there are not so many yet."""
        found = (self.found[sentence] for sentence in sentences.tolist())
        worst = [
            hypotheses[-1].score if len(hypotheses) == self.n_best else -torch.inf for hypotheses in found
        ]
        return torch.tensor(worst, dtype=torch.float64, device=sentences.device)


def _columns(history: Tensor, columns: Tensor) -> Tensor:
    """The histories (A, k, length) at columns (A, k) of (A, K, length)."""
    return history.gather(1, columns.unsqueeze(2).expand(-1, -1, history.shape[2]))


def _select(state: Any, rows: Tensor, dimension: int) -> Any:
    if isinstance(state, Tensor):
        return state.index_select(dimension, rows)
    return tuple(_select(part, rows, dimension) for part in state)
