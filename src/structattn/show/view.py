"""What the explorer shows of one input: an answer, pictures that draw themselves into a file, and numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from structattn.recipes.errors import UserError

LONGEST_TEXT = 5000
"""Letters of an input."""
_NOT_IN_XML = re.compile("[^\\t\\n\\r\\x20-\\ud7ff\\ue000-\\ufffd\\U00010000-\\U0010ffff]")

Picture = Callable[[Path], None]
"""Draws into a file; the file's name decides the format, and .svg is always possible."""


class View(NamedTuple):
    text: str
    """the input; the task's own example, if none was given"""
    answer: str
    """lines of text"""
    pictures: Mapping[str, Picture]
    """by their titles"""
    numbers: Mapping[str, Any]
    """what is behind the pictures, ready for JSON"""


def check_text(text: str) -> None:
    """Refuses what no picture can hold."""
    if len(text) > LONGEST_TEXT:
        raise UserError(f"expected at most {LONGEST_TEXT} letters")
    if found := _NOT_IN_XML.search(text):
        raise UserError(f"the input holds {found[0]!r}, which cannot be printed")
