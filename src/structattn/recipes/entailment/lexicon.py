"""Words as rows of one table of fixed vectors, looked up in a file when they are first seen; and batches of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from structattn.recipes.batching import pad
from structattn.recipes.vectors import bucket_vectors, hashed_bucket, read_vectors

ROOT = 0
"""The row of the root symbol."""


class Encoded(NamedTuple):
    """A sentence as numbers, the root symbol first."""

    rows: list[int]
    heads: list[int]
    """which of the words, counted from the root symbol, is each one's head; empty if there is no tree"""


class Lexicon:
    """A word has its own vector, else its lowercase form's, else that of a bucket, which a hash of it chooses.

    path       the vectors, a text file
    size       numbers in a vector
    buckets    how many Gaussian vectors there are for the words that the file lacks
    normalise  whether these too are brought to norm 1, as those of the file are
    """

    def __init__(self, path: Path, size: int, buckets: int, normalise: bool) -> None:
        self.path, self.size, self.buckets = path, size, buckets
        drawn = bucket_vectors(size, buckets + 1)  # one more than for words: the root symbol's
        self.table: Tensor = F.normalize(drawn) if normalise else drawn
        """(rows, size): the root symbol, the buckets, and the words found so far"""
        self._row_of: dict[str, int] = {}

    def learn(self, words: Iterable[str]) -> None:
        """Looks up the words that were not seen yet, all in one reading of the file."""
        new = sorted({word for word in words if word not in self._row_of})
        if not new:
            return
        found = read_vectors(self.path, {form for word in new for form in (word, word.lower())}, self.size)
        first = len(self.table)
        self.table = torch.cat([self.table, F.normalize(found.table.view(-1, self.size))])
        for word in new:
            form = word if word in found else word.lower()
            known = form in found
            self._row_of[word] = (
                first + found.number_of[form] if known else 1 + hashed_bucket(word, self.buckets)
            )

    def encode(self, words: Sequence[str], heads: Sequence[int] = ()) -> Encoded:
        """A sentence of words that were learned."""
        return Encoded([ROOT, *(self._row_of[word] for word in words)], [0, *heads] if heads else [])

    def batch(self, sentences: Sequence[Encoded]) -> tuple[Tensor, ...]:
        """vectors (U, size) of the different words, words (S, n), lengths (S), and heads (S, n) where there are trees.

        A batch holds the vectors that it needs, so a model needs no table, and any word may come.
        """
        lengths = torch.tensor([len(one.rows) for one in sentences])
        used, words = pad([one.rows for one in sentences]).unique(return_inverse=True)
        tensors = self.table[used], words, lengths
        if not any(one.heads for one in sentences):
            return tensors
        return (*tensors, pad([one.heads for one in sentences]))
