"""Which picture belongs to which task; each is drawn by a module of its own."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

from structattn.recipes.running import OpenRun

PICTURES = {
    "transduction": "structattn.show.transduction:draw_transduction",
    "qa": "structattn.show.qa:draw_qa",
}


def draw(runs: Sequence[OpenRun], text: str | None, out: Path, arcs: bool) -> None:
    """What each run attends to for the same input, side by side; `arcs` asks for arcs where a task has them."""
    module, _, function = PICTURES[runs[-1].recipe.task].partition(":")
    getattr(importlib.import_module(module), function)(runs, text, out, arcs)
