"""Projective dependency trees: every word has one head, and no two arcs cross.

    score(z) = sum over words m of arcs[head(m), m]

Eisner's recursion builds every projective tree in exactly one way out of four kinds of spans s..t:

    incomplete, right   s is the head of t      | for some r:  right complete s..r,  left complete r+1..t,  the arc
    incomplete, left    t is the head of s      | for some r:  right complete s..r,  left complete r+1..t,  the arc
    complete, right     s dominates all to t    | for some u:  right incomplete s..u,  right complete u..t
    complete, left      t dominates all from s  | for some u:  left complete s..u,  left incomplete u..t

A sentence of length L is the right complete span 0..L-1. With a single root, word 0 takes one child only: its
incomplete spans split at r = 0 alone. What "for some" sums with decides what is computed (kernels/plain.py):
log-sum-exp gives log Z and its gradient the marginals (inside-outside is just back-propagation), the maximum gives the
best tree, and so on.

All spans of one width are computed together. Charts are kept by first word, [s, t - s], and by last word, [t, t - s],
so that the parts of a split are slices. Indices: b sentence, s and t first and last word, w = t - s width, K cell.
"""

from __future__ import annotations

import torch
from torch import Tensor

from structattn import paper
from structattn.kernels import native, native_serves, operators, selected_backend
from structattn.kernels.gradients import differentiable, direct_or_operator
from structattn.kernels.plain import NEG_INF, Best, Draw, KBest, LogSum, Sum, zero_from
from structattn.structures.tree import DependencyTree, infer_by_gradient

_CELLS_AT_ONCE = 1 << 24
"""How many sums of two chart cells sampling may keep for its gradient: a few times 128 MiB."""


