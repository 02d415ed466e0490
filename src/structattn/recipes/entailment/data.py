"""SNLI: pairs of sentences and labels, read from the official files, with their parses where these are given.

A file is a .jsonl (an object a line) or a .txt (fields with tabs between, their names in the first line), plain or .gz.
Needed are `gold_label`, `sentence1`, the premise, and `sentence2`, the hypothesis; `sentence1_parse` and
`sentence2_parse`, bracketings as in the Penn Treebank, may be there. Rows that annotators did not agree on (the label
"-") are left out.

A sentence's words are the leaves of its parse. Without one they are found by `words_of`, which follows the Penn
Treebank's tokenisation as these parses do.
"""

from __future__ import annotations

import gzip
import json
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from structattn.recipes.errors import UserError, did_you_mean

LABELS = ("entailment", "neutral", "contradiction")
NO_LABEL = "-"
_FORMATS = (".jsonl", ".txt")
_NEEDED = ("gold_label", "sentence1", "sentence2")
_PARSES = ("sentence1_parse", "sentence2_parse")


class Statement(NamedTuple):
    """A premise or a hypothesis."""

    text: str
    words: tuple[str, ...]
    parse: str = ""
    """its bracketing; empty if there is none"""


class Pair(NamedTuple):
    premise: Statement
    hypothesis: Statement
    label: str = ""
    origin: str = ""
    """file and line"""

    @property
    def statements(self) -> tuple[Statement, Statement]:
        return self.premise, self.hypothesis


def split_file(folder: Path, part: str) -> Path:
    """The file of "train", "dev" or "test" in a folder as the official archive unpacks; a partial one, too."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    names = [f"*_{part}{suffix}{gz}" for suffix in _FORMATS for gz in ("", ".gz")]
    names += [f"*_{part}_*{suffix}{gz}" for suffix in _FORMATS for gz in ("", ".gz")]
    for name in names:
        found = sorted(folder.glob(name))
        if found:
            return found[0]
    raise UserError(f"{folder} holds no *_{part}.jsonl or *_{part}.txt, nor these as .gz")


def read_pairs(path: Path) -> list[Pair]:
    """All labelled pairs of a file; what is wrong with a line is said with its number."""
    kind = path.with_suffix("").suffix if path.suffix == ".gz" else path.suffix
    if kind not in _FORMATS:
        raise UserError(f"{path}: expected a file that ends in .jsonl, .txt, .jsonl.gz or .txt.gz")
    rows = _json_rows(path) if kind == ".jsonl" else _tabbed_rows(path)
    pairs = []
    known: dict[tuple[str, str], Statement] = {}  # a premise has several hypotheses: it is kept once

    def seen(row: dict[str, Any], field: str, where: str) -> Statement:
        key = row[field], row.get(f"{field}_parse") or ""
        if key not in known:
            known[key] = statement(*key, where)
        return known[key]

    for where, row in rows:
        label = row["gold_label"]
        if label == NO_LABEL:
            continue
        if label not in LABELS:
            raise UserError(f'{where}: unknown label "{label}"{did_you_mean(label, LABELS)}')
        premise, hypothesis = (seen(row, field, where) for field in ("sentence1", "sentence2"))
        pairs.append(Pair(premise, hypothesis, label, where))
    if not pairs:
        raise UserError(f"{path} holds no labelled pairs")
    return pairs


def statement(text: str, parse: str = "", where: str = "") -> Statement:
    text = " ".join(text.split())
    if not parse:
        return Statement(text, tuple(words_of(text)))
    words = tuple(leaves(parse))
    if not words or parse.count("(") != parse.count(")"):
        raise UserError(f"{where}: the parse is no balanced bracketing with words in it: {parse[:60]!r}")
    return Statement(text, words, parse)


_LEAF = re.compile(r"\(\S+ ([^\s()]+)\)")
BRACKETS = {"-LRB-": "(", "-RRB-": ")", "-LSB-": "[", "-RSB-": "]", "-LCB-": "{", "-RCB-": "}"}
"""How a bracketing writes brackets that are words."""


def leaves(parse: str) -> list[str]:
    """The words of a bracketing."""
    return [plain_word(word) for word in _LEAF.findall(parse)]


def plain_word(leaf: str) -> str:
    return BRACKETS.get(leaf, leaf).replace("\\/", "/").replace("\\*", "*")


_TOKEN = re.compile(
    r"""
    \.{2,} | -{2,}                                  # dots, dashes
    | ['’](?:s|m|d|re|ve|ll)\b                      # clitics
    | n['’]t\b
    | (?:[A-Za-z]\.){2,}                            # initials
    | (?:Mr|Mrs|Ms|Dr|St|Mt|Jr|Sr|Rt|No|vs|etc)\.(?=\s)
    | \d+(?:[.,:/]\d+)+                             # numbers, times, fractions
    | [^\W_](?:(?!n['’]t\b)[-\w&*/]|(?<=\w)['’](?!(?:s|m|d|re|ve|ll)\b|\W|$)(?=\w)|(?<=\w)\.(?=\w))*
    | \S
    """,
    re.VERBOSE | re.IGNORECASE,
)
_JOINED = {"cannot": 3, "gonna": 3, "gotta": 3, "wanna": 3, "gimme": 3, "lemme": 3}
"""Two words in one, and where the second begins."""


def words_of(text: str) -> list[str]:
    """Words as the Penn Treebank has them: "They don't." is They do n't . ; quotes become `` and ''."""
    words = []
    for match in _TOKEN.finditer(text):
        word = match.group()
        if word in ('"', "“", "”"):
            opens = match.start() == 0 or text[match.start() - 1] in " ([{"
            words.append("``" if opens else "''")
        elif word.lower() in _JOINED:
            second = _JOINED[word.lower()]
            words += [word[:second], word[second:]]
        else:
            words.append(word)
    return words


Row = tuple[str, dict[str, Any]]
"""File and line, and the fields."""


def _json_rows(path: Path) -> Iterator[Row]:
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{where}: no JSON ({error})") from error
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in _NEEDED):
            raise UserError(
                f"{where}: expected an object with texts {', '.join(_NEEDED)}, found {line[:60]!r}"
            )
        for name in _PARSES:
            if not isinstance(row.get(name) or "", str):
                raise UserError(f"{where}: {name} must be a text, not {row[name]!r:.60}")
        yield where, row


def _tabbed_rows(path: Path) -> Iterator[Row]:
    lines = _lines(path)
    _, header = next(lines, (1, ""))
    names = header.split("\t")
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise UserError(f"{path}, line 1: expected the names of the fields, {missing[0]} among them")
    for number, line in lines:
        fields = line.split("\t")
        if len(fields) < 1 + max(map(names.index, _NEEDED)):
            raise UserError(f"{path}, line {number}: expected {len(names)} fields, found {len(fields)}")
        yield f"{path}, line {number}", dict(zip(names, fields, strict=False))


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Lines with their numbers, one at a time: the training file is large. Empty ones are left out."""
    number = 0
    try:
        with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise UserError(f"{path}, line {number}: not UTF-8 text ({error.reason})") from error
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path}, after line {number}: the archive is damaged: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
