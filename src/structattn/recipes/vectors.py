"""Word vectors in GloVe's text format: a word, a space, and its numbers with spaces between, one word a line.

A file may be larger than memory: it is read line by line, and only the words that are wanted are kept. What was found
in a file of some size is kept in the user's cache folder, by the file's path, size and time and by the wanted words.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import math
import sys
import zipfile
import zlib
from array import array
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from functools import cached_property, partial
from pathlib import Path
from typing import IO, NamedTuple

import torch
from rich.console import Console
from rich.progress import wrap_file
from torch import Tensor

from structattn.recipes.data_folder import cache_folder
from structattn.recipes.errors import UserError
from structattn.recipes.run_folder import read_tensors, write_tensors

_LARGE = 64 << 20
"""Bytes from which on reading shows a bar."""
_WORTH_KEEPING = 1 << 20
"""Bytes from which on a file is not read twice for the same words."""
_LONGEST_LINE = 1 << 16
_LARGEST = torch.finfo(torch.float32).max
_BUFFER = 1 << 20


class WordVectors:
    """Words, most frequent first as in the file, and their vectors (N, size) in float32."""

    def __init__(self, words: list[str], table: Tensor) -> None:
        self.words, self.table = words, table

    @property
    def size(self) -> int:
        return self.table.shape[1]

    @cached_property
    def number_of(self) -> dict[str, int]:
        """The row of a word."""
        return {word: number for number, word in enumerate(self.words)}

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: str) -> bool:
        return word in self.number_of

    def __getitem__(self, word: str) -> Tensor:
        """The vector of a word (size)."""
        return self.table[self.number_of[word]]


def hashed_bucket(word: str, buckets: int = 100) -> int:
    """A bucket for a word that has no vector: the same one always and everywhere."""
    digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return int.from_bytes(digest, "little") % buckets


def bucket_vectors(size: int, buckets: int = 100, seed: int = 2017) -> Tensor:
    """The buckets' vectors (buckets, size): fixed, from a Gaussian of mean 0 and deviation 1."""
    return torch.randn(buckets, size, generator=torch.Generator().manual_seed(seed))


def read_vectors(
    path: Path, wanted: Collection[str], size: int | None = None, first: int = 0, progress: bool = True
) -> WordVectors:
    """The vectors of the wanted words that the file has, and of its first so many words.

    path      a text file, as it is, as .gz, or alone in a .zip
    size      how many numbers a word has; by default as many as the first line's. A word may hold spaces (some of
              GloVe 840B's do): its vector is the last `size` fields
    progress  whether a large file shows a bar on standard error
    """
    path = Path(path)
    wanted = wanted if isinstance(wanted, set | frozenset) else frozenset(wanted)
    try:
        status = path.stat()
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error
    if status.st_size < _WORTH_KEEPING:
        return _read(path, wanted, size, first, progress)
    key = [str(path.resolve()), status.st_size, status.st_mtime_ns, _digest(wanted), size, first]
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:32]
    kept = cache_folder() / "kept" / f"vectors-{name}.safetensors"
    found = _kept(kept)
    if found is None:
        found = _read(path, wanted, size, first, progress)
        _keep(found, kept)
    return found


def _digest(words: Collection[str]) -> str:
    digest = hashlib.sha256()
    for word in sorted(words):
        digest.update(word.encode("utf-8", "surrogatepass") + b"\n")
    return digest.hexdigest()


def _kept(path: Path) -> WordVectors | None:
    """What an earlier reading left; None if there is nothing, or it is damaged."""
    if not path.is_file():
        return None
    try:
        tensors, state = read_tensors(path)
        return WordVectors(state["words"], tensors["table"])
    except (UserError, KeyError):
        return None


