"""The application that the commands register with, and what they share."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

from cyclopts import App, Parameter

app = App(
    name="structattn",
    help="Structured attention: train, evaluate and look at the experiments of Kim et al. (2017).",
    help_epilogue="--debug after any command shows where an error comes from.",
    version_flags=["--version"],
    version=lambda: _version(),
    default_parameter=Parameter(negative=""),
)

DataDir = Annotated[
    Path | None, Parameter(help="Where data is, instead of $STRUCTATTN_DATA or the cache folder.")
]
Threads = Annotated[int | None, Parameter(help="Of the computation; by default as many as torch takes.")]
Settings = Annotated[list[str] | None, Parameter(name="--set", consume_multiple=True)]


def command_line() -> str:
    """What the user typed, to be recorded."""
    return shlex.join(["structattn", *sys.argv[1:]])


def use_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _version() -> str:
    from importlib.metadata import version

    return version("structattn")
