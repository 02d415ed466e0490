"""Heat maps of probabilities: of parents, as in the paper's figure, or of any rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from structattn.show import style

_INCHES_PER_SYMBOL = 0.24
_INCHES_PER_LETTER = 0.085
_UPRIGHT = 3
"""Longer names of columns are turned by a quarter."""


class Grid(NamedTuple):
    """A panel: title, names of the rows and of the columns, and probabilities (rows, columns)."""

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    probabilities: Tensor
    row_label: str
    column_label: str
    framed: Tensor | None = None
    """(rows, columns) True: neighbours in a row stand in one frame"""


class Parents(NamedTuple):
    """A panel: title, symbols, and marginals (n, n): [i, j] that symbol i is the parent of symbol j."""

    title: str
    symbols: Sequence[str]
    marginals: Tensor

    def grid(self) -> Grid:
        """Each row is a symbol's distribution over its parents."""
        return Grid(self.title, self.symbols, self.symbols, self.marginals.T, "symbol", "parent")


def draw_heat_maps(panels: Sequence[Parents | Grid], out: Path) -> None:
    """The panels side by side, on one scale from 0 to 1."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style.check_format(out)
    grids = [panel.grid() if isinstance(panel, Parents) else panel for panel in panels]
    fonts = style.symbol_fonts(name for grid in grids for name in (*grid.rows, *grid.columns))
    with style.drawing():
        widths = [max(len(grid.columns) * _INCHES_PER_SYMBOL, 2.5) + _letters(grid.rows) for grid in grids]
        heights = [
            max(len(grid.rows) * _INCHES_PER_SYMBOL, 0.8)
            + (_letters(grid.columns) if _is_turned(grid) else 0)
            for grid in grids
        ]
        figure = Figure(
            figsize=(sum(widths) + 1.2 * len(grids) + 0.6, max(heights) + 1.2), layout="constrained"
        )
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(grids), squeeze=False, width_ratios=widths)[0]
        for axis, grid in zip(axes, grids, strict=True):
            image = _draw(axis, grid, fonts)
        bar = figure.colorbar(image, ax=list(axes), shrink=0.6, pad=0.02)
        bar.set_label("probability")
        bar.outline.set_visible(False)
        style.save(figure, out)


def _draw(axis: Any, grid: Grid, fonts: list[str]) -> Any:
    values = grid.probabilities.double().numpy(force=True)
    image = axis.imshow(values, cmap=style.probability_colours(), vmin=0, vmax=1)
    font = {"fontfamily": fonts, "fontsize": 9}
    turned = {"rotation": 90} if _is_turned(grid) else {}
    axis.set_xticks(range(len(grid.columns)), grid.columns, **font, **turned)
    axis.set_yticks(range(len(grid.rows)), grid.rows, **font)
    axis.xaxis.tick_top()
    axis.tick_params(length=0)
    axis.set_title(grid.title, fontsize=12)
    axis.set_xlabel(grid.column_label, fontfamily=[style.TEXT_FONT[0], *fonts[1:]])
    axis.set_ylabel(grid.row_label)
    axis.set_xticks([position - 0.5 for position in range(1, len(grid.columns))], minor=True)
    axis.set_yticks([position - 0.5 for position in range(1, len(grid.rows))], minor=True)
    axis.grid(which="minor", color="#e6e8ef", linewidth=0.5)
    axis.tick_params(which="minor", length=0)
    if grid.framed is not None:
        _frame(axis, grid.framed)
    return image


def _frame(axis: Any, framed: Tensor) -> None:
    from matplotlib.patches import Rectangle

    for row, chosen in enumerate(framed.tolist()):
        start = 0
        for is_chosen, cells in groupby(chosen):
            count = len(list(cells))
            if is_chosen:
                corner = (start - 0.5, row - 0.5)
                axis.add_patch(
                    Rectangle(corner, count, 1, fill=False, edgecolor=style.SERIES[1], linewidth=1.2)
                )
            start += count


def _is_turned(grid: Grid) -> bool:
    return max(map(len, grid.columns)) > _UPRIGHT


def _letters(names: Sequence[str]) -> float:
    """How many inches the longest name takes."""
    return _INCHES_PER_LETTER * max(map(len, names))
