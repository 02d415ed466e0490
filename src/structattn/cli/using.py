"""structattn evaluate | predict | plot: what one does with a trained run."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from structattn.cli.app import DataDir, Threads, app, use_threads


@app.command
def evaluate(
    run: Path,
    /,
    *,
    data: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    against: Path | None = None,
    json: Path | None = None,
    data_dir: DataDir = None,
    threads: Threads = None,
) -> None:
    """Evaluate a trained run; the numbers are kept in its evaluation.json.

    Parameters
    ----------
    run
        The run folder.
    data
        Files or a folder in the task's own format, instead of its test set; of translation SOURCE TARGET.
    against
        Of translation: another run, to say whether the difference is more than chance.
    json
        A file for the numbers.
    """
    import json as json_format

    from structattn.recipes.progress import print_table
    from structattn.recipes.run_folder import write_text
    from structattn.recipes.running import open_run

    use_threads(threads)
    opened = open_run(run, data_dir)
    evaluation = opened.recipe.evaluate(opened.model, data or [])
    if data is None:
        opened.folder.save_evaluation(evaluation)
    if against is not None:
        other = open_run(against, data_dir)
        found = opened.recipe.compare(evaluation, other.recipe.evaluate(other.model, data or []))
        evaluation = {**evaluation, "against": found}
    if json is not None:
        write_text(json, json_format.dumps(evaluation, indent=2) + "\n")
    print_table(opened.recipe.evaluation_table(evaluation))


@app.command
def predict(
    run: Path,
    /,
    *inputs: str,
    n_best: int | None = None,
    data_dir: DataDir = None,
    threads: Threads = None,
) -> None:
    """Apply a trained run to inputs: arguments, or lines on standard input.

    Parameters
    ----------
    run
        The run folder.
    inputs
        What to predict for, each as one line.
    n_best
        Of translation: so many of the best, each with its line's number and its log-probability.
    """
    from structattn.recipes.running import open_run

    use_threads(threads)
    opened = open_run(run, data_dir)
    lines = inputs or _standard_input()
    if n_best is None:
        found = opened.recipe.predict(opened.model, lines)
    else:
        found = opened.recipe.predict_n_best(opened.model, lines, n_best)
    for line in found:
        print(line, flush=True)


@app.command
def plot(
    run: Path,
    text: str | None = None,
    /,
    *,
    out: Path,
    beside: Annotated[list[Path] | None, Parameter(consume_multiple=True)] = None,
    arcs: bool = False,
    curves: bool = False,
    data_dir: DataDir = None,
) -> None:
    """Draw what a trained run attends to, or how its training went.

    Parameters
    ----------
    run
        The run folder.
    text
        What to draw it for: a formula; a story with a question, or its file; a sentence, and after a tab or |||
        its translation. By default an example.
    out
        A file that ends in .svg, .png or .pdf.
    beside
        Other runs, drawn at the left for comparison.
    arcs
        Arcs over the symbols (.svg) instead of a heat map.
    curves
        Losses and validation values by epoch instead.
    """
    from structattn.recipes.errors import UserError
    from structattn.recipes.run_folder import RunFolder
    from structattn.recipes.running import open_run
    from structattn.show.curves import draw_curves
    from structattn.show.figures import draw

    paths = [*(beside or []), run]
    if curves:
        if text is not None or arcs:
            raise UserError("--curves draws the training: leave out --arcs and what to draw attention for")
        draw_curves([RunFolder(path) for path in paths], out)
    else:
        draw([open_run(path, data_dir) for path in paths], text, out, arcs)
    print(f"wrote {out}")


def _standard_input() -> Iterator[str]:
    for line in sys.stdin:
        yield line.rstrip("\n")
