"""What projective and non-projective dependency trees share: a head for every word, and word 0 the root symbol."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structattn.kernels import native
from structattn.kernels.plain import NEG_INF, zero_from
from structattn.structures.distribution import (
    Structure,
    beyond,
    check_potentials,
    computed_in,
    readable,
    shaped,
)


class DependencyTree(Structure):
    """Base class: arcs (*batch, n, n), values are heads (*batch, n)."""

    _variant = ("single_root", "single_root")

    arcs: Tensor
    single_root: bool

    def __init__(
        self,
        arcs: Tensor,
        lengths: Tensor | None = None,
        single_root: bool = False,
        validate_args: bool | None = None,
    ) -> None:
        check_potentials(
            "arcs",
            arcs,
            "(*batch, n, n), n at least 1",
            lambda shape: len(shape) >= 2 and shape[-1] == shape[-2] > 0,
        )
        self.arcs, self.single_root = arcs, bool(single_root)
        *batch, n, _ = arcs.shape
        self._set_up(torch.Size(batch), torch.Size((n,)), lengths, validate_args)
        self._dtype = arcs.dtype
        self._potentials = (shaped(arcs, (self._batch_shape.numel(), n, n), computed_in(arcs.dtype)),)

    @property
    def log_partition(self) -> Tensor:
        """log Z (*batch); -inf where no tree is possible."""
        return shaped(self._inference(native.LOG_PARTITION)[0], self._batch_shape, self._dtype)

    @property
    def marginals(self) -> Tensor:
        """p(head of m is h) (*batch, n, n), indexed [..., h, m]; every counted column but the root's sums to 1."""
        return shaped(self._inference(native.MARGINALS)[1], self.arcs.shape, self._dtype)

    def _parts(self) -> list[tuple[Tensor, Tensor]]:
        return [(self._inference(native.MARGINALS, precise=True)[1], self._potentials[0].double())]

    def _score(self, value: Tensor) -> Tensor:
        heads, counts = self._counted_heads(value)
        scores = self._potentials[0].expand(len(heads), -1, -1, -1).gather(2, heads.unsqueeze(2)).squeeze(2)
        return torch.where(counts, scores, 0.0).double().sum(2)

    def _counted_heads(self, value: Tensor) -> tuple[Tensor, Tensor]:
        """value with zeros where it does not count, and where it counts (1 or B, n)."""
        n = value.shape[2]
        counts = (torch.arange(n, device=value.device) > 0).unsqueeze(0)
        if self._lengths is not None:
            counts = counts & ~beyond(self._lengths, n)
        heads = value.masked_fill(~counts, 0)
        if self._validate and heads.numel() and readable(heads):
            low, high = int(heads.min()), int(heads.max())
            if low < 0 or high >= n:
                raise ValueError(f"value: expected heads from 0 to {n - 1}, got values from {low} to {high}")
        return heads, counts

    def _is_structure(self, value: Tensor) -> Tensor:
        heads, counts = self._counted_heads(value)
        n = heads.shape[2]
        inside = heads < (n if self._lengths is None else self._lengths.clamp_min(1).unsqueeze(1))
        ancestors = heads
        for _ in range(max(n - 1, 1).bit_length()):
            ancestors = ancestors.gather(2, ancestors)
        valid = (inside & (ancestors == 0)).all(2)
        if self.single_root:
            roots = ((heads == 0) & counts).sum(2)
            valid &= roots == counts.any(1).long()
        return valid

    def _masked(self) -> Tensor:
        """The arcs in float64, -inf where they can not be used: column 0, the diagonal, beyond the lengths."""
        if not self._kept.get("checked"):
            arcs = mask_unusable(self._potentials[0], self._lengths)
            self._check_values(("arcs", arcs))
            self._kept["checked"] = True
        return mask_unusable(self._potentials[0].double(), self._lengths)

    def expand(self, batch_shape: Any, _instance: Any = None) -> Any:
        """The same distributions for a larger batch shape, without copying arcs."""
        batch_shape = torch.Size(batch_shape)
        lengths = None if self.lengths is None else self.lengths.expand(batch_shape)
        arcs = self.arcs.expand(batch_shape + self.arcs.shape[-2:])
        return type(self)(arcs, lengths, self.single_root, self._validate)


def mask_unusable(arcs: Tensor, lengths: Tensor | None) -> Tensor:
    """arcs (B, n, n) with -inf in column 0, on the diagonal and beyond the lengths."""
    n = arcs.shape[1]
    word = torch.arange(n, device=arcs.device)
    unusable = (word == 0) | (word == word.unsqueeze(1))
    if lengths is not None:
        ignored = beyond(lengths, n)
        unusable = unusable | ignored.unsqueeze(1) | ignored.unsqueeze(2)
    return arcs.masked_fill(unusable, NEG_INF)


def infer_by_gradient(
    arcs: Tensor, lengths: Tensor | None, wanted: int, total: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Tensor]:
    """log_partition (B), float64, and marginals (B, n, n), its gradient; empty where not wanted.

    total(arcs) is log Z (B) of arcs that are at most 0, and -inf where they can not be used.
    """

    def log_partition(arcs: Tensor) -> Tensor:
        usable = mask_unusable(arcs.double(), lengths)
        # Subtracting a constant from a word's column changes no marginal, whatever the constant: no gradient is due.
        best = usable.detach().amax(1)
        best = best.masked_fill(best == NEG_INF, 0.0)
        return total(usable - best.unsqueeze(1)) + best.sum(1)

    if wanted == native.LOG_PARTITION:
        return log_partition(arcs), arcs.new_empty(0)
    result, pull_back = torch.func.vjp(log_partition, arcs)  # type: ignore[misc]
    return result, pull_back(torch.ones_like(result))[0] + zero_from(arcs).view(-1, 1, 1)
