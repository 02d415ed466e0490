"""Where data is: a folder with babi/en, enja, snli, ud_ewt and vectors in it.

Looked up in --data-dir, else $STRUCTATTN_DATA, else the user's cache folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from structattn.recipes.errors import UserError

VARIABLE = "STRUCTATTN_DATA"
LAYOUT = {
    "babi/en": "question answering over facts (bAbI, English, 1,000 questions a task)",
    "enja": "Japanese-English sentence pairs",
    "snli": "natural language inference (SNLI)",
    "snli_parsed": "SNLI rows with parse trees",
    "ud_ewt": "English dependency treebank (UD EWT)",
    "vectors": "word vectors (GloVe text format)",
    "transduction": "formulas in prefix and infix notation (structattn data make transduction)",
}

FETCHABLE = ("babi", "snli", "glove")


def cache_folder() -> Path:
    """Ours in the user's cache folder."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "structattn"


def must_exist(paths: Iterable[Path]) -> None:
    for path in paths:
        if not path.is_file():
            raise UserError(f"there is no file {path}")


@dataclass
class DataFolder:
    path: Path

    @classmethod
    def find(cls, given: Path | None = None) -> DataFolder:
        if given is not None:
            if not given.is_dir():
                raise UserError(f"--data-dir: there is no folder {given}")
            return cls(given)
        if os.environ.get(VARIABLE):
            return cls(Path(os.environ[VARIABLE]))
        return cls(cache_folder())

    def need(self, part: str) -> Path:
        """A part of the layout that must be there."""
        path = self.path / part
        if not path.exists():
            name = part.partition("/")[0]
            name = {"vectors": "glove"}.get(name, name)
            how = (
                f"run: structattn data fetch {name}"
                if name in FETCHABLE
                else f"set --data-dir or ${VARIABLE}"
            )
            raise UserError(f"no {part} in the data folder {self.path}; {how}")
        return path

    def vectors(self, name: str) -> Path:
        """Word vectors: a file, or one in the folder vectors."""
        return Path(name) if Path(name).is_file() else self.need(f"vectors/{name}")

    def contents(self) -> list[tuple[str, str, bool, int]]:
        """Each part of the layout: its name, what it is, whether it is there, and how many bytes it has."""
        rows = []
        for part, description in LAYOUT.items():
            files = [path for path in (self.path / part).rglob("*") if path.is_file()]
            rows.append((part, description, bool(files), sum(path.stat().st_size for path in files)))
        return rows
