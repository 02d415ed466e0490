"""Downloads by pooch: nothing unverified is kept, no redirect followed, nothing written elsewhere."""

from __future__ import annotations

import fnmatch
import hashlib
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from importlib import resources
from pathlib import Path, PurePosixPath
from typing import Any

from structattn.recipes.data_folder import FETCHABLE, DataFolder
from structattn.recipes.errors import UserError, did_you_mean

_CHUNK = 1 << 20


@dataclass(frozen=True)
class Source:
    """An archive: its address, its sha256, which members to take, and the folder they belong to.

    Where no one publishes a sha256 of the archive, `members` has one for each file in it that is taken.
    """

    url: str
    folder: str
    pattern: str
    sha256: str | None = None
    members: dict[str, str] = field(default_factory=dict)


def sources() -> dict[str, Source]:
    """bAbI's original host is gone; the Keras project's copy of its archive is checked file by file."""
    lines = resources.files(__package__).joinpath("babi.sha256").read_text(encoding="utf-8").splitlines()
    babi = {name: digest for digest, name in (line.split() for line in lines)}
    return {
        "babi": Source(
            "https://s3.amazonaws.com/text-datasets/babi_tasks_1-20_v1-2.tar.gz",
            "babi/en",
            "*/en/qa*.txt",
            members=babi,
        ),
        "snli": Source(
            "https://nlp.stanford.edu/projects/snli/snli_1.0.zip",
            "snli",
            "snli_1.0/snli_1.0_*",
            "afb3d70a5af5d8de0d9d81e2637e0fb8c22d1235c2749d83125ca43dab0dbd3e",
        ),
        "glove": Source(
            "https://downloads.cs.stanford.edu/nlp/data/glove.840B.300d.zip",
            "vectors",
            "glove.840B.300d.txt",
            "c06db255e65095393609f19a4cfca20bf3a71e20cc53e892aafa490347e3849f",
        ),
    }


def fetch(
    name: str, data: DataFolder, url: str | None = None, report: Callable[[str], None] = print
) -> list[Path]:
    """Downloads and unpacks; the files that it wrote. `url` names a mirror, whose bytes must be the same."""
    if name not in FETCHABLE:
        raise UserError(f'nothing to fetch is called "{name}"{did_you_mean(name, FETCHABLE)}')
    source = sources()[name]
    target = data.path / source.folder
    target.mkdir(parents=True, exist_ok=True)
    report(f"downloading {url or source.url}")
    archive = _download(url or source.url, source.sha256, target)
    try:
        return list(_unpack(archive, source, target))
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise UserError(f"{url or source.url} is no archive: {error}") from error
    finally:
        archive.unlink(missing_ok=True)


def _download(url: str, sha256: str | None, folder: Path) -> Path:
    import pooch

    pooch.get_logger().setLevel("ERROR")
    known = f"sha256:{sha256}" if sha256 else None
    downloader = pooch.HTTPDownloader(allow_redirects=False)
    try:
        return Path(pooch.retrieve(url, known, ".download", folder, downloader=downloader))
    except Exception as error:  # requests, urllib3 and pooch each have their own
        (folder / ".download").unlink(missing_ok=True)
        raise UserError(f"could not download {url}: {' '.join(str(error).split())}") from error


def _unpack(archive: Path, source: Source, target: Path) -> Iterator[Path]:
    """The wanted members, each under its bare name, so that no name in an archive can lead elsewhere."""
    missing = set(source.members)
    with _opened(archive) as members:
        for name, read in members:
            bare = PurePosixPath(name).name
            if not fnmatch.fnmatch(name, source.pattern) or (source.members and bare not in source.members):
                continue
            _write_checked(read, target / bare, source.members.get(bare))
            missing.discard(bare)
            yield target / bare
    if missing:
        raise UserError(f"the archive lacks {len(missing)} files, {min(missing)} among them")


@contextmanager
def _opened(archive: Path) -> Iterator[Iterator[tuple[str, Callable[[], Any]]]]:
    """Names of the regular files in a zip or tar archive, and how to read each."""
    if zipfile.is_zipfile(archive):
        with zipfile.ZipFile(archive) as file:
            infos = [info for info in file.infolist() if not info.is_dir()]
            yield ((info.filename, partial(file.open, info)) for info in infos)
    else:
        with tarfile.open(archive) as tar:
            yield ((member.name, partial(tar.extractfile, member)) for member in tar if member.isfile())


def _write_checked(read: Callable[[], Any], path: Path, sha256: str | None) -> None:
    unchecked = path.with_name(f".{path.name}.part")
    digest = hashlib.sha256()
    try:
        with read() as source, unchecked.open("wb") as file:
            while chunk := source.read(_CHUNK):
                digest.update(chunk)
                file.write(chunk)
        if sha256 is not None and digest.hexdigest() != sha256:
            raise UserError(f"{path.name}: expected sha256 {sha256}, got {digest.hexdigest()}")
        unchecked.replace(path)
    finally:
        unchecked.unlink(missing_ok=True)
