"""How training went: losses and validation values by epoch, from the metrics of run folders."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from pathlib import Path
from typing import Any

from structattn.recipes.errors import UserError
from structattn.recipes.progress import mean_of
from structattn.recipes.run_folder import RunFolder
from structattn.show import style

_VALID = "valid_"
_LOSSES = ("loss", f"{_VALID}loss")
_IN_FULL = {
    "prefix": "correct before the first failure",
    "bleu": "BLEU",
    "accuracy": "accuracy (%)",
    "uas": "unlabeled attachment score (%)",
    "exact": "trees without a mistake (%)",
}
_MOST_MARKERS = 30


def draw_curves(runs: Sequence[RunFolder], out: Path) -> None:
    """A panel for the losses, one for each other value of the validation; a colour for each run.

    Training is drawn solid, validation dashed. Where a run holds several models, their mean stands in a band from
    the lowest to the highest.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style.check_format(out)
    metrics = [_metrics(run) for run in runs]
    others = dict.fromkeys(key for lines in metrics for key in lines[0] if key.startswith(_VALID))
    panels = [_LOSSES, *([key] for key in others if key not in _LOSSES)]
    with style.drawing():
        figure = Figure(figsize=(4.2 * len(panels), 3.4), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, keys in zip(axes, panels, strict=True):
            for run, lines, colour in zip(runs, metrics, cycle(style.SERIES), strict=False):
                for key in keys:
                    label = run.path.name + (f", {_name(key)}" if len(keys) > 1 else "")
                    _draw(axis, lines, key, colour, label)
            axis.set_xlabel("epoch")
            axis.set_title(_name(keys[-1]) if len(keys) == 1 else "loss", fontsize=11)
            axis.xaxis.get_major_locator().set_params(integer=True)
            axis.grid(color="#e6e8ef", linewidth=0.6)
            axis.spines[["top", "right"]].set_visible(False)
            axis.legend(fontsize=8, frameon=False)
        style.save(figure, out)


def _metrics(run: RunFolder) -> list[dict[str, Any]]:
    run.must_exist()
    lines = run.metrics()
    if not lines:
        raise UserError(f"{run.path} has no epoch to draw yet")
    return lines


def _name(key: str) -> str:
    value = key.removeprefix(_VALID)
    return f"{'validation' if key.startswith(_VALID) else 'training'} {_IN_FULL.get(value, value)}"


def _draw(axis: Any, lines: list[dict[str, Any]], key: str, colour: str, label: str) -> None:
    lines = [line for line in lines if key in line]
    if not lines:
        return
    epochs = [line["epoch"] for line in lines]
    values = [line[key] for line in lines]
    style_of = {}
    if key.startswith(_VALID):
        style_of = {"linestyle": "--", "marker": "o" if len(epochs) <= _MOST_MARKERS else "", "markersize": 3}
    axis.plot(epochs, list(map(mean_of, values)), color=colour, linewidth=1.6, label=label, **style_of)
    if isinstance(values[0], list):
        axis.fill_between(
            epochs, list(map(min, values)), list(map(max, values)), color=colour, alpha=0.15, linewidth=0
        )
