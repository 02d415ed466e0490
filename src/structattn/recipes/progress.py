"""What a person sees of a training: a bar with loss, speed and time left, or a line an epoch."""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.table import Table as RichTable

from structattn.recipes.errors import UserError
from structattn.recipes.recipe import Table

_SECONDS_BETWEEN_UPDATES = 0.2
_WIDTH_OF_FILES = 400
"""What is not a terminal has room for every table; rich would take it for one of 80 columns."""


class Progress:
    """quiet: nothing is shown. `tensorboard` is a folder to write the epochs' values to as well."""

    def __init__(self, quiet: bool = False, tensorboard: Path | None = None) -> None:
        self.console = Console(file=sys.stderr, quiet=quiet)
        self.quiet = quiet
        self._writer = _tensorboard_writer(tensorboard) if tensorboard else None
        self._bars: Bars | None = None
        self._bar: TaskID | None = None
        self._epochs = self._batches = 0
        self._shown_at = 0.0

    @contextmanager
    def of(self, epochs: int, batches: int, epoch: int, batch: int) -> Iterator[None]:
        """The progress of a training of so many epochs of so many batches, from the given position on."""
        self._epochs, self._batches = epochs, batches
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[values]}"),
            TimeRemainingColumn(),
            TextColumn("left"),
        )
        live = self.console.is_terminal and not self.quiet
        try:
            with Bars(*columns, console=self.console, disable=not live, transient=True) as self._bars:
                done = (epoch - 1) * batches + batch
                self._bar = self._bars.add_task("training", total=epochs * batches, completed=done, values="")
                yield
        finally:
            self._bars = None
            if self._writer is not None:
                self._writer.close()

    def step(self, epoch: int, batch: int, loss: float, speed: float) -> None:
        if self._bars is None or self._bar is None:
            return
        if time.monotonic() - self._shown_at < _SECONDS_BETWEEN_UPDATES:
            return
        self._shown_at = time.monotonic()
        self._bars.update(
            self._bar,
            completed=(epoch - 1) * self._batches + batch,
            description=f"epoch {epoch}/{self._epochs}",
            values=f"loss {loss:.4f}  {speed:.0f} examples/s",
        )

    def warn(self, message: str) -> None:
        """What a person should know even of a quiet training."""
        print(f"structattn: {message}", file=sys.stderr)

    def epoch_ended(self, line: dict[str, Any]) -> None:
        values = {key: mean_of(value) for key, value in line.items() if key != "epoch"}
        shown = "  ".join(f"{key.replace('_', ' ')} {value:.4g}" for key, value in values.items())
        self.console.print(f"epoch {line['epoch']}/{self._epochs}  {shown}", highlight=False, soft_wrap=True)
        if self._writer is not None:
            for key, value in values.items():
                self._writer.add_scalar(key, value, line["epoch"])


def mean_of(value: float | list[float]) -> float:
    """The value of a model, or the mean of the values of several."""
    return statistics.fmean(value) if isinstance(value, list) else value


def print_table(table: Table) -> None:
    shown = RichTable(title=table.title, title_justify="left")
    for number, column in enumerate(table.columns):
        is_number = all(row[number][:1] in "-0123456789" for row in table.rows)
        shown.add_column(column, justify="right" if is_number else "left", overflow="fold")
    for row in table.rows:
        shown.add_row(*row)
    Console(width=None if sys.stdout.isatty() else _WIDTH_OF_FILES).print(shown)


def _tensorboard_writer(folder: Path) -> Any:
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ImportError as error:
        missing = f"--tensorboard needs a package that is missing ({error.name}): pip install tensorboard"
        raise UserError(missing) from error
    return SummaryWriter(str(folder))
