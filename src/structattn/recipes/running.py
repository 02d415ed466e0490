"""Run folders made, opened and resumed: what the commands of the command line share."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import nn

from structattn.recipes.config import override
from structattn.recipes.data_folder import DataFolder
from structattn.recipes.errors import UserError
from structattn.recipes.recipe import Recipe
from structattn.recipes.run_folder import RunFolder
from structattn.recipes.tasks import preset, recipe_class


class OpenRun(NamedTuple):
    """A trained model with what knows how to use it."""

    folder: RunFolder
    recipe: Recipe
    model: nn.Module


def default_path(task: str, preset_name: str, settings: Sequence[str]) -> Path:
    """runs/ and a name that tells runs apart: task, preset and what was set."""
    values = [setting.rpartition(".")[2].replace("=", "-").replace("/", "-") for setting in settings]
    return Path("runs") / "-".join([task, preset_name, *values])


def create(path: Path, task: str, preset_name: str, settings: Sequence[str], command: str) -> RunFolder:
    """A new run folder from a preset and `key=value` settings."""
    config = override(preset(task, preset_name), settings)
    run = RunFolder(path)
    if run.exists():
        raise UserError(
            f"{path} holds a run already: go on with --resume, or choose another folder with --run"
        )
    run.create(config, task, command)
    return run


def resume(path: Path, settings: Sequence[str]) -> RunFolder:
    """A run that is there already; settings may be repeated, but not changed."""
    run = RunFolder(path)
    config = run.config(recipe_class(run.task()).config_class)
    if override(config, settings) != config:
        raise UserError(f"a resumed run keeps its configuration ({path}): leave out {' '.join(settings)}")
    return run


def open_run(path: Path, data_dir: Path | None = None) -> OpenRun:
    """The run's model with the weights that count, ready to be used."""
    run = RunFolder(path)
    found = recipe_class(run.task())
    recipe = found(run.config(found.config_class), DataFolder.find(data_dir))
    model = recipe.build_model()
    run.load_weights(model)
    return OpenRun(run, recipe, model.eval())
