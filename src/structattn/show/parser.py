"""The parser: the best tree of a sentence as arcs, or how probable each head is as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.nn.functional as F

from structattn.recipes.errors import UserError
from structattn.recipes.parser.recipe import ParserRecipe
from structattn.recipes.running import OpenRun
from structattn.show.arcs import draw_arcs
from structattn.show.heat_map import Parents, draw_heat_maps
from structattn.show.view import View

EXAMPLE = "A girl in a red coat reads the letter that her brother sent ."
LONGEST = 200
"""Words of a sentence in the explorer: trees are cubic."""
_ROOT = "$"


class Parsed(NamedTuple):
    heads: list[int]
    """of the words: numbers from 1 on, 0 for the root symbol"""
    best: Parents
    """the best tree, its title says how probable it is"""
    marginals: Parents


def draw_parser(runs: Sequence[OpenRun], text: str | None, out: Path, arcs: bool) -> None:
    """Each run's parents of the same words: best trees below one another as arcs, or marginals as heat maps."""
    found = [parsed(run, text or EXAMPLE) for run in runs]
    if arcs:
        draw_arcs([one.best for one in found], out)
    else:
        draw_heat_maps([one.marginals for one in found], out)


@torch.no_grad()
def parsed(run: OpenRun, text: str, temperature: float = 1.0) -> Parsed:
    """The best tree of the words, and the marginals of all trees at this temperature."""
    recipe = _recipe(run)
    words = text.split()
    if not words:
        raise UserError("there are no words to parse")
    trees = recipe.trees(run.model, [words])
    heads = trees.mode
    symbols, structure = [_ROOT, *words], recipe.config.model.structure
    title = f"{structure}: best tree, p = {float(trees.log_prob(heads).exp()):.3f}"
    tree = F.one_hot(heads[0], len(symbols)).T.float()
    tree[:, 0] = 0.0
    warmed = type(trees)(trees.arcs / temperature, single_root=trees.single_root)
    return Parsed(
        heads[0, 1:].tolist(),
        Parents(title, symbols, tree),
        Parents(structure, symbols, warmed.marginals[0]),
    )


def view_parser(run: OpenRun, text: str | None, temperature: float) -> View:
    """The best tree of the words in CoNLL-U, and how probable each head is at this temperature."""
    text = text or EXAMPLE
    recipe = _recipe(run)
    words = text.split()
    if not 0 < len(words) <= LONGEST:
        raise UserError(f"expected 1 to {LONGEST} words with spaces between, not {len(words)}")
    found = parsed(run, text, temperature)
    numbers = {
        "structure": recipe.config.model.structure,
        "words": words,
        "heads": found.heads,
        "temperature": temperature,
        "symbols": found.marginals.symbols,
        "parents": found.marginals.marginals.tolist(),
    }
    pictures = {
        "best tree": partial(draw_arcs, [found.best]),
        "heat map": partial(draw_heat_maps, [found.marginals]),
        "arcs": partial(draw_arcs, [found.marginals]),
    }
    (answer,) = recipe.predict(run.model, [text])
    return View(text, answer, pictures, numbers)


def _recipe(run: OpenRun) -> ParserRecipe:
    if not isinstance(run.recipe, ParserRecipe):
        raise UserError(f"{run.folder.path}: a run of {run.recipe.task} cannot stand beside one of parser")
    return run.recipe
