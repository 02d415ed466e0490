"""Trees from a parser that was trained before, for whoever needs them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from structattn.recipes.errors import UserError
from structattn.recipes.parser.recipe import ParserRecipe
from structattn.recipes.run_folder import RunFolder
from structattn.recipes.running import open_run


def parse_sentences(
    run: Path, sentences: Sequence[Sequence[str]], data_dir: Path | None = None
) -> list[list[int]]:
    """The heads of each sentence's best tree by the parser of a run folder, in order.

    Heads count words from 1; 0 is the root symbol. Sentences are parsed in batches, whatever their order.
    """
    task = RunFolder(run).task()
    if task != ParserRecipe.task:
        raise UserError(f"{run} is a run of {task}, not of {ParserRecipe.task}")
    opened = open_run(run, data_dir)
    assert isinstance(opened.recipe, ParserRecipe)
    return opened.recipe.parse(opened.model, sentences)
