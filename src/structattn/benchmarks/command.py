"""Runs the benchmarks by name, and says what came out."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path

from structattn.benchmarks import layers, picture, report, studies, translation
from structattn.benchmarks.findings import Outcome
from structattn.benchmarks.timing import Effort
from structattn.benchmarks.verification import Disagreement
from structattn.benchmarks.workloads import WORKLOADS, Settings

Benchmark = Callable[[Settings], Outcome]

BENCHMARKS: dict[str, Benchmark] = {
    **{workload.name: workload.run for workload in WORKLOADS},
    "TREE-MEMORY": studies.memory,
    "TREE-LENGTHS": studies.mixed_lengths,
    "TREE-ALONE": studies.small_batches,
    "CALL": studies.call_overhead,
    "THREADS": studies.threads,
    "SCALING": studies.scaling,
    **layers.BENCHMARKS,
    **translation.BENCHMARKS,
}

_QUICK = Effort(rounds=5, burst_seconds=0.002, peer_seconds=0.1)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and reports; returns 1 when a result was wrong, and its speed therefore not printed."""
    options = _parser().parse_args(arguments)
    settings = Settings(_QUICK if options.quick else Effort(), options.peers)
    found = report.environment()
    outcome, refused = run(chosen(options.only), settings)
    found["load average at end"] = report.load_average()
    tables = [report.of_goals(outcome.findings), report.of_times(outcome)]
    remarks = [*refused, *outcome.notes, *report.doubts(outcome), report.describe(found)]
    report.show(tables, remarks)
    if options.json is not None:
        report.write_json(options.json, found, outcome, refused)
    if options.docs is not None:
        report.write_page(options.docs / "performance.md", tables, remarks)
        if outcome.curves:
            picture.draw(outcome.curves, options.docs / "scaling.svg")
    return 1 if refused else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="structattn bench",
        description="What structured attention costs, against softmax and against other libraries.",
    )
    parser.add_argument(
        "--only",
        nargs="+",
        default=(),
        metavar="NAME",
        help=f"names of benchmarks, or how they begin: {', '.join(BENCHMARKS)}",
    )
    parser.add_argument(
        "--peers",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="enter the other libraries that are installed; they may take seconds a call",
    )
    parser.add_argument("--quick", action="store_true", help="few runs; not for numbers that are passed on")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything to this file")
    parser.add_argument(
        "--docs",
        type=Path,
        metavar="FOLDER",
        help="put the tables into the folder's performance.md, the picture into its scaling.svg",
    )
    return parser


def chosen(only: Sequence[str]) -> dict[str, Benchmark]:
    """The benchmarks whose names begin as asked for."""
    for wanted in only:
        if not any(name.startswith(wanted.upper()) for name in BENCHMARKS):
            names = ", ".join(BENCHMARKS)
            raise ValueError(f"only: expected the beginning of one of {names}, got {wanted!r}")
    starts = tuple(wanted.upper() for wanted in only) or ("",)
    return {name: benchmark for name, benchmark in BENCHMARKS.items() if name.startswith(starts)}


def run(benchmarks: dict[str, Benchmark], settings: Settings) -> tuple[Outcome, list[str]]:
    """Everything that was found, and which benchmarks were refused, and why."""
    outcome, refused = Outcome(), []
    for name, benchmark in benchmarks.items():
        print(f"{name} ...", flush=True)
        try:
            outcome.add(benchmark(settings))
        except Disagreement as error:
            refused.append(f"{name}: NO SPEED IS PRINTED, for the result is wrong. {error}")
    return outcome, refused
