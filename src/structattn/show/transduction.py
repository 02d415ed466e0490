"""Transduction: a symbol's parents, as a heat map or as arcs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from structattn.recipes.errors import UserError
from structattn.recipes.running import OpenRun
from structattn.recipes.transduction.recipe import TransductionRecipe
from structattn.show.arcs import draw_arcs
from structattn.show.heat_map import Parents, draw_heat_maps
from structattn.show.view import View

EXAMPLE = "( * ( + ( + 15 7 ) 1 8 ) ( + 19 0 11 ) )"
"""The formula that the paper prints."""
LONGEST = 200
"""Symbols of a formula in the explorer: trees are cubic."""


def draw_transduction(runs: Sequence[OpenRun], text: str | None, out: Path, arcs: bool) -> None:
    """Each run's parents for the same source, side by side as heat maps, or below one another as arcs."""
    panels = [parents(run, text or EXAMPLE) for run in runs]
    if arcs:
        draw_arcs(panels, out)
    else:
        draw_heat_maps(panels, out)


@torch.no_grad()
def parents(run: OpenRun, text: str, temperature: float = 1.0) -> Parents:
    recipe = _recipe(run)
    symbols = ["$", *recipe.formula(text)]
    source = torch.tensor([recipe.numbers(symbols)])
    lengths = torch.tensor([len(symbols)])
    marginals = run.model.parent_marginals(source, lengths, temperature)[0]  # type: ignore[operator]
    return Parents(recipe.config.model.attention, symbols, marginals)


def view_transduction(run: OpenRun, text: str | None, temperature: float) -> View:
    """The infix that a run writes, and the parents that its symbols have at this temperature."""
    text = text or EXAMPLE
    recipe = _recipe(run)
    symbols = recipe.formula(text)
    if not 0 < len(symbols) <= LONGEST:
        raise UserError(
            f"expected a formula of 1 to {LONGEST} symbols, such as (* (+ 1 2) 3), not of {len(symbols)}"
        )
    (answer,) = recipe.predict(run.model, [" ".join(symbols)])
    numbers: dict[str, Any] = {
        "attention": recipe.config.model.attention,
        "formula": symbols,
        "infix": answer,
    }
    if numbers["attention"] == "none":
        return View(text, answer, {}, numbers)
    panel = parents(run, text, temperature)
    numbers |= {"temperature": temperature, "symbols": panel.symbols, "parents": panel.marginals.tolist()}
    pictures = {"heat map": partial(draw_heat_maps, [panel]), "arcs": partial(draw_arcs, [panel])}
    return View(text, answer, pictures, numbers)


def _recipe(run: OpenRun) -> TransductionRecipe:
    if not isinstance(run.recipe, TransductionRecipe):
        raise UserError(
            f"{run.folder.path}: a run of {run.recipe.task} cannot stand beside one of transduction"
        )
    return run.recipe
