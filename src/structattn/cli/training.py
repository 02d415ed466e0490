"""structattn train | reproduce | sweep"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter

from structattn.cli.app import DataDir, Settings, app, command_line, use_threads
from structattn.cli.using import evaluate

Files = Annotated[list[Path] | None, Parameter(consume_multiple=True)]


@app.command(name="train")
def train_model(
    recipe: Annotated[str, Parameter(name="TASK")],
    /,
    *,
    attention: str | None = None,
    model: str | None = None,
    task: int | None = None,
    source: str | None = None,
    treebank: Path | None = None,
    train: Files = None,
    valid: Files = None,
    preset: str = "quick",
    seed: int | None = None,
    run: Path | None = None,
    resume: bool = False,
    then_evaluate: bool = False,
    settings: Settings = None,
    data_dir: DataDir = None,
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
    recipe
        What to train: transduction, qa, translation, entailment or parser.
    attention
        none, hard, simple, structured, ... (short for --set model.attention=...).
    model
        Of question answering: memn2n, unary or binary.
    task
        Of question answering: the number of a bAbI task.
    source
        Of translation: char or word.
    treebank
        Of the parser: a CoNLL-U file; a share of it validates unless --valid is given.
    train
        Files to train on, instead of the data folder's: of translation SOURCE TARGET, or one with tabs.
    valid
        Files to validate on, in the same form.
    preset
        quick (minutes), full (the paper's setting), or of translation and entailment laptop (under an hour).
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
    from structattn.recipes.stopping import stop_with_parent
    from structattn.recipes.training import Machine, is_first_process
    from structattn.recipes.training import train as train_run

    use_threads(threads)
    stop_with_parent()
    options: dict[str, Any] = {"attention": attention, "model": model, "task": task, "source": source}
    options |= {"treebank": treebank, "train": train, "valid": valid, "seed": seed}
    chosen = [*(settings or []), *running.chosen_by_options(recipe, options)]
    path = run or running.default_path(recipe, preset, chosen)
    folder = DataFolder.find(data_dir)
    run_folder = RunFolder(path)
    shown = is_first_process() and not quiet
    progress = Progress(quiet=not shown, tensorboard=path / "tensorboard" if tensorboard and shown else None)
    if is_first_process():
        if resume and run_folder.exists():
            running.resume(path, chosen)
        else:
            running.create(path, recipe, preset, chosen, command_line())
    finished = train_run(run_folder, folder, Machine(accelerator, devices, nodes, precision), progress)
    if not finished:
        _tell(shown, f"stopped and saved; next: structattn train {recipe} --run {path} --resume")
        return 130
    if not then_evaluate:
        _tell(shown, f"finished; next: structattn evaluate {path}")
    elif is_first_process():
        evaluate(path, data_dir=data_dir)
    return 0


def _tell(shown: bool, message: str) -> None:
    if shown:
        print(message, file=sys.stderr)


@app.command
def reproduce(
    table: str,
    /,
    *,
    preset: str = "quick",
    seeds: int | None = None,
    tasks: Annotated[list[int] | None, Parameter(consume_multiple=True)] = None,
    folder: Path | None = None,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    address: str | None = None,
    settings: Settings = None,
    data_dir: DataDir = None,
) -> int:
    """Train what is missing of a table of the paper, and print ours beside theirs. Goes on where it stopped.

    Parameters
    ----------
    table
        table1 (tree transduction), table2 (translation), table3 (question answering) or table4 (entailment).
    preset
        quick (minutes), full (the paper's setting), or of table2 and table4 laptop (hours).
    seeds
        How many seeds each model is trained with; by default 1, or the paper's 20 for table3.
    tasks
        Of table3: the numbers of bAbI tasks; by default the paper's twelve.
    folder
        Where the runs and the table go; runs/TABLE-PRESET by default.
    engine
        local: processes on this machine; ray: a Ray cluster.
    workers
        How many single-threaded processes train at once; by default one a processor.
    address
        Of the Ray cluster; by default one is started on this machine.
    settings
        Any key of the configuration, as key=value ..., for all runs.
    """
    from structattn.recipes.engines import Labour
    from structattn.recipes.progress import print_table
    from structattn.recipes.reproduction import reproduce as reproduce_table
    from structattn.recipes.tasks import table_class

    found = table_class(table)()
    path = folder or Path("runs") / f"{table}-{preset}"
    labour = Labour(engine, workers, address, data_dir)
    count = found.usual_seeds if seeds is None else seeds
    result = reproduce_table(found, path, preset, count, tasks or [], settings or [], labour)
    if result is None:
        print(f"stopped; the same command goes on with what is in {path}", file=sys.stderr)
        return 130
    print_table(result)
    print(f"wrote {path / found.name}.md, .csv and .json")
    return 0


@app.command
def sweep(
    config: Path,
    /,
    *,
    folder: Path | None = None,
    engine: Literal["local", "ray"] = "local",
    workers: int | None = None,
    address: str | None = None,
    data_dir: DataDir = None,
) -> int:
    """Train what is missing of a grid of settings and seeds, and say what is where. Goes on where it stopped.

    Parameters
    ----------
    config
        A TOML file with a task, a preset, seeds, [settings] for all runs, and a [grid] of lists of values.
    folder
        Where the runs and the table go; runs/ and the file's name by default.
    engine
        local: processes on this machine; ray: a Ray cluster.
    workers
        How many single-threaded processes train at once; by default one a processor.
    address
        Of the Ray cluster; by default one is started on this machine.
    """
    from structattn.recipes.engines import Labour
    from structattn.recipes.progress import print_table
    from structattn.recipes.sweep import read_sweep, run_sweep

    path = folder or Path("runs") / config.stem
    swept = run_sweep(read_sweep(config), config.stem, path, Labour(engine, workers, address, data_dir))
    if swept is None:
        print(f"stopped; the same command goes on with what is in {path}", file=sys.stderr)
        return 130
    print_table(swept.results)
    print_table(swept.runs)
    print(f"wrote {path / config.stem}.md, .csv and .json")
    swept.outcome.refuse_failures(path)
    return 0
