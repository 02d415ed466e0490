"""Runs that belong together, trained by the workers of an engine: a table's, or a sweep's.

Whatever is there already is used: a finished run is not trained again, and a stopped one goes on. A run that fails
keeps what it has, and the others go on.
"""

from __future__ import annotations

import csv
import io
import json
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from structattn.recipes import running
from structattn.recipes.config import override
from structattn.recipes.data_folder import DataFolder
from structattn.recipes.engines import Engine, Labour, hire
from structattn.recipes.errors import UserError
from structattn.recipes.progress import mean_of
from structattn.recipes.recipe import Table
from structattn.recipes.run_folder import RunFolder, write_text
from structattn.recipes.stopping import stop_signals
from structattn.recipes.tasks import preset as read_preset
from structattn.recipes.tasks import recipe_class

_SECONDS_BETWEEN_LOOKS = 0.5


class Job(NamedTuple):
    """One run: its name is its folder's."""

    name: str
    settings: list[str]


class Outcome(NamedTuple):
    """What became of jobs: evaluations and reasons of failure, by name."""

    evaluations: dict[str, dict[str, Any]]
    failed: dict[str, str]

    def refuse_failures(self, folder: Path) -> None:
        if self.failed:
            name, reason = next(iter(self.failed.items()))
            count = len(self.failed) + len(self.evaluations)
            raise UserError(
                f"{len(self.failed)} of {count} runs failed; {folder / name}: {reason}; "
                "the others are finished, and the same command takes up what is missing"
            )


def train_jobs(
    task: str, jobs: Sequence[Job], folder: Path, preset: str, settings: Sequence[str], labour: Labour
) -> Outcome | None:
    """Trains and evaluates what is missing; None if it was interrupted, with everything saved."""
    configs = [override(read_preset(task, preset), [*job.settings, *settings]) for job in jobs]
    if labour.address is None:  # the machines of a cluster have their own data folders
        _check_data(task, jobs, configs, folder, labour)
    for job, config in zip(jobs, configs, strict=True):
        _prepare(task, job, config, folder, preset, settings)
    missing = [job.name for job in jobs if RunFolder(folder / job.name).evaluation() is None]
    failed: dict[str, str] = {}
    if missing:
        engine = hire(labour, task, folder, missing)
        if not _Watch(engine).run():
            return None
        failed = engine.failed
    evaluations = {}
    for job in jobs:
        evaluation = RunFolder(folder / job.name).evaluation()
        if evaluation is None:
            failed.setdefault(job.name, "its worker was told to stop")
        elif job.name not in failed:
            evaluations[job.name] = evaluation
    return Outcome(evaluations, failed)


def _check_data(task: str, jobs: Sequence[Job], configs: list[Any], folder: Path, labour: Labour) -> None:
    """Before anything starts, what the missing runs need must be there; once for all that differ in training alone."""
    recipe_of, data = recipe_class(task), DataFolder.find(labour.data_dir)
    checked = set()
    for job, config in zip(jobs, configs, strict=True):
        needed = json.dumps([config.data, config.model], default=vars)
        if needed not in checked and RunFolder(folder / job.name).evaluation() is None:
            checked.add(needed)
            recipe_of(config, data).check_data()


def _prepare(task: str, job: Job, config: Any, folder: Path, preset: str, settings: Sequence[str]) -> None:
    """The job's run folder; one that is there must have been made with the same settings."""
    run = RunFolder(folder / job.name)
    if not run.exists():
        chosen = [*job.settings, *settings]
        command = (
            f"structattn train {task} --run {run.path} --resume    (preset {preset}, {' '.join(chosen)})"
        )
        running.create(run.path, task, preset, chosen, command)
    elif run.task() != task or run.config(type(config)) != config:
        raise UserError(f"{run.path} was made with other settings: choose another --folder, or remove it")


class _Watch:
    """Runs an engine to its end and shows each run's epochs; in a file, a line for each."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.console = Console(stderr=True)

    def run(self) -> bool:
        """True when every run is finished or has failed, False when interrupted."""
        with stop_signals() as stopped:
            self.engine.start()
            self._watch(stopped)
            if stopped.is_set():
                self.console.print("saving ...")
                self.engine.stop()
                return False
        for name, reason in self.engine.failed.items():
            self.console.print(f"{name}  failed: {reason}", highlight=False, markup=False, soft_wrap=True)
        return True

    def _watch(self, stopped: threading.Event) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as bars:
            shown = dict.fromkeys(self.engine.names, 0)
            rows = {name: self._add_bar(bars, name) for name in shown}
            while self.engine.working() and not stopped.is_set():
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                for name, row in rows.items():
                    self._look(bars, row, name, shown)

    def _add_bar(self, bars: Progress, name: str) -> TaskID:
        config = RunFolder(self.engine.folder / name).config(recipe_class(self.engine.task).config_class)
        return bars.add_task(name, total=config.training.epochs, values="", start=False)

    def _look(self, bars: Progress, row: TaskID, name: str, shown: dict[str, int]) -> None:
        """The epochs of a run that were not shown yet."""
        if not self.engine.begun(name):
            return
        bars.start_task(row)
        try:
            lines = RunFolder(self.engine.folder / name).metrics()
        except UserError:
            return  # damaged before this training: it writes the file anew when it starts
        for line in lines[shown[name] :]:
            shown[name] += 1
            self._show(bars, row, name, line)

    def _show(self, bars: Progress, row: TaskID, name: str, line: dict[str, Any]) -> None:
        values = "  ".join(
            f"{key} {mean_of(value):.4g}" for key, value in line.items() if key.startswith("valid")
        )
        if self.console.is_terminal:
            bars.update(row, completed=line["epoch"], values=values)
        else:
            self.console.print(f"{name}  epoch {line['epoch']}  {values}", highlight=False)


def write_table(folder: Path, name: str, table: Table, outcome: Outcome) -> None:
    """The table as name.md and name.csv, and with all evaluations as name.json."""
    write_text(folder / f"{name}.md", markdown(table))
    write_text(folder / f"{name}.csv", comma_separated(table))
    found = {**table._asdict(), "runs": outcome.evaluations}
    if outcome.failed:
        found["failed"] = outcome.failed
    write_text(folder / f"{name}.json", json.dumps(found, indent=2) + "\n")


def markdown(table: Table) -> str:
    rows = [table.columns, ["---"] + ["---:"] * (len(table.columns) - 1), *table.rows]
    return f"{table.title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def comma_separated(table: Table) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.columns, *table.rows])
    return text.getvalue()
