"""Text to numbers, once: vocabularies, the training pairs as numbers, and the pairs that validate.

What was prepared is kept in the user's cache folder under a hash of the files' contents and of the settings that
matter. A run folder keeps its own copy of the vocabularies, so a model can be used without what it was trained on.
"""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from structattn.recipes.batching import flat
from structattn.recipes.data_folder import cache_folder
from structattn.recipes.errors import UserError
from structattn.recipes.run_folder import read_tensors, write_tensors, write_text
from structattn.recipes.translation.data import Pair, TranslationData, fits, read_pairs, symbols_of

PADDING, UNKNOWN, START, END = "<pad>", "<unk>", "<s>", "</s>"
SPECIAL = (PADDING, UNKNOWN, START, END)
_FORMAT = 1
"""Counts the ways in which prepared pairs were kept: another way does not read what this one wrote."""


class Vocabulary:
    """Symbols by number; the first four are special."""

    def __init__(self, symbols: Sequence[str]) -> None:
        self.symbols = list(symbols)

    @classmethod
    def of(cls, sentences: Iterable[Sequence[str]], least_count: int) -> Vocabulary:
        """What occurs at least so often, the most frequent first; equals in alphabetical order."""
        counts = Counter(symbol for sentence in sentences for symbol in sentence)
        frequent = [
            symbol for symbol, count in counts.items() if count >= least_count and symbol not in SPECIAL
        ]
        return cls([*SPECIAL, *sorted(frequent, key=lambda symbol: (-counts[symbol], symbol))])

    def __len__(self) -> int:
        return len(self.symbols)

    @cached_property
    def number_of(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols)}

    def numbers(self, symbols: Sequence[str]) -> list[int]:
        unknown = SPECIAL.index(UNKNOWN)
        return [self.number_of.get(symbol, unknown) for symbol in symbols]


class Vocabularies(NamedTuple):
    source: Vocabulary
    target: Vocabulary

    def write(self, path: Path) -> None:
        symbols = {"source": self.source.symbols, "target": self.target.symbols}
        write_text(path, json.dumps(symbols, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> Vocabularies:
        try:
            symbols = json.loads(path.read_text(encoding="utf-8"))
            return cls(Vocabulary(symbols["source"]), Vocabulary(symbols["target"]))
        except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
            raise UserError(f"{path} is damaged: {error}") from error


class Example(NamedTuple):
    """A pair as numbers: the source, and the target between start and end."""

    source: list[int]
    target: list[int]


class Prepared(NamedTuple):
    vocabularies: Vocabularies
    train: list[Example]
    valid: list[Pair]
    left_out: int
    """how many pairs of the training and validation files were too long"""


def prepare(settings: TranslationData, train: Sequence[Path], valid: Sequence[Path]) -> Prepared:
    """The training pairs as numbers; without validation files, some of the pairs are held out instead."""
    kept = cache_folder() / "kept" / f"translation-{_key(settings, train, valid)}.safetensors"
    found = _read(kept)
    if found is None:
        found = _prepare(settings, train, valid)
        _keep(found, kept)
    return found


def _prepare(settings: TranslationData, train: Sequence[Path], valid: Sequence[Path]) -> Prepared:
    given = read_pairs(train)
    given = given[: settings.pairs or len(given)]
    validating = read_pairs(valid) if valid else []
    pairs, held = _fitting(given, settings), _fitting(validating, settings)
    left_out = len(given) - len(pairs) + len(validating) - len(held)
    if not valid:
        pairs, held = _held_out(pairs, settings)
    if not pairs or not held:
        raise UserError(
            f"data: {len(pairs)} pairs are left to train and {len(held)} to validate; {left_out} were longer "
            "than data.longest_source or data.longest_target"
        )
    sources = [symbols_of(pair.source, settings.source) for pair in pairs]
    targets = [symbols_of(pair.target, settings.target) for pair in pairs]
    vocabularies = Vocabularies(*(Vocabulary.of(side, settings.least_count) for side in (sources, targets)))
    examples = [example(vocabularies, *sides) for sides in zip(sources, targets, strict=True)]
    return Prepared(vocabularies, examples, held, left_out)


def _fitting(pairs: Sequence[Pair], settings: TranslationData) -> list[Pair]:
    return [pair for pair in pairs if fits(pair, settings)]


def _held_out(pairs: Sequence[Pair], settings: TranslationData) -> tuple[list[Pair], list[Pair]]:
    """The pairs that train, and those that validate; a source that validates does not train."""
    order = list(range(len(pairs)))
    random.Random(settings.split_seed).shuffle(order)
    held = [pairs[index] for index in sorted(order[: settings.held_out])]
    sources = {"".join(pair.source.split()) for pair in held}
    return [pair for pair in pairs if "".join(pair.source.split()) not in sources], held


def example(vocabularies: Vocabularies, source: Sequence[str], target: Sequence[str]) -> Example:
    return Example(vocabularies.source.numbers(source), vocabularies.target.numbers([START, *target, END]))


def _key(settings: TranslationData, *files: Sequence[Path]) -> str:
    """What decides the result: the settings without the names of files, and the files' contents."""
    values = {key: value for key, value in vars(settings).items() if key not in ("train", "valid", "test")}
    digest = hashlib.sha256(json.dumps([_FORMAT, values], sort_keys=True).encode())
    for paths in files:
        for path in paths:
            try:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            except OSError as error:
                raise UserError(f"cannot read {path}: {error.strerror}") from error
        digest.update(b"|")
    return digest.hexdigest()[:32]


def _read(path: Path) -> Prepared | None:
    """What an earlier run left; None if there is nothing, or it is damaged."""
    if not path.is_file():
        return None
    try:
        tensors, state = read_tensors(path)
        sides = (_sequences(tensors[side], tensors[f"{side}_lengths"]) for side in Example._fields)
        examples = [Example(*pair) for pair in zip(*sides, strict=True)]
        vocabularies = Vocabularies(*(Vocabulary(symbols) for symbols in state["vocabularies"]))
        valid = [Pair(*texts) for texts in state["valid"]]
        return Prepared(vocabularies, examples, valid, state["left_out"])
    except (UserError, KeyError, TypeError, ValueError, RuntimeError):
        return None


def _keep(prepared: Prepared, path: Path) -> None:
    tensors: dict[str, Tensor] = {}
    for side in Example._fields:
        tensors[side], tensors[f"{side}_lengths"] = flat(getattr(one, side) for one in prepared.train)
    state: dict[str, Any] = {
        "vocabularies": [vocabulary.symbols for vocabulary in prepared.vocabularies],
        "valid": prepared.valid,
        "left_out": prepared.left_out,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, tensors, state)
    except (OSError, UserError):
        return  # a cache that cannot be written costs time, and nothing else


def _sequences(numbers: Tensor, lengths: Tensor) -> list[list[int]]:
    """The sequences that stand one behind the other in `numbers`."""
    flat, sequences, start = numbers.tolist(), [], 0
    for length in lengths.tolist():
        sequences.append(flat[start : start + length])
        start += length
    return sequences
