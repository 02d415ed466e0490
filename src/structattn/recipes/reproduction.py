"""A table of the paper: the runs it needs, trained by single-threaded processes, and ours beside theirs.

Whatever is there already is used: a finished run is not trained again, and a stopped one goes on. Two workers
of one thread each train faster than one of two, because the models are small.
"""

from __future__ import annotations

import csv
import io
import json
import os
import queue
import signal
import statistics
import subprocess
import sys
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
from structattn.recipes.errors import UserError
from structattn.recipes.recipe import Table
from structattn.recipes.run_folder import RunFolder, write_text
from structattn.recipes.stopping import stop_signals
from structattn.recipes.tasks import preset as read_preset
from structattn.recipes.tasks import recipe_class

_SECONDS_BETWEEN_LOOKS = 0.5
_SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}


class Job(NamedTuple):
    """One run of a table: its name is its folder's."""

    name: str
    settings: list[str]


class PaperTable(ABC):
    name: ClassVar[str]
    task: ClassVar[str]

    @abstractmethod
    def jobs(self, seeds: int) -> list[Job]: ...

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
    workers: int | None,
    settings: Sequence[str],
    data_dir: Path | None,
) -> Table | None:
    """The table, also written as table.name.{md,csv,json} into the folder; None if it was interrupted."""
    if seeds < 1:
        raise UserError(f"--seeds must be at least 1, not {seeds}")
    jobs = table.jobs(seeds)
    for job in jobs:
        _prepare(table.task, job, folder, preset, settings)
    missing = [job for job in jobs if RunFolder(folder / job.name).evaluation() is None]
    options = ["--data-dir", str(data_dir)] if data_dir is not None else []
    if missing and not _Workers(table.task, folder, missing, options).run(workers or os.cpu_count() or 1):
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


class _Workers:
    """Runs `structattn train` for each job, several jobs at a time."""

    def __init__(self, task: str, folder: Path, jobs: list[Job], options: list[str]) -> None:
        self.task, self.folder, self.jobs, self.options = task, folder, jobs, options
        self.waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.failed: dict[str, str] = {}
        self.stopped = threading.Event()
        self.console = Console(stderr=True)

    def run(self, count: int) -> bool:
        """True when all is done, False when interrupted; UserError if a job failed, once the others end."""
        for job in self.jobs:
            self.waiting.put(job)
        threads = [threading.Thread(target=self._work) for _ in range(min(count, len(self.jobs)))]
        with stop_signals() as self.stopped:
            for thread in threads:
                thread.start()
            self._watch(threads)
            if self.stopped.is_set():
                self.console.print("saving ...")
                for process in list(self.processes.values()):
                    process.send_signal(signal.SIGINT)
            for thread in threads:
                thread.join()
        if self.stopped.is_set():
            return False
        if self.failed:
            name, reason = next(iter(self.failed.items()))
            raise UserError(
                f"{len(self.failed)} of {len(self.jobs)} runs failed; {self.folder / name}: {reason}"
            )
        return True

    def _work(self) -> None:
        while not self.stopped.is_set():
            try:
                job = self.waiting.get_nowait()
            except queue.Empty:
                return
            self._train(job)

    def _train(self, job: Job) -> None:
        """Its own session keeps Ctrl-C from the process: we tell it to stop, once."""
        options = ["--resume", "--then-evaluate", "--threads", "1", "--quiet", *self.options]
        process = subprocess.Popen(
            [*_program(), "train", self.task, "--run", str(self.folder / job.name), *options],
            env={**os.environ, **_SINGLE_THREADED},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes[job.name] = process
        if self.stopped.is_set():  # in between, when nobody could tell it
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        if process.returncode != 0 and not self.stopped.is_set():
            lines = errors.decode(errors="replace").strip().splitlines()
            self.failed[job.name] = lines[-1] if lines else f"exit code {process.returncode}"

    def _watch(self, threads: list[threading.Thread]) -> None:
        """Shows each run's epochs until all are done or stopped; in a file, a line for each."""
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=self.console, disable=not self.console.is_terminal) as bars:
            shown = dict.fromkeys((job.name for job in self.jobs), 0)
            rows = {name: self._add_bar(bars, name) for name in shown}
            while any(thread.is_alive() for thread in threads) and not self.stopped.is_set():
                time.sleep(_SECONDS_BETWEEN_LOOKS)
                for name, row in rows.items():
                    if name in self.processes:
                        bars.start_task(row)
                    for line in RunFolder(self.folder / name).metrics()[shown[name] :]:
                        shown[name] += 1
                        self._show(bars, row, name, line)

    def _add_bar(self, bars: Progress, name: str) -> TaskID:
        config = RunFolder(self.folder / name).config(recipe_class(self.task).config_class)
        return bars.add_task(name, total=config.training.epochs, values="", start=False)

    def _show(self, bars: Progress, row: TaskID, name: str, line: dict[str, Any]) -> None:
        values = "  ".join(f"{key} {value:.4g}" for key, value in line.items() if key.startswith("valid"))
        if self.console.is_terminal:
            bars.update(row, completed=line["epoch"], values=values)
        else:
            self.console.print(f"{name}  epoch {line['epoch']}  {values}", highlight=False)


def _program() -> list[str]:
    """How to call the command line: the script that was installed beside this Python, else the module."""
    script = Path(sys.executable).with_name("structattn")
    return [str(script)] if script.exists() else [sys.executable, "-m", "structattn.cli"]


def markdown(table: Table) -> str:
    rows = [table.columns, ["---"] + ["---:"] * (len(table.columns) - 1), *table.rows]
    return f"{table.title}\n\n" + "".join(f"| {' | '.join(row)} |\n" for row in rows)


def comma_separated(table: Table) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([table.columns, *table.rows])
    return text.getvalue()
