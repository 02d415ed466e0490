"""Translation: what each target word attends to in the source, and the segments that this makes of it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from structattn.recipes.errors import UserError
from structattn.recipes.running import OpenRun
from structattn.recipes.translation.alignment import Alignment
from structattn.recipes.translation.recipe import TranslationRecipe
from structattn.show.heat_map import Grid, draw_heat_maps
from structattn.show.view import View

EXAMPLE = "昨日 私 は 東京 で 古 い 友達 に 会 っ た 。\ti met an old friend in tokyo yesterday ."
LONGEST = 200
"""Characters of a sentence in the explorer."""


def draw_translation(runs: Sequence[OpenRun], text: str | None, out: Path, arcs: bool) -> None:
    """Each run's attention for the same pair, side by side. Without a target, each run writes its own."""
    if arcs:
        raise UserError("--arcs: attention over a source is drawn as a heat map; leave it out")
    source, target = _pair(text or EXAMPLE)
    recipes = [_recipe(run) for run in runs]
    draw_heat_maps(
        [
            grid(recipe, recipe.align(run.model, source, target))
            for recipe, run in zip(recipes, runs, strict=True)
        ],
        out,
    )


def grid(recipe: TranslationRecipe, found: Alignment) -> Grid:
    segments = "|".join("".join(segment) for segment in found.segments())
    return Grid(
        recipe.config.model.attention,
        found.target,
        found.source,
        found.weights,
        "target",
        f"source, in segments\n{segments}",
        found.selected,
    )


def view_translation(run: OpenRun, text: str | None, temperature: float) -> View:
    """A run's translation, and what its attention is at this temperature while it writes this or the given target."""
    text = text or EXAMPLE
    recipe = _recipe(run)
    source, target = _pair(text)
    if not 0 < len(source) <= LONGEST:
        raise UserError(f"expected a sentence of 1 to {LONGEST} characters, not of {len(source)}")
    (answer,) = recipe.predict(run.model, [source])
    found = recipe.align(run.model, source, target, temperature)
    numbers = {
        "attention": recipe.config.model.attention,
        "temperature": temperature,
        "translation": answer,
        "source": found.source,
        "target": found.target,
        "weights": found.weights.tolist(),
        "segments": found.segments(),
    }
    return View(text, answer, {"attention": partial(draw_heat_maps, [grid(recipe, found)])}, numbers)


def _pair(text: str) -> tuple[str, str | None]:
    """A sentence, and its translation if a tab or ||| divides them."""
    source, *target = re.split(r"\t|\|\|\|", text, maxsplit=1)
    return source.strip(), target[0].strip() if target else None


def _recipe(run: OpenRun) -> TranslationRecipe:
    if not isinstance(run.recipe, TranslationRecipe):
        raise UserError(
            f"{run.folder.path}: a run of {run.recipe.task} cannot stand beside one of translation"
        )
    return run.recipe
