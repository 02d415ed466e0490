"""Heat maps of parents: each row is a symbol's distribution over its parents, as in the paper's figure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from torch import Tensor

from structattn.show import style

_INCHES_PER_SYMBOL = 0.24


class Parents(NamedTuple):
    """A panel: title, symbols, and marginals (n, n): [i, j] that symbol i is the parent of symbol j."""

    title: str
    symbols: Sequence[str]
    marginals: Tensor


def draw_heat_maps(panels: Sequence[Parents], out: Path) -> None:
    """The panels side by side, on one scale from 0 to 1."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style.check_format(out)
    with style.drawing():
        sizes = [max(len(panel.symbols) * _INCHES_PER_SYMBOL, 2.5) for panel in panels]
        figure = Figure(
            figsize=(sum(sizes) + 1.2 * len(panels) + 0.6, max(sizes) + 1.2), layout="constrained"
        )
        FigureCanvasAgg(figure)
        axes = figure.subplots(1, len(panels), squeeze=False)[0]
        for axis, panel in zip(axes, panels, strict=True):
            n = len(panel.symbols)
            image = axis.imshow(
                panel.marginals.T.double().numpy(force=True), cmap=style.probability_colours(), vmin=0, vmax=1
            )
            font = {"fontfamily": style.SYMBOL_FONT[0], "fontsize": 9}
            axis.set_xticks(range(n), panel.symbols, **font)
            axis.set_yticks(range(n), panel.symbols, **font)
            axis.xaxis.tick_top()
            axis.tick_params(length=0)
            axis.set_title(panel.title, fontsize=12)
            axis.set_xlabel("parent")
            axis.set_ylabel("symbol")
            axis.set_xticks([position - 0.5 for position in range(1, n)], minor=True)
            axis.set_yticks([position - 0.5 for position in range(1, n)], minor=True)
            axis.grid(which="minor", color="#e6e8ef", linewidth=0.5)
            axis.tick_params(which="minor", length=0)
        bar = figure.colorbar(image, ax=list(axes), shrink=0.6, pad=0.02)
        bar.set_label("probability")
        bar.outline.set_visible(False)
        style.save(figure, out)
