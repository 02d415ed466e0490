"""Batches of sentences of similar length: padding, masks, and an order that a seed decides."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import TypeVar

import torch
from torch import Tensor

Item = TypeVar("Item")


def pad(sequences: Sequence[Sequence[int]], padding: int = 0) -> Tensor:
    """(B, longest), the sequences at the left; at least one column."""
    longest = max([len(sequence) for sequence in sequences], default=0)
    rows = [[*sequence, *[padding] * (max(longest, 1) - len(sequence))] for sequence in sequences]
    return torch.tensor(rows, dtype=torch.int64)


def flat(sequences: Iterable[Sequence[int]]) -> tuple[Tensor, Tensor]:
    """Sequences one behind the other, and their lengths."""
    sequences = list(sequences)
    numbers = torch.tensor(list(chain.from_iterable(sequences)), dtype=torch.int32)
    return numbers, torch.tensor(list(map(len, sequences)), dtype=torch.int32)


def bucketed_batches(
    sizes: Sequence[int], batch_size: int, generator: random.Random, pool: int = 50
) -> list[list[int]]:
    """Every example once, in batches of examples of similar size.

    The examples are shuffled, cut into pools of `pool` batches, sorted by size within a pool and cut into
    batches; the batches are shuffled. Every batch is full except one, none is dropped, and sizes within a
    batch may differ.
    """
    order = list(range(len(sizes)))
    generator.shuffle(order)
    step = pool * batch_size
    batches = []
    for first in range(0, len(order), step):
        part = sorted(order[first : first + step], key=lambda index: sizes[index])
        batches += [part[start : start + batch_size] for start in range(0, len(part), batch_size)]
    full = [batch for batch in batches if len(batch) == batch_size]
    generator.shuffle(full)
    return full + [batch for batch in batches if len(batch) < batch_size]


def sorted_batches(sizes: Sequence[int], batch_size: int) -> list[list[int]]:
    """Every example once, by size: for evaluation, where the order does not matter."""
    order = sorted(range(len(sizes)), key=lambda index: sizes[index])
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """The items in order, so many at a time; only as many are read as are needed for the next chunk."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
