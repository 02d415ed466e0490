"""Every structure, one by one: slow, obvious, and independent of what it judges.

Nothing here imports structattn. A structure is a tuple (states of a chain, or heads of a tree with
heads[0] = 0), its score a plain sum in float64, and everything else follows from the list of scores.
Gradients come from autograd through that sum. A forbidden structure (-inf) is left out of the sums, so no NaN
can arise and no constant stands for -inf.
"""

import itertools
import math
from functools import lru_cache

import torch
from torch import Tensor


class Enumeration:
    """All structures of one sentence, with their scores; results are zero beyond the length."""

    def __init__(self, structures: Tensor, scores: Tensor, parts: Tensor, edges: Tensor | None = None):
        self.structures = structures  # (S, n)
        self.scores = scores  # (S,), float64, differentiable
        self._parts = parts  # (S, ...): 1 where the structure uses that potential
        self._edges = edges
        self._possible = scores > -math.inf

    @property
    def log_partition(self) -> Tensor:
        if not self._possible.any():
            return self.scores.new_tensor(-math.inf)
        return torch.logsumexp(self.scores[self._possible], 0)

    @property
    def log_probs(self) -> Tensor:
        """(S,), -inf for the structures that are forbidden."""
        result = torch.full_like(self.scores, -math.inf)
        if not self._possible.any():
            return result
        return result.masked_scatter(self._possible, self.scores[self._possible] - self.log_partition)

    @property
    def probabilities(self) -> Tensor:
        result = torch.zeros_like(self.scores)
        if not self._possible.any():
            return result
        return result.masked_scatter(self._possible, self.log_probs[self._possible].exp())

    @property
    def marginals(self) -> Tensor:
        return torch.tensordot(self.probabilities, self._parts, 1)

    @property
    def edge_marginals(self) -> Tensor:
        return torch.tensordot(self.probabilities, self._edges, 1)

    @property
    def mode(self) -> Tensor:
        if not self._possible.any():
            return torch.zeros_like(self.structures[0])
        return self.structures[self.scores.argmax()]

    @property
    def mode_score(self) -> Tensor:
        return self.scores.max()

    @property
    def entropy(self) -> Tensor:
        return self.cross_entropy(self)

    def cross_entropy(self, other: "Enumeration") -> Tensor:
        """-E log q under p: what p forbids does not count, what only q forbids makes it infinite."""
        mine, theirs = self._possible, other._possible
        if (mine & ~theirs).any():
            return self.scores.new_tensor(math.inf)
        return -(self.probabilities[mine] * other.log_probs[mine]).sum()

    def kl(self, other: "Enumeration") -> Tensor:
        return self.cross_entropy(other) - self.entropy

    def ranked(self) -> tuple[Tensor, Tensor]:
        """The possible structures, best first, and their log-probabilities."""
        order = self.scores.argsort(descending=True)[: int(self._possible.sum())]
        return self.structures[order], self.log_probs[order]


def chain(unary: Tensor, transitions: Tensor | None = None, length: int | None = None) -> Enumeration:
    """unary (n, C); transitions (n-1, C, C), where [i, a, b] scores z_i = a and z_{i+1} = b."""
    (n, states), length = unary.shape, unary.shape[0] if length is None else length
    paths = torch.tensor(chains(length, states), dtype=torch.long)
    scores = unary.new_zeros(len(paths), dtype=torch.float64)
    parts = scores.new_zeros(len(paths), n, states)
    edges = scores.new_zeros(len(paths), max(n - 1, 0), states, states)
    each = torch.arange(len(paths))
    for i in range(length):
        scores = scores + unary[i, paths[:, i]].double()
        parts[each, i, paths[:, i]] = 1
    for i in range(length - 1):
        if transitions is not None:
            scores = scores + transitions[i, paths[:, i], paths[:, i + 1]].double()
        edges[each, i, paths[:, i], paths[:, i + 1]] = 1
    return Enumeration(_pad(paths, n), scores, parts, edges)


def tree(arcs: Tensor, projective: bool, single_root: bool, length: int | None = None) -> Enumeration:
    """arcs (n, n): [h, m] scores h as the parent of m; word 0 is the root symbol and counts in n."""
    n, length = arcs.shape[0], arcs.shape[0] if length is None else length
    heads = torch.tensor(trees(length, projective, single_root), dtype=torch.long)
    scores = arcs.new_zeros(len(heads), dtype=torch.float64)
    parts = scores.new_zeros(len(heads), n, n)
    each = torch.arange(len(heads))
    for m in range(1, length):
        scores = scores + arcs[heads[:, m], m].double()
        parts[each, heads[:, m], m] = 1
    return Enumeration(_pad(heads, n), scores, parts)


def chains(n: int, states: int) -> list[tuple[int, ...]]:
    return list(itertools.product(range(states), repeat=n))


@lru_cache
def trees(n: int, projective: bool, single_root: bool) -> list[tuple[int, ...]]:
    """All heads vectors over n positions, the root symbol included; no words have one, empty, tree."""
    candidates = ((0, *heads)[:n] for heads in itertools.product(range(n), repeat=max(n - 1, 0)))
    return [
        heads
        for heads in candidates
        if is_tree(heads)
        and (not projective or is_projective(heads))
        and (not single_root or n <= 1 or heads[1:].count(0) == 1)
    ]


def ancestors(heads: tuple[int, ...], word: int) -> list[int]:
    """From the word's head upwards to the root symbol; an endless climb is cut after len(heads) steps."""
    path = []
    while word != 0 and len(path) < len(heads):
        word = heads[word]
        path.append(word)
    return path


def is_tree(heads: tuple[int, ...]) -> bool:
    return all(ancestors(heads, word)[-1] == 0 for word in range(1, len(heads)))


def is_projective(heads: tuple[int, ...]) -> bool:
    """Whatever lies between a head and its modifier descends from that head."""
    return all(
        heads[m] in ancestors(heads, between)
        for m in range(1, len(heads))
        for between in range(min(m, heads[m]) + 1, max(m, heads[m]))
    )


def _pad(structures: Tensor, n: int) -> Tensor:
    return torch.nn.functional.pad(structures, (0, n - structures.shape[-1]))
