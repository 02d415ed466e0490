"""Natural language inference: the latent trees of premise and hypothesis, as arcs, or how probable each parent is."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from structattn.recipes.entailment.data import Statement, statement
from structattn.recipes.entailment.recipe import EntailmentRecipe
from structattn.recipes.errors import UserError
from structattn.recipes.running import OpenRun
from structattn.show import heat_map
from structattn.show.arcs import draw_arcs
from structattn.show.heat_map import draw_heat_maps
from structattn.show.view import View

EXAMPLE = "An old man plays the guitar on a small stage .\tSomebody makes music ."
LONGEST = 200
"""Words of a sentence in the explorer: trees are cubic."""
_ROOT = "$"


class Drawn(NamedTuple):
    """A sentence of a run: its best tree, and the marginals of all trees."""

    best: heat_map.Parents
    marginals: heat_map.Parents


def draw_entailment(runs: Sequence[OpenRun], text: str | None, out: Path, arcs: bool) -> None:
    """The best trees of both sentences (or of one) below one another as arcs, or marginals as heat maps."""
    both = statements(text or EXAMPLE)
    found = [one for run in runs for one in drawn(run, both)]
    if arcs:
        draw_arcs([one.best for one in found], out)
    else:
        draw_heat_maps([one.marginals for one in found], out)


def statements(text: str) -> list[Statement]:
    """A premise, and a hypothesis if a tab or ||| divides them."""
    found = [statement(part) for part in re.split(r"\t|\|\|\|", text)]
    if len(found) > 2 or not all(one.words for one in found):
        raise UserError("expected a premise, a tab and a hypothesis, or one sentence")
    return found


def drawn(run: OpenRun, both: Sequence[Statement], temperature: float = 1.0) -> list[Drawn]:
    """A premise and a hypothesis, or one sentence."""
    names = ("premise", "hypothesis") if len(both) == 2 else ("sentence",)
    return [_drawn(run, one, name, temperature) for name, one in zip(names, both, strict=True)]


def _drawn(run: OpenRun, one: Statement, name: str, temperature: float) -> Drawn:
    recipe = _recipe(run)
    found = recipe.parents(run.model, one, temperature)
    symbols, title = [_ROOT, *found.words], f"{recipe.config.model.attention}: {name}"
    tree = F.one_hot(torch.tensor([0, *found.heads]), len(symbols)).T.float()
    tree[:, 0] = 0.0
    return Drawn(heat_map.Parents(title, symbols, tree), heat_map.Parents(title, symbols, found.marginals))


def view_entailment(run: OpenRun, text: str | None, temperature: float) -> View:
    """The label of a pair, the labels' probabilities, and the parents of all words at this temperature."""
    text = text or EXAMPLE
    recipe, both = _recipe(run), statements(text)
    if max(len(one.words) for one in both) > LONGEST:
        raise UserError(f"expected sentences of at most {LONGEST} words")
    answer = ""
    if len(both) == 2:
        (answer,) = recipe.predict(run.model, ["\t".join(one.text for one in both)])
    shown = answer.replace("\t", "\n")
    attention = recipe.config.model.attention
    numbers: dict[str, Any] = {"attention": attention, "answer": answer, "words": [one.words for one in both]}
    if attention == "none":
        return View(text, shown, {}, numbers)
    found = drawn(run, both, temperature)
    numbers |= {"temperature": temperature, "parents": [one.marginals.marginals.tolist() for one in found]}
    pictures = {
        "best trees": partial(draw_arcs, [one.best for one in found]),
        "heat map": partial(draw_heat_maps, [one.marginals for one in found]),
        "arcs": partial(draw_arcs, [one.marginals for one in found]),
    }
    return View(text, shown, pictures, numbers)


def _recipe(run: OpenRun) -> EntailmentRecipe:
    if not isinstance(run.recipe, EntailmentRecipe):
        raise UserError(
            f"{run.folder.path}: a run of {run.recipe.task} cannot stand beside one of entailment"
        )
    return run.recipe
