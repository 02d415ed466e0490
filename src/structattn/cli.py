"""The command line. Nothing heavy is imported before a command needs it: `structattn --help` is quick."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

try:
    from cyclopts import App, CycloptsError, Parameter
except ImportError:
    sys.exit("structattn: the command line needs packages that are missing: pip install structattn[recipes]")

EXTRA_PACKAGES = ("lightning_fabric", "matplotlib", "pooch", "rich", "safetensors")
"""What `pip install structattn[recipes]` brings, and a command imports when it needs it."""

app = App(
    name="structattn",
    help="Structured attention: train, evaluate and look at the experiments of Kim et al. (2017).",
    help_epilogue="--debug after any command shows where an error comes from.",
    version_flags=["--version"],
    version=lambda: _version(),
    default_parameter=Parameter(negative=""),
)
data = App(name="data", help="List, make and fetch data.")
app.command(data)

Setting = Annotated[list[str] | None, Parameter(name="--set", consume_multiple=True)]


@app.command
def train(
    task: str,
    /,
    *,
    attention: str | None = None,
    preset: str = "quick",
    seed: int | None = None,
    run: Path | None = None,
    resume: bool = False,
    then_evaluate: bool = False,
    settings: Setting = None,
    data_dir: Path | None = None,
    accelerator: Literal["cpu", "cuda", "auto"] = "cpu",
    devices: int = 1,
    nodes: int = 1,
    precision: Literal["32-true", "bf16-mixed", "64-true"] = "32-true",
    threads: int | None = None,
    tensorboard: bool = False,
    quiet: bool = False,
) -> int:
    """Train a model. Ctrl-C saves, and --resume goes on from there.

    Parameters
    ----------
    task
        What to train: transduction.
    attention
        none, simple, structured, ... (short for --set model.attention=...).
    preset
        quick (minutes) or full (the paper's setting).
    seed
        Of initialisation and order (short for --set training.seed=...).
    run
        The run folder; by default runs/ and a name made of the options.
    resume
        Go on with the run in that folder; it starts if there is none.
    then_evaluate
        Evaluate the run once it is trained.
    settings
        Any key of the configuration, as key=value ...
    data_dir
        Where data is, instead of $STRUCTATTN_DATA or the cache folder.
    accelerator
        Where to compute.
    devices
        How many processes share each batch on this machine.
    nodes
        How many machines take part.
    precision
        Of the weights and of the computation.
    threads
        Of each process. Small models train fastest with 1.
    tensorboard
        Write the epochs' values for TensorBoard, too.
    quiet
        Show no progress.
    """
    from structattn.recipes import running
    from structattn.recipes.data_folder import DataFolder
    from structattn.recipes.progress import Progress
    from structattn.recipes.run_folder import RunFolder
    from structattn.recipes.training import Machine, is_first_process
    from structattn.recipes.training import train as train_run

    _use_threads(threads)
    chosen = [*(settings or [])]
    chosen += [f"model.attention={attention}"] if attention is not None else []
    chosen += [f"training.seed={seed}"] if seed is not None else []
    path = run or running.default_path(task, preset, chosen)
    folder = DataFolder.find(data_dir)
    run_folder = RunFolder(path)
    shown = is_first_process() and not quiet
    progress = Progress(quiet=not shown, tensorboard=path / "tensorboard" if tensorboard and shown else None)
    if is_first_process():
        if resume and run_folder.exists():
            running.resume(path, chosen)
        else:
            running.create(path, task, preset, chosen, _command())
    finished = train_run(run_folder, folder, Machine(accelerator, devices, nodes, precision), progress)
    if not finished:
        _tell(shown, f"stopped and saved; next: structattn train {task} --run {path} --resume")
        return 130
    if not then_evaluate:
        _tell(shown, f"finished; next: structattn evaluate {path}")
    elif is_first_process():
        evaluate(path, data_dir=data_dir)
    return 0


@app.command
def evaluate(
    run: Path,
    /,
    *,
    data: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    json: Path | None = None,
    data_dir: Path | None = None,
    threads: int | None = None,
) -> None:
    """Evaluate a trained run; the numbers are kept in its evaluation.json.

    Parameters
    ----------
    run
        The run folder.
    data
        Files or a folder in the task's own format, instead of its test set.
    json
        A file for the numbers.
    """
    import json as json_format

    from structattn.recipes.progress import print_table
    from structattn.recipes.run_folder import write_text
    from structattn.recipes.running import open_run

    _use_threads(threads)
    opened = open_run(run, data_dir)
    evaluation = opened.recipe.evaluate(opened.model, data or [])
    if data is None:
        opened.folder.save_evaluation(evaluation)
    if json is not None:
        write_text(json, json_format.dumps(evaluation, indent=2) + "\n")
    print_table(opened.recipe.evaluation_table(evaluation))


@app.command
def predict(run: Path, /, *inputs: str, data_dir: Path | None = None) -> None:
    """Apply a trained run to inputs: arguments, or lines on standard input.

    Parameters
    ----------
    run
        The run folder.
    inputs
        What to predict for, each as one line.
    """
    from structattn.recipes.running import open_run

    opened = open_run(run, data_dir)
    for line in opened.recipe.predict(opened.model, inputs or _standard_input()):
        print(line, flush=True)


@app.command
def plot(
    run: Path,
    text: str | None = None,
    /,
    *,
    out: Path,
    beside: Path | None = None,
    arcs: bool = False,
    data_dir: Path | None = None,
) -> None:
    """Draw what a trained run attends to.

    Parameters
    ----------
    run
        The run folder.
    text
        What to draw it for; a formula of the paper by default.
    out
        A file that ends in .svg, .png or .pdf.
    beside
        Another run, drawn at the left for comparison.
    arcs
        Arcs over the symbols (.svg) instead of a heat map.
    """
    from structattn.recipes.running import open_run
    from structattn.show.figures import draw

    runs = [open_run(path, data_dir) for path in (beside, run) if path is not None]
    draw(runs, text, out, arcs)
    print(f"wrote {out}")


@app.command
def reproduce(
    table: str,
    /,
    *,
    preset: str = "quick",
    seeds: int = 1,
    folder: Path | None = None,
    workers: int | None = None,
    settings: Setting = None,
    data_dir: Path | None = None,
) -> int:
    """Train what is missing of a table of the paper, and print ours beside theirs. Goes on where it stopped.

    Parameters
    ----------
    table
        table1 (tree transduction).
    preset
        quick (minutes) or full (the paper's setting).
    seeds
        How many seeds each model is trained with.
    folder
        Where the runs and the table go; runs/TABLE-PRESET by default.
    workers
        How many single-threaded processes train at once; by default one a processor.
    settings
        Any key of the configuration, as key=value ..., for all runs.
    """
    from structattn.recipes.progress import print_table
    from structattn.recipes.reproduction import reproduce as reproduce_table
    from structattn.recipes.tasks import table_class

    found = table_class(table)()
    path = folder or Path("runs") / f"{table}-{preset}"
    result = reproduce_table(found, path, preset, seeds, workers, settings or [], data_dir)
    if result is None:
        print(f"stopped; the same command goes on with what is in {path}", file=sys.stderr)
        return 130
    print_table(result)
    print(f"wrote {path / found.name}.md, .csv and .json")
    return 0


@data.command(name="list")
def list_data(*, data_dir: Path | None = None) -> None:
    """Say what is in the data folder."""
    from structattn.recipes.data_folder import DataFolder
    from structattn.recipes.progress import print_table
    from structattn.recipes.recipe import Table

    folder = DataFolder.find(data_dir)
    rows = [
        [part, f"{size / 1e6:.1f} MB" if there else "-", description]
        for part, description, there, size in folder.contents()
    ]
    print_table(Table(f"data folder: {folder.path}", ["part", "size", "what"], rows))


@data.command
def make(
    task: str,
    /,
    *,
    preset: str = "full",
    out: Path | None = None,
    settings: Setting = None,
    data_dir: Path | None = None,
) -> None:
    """Write generated data as text files.

    Parameters
    ----------
    task
        transduction
    out
        The folder to write to; transduction/ in the data folder by default.
    """
    from structattn.recipes.config import override
    from structattn.recipes.data_folder import DataFolder
    from structattn.recipes.errors import UserError
    from structattn.recipes.tasks import preset as read_preset

    if task != "transduction":
        raise UserError(f'the data of "{task}" is not generated; only that of transduction is')
    from structattn.recipes.transduction.data import draw_splits, write_pairs

    target = out or DataFolder.find(data_dir).path / "transduction"
    for name, pairs in draw_splits(override(read_preset(task, preset), settings or []).data).items():
        write_pairs(pairs, target / f"{name}.txt")
        print(f"wrote {target / name}.txt, {len(pairs)} pairs")


@data.command
def fetch(name: str, /, *, url: str | None = None, data_dir: Path | None = None) -> None:
    """Download a corpus from its official address, checked by sha256.

    Parameters
    ----------
    name
        babi, snli or glove
    url
        A mirror to use instead; what it sends must be the same bytes.
    """
    from structattn.recipes.data_folder import DataFolder
    from structattn.recipes.fetching import fetch as fetch_data

    for path in fetch_data(name, DataFolder.find(data_dir), url):
        print(f"wrote {path}")


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
    except (CycloptsError, UserError, ModuleNotFoundError) as error:
        if "--debug" in given or (
            isinstance(error, ModuleNotFoundError) and error.name not in EXTRA_PACKAGES
        ):
            raise
        print(f"structattn: {_one_line(error)}", file=sys.stderr)
        return 2


def _one_line(error: Exception) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name is not None:
        return f"this needs the package {error.name}, which is missing: pip install structattn[recipes]"
    return " ".join(str(error).split())


def _version() -> str:
    from importlib.metadata import version

    return version("structattn")


def _command() -> str:
    return shlex.join(["structattn", *sys.argv[1:]])


def _tell(shown: bool, message: str) -> None:
    if shown:
        print(message, file=sys.stderr)


def _use_threads(threads: int | None) -> None:
    if threads is not None:
        import torch

        torch.set_num_threads(threads)


def _standard_input() -> Iterator[str]:
    for line in sys.stdin:
        yield line.rstrip("\n")


if __name__ == "__main__":
    sys.exit(main())
