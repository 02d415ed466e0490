"""Run folders made, opened and resumed: what the commands of the command line share."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn

from structattn.recipes.config import override
from structattn.recipes.data_folder import DataFolder
from structattn.recipes.errors import UserError
from structattn.recipes.progress import Progress
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
    parts = [task, preset_name]
    for setting in settings:
        key, _, value = setting.partition("=")
        parts.append(f"{key.rpartition('.')[2]}-{value}")
    return Path("runs") / re.sub(r"[^\w.]+", "-", "-".join(parts)).rstrip("-")


def chosen_by_options(task: str, options: Mapping[str, Any]) -> list[str]:
    """The settings that options of the command line are short for; None: not given."""
    known = recipe_class(task).options
    chosen = []
    for option, value in options.items():
        if value is None:
            continue
        if option not in known:
            has = f"it has --{', --'.join(known)}"
            raise UserError(f"--{option} means nothing to {task}; {has}")
        value = [str(one) for one in value] if isinstance(value, list) else value
        # JSON's strings and lists are TOML's too; a plain word needs no quotes.
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        chosen.append(f"{known[option]}={text}")
    return chosen


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


def train_and_evaluate(path: Path, data_dir: Path | None) -> None:
    """The run trained to its end from wherever it stands, and its evaluation written, by this process alone."""
    from structattn.recipes.training import Machine, train

    torch.set_num_threads(1)
    if train(RunFolder(path), DataFolder.find(data_dir), Machine(), Progress(quiet=True)):
        opened = open_run(path, data_dir)
        opened.folder.save_evaluation(opened.recipe.evaluate(opened.model, []))


def open_run(path: Path, data_dir: Path | None = None) -> OpenRun:
    """The run's model with the weights that count, ready to be used."""
    run = RunFolder(path)
    found = recipe_class(run.task())
    recipe = found(run.config(found.config_class), DataFolder.find(data_dir), run.path)
    model = recipe.build_model()
    run.load_weights(model)
    return OpenRun(run, recipe, model.eval())
