"""Dependency arcs over symbols, as SVG of our own: an arc from each parent, as dark as it is probable."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

from structattn.show import style
from structattn.show.heat_map import Parents

_GAP = 14
_CHARACTER = 9
_LEVEL = 11.0
_HIGHEST = 170.0
_TITLE = 34
_BELOW = 30
_FOOT, _APART = 5.0, 3.0
"""From a symbol's middle, where arcs arrive, to the first arc that leaves it, and from that to the next."""
_IN_NUMBERS = (0.5, 0.995)
"""Arcs this probable have their number on top; what is more probable looks it."""
_NUMBER = (24, 9)
"""How wide and how high one is."""


class Arc(NamedTuple):
    parent: int
    symbol: int
    probability: float

    @property
    def length(self) -> int:
        return abs(self.parent - self.symbol)


def draw_arcs(panels: Sequence[Parents], out: Path, least: float = 0.1) -> None:
    """The panels below one another; arcs less probable than `least` are left out."""
    style.check_format(out, ("svg",))
    out.write_text(arcs_svg(panels, least), encoding="utf-8")


def arcs_svg(panels: Sequence[Parents], least: float = 0.1) -> str:
    panels = [panel._replace(symbols=list(map(style.brief, panel.symbols))) for panel in panels]
    heights = [_TITLE + _arc_space(panel, least) + _BELOW for panel in panels]
    width = max(_centres(panel.symbols)[-1] + 2 * _GAP for panel in panels)
    body, top = [], 0.0
    for panel, height in zip(panels, heights, strict=True):
        body += [f'<g transform="translate(0 {top:g})">', *_panel(panel, height, least), "</g>"]
        top += height
    fonts = ", ".join(style.SYMBOL_FONT)
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:g}" height="{top:g}" '
            f'viewBox="0 0 {width:g} {top:g}" font-family="{fonts}" font-size="15">',
            '<defs><marker id="tip" viewBox="0 0 6 6" refX="5" refY="3" markerWidth="5" markerHeight="5" '
            f'orient="auto"><path d="M0 0L6 3L0 6z" fill="{style.WEIGHT}"/></marker></defs>',
            f'<rect width="100%" height="100%" fill="{style.PAPER}"/>',
            *body,
            "</svg>\n",
        ]
    )


def _centres(symbols: Sequence[str]) -> list[float]:
    """The middle of each symbol, from left to right."""
    centres, position = [], float(2 * _GAP)
    for symbol in symbols:
        width = max(1, len(symbol)) * _CHARACTER
        centres.append(position + width / 2)
        position += width + _GAP
    return centres


def _arcs(panel: Parents, least: float) -> list[Arc]:
    """The faint ones first, so that they lie below."""
    probabilities = panel.marginals.tolist()
    n = len(panel.symbols)
    found = [
        Arc(i, j, probabilities[i][j]) for i in range(n) for j in range(n) if probabilities[i][j] >= least
    ]
    return sorted(found, key=lambda arc: arc.probability)


def _height(distance: int) -> float:
    """Long arcs go higher, but not without limit."""
    return _HIGHEST * (1 - 1 / (1 + distance * _LEVEL / _HIGHEST)) + 8


def _arc_space(panel: Parents, least: float) -> float:
    return max([_height(arc.length) for arc in _arcs(panel, least)], default=0.0) + 14


def _panel(panel: Parents, height: float, least: float) -> list[str]:
    centres = _centres(panel.symbols)
    base = height - _BELOW
    lines = [
        f'<text x="{2 * _GAP}" y="20" font-family="{", ".join(style.TEXT_FONT)}" font-size="14" '
        f'fill="{style.INK}">{escape(panel.title)}</text>'
    ]
    found = _arcs(panel, least)
    feet = _feet(panel.symbols, centres, found)
    lines += [_arc(centres, feet, base, arc) for arc in found]
    lines += _numbers(centres, base, found)
    ink = f'text-anchor="middle" fill="{style.INK}"'
    for centre, text in zip(centres, panel.symbols, strict=True):
        lines.append(f'<text x="{centre:g}" y="{base + 18:g}" {ink}>{escape(text)}</text>')
    return lines


def _feet(symbols: Sequence[str], centres: list[float], arcs: Sequence[Arc]) -> dict[tuple[int, int], float]:
    """Where each arc leaves its parent: the longest nearest to its middle, so that none crosses another."""
    feet = {}
    leaving = sorted((arc for arc in arcs if arc.parent != arc.symbol), key=lambda arc: -arc.length)
    for parent, side in product({arc.parent for arc in leaving}, (1, -1)):
        here = [arc for arc in leaving if arc.parent == parent and (arc.symbol > parent) == (side > 0)]
        room = max(1, len(symbols[parent])) * _CHARACTER / 2 + _GAP / 2 - _FOOT
        apart = min(_APART, room / max(1, len(here)))
        for rank, arc in enumerate(here):
            feet[arc.parent, arc.symbol] = centres[parent] + side * (_FOOT + rank * apart)
    return feet


def _arc(centres: list[float], feet: dict[tuple[int, int], float], base: float, arc: Arc) -> str:
    """A curve from the parent to the symbol; a small loop where a symbol is its own partner."""
    ink = f'fill="none" stroke="{style.WEIGHT}" stroke-opacity="{arc.probability:.2f}" stroke-width="1.6"'
    end = centres[arc.symbol]
    if arc.parent == arc.symbol:
        top = base - 22
        path = f"M{end - 4:g} {base:g}C{end - 12:g} {top:g} {end + 12:g} {top:g} {end + 4:g} {base:g}"
    else:
        start = feet[arc.parent, arc.symbol]
        # A cubic's middle lies at 3/4 of its control points' height.
        top = base - _height(arc.length) / 0.75
        path = f"M{start:g} {base:g}C{start:g} {top:g} {end:g} {top:g} {end:g} {base:g}"
    tip = ' marker-end="url(#tip)"' if arc.probability >= 0.5 else ""
    return f'<path d="{path}" {ink}{tip}><title>p = {arc.probability:.3f}</title></path>'


def _numbers(centres: list[float], base: float, arcs: Sequence[Arc]) -> list[str]:
    """On top of arcs, as far as there is room; the most probable come first."""
    lines: list[str] = []
    places: list[tuple[float, float]] = []
    for arc in reversed([arc for arc in arcs if _IN_NUMBERS[0] <= arc.probability < _IN_NUMBERS[1]]):
        x = (centres[arc.parent] + centres[arc.symbol]) / 2
        y = base - (_height(arc.length) if arc.length else 16) + 3
        if any(abs(x - left) < _NUMBER[0] and abs(y - top) < _NUMBER[1] for left, top in places):
            continue
        places.append((x, y))
        lines.append(
            f'<text x="{x:g}" y="{y:g}" font-size="{_NUMBER[1]}" text-anchor="middle" fill="{style.INK}" '
            f'stroke="{style.PAPER}" stroke-width="3" paint-order="stroke">{arc.probability:.2f}</text>'
        )
    return lines
