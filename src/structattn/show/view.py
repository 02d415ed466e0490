"""What the explorer shows of one input: an answer, pictures that draw themselves into a file, and numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

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