class ProjectiveTree(DependencyTree):
    """A distribution over projective dependency trees.

    arcs           (*batch, n, n); arcs[..., h, m] scores "word h is the parent of word m"; word 0 is the root symbol;
                   column 0 and the diagonal are ignored
    lengths        (*batch), the first so many words count, the root included; the default is all
    single_root    only one word may have the root symbol as its parent
    validate_args  False skips the checks of values. NaN and +inf are found when the first result is computed

    -inf forbids an arc.
    """

    def _compute(self, potentials: tuple[Tensor, ...], wanted: int) -> tuple[Tensor, ...]:
        (arcs,) = potentials
        if native_serves(arcs):
            return _native_inference(potentials, self._lengths, (self.single_root, wanted, self._validate))
        self._masked()
        if selected_backend() == "paper":
            return paper.projective(arcs.double(), self._lengths, self.single_root)
        return plain_inference(arcs, self._lengths, self.single_root, wanted)

    def _best(self) -> Tensor:
        arcs = self._potentials[0].detach()
        if native_serves(arcs):
            return _native_viterbi(arcs, self._lengths, self.single_root, self._validate)
        return self._marked_heads(self._masked(), self._lengths, Best())[0][:, 0]

    def _k_best(self, k: int) -> tuple[Tensor, Tensor]:
        return self._marked_heads(self._masked(), self._lengths, KBest(k))

    def _draw(self, count: int) -> Tensor:
        arcs = self._masked()
        batch, n, _ = arcs.shape
        together = max(1, _CELLS_AT_ONCE // max(1, batch * n**3))
        drawn = []
        for start in range(0, count, together):
            size = min(together, count - start)
            lengths = None if self._lengths is None else self._lengths.repeat(size)
            heads, _ = self._marked_heads(arcs.repeat(size, 1, 1), lengths, Draw())
            drawn.append(heads.view(size, batch, n))
        return torch.cat(drawn) if drawn else arcs.new_zeros((0, batch, n), dtype=torch.int64)

    def _marked_heads(self, arcs: Tensor, lengths: Tensor | None, total: Sum) -> tuple[Tensor, Tensor]:
        """The heads (B, K, n) that the gradient of each of the K totals marks, and which of them (B, K) are a tree."""
        with torch.inference_mode(False), torch.enable_grad():
            # Copies: what comes from inference mode can not be saved for a gradient.
            arcs, lengths = (
                arcs.detach().clone().requires_grad_(),
                None if lengths is None else lengths.clone(),
            )
            totals = inside(arcs, lengths, self.single_root, total)
            marked = [
                torch.autograd.grad(column.sum(), arcs, retain_graph=True)[0] for column in totals.unbind(1)
            ]
        heads = torch.stack([marks.argmax(1) for marks in marked], 1)
        possible = totals > NEG_INF
        return heads.masked_fill(~possible.unsqueeze(2), 0), possible

    def _is_structure(self, value: Tensor) -> Tensor:
        heads, _ = self._counted_heads(value)
        word = torch.arange(heads.shape[2], device=heads.device)
        left, right = torch.minimum(heads, word).unsqueeze(3), torch.maximum(heads, word).unsqueeze(3)
        crosses = (left < left.mT) & (left.mT < right) & (right < right.mT)
        return super()._is_structure(value) & ~crosses.any(3).any(2)


def plain_inference(
    arcs: Tensor, lengths: Tensor | None, single_root: bool, wanted: int, _check: bool = False
) -> tuple[Tensor, Tensor]:
    """log_partition (B), float64, and marginals (B, n, n), empty where not wanted, in plain torch."""
    return infer_by_gradient(
        arcs, lengths, wanted, lambda arcs: inside(arcs, lengths, single_root, LogSum())[:, 0]
    )


def inside(arcs: Tensor, lengths: Tensor | None, single_root: bool, total: Sum) -> Tensor:
    """The total (B, K) over the trees of each sentence; arcs (B, n, n) are -inf where they can not be used."""
    batch, n, _ = arcs.shape
    single = arcs.new_full((batch, n, 1, total.width), NEG_INF)
    single[..., 0] = zero_from(arcs).view(-1, 1, 1)  # a word alone is one structure
    right_by_first = right_by_last = left_by_first = left_by_last = single  # complete
    right_arc_by_first = left_arc_by_last = single[:, :, :0]  # incomplete, from width 1 on
    for w in range(1, n):
        first, last = slice(0, n - w), slice(w, n)
        halves = right_by_first[:, first], left_by_last[:, last].flip(2)
        joined = total(*halves)
        if single_root:
            of_root = total(*(half[:, :1, :1] for half in halves))
            right_joined = torch.cat([of_root, joined[:, 1:]], 1)
        else:
            right_joined = joined
        right_arc = right_joined + arcs.diagonal(w, 1, 2).unsqueeze(2)
        left_arc = joined + arcs.diagonal(-w, 1, 2).unsqueeze(2)
        right_arc_by_first = _add_width(right_arc_by_first, right_arc, first)
        left_arc_by_last = _add_width(left_arc_by_last, left_arc, last)
        right = total(right_arc_by_first[:, first], right_by_last[:, last].flip(2))
        left = total(left_by_first[:, first], left_arc_by_last[:, last].flip(2))
        right_by_first, right_by_last = (
            _add_width(right_by_first, right, first),
            _add_width(right_by_last, right, last),
        )
        left_by_first, left_by_last = (
            _add_width(left_by_first, left, first),
            _add_width(left_by_last, left, last),
        )
    if lengths is None:
        return right_by_first[:, 0, n - 1]
    width = (lengths - 1).clamp_min(0).view(-1, 1, 1).expand(-1, 1, total.width)
    return right_by_first[:, 0].gather(1, width).squeeze(1)


def _add_width(chart: Tensor, cells: Tensor, words: slice) -> Tensor:
    """The chart with one more column: the cells of the next width, at the words that they belong to."""
    n = chart.shape[1]
    padded = torch.nn.functional.pad(cells, (0, 0, words.start, n - words.stop), value=NEG_INF)
    return torch.cat([chart, padded.unsqueeze(2)], 2)


_native_viterbi = direct_or_operator(native.projective_viterbi, operators.projective_viterbi)
_native_inference = differentiable(
    native.projective_forward,
    native.projective_backward,
    operators.projective,
    operators.projective_gradient,
    plain_inference,
)
