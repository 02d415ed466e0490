"""A lattice of facts by steps, as in the paper's figure: nodes p(z_k = i), edges p(z_k = i, z_{k+1} = j)."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from structattn.show import style

_LARGEST_NODE = 260.0  # points squared, for probability 1
_SMALLEST_EDGE = 0.005  # a probability that is not worth a line


class Lattice(NamedTuple):
    """A panel. M facts in the order of the story, K steps."""

    title: str
    facts: Sequence[str]
    nodes: Tensor
    """(K, M)"""
    edges: Tensor
    """(K - 1, M, M)"""
    below: Sequence[str]
    """Lines of text: the question, the answer, the best sequences."""
    best: Sequence[int]
    """The best sequence, drawn in another colour; may be empty."""
    steps: Sequence[str] = ()
    """(K); z1, z2, ... by default"""


def draw_lattices(panels: Sequence[Lattice], out: Path) -> None:
    """The panels below one another, the facts' text at the left of each."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    style.check_format(out)
    with style.drawing():
        heights = [0.32 * len(panel.facts) + 0.24 * len(panel.below) + 1.1 for panel in panels]
        longest = max(len(fact) for panel in panels for fact in panel.facts)
        steps = max(len(panel.nodes) for panel in panels)
        figure = Figure(figsize=(0.085 * longest + 1.6 * steps + 1.2, sum(heights)), layout="constrained")
        FigureCanvasAgg(figure)
        axes = figure.subplots(len(panels), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, panel in zip(axes, panels, strict=True):
            _draw(axis, panel)
        style.save(figure, out)


def _draw(axis: Any, panel: Lattice) -> None:
    steps, count = panel.nodes.shape
    for step in range(steps - 1):
        for source in range(count):
            for target in range(count):
                _edge(axis, panel, step, source, target)
    for step in range(steps):
        chosen = [fact == panel.best[step] if panel.best else False for fact in range(count)]
        axis.scatter(
            [step] * count,
            range(count),
            s=[_LARGEST_NODE * float(p) + 4 for p in panel.nodes[step]],
            c=[style.SERIES[1] if one else style.WEIGHT for one in chosen],
            zorder=3,
        )
    axis.set_xticks(range(steps), panel.steps or [f"z{step + 1}" for step in range(steps)])
    axis.set_yticks(range(count), panel.facts)
    axis.set_xlim(-0.4, steps - 0.6)
    axis.set_ylim(count - 0.4, -0.6)  # the first fact is on top
    axis.tick_params(length=0)
    axis.xaxis.tick_top()
    for side in axis.spines.values():
        side.set_visible(False)
    axis.set_title(panel.title, fontsize=11)
    axis.set_xlabel("\n".join(panel.below), loc="left", fontsize=9, linespacing=1.5)


def _edge(axis: Any, panel: Lattice, step: int, source: int, target: int) -> None:
    probability = float(panel.edges[step, source, target])
    if probability < _SMALLEST_EDGE:
        return
    is_best = bool(panel.best) and (source, target) == (panel.best[step], panel.best[step + 1])
    axis.plot(
        [step, step + 1],
        [source, target],
        color=style.SERIES[1] if is_best else style.WEIGHT,
        linewidth=0.4 + 4 * probability,
        alpha=min(1.0, 0.15 + probability),
        zorder=2 if is_best else 1,
        solid_capstyle="round",
    )
