"""A table of the paper: the runs it needs, trained by the workers of an engine, and ours beside theirs.

Whatever is there already is used: a finished run is not trained again, and a stopped one goes on.
"""

from __future__ import annotations

import csv
import io
import json
import statistics
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from structattn.recipes import running
from structattn.recipes.config import override
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
    """One run of a table: its name is its folder's."""

    name: str
    settings: list[str]


class PaperTable(ABC):
    name: ClassVar[str]
    task: ClassVar[str]
    usual_seeds: ClassVar[int] = 1
    tasks: ClassVar[Sequence[int]] = ()
    """The paper's, where a table has several."""

    @abstractmethod
    def jobs(self, seeds: int, tasks: Sequence[int] = ()) -> list[Job]:
        """The runs, of these tasks only where a table has tasks."""

    @abstractmethod
    def table(self, evaluations: dict[str, dict[str, Any]], title: str) -> Table:
        """Ours beside the paper's; evaluations by the name of the job."""


def mean_and_spread(values: Sequence[float], digits: int = 1) -> str:
    """The mean, and with several values their standard deviation."""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def reproduce(
    table: PaperTable,
    folder: Path,
    preset: str,
    seeds: int,
    tasks: Sequence[int],
    settings: Sequence[str],
    labour: Labour,
) -> Table | None:
    """The table, also written as table.name.{md,csv,json} into the folder; None if it was interrupted."""
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    if tasks and not table.tasks:
        raise UserError(f"--tasks means nothing to {table.name}")
    jobs = table.jobs(seeds, tasks)
    for job in jobs:
        _prepare(table.task, job, folder, preset, settings)
    missing = [job.name for job in jobs if RunFolder(folder / job.name).evaluation() is None]
    if missing and not _Watch(hire(labour, table.task, folder, missing)).run():
        return None
    evaluations = {job.name: RunFolder(folder / job.name).evaluation() or {} for job in jobs}
    title = f"{table.name}, preset {preset}, {seeds} seed{'s' if seeds > 1 else ''}"
    result = table.table(evaluations, title)
    write_text(folder / f"{table.name}.md", markdown(result))
    write_text(folder / f"{table.name}.csv", comma_separated(result))
    write_text(
        folder / f"{table.name}.json", json.dumps({**result._asdict(), "runs": evaluations}, indent=2) + "\n"
    )
    return result


def _prepare(task: str, job: Job, folder: Path, preset: str, settings: Sequence[str]) -> None:
    """The job's run folder; one that is there must have been made with the same settings."""
    run = RunFolder(folder / job.name)
    chosen = [*job.settings, *settings]
    if not run.exists():
        command = (
            f"structattn train {task} --run {run.path} --resume    (preset {preset}, {' '.join(chosen)})"
        )
        running.create(run.path, task, preset, chosen, command)
        return
    wanted = override(read_preset(task, preset), chosen)
    if run.task() != task or run.config(type(wanted)) != wanted:
        raise UserError(f"{run.path} was made with other settings: choose another --folder, or remove it")


class _Watch:
    """Runs an engine to its end and shows each run's epochs; in a file, a line for each."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.console = Console(stderr=True)

    def run(self) -> bool:
        """True when all is done, False when interrupted; UserError if a run failed, once the others end."""
        with stop_signals() as stopped:
            self.engine.start()
            self._watch(stopped)
            if stopped.is_set():
                self.console.print("saving ...")
                self.engine.stop()
                return False
        if self.engine.failed:
            name, reason = next(iter(self.engine.failed.items()))
            raise UserError(
                f"{len(self.engine.failed)} of {len(self.engine.names)} runs failed; "
                f"{self.engine.folder / name}: {reason}"
            )
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
        for line in RunFolder(self.engine.folder / name).metrics()[shown[name] :]:
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


def markdown(table: Table) -> str:
    rows = [table.columns, ["---"] + ["---:"] * (len(table.columns) - 1), *table.rows]
    return f"{table.title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def comma_separated(table: Table) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.columns, *table.rows])
    return text.getvalue()
