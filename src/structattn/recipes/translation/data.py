"""Sentence pairs: two files whose lines belong together, or one file with a tab between source and target.

A sentence is read as words, which spaces separate, or as characters; the spaces are then removed first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from structattn.recipes.errors import UserError, did_you_mean
from structattn.recipes.text import read_lines

UNITS = ("char", "word")
_LINES_NAMED = 5


@dataclass
class TranslationData:
    """[data]: which sentence pairs, and how they are read. Files are SOURCE TARGET, or one with tabs."""

    train: list[str] = field(default_factory=list)
    """files to train on; by default train.ja and train.en of enja in the data folder"""
    valid: list[str] = field(default_factory=list)
    """files to validate on; by default `held_out` pairs that are taken from the training files"""
    test: list[str] = field(default_factory=list)
    """files to evaluate on; by default dev.ja and dev.en of enja, or with `train` given what validates"""
    source: str = "char"
    """what a source is read as: char or word"""
    target: str = "word"
    """the same for a target"""
    least_count: int = 10
    """symbols that occur less often in the training pairs are unknown"""
    longest_source: int = 50
    """longer pairs are left out of training, validation and test; 0: none is too long"""
    longest_source_in: str = "char"
    """what longest_source counts, whatever a source is read as: so that all models see the same pairs"""
    longest_target: int = 50
    """in what a target is read as; 0: none is too long"""
    pairs: int = 0
    """how many training pairs are used, from the first one on; 0: all"""
    held_out: int = 500
    """how many pairs of the training files validate, if there are no others"""
    split_seed: int = 2017
    """which ones: the same for all seeds of the training"""

    def __post_init__(self) -> None:
        for key in ("source", "target", "longest_source_in"):
            unit = getattr(self, key)
            if unit not in UNITS:
                raise UserError(f'data.{key}: unknown unit "{unit}"{did_you_mean(unit, UNITS)}')
        for key in ("train", "valid", "test"):
            if len(getattr(self, key)) > 2:
                raise UserError(
                    f"data.{key}: expected a source and a target file, or one with tabs, "
                    f"not {len(getattr(self, key))} files"
                )
        if min(self.least_count, self.longest_source, self.longest_target, self.pairs, self.held_out) < 0:
            raise UserError("data: counts and lengths are not negative")


class Pair(NamedTuple):
    """A source and its translation, as text."""

    source: str
    target: str


def symbols_of(text: str, unit: str) -> list[str]:
    words = text.split()
    return words if unit == "word" else list("".join(words))


def text_of(symbols: Sequence[str], unit: str) -> str:
    return (" " if unit == "word" else "").join(symbols)


def read_pairs(paths: Sequence[Path]) -> list[Pair]:
    """The pairs of a source and a target file, or of one file with a tab in each line."""
    pairs = _aligned(*paths) if len(paths) == 2 else _separated(*paths)
    if not pairs:
        raise UserError(f"{' and '.join(map(str, paths))}: no pairs in there")
    return pairs


def _aligned(source: Path, target: Path) -> list[Pair]:
    sources, targets = read_lines(source), read_lines(target)
    if len(sources) != len(targets):
        longer, count = (source, len(targets)) if len(sources) > len(targets) else (target, len(sources))
        raise UserError(
            f"{source} has {len(sources)} lines and {target} has {len(targets)}: "
            f"{longer}, line {count + 1} has no partner"
        )
    for path, lines in ((source, sources), (target, targets)):
        _refuse_empty(lines, str(path), "empty")
    return [Pair(*texts) for texts in zip(sources, targets, strict=True)]


def _separated(path: Path) -> list[Pair]:
    lines = read_lines(path)
    for number, line in enumerate(lines, 1):
        if line.count("\t") != 1:
            raise UserError(
                f"{path}, line {number}: expected source, one tab, target; found {line.count(chr(9))} tabs"
            )
    pairs = [Pair(*line.split("\t")) for line in lines]
    for side in Pair._fields:
        _refuse_empty([getattr(pair, side) for pair in pairs], str(path), f"without a {side}")
    return pairs


def _refuse_empty(texts: Sequence[str], origin: str, what: str) -> None:
    empty = [str(number) for number, text in enumerate(texts, 1) if not text.strip()]
    if empty:
        more = f" and {len(empty) - _LINES_NAMED} more" if len(empty) > _LINES_NAMED else ""
        lines = f"line{'s' if len(empty) > 1 else ''} {', '.join(empty[:_LINES_NAMED])}{more}"
        raise UserError(f"{origin}, {lines}: {what}")


def fits(pair: Pair, settings: TranslationData) -> bool:
    """Whether neither side is longer than what is read."""
    source = len(symbols_of(pair.source, settings.longest_source_in))
    target = len(symbols_of(pair.target, settings.target))
    return source <= (settings.longest_source or source) and target <= (settings.longest_target or target)
