"""Table 4 of the paper: accuracy (%) on the Stanford Natural Language Inference corpus."""

from __future__ import annotations

from typing import Any

from structattn.recipes.recipe import Table
from structattn.recipes.reproduction import PaperTable, mean_and_spread

PAPER = {"none": 85.8, "hard": 86.1, "simple": 86.2, "structured": 86.8, "pretrained": 86.5}


class Table4(PaperTable):
    name = "table4"
    task = "entailment"
    attentions = tuple(PAPER)

    def table(self, evaluations: dict[str, dict[str, Any]], title: str) -> Table:
        rows = []
        for attention, printed in PAPER.items():
            found = [one for one in evaluations.values() if one["attention"] == attention]
            trees = [one["trees"]["uas"] for one in found if one["trees"]]
            rows.append(
                [
                    attention,
                    mean_and_spread([one["accuracy"] for one in found], 2),
                    f"{printed:.1f}",
                    mean_and_spread(trees) if trees else "-",
                ]
            )
        data = next(iter(evaluations.values()))["data"]
        columns = ["attention", "accuracy", "paper", "heads as in the parses"]
        return Table(f"{title}: accuracy on {data}, and the paper's on the SNLI test set (%)", columns, rows)
