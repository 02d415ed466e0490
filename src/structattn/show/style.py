"""The one place for colours and fonts: for colour-blind readers, print (darker is more) and dark pages."""

from __future__ import annotations

import importlib.util
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
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

JAPANESE_FONTS = (
    *("Noto Sans CJK JP", "Noto Sans JP", "Source Han Sans JP", "IPAexGothic", "IPAGothic", "TakaoGothic"),
    *("VL Gothic", "Hiragino Sans", "Yu Gothic", "Meiryo", "MS Gothic"),
)
JAPANESE_PACKAGE = "matplotlib_fontja"
"""A Python package that brings one of them, IPAexGothic, where the system has none."""

LONGEST_NAME = 30

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


def brief(text: str, longest: int = LONGEST_NAME) -> str:
    """What a picture has room for."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def symbol_fonts(texts: Iterable[str]) -> list[str]:
    """Installed fonts that have these symbols between them; if there are none, that is said in one line."""
    from matplotlib import font_manager

    found = [SYMBOL_FONT[0]]
    letters = {letter for text in texts for letter in text if letter.isprintable()}
    missing = letters - _letters_of(found[0])
    if missing:
        font_manager.fontManager.ttflist += _fonts_of(JAPANESE_PACKAGE)
        installed = {font.name for font in font_manager.fontManager.ttflist}
        others = [name for name in JAPANESE_FONTS if name in installed]
        found += [name for name in others if missing & _letters_of(name)][:1]
    for name in found[1:]:
        missing -= _letters_of(name)
    if missing:
        print(
            f"no installed font has {min(missing)}: a picture in .svg leaves that to its viewer, others show boxes; "
            "pip install structattn[japanese] brings a Japanese one",
            file=sys.stderr,
        )
    return found


def _letters_of(font: str) -> set[str]:
    from matplotlib import font_manager

    return set(map(chr, font_manager.get_font(font_manager.findfont(font)).get_charmap()))


def _fonts_of(package: str) -> list[Any]:
    """The fonts that lie in a package, which is not imported: it would change matplotlib's settings."""
    from matplotlib import font_manager

    found = importlib.util.find_spec(package)
    folders = [] if found is None else found.submodule_search_locations or []
    paths = [path for folder in folders for path in Path(folder).rglob("*.ttf")]
    known = {font.fname for font in font_manager.fontManager.ttflist}
    return [
        font_manager.ttfFontProperty(font_manager.get_font(path)) for path in paths if str(path) not in known
    ]


def probability_colours() -> LinearSegmentedColormap:
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("probability", [PAPER, "#c6dbef", "#6baed6", WEIGHT, "#08306b"])


@contextmanager
def drawing(fonts: Sequence[str] = SYMBOL_FONT[:1]) -> Iterator[None]:
    """Within this context matplotlib draws in our style, and one picture is one file, byte for byte.

    Text in .svg stays text, unless more fonts are needed than ours, which a viewer need not have: then it is outlines.
    """
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
        "svg.fonttype": "none" if len(fonts) == 1 else "path",
        "svg.hashsalt": "structattn",
        "text.parse_math": False,  # a dollar is a dollar
    }
    with matplotlib.rc_context(settings), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # symbol_fonts has said it, once
        yield


def save(figure: Figure, path: Path) -> None:
    metadata = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    kind = check_format(path)
    figure.savefig(path, dpi=150, bbox_inches="tight", metadata=metadata[kind])