def _keep(vectors: WordVectors, path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensors(path, {"table": vectors.table}, {"words": vectors.words})
    except (OSError, UserError):
        return  # a cache that cannot be written costs time, and nothing else


def _read(path: Path, wanted: Collection[str], size: int | None, first: int, progress: bool) -> WordVectors:
    words: dict[str, None] = {}
    numbers = array("f")
    for line in _lines(path, progress):
        if line.number == 1 and _is_header(line.text):
            continue
        if size is None:
            size = max(line.text.count(b" "), 1)
        word, vector = _word_and_vector(line, size)
        if (word in wanted or line.number <= first) and word not in words:
            words[word] = None
            numbers.extend(_floats(line, vector))
    if size is None:
        raise UserError(f"{path} holds no word vectors")
    table = torch.frombuffer(numbers, dtype=torch.float32).clone() if words else torch.empty(0)
    return WordVectors(list(words), table.view(len(words), size))


class _Line(NamedTuple):
    """A line of a file, without its end."""

    path: Path
    number: int
    text: bytes

    def wrong(self, what: str) -> UserError:
        return UserError(f"{self.path}, line {self.number}: {what}")


def _lines(path: Path, progress: bool) -> Iterator[_Line]:
    number = 0
    try:
        with _opened(path, progress) as file:
            for text in iter(partial(file.readline, _LONGEST_LINE), b""):
                number += 1
                yield _Line(path, number, text.rstrip(b" \r\n"))
    except (EOFError, zlib.error, gzip.BadGzipFile, zipfile.BadZipFile) as error:
        raise UserError(f"{path}, after line {number}: the archive is damaged: {error}") from error
    # What zipfile says to passwords and rare compressions.
    except (RuntimeError, NotImplementedError) as error:
        raise UserError(f"cannot unpack {path}: {error}") from error
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from error


@contextmanager
def _opened(path: Path, progress: bool) -> Iterator[IO[bytes]]:
    """The text of the file, unpacked as it is read; the bar counts bytes of the file as it is on disk."""
    total = path.stat().st_size
    console = Console(file=sys.stderr)
    shown = progress and total >= _LARGE and console.is_terminal
    with path.open("rb") as raw:
        described = {"description": f"reading {path.name}", "console": console, "transient": True}
        with wrap_file(raw, total, disable=not shown, **described) as counted:  # type: ignore[arg-type]
            if path.suffix == ".zip":
                with zipfile.ZipFile(counted) as archive, archive.open(_only_member(path, archive)) as member:
                    yield io.BufferedReader(member, _BUFFER)  # type: ignore[type-var]
            elif path.suffix == ".gz":
                with gzip.GzipFile(fileobj=counted) as unpacked:
                    yield io.BufferedReader(unpacked, _BUFFER)
            else:
                yield io.BufferedReader(counted, _BUFFER)  # type: ignore[type-var]


def _only_member(path: Path, archive: zipfile.ZipFile) -> zipfile.ZipInfo:
    members = [info for info in archive.infolist() if not info.is_dir()]
    if len(members) != 1:
        names = ", ".join(info.filename for info in members)
        raise UserError(
            f"{path} must hold one file, and holds {len(members)} ({names}): unpack the one you want"
        )
    return members[0]


def _is_header(text: bytes) -> bool:
    """The count and size that word2vec and fastText write into their first line."""
    fields = text.split(b" ")
    return len(fields) == 2 and all(field.isdigit() for field in fields)


def _word_and_vector(line: _Line, size: int) -> tuple[str, bytes]:
    """The word, and the text of its `size` numbers."""
    spaces = line.text.count(b" ")
    if spaces == size:
        word, _, vector = line.text.partition(b" ")
    elif spaces < size:
        raise line.wrong(f"expected a word and {size} numbers, found {spaces} numbers")
    else:
        fields = line.text.split(b" ")
        word, vector = b" ".join(fields[:-size]), b" ".join(fields[-size:])
        if _is_number(fields[-size - 1]):
            raise line.wrong(f"expected a word and {size} numbers, found more of them ({spaces} in all)")
    try:
        return word.decode("utf-8"), vector
    except UnicodeDecodeError as error:
        raise line.wrong(f"not UTF-8 text ({error.reason})") from error


def _is_number(field: bytes) -> bool:
    """Whether it is one that float32 has."""
    try:
        return abs(float(field)) <= _LARGEST
    except ValueError:
        return False


def _floats(line: _Line, vector: bytes) -> list[float]:
    fields = vector.split(b" ")
    try:
        values = [float(field) for field in fields]
    except ValueError:
        values = []
    # A NaN only the sum shows.
    if values and max(map(abs, values)) <= _LARGEST and math.isfinite(sum(values)):
        return values
    wrong = next(field for field in fields if not _is_number(field)).decode("utf-8", "replace")
    raise line.wrong(f"expected {len(fields)} numbers after the word, found {wrong[:40]!r}")
