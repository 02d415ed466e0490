"""Which tasks there are, and where. A recipe is imported when its task is asked for."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from structattn.recipes.config import build, read_toml
from structattn.recipes.errors import UserError, did_you_mean
from structattn.recipes.recipe import Recipe

RECIPES = {
    "transduction": "structattn.recipes.transduction.recipe:TransductionRecipe",
    "qa": "structattn.recipes.qa.recipe:QARecipe",
    "translation": "structattn.recipes.translation.recipe:TranslationRecipe",
    "parser": "structattn.recipes.parser.recipe:ParserRecipe",
    "entailment": "structattn.recipes.entailment.recipe:EntailmentRecipe",
}
TABLES = {
    "table1": "structattn.recipes.transduction.table:Table1",
    "table2": "structattn.recipes.translation.table:Table2",
    "table3": "structattn.recipes.qa.table:Table3",
    "table4": "structattn.recipes.entailment.table:Table4",
}


def recipe_class(task: str) -> type[Recipe]:
    return _named(RECIPES, "task", task)


def table_class(name: str) -> type[Any]:
    return _named(TABLES, "table", name)


def preset(task: str, name: str) -> Any:
    """A preset's configuration: full.toml is the paper's, quick.toml takes minutes."""
    folder = Path(__file__).parent / task
    known = sorted(path.stem for path in folder.glob("*.toml"))
    found = recipe_class(task)
    if name not in known:
        raise UserError(f'unknown preset "{name}" of {task}{did_you_mean(name, known)}')
    path = folder / f"{name}.toml"
    return build(found.config_class, read_toml(path), str(path))


def _named(known: dict[str, str], kind: str, name: str) -> type[Any]:
    if name not in known:
        raise UserError(f'unknown {kind} "{name}"{did_you_mean(name, known)}')
    module, _, attribute = known[name].partition(":")
    return getattr(importlib.import_module(module), attribute)
