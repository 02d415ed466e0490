"""A sweep: one recipe trained for every point of a grid of settings and for several seeds, as a file says.

task = "transduction"
preset = "quick"
seeds = 3                             # 1, 2, 3; or a list

[settings]                            # of all runs
training.epochs = 4

[grid]                                # every combination
model.attention = ["simple", "structured"]
model.size = [20, 50]
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from structattn.recipes.config import build, override, read_toml
from structattn.recipes.data_folder import DataFolder
from structattn.recipes.engines import Labour
from structattn.recipes.errors import UserError
from structattn.recipes.jobs import Job, Outcome, train_jobs, write_table
from structattn.recipes.recipe import Table
from structattn.recipes.run_folder import RunFolder
from structattn.recipes.tasks import preset, recipe_class

_MOST = 1_000
"""How many runs a sweep can have."""


@dataclass
class Sweep:
    """The file's keys. Keys of `settings` and `grid` are those of the recipe; a section may be left out if that is
    clear."""

    task: str = ""
    preset: str = "quick"
    seeds: int | list[int] | None = None
    """so many, from 1 on, or which ones; by default the preset's"""
    settings: dict = field(default_factory=dict)
    """values by key, for all runs"""
    grid: dict = field(default_factory=dict)
    """lists of values by key"""


class Swept(NamedTuple):
    """What a sweep found: which run is where or why it failed, and the evaluations of those that are finished."""

    runs: Table
    results: Table
    outcome: Outcome


def read_sweep(path: Path) -> Sweep:
    sweep = build(Sweep, read_toml(path), str(path))
    if not sweep.task:
        raise UserError(f'{path} names no task: it needs a line such as task = "transduction"')
    for key, values in _flat(sweep.grid):
        if not isinstance(values, list) or not values:
            raise UserError(f"{path}: grid.{key} must be a list of values, not {values!r}")
    if not sweep.grid and sweep.seeds is None:
        raise UserError(f"{path} has neither a [grid] nor seeds: there is nothing to sweep over")
    if sweep.seeds == [] or (isinstance(sweep.seeds, int) and sweep.seeds < 1):
        raise UserError(f"{path}: seeds must be at least 1, or a list of them, not {sweep.seeds}")
    return sweep


def jobs_of(sweep: Sweep, origin: str) -> list[Job]:
    """A job for each point of the grid and each seed; no two of them with the same name or the same settings."""
    axes = [[(key, value) for value in values] for key, values in _flat(sweep.grid)]
    if sweep.seeds is not None:
        seeds = range(1, min(sweep.seeds, _MOST + 1) + 1) if isinstance(sweep.seeds, int) else sweep.seeds
        axes.append([("training.seed", seed) for seed in seeds])
    count = math.prod(map(len, axes))
    if count > _MOST:
        raise UserError(f"{origin}: {count} runs are more than a sweep can have ({_MOST})")
    base = override(preset(sweep.task, sweep.preset), _assignments(_flat(sweep.settings)))
    jobs: list[Job] = []
    names: dict[str, str] = {}
    for point in itertools.product(*axes):
        job = Job(_name(point), _assignments(point))
        key = json.dumps(override(base, job.settings), default=vars)
        for taken in (job.name, key):
            if taken in names:
                raise UserError(f"{origin}: {names[taken]} and {job.name} would be the same run")
            names[taken] = job.name
        jobs.append(job)
    return jobs


def _flat(table: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys with their sections, whether these are written as tables or with dots."""
    for key, value in table.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{key}.")
        else:
            yield prefix + key, value


def _assignments(pairs: Any) -> list[str]:
    # JSON's strings, numbers, booleans and lists are TOML's too.
    return [f"{key}={json.dumps(value, default=str)}" for key, value in pairs]


def _name(point: tuple[tuple[str, Any], ...]) -> str:
    """What tells this run from the others of the sweep, as the name of a folder."""
    parts = []
    for key, value in point:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        parts.append(f"{key.rpartition('.')[2]}-{text.strip('[]')}")
    return re.sub(r"[^\w.+-]+", "-", "-".join(parts)).strip("-.")


def run_sweep(sweep: Sweep, name: str, folder: Path, labour: Labour) -> Swept | None:
    """The tables, the second also written as name.{md,csv,json} into the folder; None if it was interrupted."""
    jobs = jobs_of(sweep, name)
    settings = _assignments(_flat(sweep.settings))
    outcome = train_jobs(sweep.task, jobs, folder, sweep.preset, settings, labour)
    if outcome is None:
        return None
    title = f"{name}: {sweep.task}, preset {sweep.preset}"
    swept = Swept(_runs(title, jobs, folder, outcome), _results(title, sweep, folder, outcome), outcome)
    write_table(folder, name, swept.results, outcome)
    return swept


def _runs(title: str, jobs: list[Job], folder: Path, outcome: Outcome) -> Table:
    rows = []
    for job in jobs:
        path = folder / job.name
        epochs = str(len(RunFolder(path).metrics()))
        reason = outcome.failed.get(job.name)
        rows.append([job.name, "failed" if reason else "finished", epochs, reason or str(path)])
    counted = f"{len(outcome.evaluations)} of {len(jobs)} runs are finished"
    return Table(f"{title}: {counted}", ["run", "state", "epochs", "where, or why not"], rows)


def _results(title: str, sweep: Sweep, folder: Path, outcome: Outcome) -> Table:
    """The recipe's own table of each evaluation, one below the other."""
    columns, rows = ["run"], []
    recipe_of = recipe_class(sweep.task)
    for name, evaluation in outcome.evaluations.items():
        run = RunFolder(folder / name)
        recipe = recipe_of(run.config(recipe_of.config_class), DataFolder(folder), run.path)
        table = recipe.evaluation_table(evaluation)
        columns = ["run", *table.columns]
        rows += [[name, *row] for row in table.rows]
    return Table(title, columns, rows)
