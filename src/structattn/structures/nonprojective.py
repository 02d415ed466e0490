"""Non-projective dependency trees: every word has one head, and following heads leads to word 0, the root symbol.

    score(z) = sum over words m of arcs[head(m), m]

The matrix-tree theorem says that Z is a determinant. We find it by eliminating words one by one, in the way of
Grassmann, Taksar and Heyman: never a subtraction, so no digit is ever lost, and everything can stay in log-space, at
any magnitude. With weights w = exp(arcs), eliminating word k

    total_k = sum_h w[h, k]                           over the words h not yet eliminated and the root: a factor of Z
    w[h, m] += w[h, k] w[k, m] / total_k              an arc h -> m may also have led through k

(what would make a word its own head is dropped). LU decomposition of the Laplacian does the same with subtractions
on the diagonal, and finds 0 where two words prefer each other strongly.

With a single root, Z is the part linear in the weights of the root symbol: let these be infinitely small. They count
neither in the totals nor, with that, in the choice of a head, except for the last word, which takes the root as its
head: eliminate the word with the largest total first, so that a word without any head among the words is kept for last.

Indices: b sentence, h head, m and k words, all words counted from 0 with the root symbol.
"""

from __future__ import annotations

import torch
from torch import Tensor

from structattn.kernels import native
from structattn.kernels.plain import NEG_INF, draw, log_sum, zero_from
from structattn.structures import arborescence
from structattn.structures.tree import DependencyTree, infer_by_gradient


class NonProjectiveTree(DependencyTree):
    """A distribution over all dependency trees, crossing arcs allowed.

    arcs           (*batch, n, n); arcs[..., h, m] scores "word h is the parent of word m"; word 0 is the root symbol;
                   column 0 and the diagonal are ignored
    lengths        (*batch), the first so many words count, the root included; the default is all
    single_root    only one word may have the root symbol as its parent
    validate_args  False skips the checks of values. NaN and +inf are found when the first result is computed

    -inf forbids an arc.
    """

    def _compute(self, potentials: tuple[Tensor, ...], wanted: int) -> tuple[Tensor, ...]:
        self._masked()
        return plain_inference(potentials[0], self._lengths, self.single_root, wanted)

    def _best(self) -> Tensor:
        arcs = self._masked()
        heads = [arborescence.best_heads(sentence, self.single_root) for sentence in self._sentences(arcs)]
        return self._padded(heads)

    def _k_best(self, k: int) -> tuple[Tensor, Tensor]:
        ranked = [arborescence.k_best_heads(s, self.single_root, k) for s in self._sentences(self._masked())]
        exists = torch.tensor(
            [[rank < len(trees) for rank in range(k)] for trees in ranked], dtype=torch.bool
        ).view(-1, k)
        columns = [self._padded([t[rank] if rank < len(t) else None for t in ranked]) for rank in range(k)]
        return torch.stack(columns, 1), exists.to(self.arcs.device)

    def _sentences(self, arcs: Tensor) -> list[list[list[float]]]:
        """Every sentence's arcs as nested lists, cut to its length."""
        sizes = [arcs.shape[1]] * len(arcs) if self._lengths is None else self._lengths.tolist()
        return [sentence[:size, :size].tolist() for sentence, size in zip(arcs.detach(), sizes, strict=True)]

    def _padded(self, heads: list[list[int] | None]) -> Tensor:
        """(B, n), zeros for what is no tree."""
        n = self._event_shape[0]
        rows = [(tree or []) + [0] * (n - len(tree or [])) for tree in heads]
        return torch.tensor(rows, dtype=torch.int64, device=self.arcs.device).view(-1, n)

    def _draw(self, count: int) -> Tensor:
        # Word by word: draw a head from its marginals given the heads so far, then forbid it all others.
        arcs = self._masked()
        batch, n, _ = arcs.shape
        arcs = arcs.repeat(count, 1, 1)
        lengths = None if self._lengths is None else self._lengths.repeat(count)
        heads = torch.zeros(count * batch, n, dtype=torch.int64, device=arcs.device)
        word = torch.arange(n, device=arcs.device)
        for m in range(1, n):
            marginals = plain_inference(arcs, lengths, self.single_root, native.MARGINALS)[1]
            chosen = draw(marginals[:, :, m], 1)
            heads[:, m] = chosen.squeeze(1)
            others = (word == m) & (word.unsqueeze(1) != chosen.unsqueeze(2))
            arcs = arcs.masked_fill(others, NEG_INF)
        return heads.view(count, batch, n)


def plain_inference(
    arcs: Tensor, lengths: Tensor | None, single_root: bool, wanted: int
) -> tuple[Tensor, Tensor]:
    """log_partition (B), float64, and marginals (B, n, n), empty where not wanted."""
    return infer_by_gradient(arcs, lengths, wanted, lambda arcs: eliminate(arcs, lengths, single_root))


def eliminate(arcs: Tensor, lengths: Tensor | None, single_root: bool) -> Tensor:
    """log Z (B); arcs (B, n, n) are -inf where they can not be used."""
    batch, n, _ = arcs.shape
    left = torch.ones(batch, n, dtype=torch.bool, device=arcs.device)
    left[:, 0] = False
    if lengths is not None:
        left = left & (torch.arange(n, device=arcs.device) < lengths.unsqueeze(1))
    log_partition = zero_from(arcs)
    for _ in range(1, n):
        totals = log_sum(arcs[:, 1:] if single_root else arcs, 1)
        k = totals.detach().masked_fill(~left, NEG_INF).argmax(1)
        k = torch.where(left.gather(1, k.unsqueeze(1)).squeeze(1), k, left.long().argmax(1))
        here = (torch.arange(n, device=arcs.device) == k.unsqueeze(1)) & left
        total = _pick(totals, here)
        if single_root:
            is_last = left.sum(1) == 1
            total = torch.where(is_last, arcs[:, 0].masked_fill(~here, NEG_INF).amax(1), total)
        log_partition = log_partition + torch.where(here.any(1), total, 0.0)
        arcs = _without_word(arcs, k, here, total)
        left = left & ~here
    # Without a tree the factors that are not zero must not have gradients.
    return log_partition.masked_fill(log_partition == NEG_INF, NEG_INF)


def _without_word(arcs: Tensor, k: Tensor, here: Tensor, total: Tensor) -> Tensor:
    """The arcs among the other words, and those that led through word k added to them."""
    n = arcs.shape[1]
    into = arcs.gather(2, k.view(-1, 1, 1).expand(-1, n, 1))
    out_of = arcs.gather(1, k.view(-1, 1, 1).expand(-1, 1, n))
    through = into + out_of - total.masked_fill(total == NEG_INF, 0.0).view(-1, 1, 1)
    gone = here.unsqueeze(1) | here.unsqueeze(2) | torch.eye(n, dtype=torch.bool, device=arcs.device)
    return log_sum(torch.stack([arcs, through], 3), 3).masked_fill(gone, NEG_INF)


def _pick(values: Tensor, here: Tensor) -> Tensor:
    """The value (B) at the marked place."""
    return values.masked_fill(~here, 0.0).sum(1)
