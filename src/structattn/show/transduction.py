"""Transduction: a symbol's parents, as a heat map or as arcs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from structattn.recipes.errors import UserError
from structattn.recipes.running import OpenRun
from structattn.recipes.transduction.recipe import TransductionRecipe
from structattn.show.arcs import draw_arcs
from structattn.show.heat_map import Parents, draw_heat_maps

EXAMPLE = "( * ( + ( + 15 7 ) 1 8 ) ( + 19 0 11 ) )"
"""The formula that the paper prints."""


def draw_transduction(runs: Sequence[OpenRun], text: str | None, out: Path, arcs: bool) -> None:
    """Each run's parents for the same source, side by side as heat maps, or below one another as arcs."""
    panels = [parents(run, text or EXAMPLE) for run in runs]
    if arcs:
        draw_arcs(panels, out)
    else:
        draw_heat_maps(panels, out)


@torch.no_grad()
def parents(run: OpenRun, text: str) -> Parents:
    recipe = run.recipe
    if not isinstance(recipe, TransductionRecipe):
        raise UserError(f"{run.folder.path}: a run of {recipe.task} cannot stand beside one of transduction")
    symbols = ["$", *recipe.formula(text)]
    source = torch.tensor([recipe.numbers(symbols)])
    lengths = torch.tensor([len(symbols)])
    marginals = run.model.parent_marginals(source, lengths)[0]  # type: ignore[operator]
    return Parents(recipe.config.model.attention, symbols, marginals)
