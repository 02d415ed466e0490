"""Heat maps of probabilities: of parents, as in the paper's figure, or of any rows and columns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple
from unicodedata import east_asian_width

from torch import Tensor

from structattn.show import style

_CELL, _LARGEST_CELL = 0.26, 0.5
"""Inches; the cells of all panels are of one size, larger where there are few."""
_SMALL_GRID = 2.5
_UPRIGHT = 0.35
"""Longer names of columns are turned by a quarter."""
_LETTER = 0.085
_GAP = 0.35
_ROW_LABEL, _LINE = 0.3, 0.2
_WIDEST = 13.0


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
    """The panels side by side, as many as a page is wide, on one scale from 0 to 1."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style.check_format(out)
    grids = [
        grid._replace(rows=list(map(style.brief, grid.rows)), columns=list(map(style.brief, grid.columns)))
        for panel in panels
        for grid in [panel.grid() if isinstance(panel, Parents) else panel]
    ]
    fonts = style.symbol_fonts(
        text for grid in grids for text in (*grid.rows, *grid.columns, grid.column_label)
    )
    cell = _cell(grids)
    with style.drawing(fonts):
        # Of one inch, so that its coordinates are inches; what is saved is all that is drawn.
        figure = Figure(figsize=(1, 1))
        FigureCanvasAgg(figure)
        left = top = lowest = right = 0.0
        for grid in grids:
            width, height = cell * len(grid.columns), cell * len(grid.rows)
            beyond = max(0.0, _inches(grid.title, *grid.column_label.split("\n")) - width) / 2
            before = max(_inches(*grid.rows) + _ROW_LABEL, beyond)
            if left > 0 and left + before + width > _WIDEST:
                left, top = 0.0, lowest - _above(grid)
            image = _draw(figure.add_axes((left + before, top - height, width, height)), grid, fonts)
            left += before + width + max(beyond, _GAP)
            lowest = min(lowest, top - height - _below(grid))
            right = max(right, left)
        tallest = cell * max(len(grid.rows) for grid in grids)
        scale = figure.add_axes((right, -tallest, 0.13, tallest))
        bar = figure.colorbar(image, cax=scale)
        bar.set_label("probability")
        bar.outline.set_visible(False)
        style.save(figure, out)


def _above(grid: Grid) -> float:
    return 2 * _LINE + (_inches(*grid.columns) if _is_turned(grid) else _LINE)


def _below(grid: Grid) -> float:
    return _LINE * (2 + grid.column_label.count("\n"))


def _cell(grids: Sequence[Grid]) -> float:
    few = _SMALL_GRID / max(len(grid.columns) for grid in grids)
    names = max((_inches(*grid.columns) for grid in grids if not _is_turned(grid)), default=0.0)
    return max(_CELL, names, min(few, _LARGEST_CELL))


def _draw(axis: Any, grid: Grid, fonts: list[str]) -> Any:
    values = grid.probabilities.double().numpy(force=True)
    image = axis.imshow(values, cmap=style.probability_colours(), vmin=0, vmax=1, aspect="auto")
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
                    Rectangle(
                        corner, count, 1, fill=False, edgecolor=style.SERIES[1], linewidth=1.2, zorder=3
                    )
                )
            start += count


def _is_turned(grid: Grid) -> bool:
    return _inches(*grid.columns) > _UPRIGHT


def _inches(*lines: str) -> float:
    """How wide the longest line is, about; a Chinese or Japanese letter takes the room of two."""
    return _LETTER * max(sum(1 + (east_asian_width(letter) in "WF") for letter in line) for line in lines)
