"""Table 1 of the paper: average length to failure (%) on the tree transduction task."""

from __future__ import annotations

from typing import Any

from structattn.recipes.recipe import Table
from structattn.recipes.reproduction import PaperTable, mean_and_spread

PAPER = {
    "none": {"2": 7.6, "3": 4.1, "4": 2.8, "5": 2.1, "6": 1.5},
    "simple": {"2": 87.4, "3": 49.6, "4": 23.3, "5": 15.0, "6": 8.5},
    "structured": {"2": 99.2, "3": 87.0, "4": 64.5, "5": 30.8, "6": 18.2},
}


class Table1(PaperTable):
    name = "table1"
    task = "transduction"
    attentions = tuple(PAPER)

    def table(self, evaluations: dict[str, dict[str, Any]], title: str) -> Table:
        columns = ["depth"]
        for attention in PAPER:
            columns += [attention, "paper"]
        depths = next(iter(evaluations.values()))["depths"]
        rows = []
        for depth in depths:
            row = [depth]
            for attention, printed in PAPER.items():
                values = [
                    evaluation["depths"][depth]["prefix"]
                    for evaluation in evaluations.values()
                    if evaluation["attention"] == attention
                ]
                row += [mean_and_spread(values), f"{printed[depth]:.1f}" if depth in printed else "-"]
            rows.append(row)
        return Table(f"{title}: share of correct symbols before the first failure (%)", columns, rows)
