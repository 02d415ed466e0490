"""Which picture belongs to which task; each is drawn by a module of its own."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from structattn.recipes.running import OpenRun
from structattn.recipes.temperature import check_temperature
from structattn.show.view import View, check_text

PICTURES = {
    "transduction": "structattn.show.transduction:draw_transduction",
    "qa": "structattn.show.qa:draw_qa",
    "translation": "structattn.show.translation:draw_translation",
    "parser": "structattn.show.parser:draw_parser",
    "entailment": "structattn.show.entailment:draw_entailment",
}

VIEWS = {
    "transduction": "structattn.show.transduction:view_transduction",
    "qa": "structattn.show.qa:view_qa",
    "translation": "structattn.show.translation:view_translation",
    "parser": "structattn.show.parser:view_parser",
    "entailment": "structattn.show.entailment:view_entailment",
}


def draw(runs: Sequence[OpenRun], text: str | None, out: Path, arcs: bool) -> None:
    """What each run attends to for the same input, side by side; `arcs` asks for arcs where a task has them."""
    _function(PICTURES, runs[-1].recipe.task)(runs, text, out, arcs)


def view(run: OpenRun, text: str | None, temperature: float) -> View:
    """What the explorer shows of a run; without text, of the task's own example."""
    check_temperature(temperature)
    if text is not None:
        check_text(text)
    return _function(VIEWS, run.recipe.task)(run, text, temperature)


def _function(named: dict[str, str], task: str) -> Callable[..., Any]:
    module, _, function = named[task].partition(":")
    return getattr(importlib.import_module(module), function)
