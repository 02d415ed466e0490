"""Dependency trees for sentences: from their constituency parses, from a CoNLL-U file, or by a parser of ours.

Heads count words from 1; 0 is the root symbol before them.

A constituent's head is the head of one of its children; the heads of the others depend on it. Which child that is, a
table says for each label, in the manner of Collins (1999): the side from which children are searched, and the labels
that are searched for, in this order; with none of them there, the first child from that side that is no punctuation.
Base noun phrases go by their own list. Of a coordination the first part is the head.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from structattn.recipes.entailment.data import Statement
from structattn.recipes.errors import UserError
from structattn.recipes.parser.parsing import parse_sentences
from structattn.recipes.treebank import read_treebank

PARSES = "parses"
"""The name of the first source of trees."""


class Tree(NamedTuple):
    words: tuple[str, ...]
    heads: tuple[int, ...]


_VERBS = "VBD VBZ VBP VB VBN VBG"
_NOUNS = "NN NNS NNP NNPS"
_RULES = {
    label: (side, labels.split())
    for label, side, labels in (
        ("ADJP", "left", "NNS QP NN $ ADVP JJ VBN VBG ADJP JJR NP JJS DT FW RBR RBS SBAR RB"),
        ("ADVP", "right", "RB RBR RBS FW ADVP TO CD JJR JJ IN NP JJS NN"),
        ("CONJP", "right", "CC RB IN"),
        ("FRAG", "left", "VP S NP PP ADJP"),
        ("INTJ", "left", ""),
        ("LST", "right", "LS"),
        ("NAC", "left", f"{_NOUNS} NP NAC EX $ CD QP PRP VBG JJ JJS JJR ADJP FW"),
        ("PP", "right", "IN TO VBG VBN RP FW"),
        ("PRN", "left", ""),
        ("PRT", "right", "RP"),
        ("QP", "left", "$ IN NNS NN JJ RB DT CD QP JJR JJS"),
        ("ROOT", "left", "S SINV SQ SBARQ VP NP FRAG"),
        ("RRC", "right", "VP NP ADVP ADJP PP"),
        ("S", "left", "TO IN VP S SBAR ADJP UCP NP"),
        ("SBAR", "left", "WHNP WHPP WHADVP WHADJP IN DT S SQ SINV SBAR FRAG"),
        ("SBARQ", "left", "SQ S SINV SBARQ FRAG"),
        ("SINV", "left", "VBZ VBD VBP VB MD VP S SINV ADJP NP"),
        ("SQ", "left", "VBZ VBD VBP VB MD VP SQ"),
        ("UCP", "left", ""),
        ("VP", "left", f"TO MD {_VERBS} VP ADJP {_NOUNS} NP"),
        ("WHADJP", "left", "CC WRB JJ ADJP"),
        ("WHADVP", "right", "CC WRB"),
        ("WHNP", "left", "WDT WP WP$ WHADJP WHPP WHNP"),
        ("WHPP", "right", "IN TO FW"),
    )
}
_NOUN_PHRASES = {"NP", "NX", "WHNP"}
_NOUN_RULES = (
    ("right", [*_NOUNS.split(), "NX", "POS", "JJR"]),
    ("left", ["NP", "WHNP", "PRP", "EX"]),
    ("right", ["$", "ADJP", "PRN"]),
    ("right", ["CD"]),
    ("right", ["JJ", "JJS", "RB", "QP", "DT"]),
)
"""Of each, the first child from its side that has any of the labels."""
_PUNCTUATION = {",", ":", ".", "``", "''", "-LRB-", "-RRB-", "#", "SYM", "HYPH", "NFP"}


def head_child(label: str, children: Sequence[str]) -> int:
    """Which of the children, given by their labels, has the head of a constituent with this label."""
    words = [position for position, child in enumerate(children) if child not in _PUNCTUATION]
    words = words or list(range(len(children)))
    chosen = _by_rule(label, children, words)
    # What follows a conjunction is not the first part of a coordination.
    place = words.index(chosen)
    while place >= 2 and children[words[place - 1]] in ("CC", "CONJP"):
        place -= 2
    return words[place]


def _by_rule(label: str, children: Sequence[str], words: list[int]) -> int:
    if label in _NOUN_PHRASES:
        for side, wanted in _NOUN_RULES:
            for position in words if side == "left" else reversed(words):
                if children[position] in wanted:
                    return position
    side, ranked = _RULES.get(label, ("right", []) if label in _NOUN_PHRASES else ("left", []))
    order = words if side == "left" else words[::-1]
    for one in ranked:
        for position in order:
            if children[position] == one:
                return position
    return order[0]


class _Constituent(NamedTuple):
    label: str
    children: list[tuple[str, int]]
    """labels, and the numbers of their head words"""


def heads_of(parse: str) -> list[int]:
    """The heads of the words of a bracketing; ValueError says what is wrong with it."""
    heads: list[int] = []
    unclosed = [_Constituent("", [])]
    for token in re.findall(r"\([^\s()]*|\)|[^\s()]+", parse):
        if token[0] == "(":
            unclosed.append(_Constituent(_plain_label(token[1:]), []))
        elif token == ")":
            label, children = unclosed.pop()
            if not unclosed or not children:
                raise ValueError("a bracket closes nothing")
            chosen = head_child(label, [child for child, _ in children]) if len(children) > 1 else 0
            head = children[chosen][1]
            for _, other in children:
                if other != head:
                    heads[other - 1] = head
            unclosed[-1].children.append((label, head))
        else:
            heads.append(0)
            unclosed[-1].children.append((token, len(heads)))
    if len(unclosed) != 1 or len(unclosed[0].children) != 1:
        raise ValueError("it is not one bracketing that ends where it is closed")
    return heads


def _plain_label(label: str) -> str:
    """Without function tags and indices: NP-SBJ-1 is NP; -LRB- is itself."""
    return label if label.startswith("-") else re.split("[-=]", label)[0]


def tree_of(statement: Statement) -> Tree | None:
    """The tree of a statement's parse; None if it has none."""
    if not statement.parse:
        return None
    try:
        heads = heads_of(statement.parse)
    except ValueError as error:
        raise UserError(f"the parse of {statement.text!r} cannot be read: {error}") from error
    return Tree(statement.words, tuple(heads))


