"""The one place for colours and fonts: for colour-blind readers, print (darker is more) and dark pages."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from structattn.recipes.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from matplotlib.colors import LinearSegmentedColormap
    from matplotlib.figure import Figure

PAPER = "#ffffff"
"""Pictures bring their own ground, so that a dark page does not swallow the ink."""
INK = "#1a1a2e"
FAINT = "#8a8fa3"
WEIGHT = "#08519c"
"""The colour of probability 1."""
SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00")
"""Okabe and Ito's colours, for curves."""
SYMBOL_FONT = ("DejaVu Sans Mono", "Noto Sans Mono", "monospace")
TEXT_FONT = ("DejaVu Sans", "Noto Sans", "sans-serif")

FORMATS = ("svg", "png", "pdf")


def check_format(path: Path, formats: tuple[str, ...] = FORMATS) -> str:
    """The format that a file name asks for."""
    wanted = path.suffix.removeprefix(".").lower()
    if wanted not in formats:
        near = did_you_mean(wanted, formats) if wanted else f"; end it in .{' or .'.join(formats)}"
        raise UserError(f'--out {path}: no picture format "{wanted}"{near}')
    if not path.absolute().parent.is_dir():
        raise UserError(f"--out {path}: there is no folder {path.absolute().parent}")
    return wanted


def probability_colours() -> LinearSegmentedColormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("probability", [PAPER, "#c6dbef", "#6baed6", WEIGHT, "#08306b"])


@contextmanager
def drawing() -> Iterator[None]:
    """Within this context matplotlib draws in our style, and one picture is one file, byte for byte."""
    import matplotlib

    settings: dict[Any, Any] = {
        "font.family": list(TEXT_FONT[:1]),
        "text.color": INK,
        "axes.edgecolor": FAINT,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
        "figure.facecolor": PAPER,
        "savefig.facecolor": PAPER,
        "svg.fonttype": "none",
        "svg.hashsalt": "structattn",
    }
    with matplotlib.rc_context(settings):
        yield


def save(figure: Figure, path: Path) -> None:
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    kind = check_format(path)
    figure.savefig(path, dpi=150, bbox_inches="tight", metadata=metadata[kind])
