"""What was found, for people and for programs: tables, JSON, and the pages of the documentation."""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

import structattn
from structattn.benchmarks import peers
from structattn.benchmarks.findings import Finding, Outcome
from structattn.kernels import native


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numeric: tuple[bool, ...]
    """Which columns are set flush right."""


def environment() -> dict[str, Any]:
    """Where and with what this was measured."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
        "kernels": native.level(),
        "load average at start": load_average(),
        "versions": {
            "python": platform.python_version(),
            "structattn": structattn.__version__,
            "torch": torch.__version__,
            **peers.versions(),
        },
    }


def load_average() -> list[float]:
    """Over 1, 5 and 15 minutes."""
    return [round(load, 2) for load in os.getloadavg()]


def _cpu() -> str:
    information = Path("/proc/cpuinfo")
    lines = information.read_text().splitlines() if information.exists() else []
    named = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return named[0] if named else platform.processor() or platform.machine()


def of_goals(findings: Sequence[Finding]) -> Table:
    rows = [
        (
            finding.workload,
            finding.quantity,
            _number(finding.value, finding.unit),
            "" if finding.median is None else _number(finding.median, finding.unit),
            finding.goal,
            finding.verdict,
        )
        for finding in findings
    ]
    columns = ("workload", "what", "of minima", "of medians", "goal", "")
    return Table("Ratios and goals", columns, rows, (False, False, True, True, False, False))


def of_times(outcome: Outcome) -> Table:
    rows = [
        (
            workload,
            contestant.name,
            _number(contestant.minimum * 1e6),
            _number(contestant.median * 1e6),
            str(len(contestant.seconds)),
        )
        for workload, contestant in outcome.contestants
    ]
    columns = ("workload", "who", "minimum, µs", "median, µs", "runs")
    return Table(
        "Forward + backward; times on a shared machine are no claims, ratios are",
        columns,
        rows,
        (False, False, True, True, True),
    )


def doubts(outcome: Outcome) -> list[str]:
    """A remark if the machine was too busy to be believed."""
    names = dict.fromkeys(workload for workload, contestant in outcome.contestants if contestant.disturbed)
    if not names:
        return []
    return [
        f"THE MACHINE WAS BUSY: medians are more than twice the minima in {', '.join(names)}; measure again"
    ]


def _number(value: float, unit: str = "") -> str:
    """Three digits, never in scientific notation."""
    digits = 0 if value >= 100 else 1 if value >= 10 else 2
    return f"{value:,.{digits}f}{' ' if unit[:1].isalpha() and unit != 'x' else ''}{unit}"


def show(tables: Sequence[Table], remarks: Sequence[str]) -> None:
    """Prints: in a terminal with rich, if it is installed."""
    try:
        import rich
        from rich.markup import escape
        from rich.table import Table as RichTable
    except ImportError:
        in_terminal = False
    else:
        in_terminal = sys.stdout.isatty()
    if not in_terminal:
        print("\n\n".join([*map(plain, tables), "\n".join(remarks)]))
        return
    for table in tables:
        drawn = RichTable(title=table.title, title_justify="left")
        for column, right in zip(table.columns, table.numeric, strict=True):
            drawn.add_column(column, justify="right" if right else "left")
        for row in table.rows:
            drawn.add_row(*map(escape, row), style="red" if row[-1] == "not reached" else None)
        rich.print(drawn)
    for remark in remarks:
        rich.print(escape(remark))


def plain(table: Table) -> str:
    """The table in columns of spaces."""
    lines = [table.columns, *table.rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    aligned = (
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(line, widths, table.numeric, strict=True)
        ).rstrip()
        for line in lines
    )
    return "\n".join([table.title, *aligned])


def markdown(table: Table) -> str:
    rule = tuple("---:" if right else "---" for right in table.numeric)
    return "\n".join("| " + " | ".join(line) + " |" for line in [table.columns, rule, *table.rows])


def describe(found: dict[str, Any]) -> str:
    """The environment in a line of text."""
    versions = ", ".join(f"{name} {version}" for name, version in found["versions"].items())
    load = " / ".join(f"{found[f'load average at {when}'][0]:.2f}" for when in ("start", "end"))
    return (
        f"{found['cpu']}, {found['cores']} cores, {found['threads']} threads; kernels {found['kernels']}; "
        f"load average {load} (start / end); {versions}; {found['date']}"
    )


def write_json(path: Path, found: dict[str, Any], outcome: Outcome, refused: Sequence[str]) -> None:
    times = [
        {
            "workload": workload,
            "who": contestant.name,
            "minimum": contestant.minimum,
            "median": contestant.median,
            "runs": len(contestant.seconds),
        }
        for workload, contestant in outcome.contestants
    ]
    findings = [asdict(f) | {"reached": f.reached, "verdict": f.verdict} for f in outcome.findings]
    content = {
        "environment": found,
        "findings": findings,
        "seconds": times,
        "curves": outcome.curves,
        "notes": outcome.notes,
        "refused": list(refused),
    }
    path.write_text(json.dumps(content, indent=1, ensure_ascii=False) + "\n")


BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def write_page(page: Path, tables: Sequence[Table], remarks: Sequence[str]) -> None:
    """Puts the tables between the page's two marks."""
    text = page.read_text()
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"{page}: expected the lines {BEGIN} and {END}, between which the results go")
    sections = [f"**{table.title}.**\n\n{markdown(table)}" for table in tables]
    body = "\n\n".join([*sections, "\n".join(f"- {remark}" for remark in remarks)])
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}")