Source = Callable[[Sequence[Statement]], list[Tree | None]]
"""Trees of statements, in order; None where it has none."""


def place_of_trees(name: str) -> Path | None:
    """The file or run that has trees of this name; None if they are the rows' parses."""
    path = None if name == PARSES else Path(name)
    if path is not None and not path.exists():
        raise UserError(
            f'model.trees: there is no file or run "{name}"; "{PARSES}" takes the parses of the rows'
        )
    return path


def source_of_trees(name: str, data_dir: Path | None = None) -> Source:
    """PARSES, a CoNLL-U file, or the run folder of a parser, which finds its own data in data_dir."""
    path = place_of_trees(name)
    if path is None:
        return lambda statements: [tree_of(one) for one in statements]
    return _by_parser(path, data_dir) if path.is_dir() else _from_treebank(path)


def trees_of(statements: Sequence[Statement], source: Source, name: str) -> list[Tree]:
    """A tree for every statement."""
    found = source(statements)
    for one, tree in zip(statements, found, strict=True):
        if tree is None:
            where = "it has no parse" if name == PARSES else f"{name} has no tree"
            raise UserError(
                f"{where} for {one.text!r}; train a parser (structattn train parser) and set model.trees to its run"
            )
    return [tree for tree in found if tree is not None]


def _by_parser(run: Path, data_dir: Path | None) -> Source:
    def parse(statements: Sequence[Statement]) -> list[Tree | None]:
        found = parse_sentences(run, [one.words for one in statements], data_dir)
        return [Tree(one.words, tuple(heads)) for one, heads in zip(statements, found, strict=True)]

    return parse


def _from_treebank(path: Path) -> Source:
    """A sentence is found by its characters: words are the file's, however it cuts them."""
    known = {
        "".join(sentence.words): Tree(tuple(sentence.words), tuple(sentence.heads))
        for sentence in read_treebank(path)
    }

    def find(statements: Sequence[Statement]) -> list[Tree | None]:
        return [known.get("".join(one.text.split())) or known.get("".join(one.words)) for one in statements]

    return find
