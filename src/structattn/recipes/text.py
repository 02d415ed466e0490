"""Text files as lines: plain or gzipped, UTF-8, and what is wrong is said with file and line."""

from __future__ import annotations

import gzip
import zlib
from pathlib import Path

from structattn.recipes.errors import UserError

_GZIP = b"\x1f\x8b"


def read_text(path: Path) -> str:
    """The text of a file, which may be gzipped whatever its name is."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if content.startswith(_GZIP) else content
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise UserError(f"{path}, line {line}: not UTF-8 text ({error.reason})") from error


def read_lines(path: Path) -> list[str]:
    """The lines of a file. Only a line feed ends a line: other separators are part of somebody's sentence."""
    lines = read_text(path).split("\n")
    if lines[-1] == "":
        lines.pop()
    return [line.removesuffix("\r") for line in lines]
