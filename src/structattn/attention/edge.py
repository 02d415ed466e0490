"""The edge of the layers: shapes, dtypes, lengths and padding are checked, once, and brought to one form."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from structattn.structures.distribution import beyond, readable


def check_features(name: str, tensor: Any, *sizes: int | str, like: Tensor | None = None) -> None:
    """Refuses what is no tensor of floats of these sizes (a word: any size) and of the dtype of like."""
    if not isinstance(tensor, Tensor) or not tensor.is_floating_point():
        raise TypeError(f"{name}: expected a floating-point tensor, got {_kind(tensor)}")
    shape = tuple(tensor.shape)
    fits = all(isinstance(size, str) or size == given for size, given in zip(sizes, shape, strict=False))
    if len(shape) != len(sizes) or not fits:
        raise ValueError(f"{name}: expected shape ({', '.join(map(str, sizes))}), got {shape}")
    if like is not None and tensor.dtype != like.dtype and not torch.is_autocast_enabled(tensor.device.type):
        raise TypeError(f"{name}: expected {_kind(like)} as the layer's parameters are, got {_kind(tensor)}")


def check_choice(name: str, given: Any, choices: tuple[str, ...]) -> None:
    """Refuses what is not among the choices."""
    if given not in choices:
        raise ValueError(f"{name}: expected one of {', '.join(choices)}, got {given!r}")


def check_normalize(normalize: float | None) -> None:
    """Refuses what is no sum of weights."""
    if normalize is not None and not normalize > 0:
        raise ValueError(f"normalize: expected a number above 0, or None, got {normalize!r}")


def check_integers(name: str, tensor: Any, shape: tuple[int, ...]) -> Tensor:
    """tensor as int64; refuses what is no tensor of integers of this shape."""
    if not isinstance(tensor, Tensor) or tensor.is_floating_point() or tensor.dtype == torch.bool:
        raise TypeError(f"{name}: expected a tensor of integers, got {_kind(tensor)}")
    if tensor.shape != shape:
        raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")
    return tensor.to(torch.int64)


def check_range(name: str, tensor: Tensor, highest: int) -> None:
    """Refuses values outside of 0 to highest, where Python may look at them."""
    if tensor.numel() and readable(tensor):
        low, high = int(tensor.min()), int(tensor.max())
        if low < 0 or high > highest:
            raise ValueError(f"{name}: expected values from 0 to {highest}, got values from {low} to {high}")


def check_lengths(lengths: Any, batch: int, n: int) -> Tensor:
    """lengths (batch) as int64, from 0 to n."""
    lengths = check_integers("lengths", lengths, (batch,))
    check_range("lengths", lengths, n)
    return lengths


class Padding(NamedTuple):
    """Which of n positions count in each of B sentences."""

    lengths: Tensor
    """(B) how many."""
    ignored: Tensor
    """(B, n) True at the positions that do not count."""
    order: Tensor | None
    """(B, n) the positions that count, then the others; None: they stand in this order already."""

    def in_order(self) -> Padding:
        """The padding after the positions were brought into `order`."""
        return Padding(self.lengths, beyond(self.lengths, self.ignored.shape[1]), None)


def padding_of(lengths: Any, ignored: Any, batch: int, n: int) -> Padding | None:
    """The padding that lengths (B), or a mask (B, n), True where a position does not count, describe."""
    if lengths is not None:
        if ignored is not None:
            raise ValueError("lengths and key_padding_mask: expected at most one of them, got both")
        lengths = check_lengths(lengths, batch, n)
        return Padding(lengths, beyond(lengths, n), None)
    if ignored is None:
        return None
    if not isinstance(ignored, Tensor) or ignored.dtype != torch.bool:
        raise TypeError(f"key_padding_mask: expected a tensor of bool, got {_kind(ignored)}")
    if ignored.shape != (batch, n):
        raise ValueError(f"key_padding_mask: expected shape ({batch}, {n}), got {tuple(ignored.shape)}")
    lengths = (~ignored).sum(1)
    # A structure is over what counts, in its order: what is padded in front or in between is moved behind.
    at_the_end = readable(ignored) and bool((ignored == beyond(lengths, n)).all())
    return Padding(lengths, ignored, None if at_the_end else ignored.long().argsort(dim=1, stable=True))


def _kind(value: Any) -> str:
    return (
        str(value.dtype).removeprefix("torch.") if isinstance(value, Tensor) else f"a {type(value).__name__}"
    )
