"""The command line. Nothing heavy is imported before a command needs it: `structattn --help` is quick."""

from __future__ import annotations

import os
import sys

try:
    from cyclopts import CycloptsError

    from structattn.cli import data, exploring, machine, training, using  # noqa: F401 (they register with the app)
    from structattn.cli.app import app
except ModuleNotFoundError as missing:
    if missing.name != "cyclopts":
        raise
    sys.exit("structattn: the command line needs packages that are missing: pip install structattn[recipes]")

EXTRA_PACKAGES = ("lightning_fabric", "matplotlib", "pooch", "rich", "sacrebleu", "safetensors")
"""What `pip install structattn[recipes]` brings, and a command imports when it needs it."""
EXPLORER_PACKAGES = ("gradio",)
"""The same of `structattn[explorer]`."""


def main(arguments: list[str] | None = None) -> int:
    """Runs a command; what a user can put right is one line on standard error, and exit code 2."""
    from structattn.recipes.errors import UserError

    given = sys.argv[1:] if arguments is None else arguments
    sys.argv[1:] = given  # run folders record the command that made them
    tokens = [token for token in given if token != "--debug"]
    try:
        return app(tokens, exit_on_error=False, print_error=False, result_action="return_value") or 0
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except (CycloptsError, UserError, ModuleNotFoundError, OSError) as error:
        if "--debug" in given or (
            isinstance(error, ModuleNotFoundError)
            and _package(error) not in EXTRA_PACKAGES + EXPLORER_PACKAGES
        ):
            raise
        print(f"structattn: {_one_line(error)}", file=sys.stderr)
        return 2


def _one_line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError):
        package = _package(error)
        extra = "explorer" if package in EXPLORER_PACKAGES else "recipes"
        return f"this needs the package {package}, which is missing: pip install structattn[{extra}]"
    return " ".join(str(error).split())


def _package(missing: ModuleNotFoundError) -> str:
    return (missing.name or "").partition(".")[0]
