"""A treebank's sentences as numbers: words that training has seen often enough, fixed vectors, and how words are spelt.

The spelling of a word is its shape (which of capitals, digits, hyphens and other signs it has) and its first and last
few letters. It is what an unknown word is known by.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor

from structattn.recipes.errors import UserError, did_you_mean
from structattn.recipes.treebank import Sentence, is_projective, lifted
from structattn.recipes.vectors import WordVectors

CROSSING = ("skip", "lift")
UNKNOWN = 0
"""The number of a word, a vector or an affix that is not known."""
_STARTS, _ENDS = (1, 2, 3), (1, 2, 3, 4)
AFFIXES = 1 + len(_STARTS) + len(_ENDS)
"""How many a word has: its shape, and first and last letters."""


@dataclass
class ParserData:
    """[data]: the treebank and the word vectors."""

    treebank: str = ""
    """a CoNLL-U file, plain or .gz, to train on; by default ud_ewt/train.conllu.gz in the data folder"""
    valid: list[str] = field(default_factory=list)
    """CoNLL-U files to validate on; by default ud_ewt/dev.conllu.gz, or a share of `treebank` if that is given"""
    held_out: float = 0.1
    """that share"""
    split_seed: int = 2017
    """which sentences of it: the same for all seeds of the training"""
    crossing: str = "skip"
    """what becomes of a training tree with crossing arcs, to which a projective parser gives no probability: it is
    left out ("skip"), or its heads are moved up until no arcs cross ("lift")"""
    vectors: str = "glove.6B.50d.filtered.txt.gz"
    """word vectors in GloVe's format: a file, or its name in the folder vectors of the data folder; "": none"""
    vectors_lowercase: bool = True
    """whether the words of that file are lowercase"""
    vectors_first: int = 100_000
    """so many of the file's first words are known, besides those of the treebank"""
    least_count: int = 2
    """a word that occurs less often in training has no trained embedding"""
    least_affixes: int = 3
    """the same of an affix, counted in different words"""

    def __post_init__(self) -> None:
        if self.crossing not in CROSSING:
            raise UserError(
                f'data.crossing: unknown value "{self.crossing}"{did_you_mean(self.crossing, CROSSING)}'
            )
        if not 0 < self.held_out < 1:
            raise UserError(f"data.held_out is a share between 0 and 1, not {self.held_out}")


class Example(NamedTuple):
    """A sentence as numbers: a row of features for each of n words (n, 2 + affixes), and the heads (n + 1)."""

    features: Tensor
    """int32: the word, its vector, its affixes"""
    heads: Tensor
    """the root symbol's, which is 0, and the words'"""


class Encoder:
    """Words to numbers, by the words of the training sentences and the words that have vectors."""

    def __init__(
        self, sentences: Iterable[Sentence], vectors: WordVectors | None, settings: ParserData
    ) -> None:
        counts = Counter(word.lower() for sentence in sentences for word in sentence.words)
        forms = {word for sentence in sentences for word in sentence.words}
        affixes = Counter(affix for form in forms for affix in set(affixes_of(form)))
        self.words = _numbered(counts, settings.least_count)
        self.affixes = _numbered(affixes, settings.least_affixes)
        self.vectors = vectors
        self.lowercase = settings.vectors_lowercase
        self._rows: dict[str, list[int]] = {}

    def row(self, word: str) -> list[int]:
        """The features of a word."""
        found = self._rows.get(word)
        if found is None:
            form = word.lower()
            vector = UNKNOWN
            if self.vectors is not None:
                vector = self.vectors.number_of.get(form if self.lowercase else word, UNKNOWN - 1) + 1
            known = (self.affixes.get(affix, UNKNOWN) for affix in affixes_of(word))
            found = self._rows[word] = [self.words.get(form, UNKNOWN), vector, *known]
        return found

    def features(self, words: Sequence[str]) -> Tensor:
        """(n, 2 + affixes), at least one word."""
        return torch.tensor([self.row(word) for word in words], dtype=torch.int32)

    def example(self, sentence: Sentence) -> Example:
        return Example(self.features(sentence.words), torch.tensor([0, *sentence.heads]))


def _numbered(counts: Counter[str], least: int) -> dict[str, int]:
    """The names that occur often enough, numbered from 1 on; 0 is for all others."""
    names = sorted(name for name, count in counts.items() if count >= least)
    return {name: number for number, name in enumerate(names, UNKNOWN + 1)}


def affixes_of(word: str) -> list[str]:
    """The shape of a word, its first 1 to 3 letters and its last 1 to 4, in lowercase, each with its kind."""
    form = word.lower()
    starts = [f"{form[:length]}-" for length in _STARTS]
    ends = [f"-{form[-length:]}" for length in _ENDS]
    return [f"={shape_of(word)}", *starts, *ends]


def shape_of(word: str) -> str:
    """One letter each for a capital first, no small letters, digits, hyphens, and no letters or digits at all."""
    marks = {
        "C": word[:1].isupper(),
        "U": word.isupper(),
        "9": any(letter.isdigit() for letter in word),
        "-": "-" in word,
        ".": not any(letter.isalnum() for letter in word),
    }
    return "".join(mark for mark, has in marks.items() if has)


def expressible(
    sentences: Iterable[Sentence], structure: str, single_root: bool, crossing: str
) -> list[Sentence]:
    """The sentences with trees that the structure gives a probability to; crossing arcs as `crossing` says."""
    found = []
    for sentence in sentences:
        if structure == "projective" and not is_projective(sentence.heads):
            if crossing == "skip":
                continue
            sentence = sentence._replace(heads=lifted(sentence.heads))
        if sentence.heads.count(0) == 1 or not single_root:
            found.append(sentence)
    return found
