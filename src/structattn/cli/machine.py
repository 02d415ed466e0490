"""structattn info | bench"""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from structattn.cli.app import app


@app.command
def info() -> None:
    """Versions, threads, and which kernels are active."""
    from structattn.recipes.run_folder import environment

    for name, value in environment().items():
        if name != "command":
            print(f"{name:12}{value}")


@app.command(help_flags=[])
def bench(*arguments: Annotated[str, Parameter(allow_leading_hyphen=True)]) -> int:
    """Measure speed against softmax attention and against whatever other libraries are installed."""
    from structattn.benchmarks import main as run_benchmarks

    return int(run_benchmarks(list(arguments)) or 0)
