"""Table 2 of the paper: BLEU of three kinds of attention, from characters and from words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from structattn.recipes.jobs import Job
from structattn.recipes.recipe import Table
from structattn.recipes.reproduction import PaperTable, mean_and_spread
from structattn.recipes.translation.data import UNITS
from structattn.recipes.translation.model import ATTENTIONS

PAPER = {
    "char": {"simple": 12.6, "sigmoid": 13.1, "structured": 14.6},
    "word": {"simple": 14.1, "sigmoid": 13.8, "structured": 14.3},
}


class Table2(PaperTable):
    name = "table2"
    task = "translation"

    def jobs(self, seeds: int, tasks: Sequence[int] = ()) -> list[Job]:
        return [
            Job(
                f"{source}-{attention}-seed{seed}",
                [f"data.source={source}", f"model.attention={attention}", f"training.seed={seed}"],
            )
            for seed in range(1, seeds + 1)
            for source in UNITS
            for attention in ATTENTIONS
        ]

    def table(self, evaluations: dict[str, dict[str, Any]], title: str) -> Table:
        columns = ["source"]
        for attention in ATTENTIONS:
            columns += [attention, "paper"]
        rows = []
        for source in UNITS:
            row = [source]
            for attention in ATTENTIONS:
                values = [
                    evaluation["bleu"]
                    for evaluation in evaluations.values()
                    if (evaluation["source"], evaluation["attention"]) == (source, attention)
                ]
                row += [mean_and_spread(values), f"{PAPER[source][attention]:.1f}"]
            rows.append(row)
        return Table(f"{title}: BLEU (as multi-bleu.perl); the paper's is on another corpus", columns, rows)
