"""A table of the paper: the runs it needs, and ours beside theirs."""

from __future__ import annotations

import statistics
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from structattn.recipes.engines import Labour
from structattn.recipes.errors import UserError
from structattn.recipes.jobs import Job, train_jobs, write_table
from structattn.recipes.recipe import Table


class PaperTable(ABC):
    name: ClassVar[str]
    task: ClassVar[str]
    usual_seeds: ClassVar[int] = 1
    tasks: ClassVar[Sequence[int]] = ()
    """The paper's, where a table has several."""
    attentions: ClassVar[Sequence[str]] = ()
    """The models, where each is trained with each seed and there is nothing else to vary."""

    def jobs(self, seeds: int, tasks: Sequence[int] = ()) -> list[Job]:
        """The runs, of these tasks only where a table has tasks."""
        return [
            Job(f"{attention}-seed{seed}", [f"model.attention={attention}", f"training.seed={seed}"])
            for seed in range(1, seeds + 1)
            for attention in self.attentions
        ]

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
    outcome = train_jobs(table.task, table.jobs(seeds, tasks), folder, preset, settings, labour)
    if outcome is None:
        return None
    outcome.refuse_failures(folder)
    title = f"{table.name}, preset {preset}, {seeds} seed{'s' if seeds > 1 else ''}"
    result = table.table(outcome.evaluations, title)
    write_table(folder, table.name, result, outcome)
    return result
