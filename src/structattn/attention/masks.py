"""The masks of multi-head attention, checked, in one form: what is absent, and what is added to scores."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from structattn.attention.edge import Padding, padding_of
from structattn.structures.distribution import readable

NEG_INF = float("-inf")


class HeadMasks(NamedTuple):
    """B sentences, H heads, L queries, S keys."""

    padding: Padding | None
    """Which keys (B, S) exist."""
    scores: Tensor | None
    """(1 or B, 1 or H, 1 or L, S) added to the scores; -inf forbids."""

    def of_heads(self, heads: list[int]) -> HeadMasks:
        if self.scores is None or self.scores.shape[1] == 1:
            return self
        return self._replace(scores=pick_heads(self.scores, heads, 1))

    def added(self) -> Tensor | None:
        """What is added to the scores, by softmax and sigmoid, where absent keys are merely forbidden."""
        if self.padding is None:
            return self.scores
        ignored = self.padding.ignored[:, None, None]
        if self.scores is not None:
            return self.scores.masked_fill(ignored, NEG_INF)
        return torch.zeros_like(ignored, dtype=torch.get_default_dtype()).masked_fill(ignored, NEG_INF)

    def chain_lengths(self) -> Tensor | None:
        """(1 or B, 1 or H, 1 or L): a query's chain ends with the last key that is there and allowed."""
        if self.scores is None:
            return None if self.padding is None else self.padding.lengths[:, None, None]
        allowed = self.scores != NEG_INF
        if self.padding is not None:
            allowed = allowed & ~self.padding.ignored[:, None, None]
        position = torch.arange(1, allowed.shape[-1] + 1, device=allowed.device)
        return (allowed * position).amax(-1)

    def in_order(self, queries_too: bool) -> HeadMasks:
        """The masks of keys, and of queries if they are the same words, brought into padding.order."""
        if self.padding is None or self.padding.order is None:
            return self
        scores, order = self.scores, self.padding.order[:, None]
        if scores is not None:
            scores = scores.take_along_dim(order[:, :, None], -1)
            if queries_too and scores.shape[2] > 1:
                scores = scores.take_along_dim(order[:, :, :, None], 2)
        return HeadMasks(self.padding.in_order(), scores)

    def with_more_keys(self, count: int) -> HeadMasks:
        """The masks for keys that everybody may select, put behind."""
        padding, scores = self
        if padding is not None:
            padding = padding._replace(ignored=F.pad(padding.ignored, (0, count)))
        return HeadMasks(padding, None if scores is None else F.pad(scores, (0, count)))


def pick_heads(tensor: Tensor, heads: list[int], dim: int) -> Tensor:
    """What belongs to these heads; without a copy where they are neighbours."""
    if heads == list(range(heads[0], heads[0] + len(heads))):
        return tensor.narrow(dim, heads[0], len(heads))
    return tensor.index_select(dim, torch.tensor(heads, device=tensor.device))


def read_masks(
    key_padding_mask: Any, attn_mask: Any, batch: int, heads: int, queries: int, keys: int, dtype: torch.dtype
) -> HeadMasks:
    """torch's masks: (B, S) and (L, S) or (B * H, L, S), of bool (True: not) or of floats that are added."""
    padding = scores = None
    if attn_mask is not None:
        shape = _checked("attn_mask", attn_mask, (queries, keys), (batch * heads, queries, keys))
        four = (1, 1, *shape) if len(shape) == 2 else (batch, heads, queries, keys)
        scores = _additive(attn_mask, dtype).view(four)
    if key_padding_mask is not None:
        _checked("key_padding_mask", key_padding_mask, (batch, keys))
        if key_padding_mask.dtype == torch.bool:
            padding = padding_of(None, key_padding_mask, batch, keys)
        else:
            missing = key_padding_mask == NEG_INF
            padding = padding_of(None, missing, batch, keys)
            bias = key_padding_mask.masked_fill(missing, 0.0).to(dtype)[:, None, None]
            # torch's encoders hand over masks of bool as floats: mostly there is nothing left to add.
            if not readable(bias) or bool(bias.any()):
                scores = bias if scores is None else scores + bias
    return HeadMasks(padding, scores)


def _checked(name: str, mask: Any, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    if not isinstance(mask, Tensor) or not (mask.dtype == torch.bool or mask.is_floating_point()):
        kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
        raise TypeError(f"{name}: expected a tensor of bool or floats, got {kind}")
    if tuple(mask.shape) not in shapes:
        raise ValueError(f"{name}: expected shape {' or '.join(map(str, shapes))}, got {tuple(mask.shape)}")
    return tuple(mask.shape)


def _additive(mask: Tensor, dtype: torch.dtype) -> Tensor:
    if mask.dtype != torch.bool:
        return mask.to(dtype)
    return torch.zeros_like(mask, dtype=dtype).masked_fill(mask, NEG_INF)
