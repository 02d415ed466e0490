"""Table 3 of the paper: answers and supporting facts (%) on bAbI with 1,000 questions a task."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from structattn.recipes.jobs import Job
from structattn.recipes.recipe import Table
from structattn.recipes.reproduction import PaperTable

PAPER: dict[int, dict[str, tuple[float, float | None]]] = {
    2: {"memn2n": (87.3, 46.8), "binary": (84.7, 81.8), "unary": (43.5, 22.3)},
    3: {"memn2n": (52.6, 1.4), "binary": (40.5, 0.1), "unary": (28.2, 0.0)},
    7: {"memn2n": (83.2, None), "binary": (83.5, None), "unary": (79.3, None)},
    8: {"memn2n": (94.1, None), "binary": (93.3, None), "unary": (87.1, None)},
    11: {"memn2n": (97.8, 38.2), "binary": (97.7, 80.8), "unary": (88.6, 0.0)},
    13: {"memn2n": (95.6, 14.8), "binary": (97.0, 36.4), "unary": (94.4, 9.3)},
    14: {"memn2n": (99.9, 77.6), "binary": (99.7, 98.2), "unary": (90.5, 30.2)},
    15: {"memn2n": (100.0, 59.3), "binary": (100.0, 89.5), "unary": (100.0, 51.4)},
    16: {"memn2n": (97.1, 91.0), "binary": (97.9, 85.6), "unary": (98.0, 41.4)},
    17: {"memn2n": (61.1, 23.9), "binary": (60.6, 49.6), "unary": (59.7, 10.5)},
    18: {"memn2n": (86.4, 3.3), "binary": (92.2, 3.9), "unary": (92.0, 1.4)},
    19: {"memn2n": (21.3, 10.2), "binary": (24.4, 11.5), "unary": (24.3, 7.8)},
}
MODELS = {"memn2n": "MemN2N", "binary": "binary CRF", "unary": "unary CRF"}


class Table3(PaperTable):
    """One run of a task and a model holds all its seeds."""

    name = "table3"
    task = "qa"
    tasks = tuple(PAPER)
    usual_seeds = 20

    def jobs(self, seeds: int, tasks: Sequence[int] = ()) -> list[Job]:
        return [
            Job(
                f"task{task}-{model}", [f"data.task={task}", f"model.kind={model}", f"training.seeds={seeds}"]
            )
            for task in tasks or self.tasks
            for model in MODELS
        ]

    def table(self, evaluations: dict[str, dict[str, Any]], title: str) -> Table:
        found = {(one["babi_task"], one["model"]): one for one in evaluations.values()}
        tasks = sorted({task for task, _ in found})
        columns = ["task", "K"]
        for label in MODELS.values():
            columns += [f"{label}: answers", "paper", "facts", "paper"]
        rows = []
        for task in tasks:
            row = [str(task), str(found[task, "binary"]["steps"])]
            for model in MODELS:
                printed = PAPER.get(task, {}).get(model, (None, None))
                ours = found[task, model]["accuracy"], facts_of_best(found[task, model])
                row += [cell for pair in zip(ours, printed, strict=True) for cell in map(_cell, pair)]
            rows.append(row)
        average = ["average", ""]
        for column in range(2, len(columns)):
            numbers = [float(row[column]) for row in rows if row[column] != "-"]
            average.append(_cell(statistics.fmean(numbers) if numbers else None))
        about = "answers of the seed that validates best, facts of the better half of the seeds (%)"
        return Table(f"{title}: {about}", columns, [*rows, average])


def facts_of_best(evaluation: dict[str, Any]) -> float | None:
    """The mean fact accuracy of the better half of the seeds: 10 of 20, as the paper's caption says."""
    facts = sorted((one["facts"] for one in evaluation["seeds"] if one["facts"] is not None), reverse=True)
    return statistics.fmean(facts[: (len(facts) + 1) // 2]) if facts else None


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
