"""Treebanks in CoNLL-U: sentences with a head for every word, read, checked and written.

A block of lines is a sentence, an empty line ends it. A word's line has ten fields with tabs between; of these ID,
FORM, UPOS and HEAD are read, and the others written back as they were. Multiword tokens (ID 3-4) and empty nodes
(ID 3.1) are no words. Heads count words from 1; 0 is the root symbol before them.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from structattn.recipes.errors import UserError
from structattn.recipes.text import read_lines

_FIELDS = 10
_ID, _FORM, _TAG, _HEAD, _RELATION, _ENHANCED = 0, 1, 3, 6, 7, 8


class Sentence(NamedTuple):
    """Words, and the head of each: the number of a word, counted from 1, or 0 for the root symbol."""

    words: list[str]
    heads: list[int]
    tags: list[str]
    """UPOS of each word"""
    lines: list[str]
    """the block of the file, from comments to the last word; empty for a sentence that comes from elsewhere"""
    origin: str = ""
    """file and line"""


def read_treebank(path: Path) -> list[Sentence]:
    """All sentences of a file, plain or .gz; what is wrong with a line is said with its number."""
    sentences = list(parse_conllu(read_lines(path), str(path)))
    if not sentences:
        raise UserError(f"{path} holds no sentences")
    return sentences


def parse_conllu(lines: Iterable[str], origin: str) -> Iterator[Sentence]:
    """The sentences of lines in CoNLL-U; `origin` is named when something is wrong."""
    block: list[str] = []
    number = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            block.append(line)
        elif block:
            yield from _sentence(block, origin, number - len(block))
            block = []
    if block:
        yield from _sentence(block, origin, number + 1 - len(block))


def _sentence(block: list[str], origin: str, first: int) -> Iterator[Sentence]:
    """The sentence of a block that begins at line `first`; none if there are only comments."""
    words: list[str] = []
    heads, tags, numbers = [], [], []
    for number, line in enumerate(block, first):
        if line.startswith("#"):
            continue
        fields = line.split("\t")
        where = f"{origin}, line {number}"
        if len(fields) != _FIELDS:
            raise UserError(f"{where}: expected {_FIELDS} fields with tabs between, found {len(fields)}")
        if "-" in fields[_ID] or "." in fields[_ID]:
            continue
        if fields[_ID] != str(len(words) + 1):
            raise UserError(f"{where}: expected word {len(words) + 1}, found ID {fields[_ID][:40]!r}")
        if not fields[_FORM]:
            raise UserError(f"{where}: the word is empty")
        words.append(fields[_FORM])
        heads.append(_head(fields[_HEAD], where))
        tags.append(fields[_TAG])
        numbers.append(number)
    wrong = wrong_head(heads)
    if wrong is not None:
        position, what = wrong
        raise UserError(f"{origin}, line {numbers[position]}: {what}")
    if words:
        yield Sentence(words, heads, tags, block, f"{origin}, line {first}")


def _head(field: str, where: str) -> int:
    if not (field.isascii() and field.isdigit() and len(field) < 10):
        raise UserError(f"{where}: HEAD must be the number of a word, or 0, not {field[:40]!r}")
    return int(field)


def wrong_head(heads: Sequence[int]) -> tuple[int, str] | None:
    """The position of a word whose head keeps the heads from being a tree, and why; None if they are one."""
    count = len(heads)
    rooted = [True] + [False] * count  # whether a word is known to descend from the root symbol
    for word in range(1, count + 1):
        path: dict[int, None] = {}
        while not rooted[word]:
            if word in path:
                return word - 1, f"the heads of word {word} lead back to it and never to the root"
            path[word] = None
            head = heads[word - 1]
            if head > count:
                return word - 1, f"the head of word {word} is {head}, but there are {count} words"
            word = head
        for passed in path:
            rooted[passed] = True
    return None


def is_projective(heads: Sequence[int]) -> bool:
    """Whether no two arcs cross, those of the root symbol included."""
    return _crossing(heads) is None


def _crossing(heads: Sequence[int]) -> tuple[int, int] | None:
    """Two words whose arcs cross."""
    arcs = sorted((min(word, head), -max(word, head), word) for word, head in enumerate(heads, 1))
    around: list[tuple[int, int]] = []  # right ends and words of the arcs that the next one may lie within
    for left, negative, word in arcs:
        right = -negative
        while around and around[-1][0] <= left:
            around.pop()
        if around and around[-1][0] < right:
            return around[-1][1], word
        around.append((right, word))
    return None


def lifted(heads: Sequence[int]) -> list[int]:
    """A projective tree near this one: the shorter of two crossing arcs moves to its head's head until none cross.

    The idea of Nivre and Nilsson (2005). A tree with a single root keeps it.
    """
    heads = list(heads)
    while (found := _crossing(heads)) is not None:
        # Arcs from the root symbol never cross each other, nor do arcs from the same word: one of two that cross has a
        # head that is neither the root symbol nor the single root.
        movable = [word for word in found if heads[word - 1]]
        word = min(movable, key=lambda word: (_above(heads, word) == 0, abs(heads[word - 1] - word)))
        heads[word - 1] = _above(heads, word)
    return heads


def _above(heads: Sequence[int], word: int) -> int:
    """The head of the word's head, which is not the root symbol."""
    return heads[heads[word - 1] - 1]


def conllu(sentence: Sentence, heads: Sequence[int] | None = None) -> str:
    """The sentence as a block of CoNLL-U, without the empty line; with other heads, if they are given.

    A word whose head changes loses the relation to its old one.
    """
    heads = sentence.heads if heads is None else heads
    if not sentence.lines:
        rows = zip(sentence.words, sentence.tags, heads, strict=True)
        return "\n".join(
            f"{number}\t{word}\t_\t{tag}\t_\t_\t{head}\t{_relation(head)}\t_\t_"
            for number, (word, tag, head) in enumerate(rows, 1)
        )
    following, lines = iter(zip(sentence.heads, heads, strict=True)), []
    for line in sentence.lines:
        fields = line.split("\t")
        if fields[_ID].isdigit():
            old, new = next(following)
            if old != new:
                fields[_HEAD], fields[_RELATION], fields[_ENHANCED] = str(new), _relation(new), "_"
        lines.append("\t".join(fields))
    return "\n".join(lines)


def _relation(head: int) -> str:
    """What Universal Dependencies calls a relation that is not known."""
    return "dep" if head else "root"


def write_treebank(sentences: Iterable[Sentence], path: Path) -> None:
    text = "".join(f"{conllu(sentence)}\n\n" for sentence in sentences).encode("utf-8")
    path.write_bytes(gzip.compress(text, mtime=0) if path.suffix == ".gz" else text)
