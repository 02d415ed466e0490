"""GloVe's text format: what is kept of a file, what is refused, and what a second reading finds in the cache."""

import gzip
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close

from structattn.recipes import vectors
from structattn.recipes.errors import UserError
from structattn.recipes.vectors import bucket_vectors, hashed_bucket, read_vectors

TEXT = """the 0.1 -0.2 3e-1
. . . 1 2 3
. 4 5 6
Caf\u00e9\u0085 7 8 9
the 0 0 0
at name@domain.com 1.5 2.5 3.5
"""

REAL = Path(__file__).parents[2] / "shared" / "data" / "vectors"


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """A cache of the test's own, used for small files, too."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(vectors, "_WORTH_KEEPING", 0)
    return tmp_path / "cache"


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "glove.txt"
    path.write_bytes(TEXT.encode())
    return path


def packed(path, text=None):
    text = TEXT.encode() if text is None else text
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("glove.txt", text)
    else:
        path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return path


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz", "a.zip"])
def test_the_wanted_words_are_kept_in_the_order_of_the_file(tmp_path, name):
    path = packed(tmp_path / name)
    wanted = {"at name@domain.com", "Caf\u00e9\u0085", "the", ". . .", "missing"}
    found = read_vectors(path, wanted, size=3)
    assert found.words == ["the", ". . .", "Caf\u00e9\u0085", "at name@domain.com"]
    assert found.table.dtype == torch.float32
    rows = [[0.1, -0.2, 0.3], [1, 2, 3], [7, 8, 9], [1.5, 2.5, 3.5]]
    assert_close(found.table, torch.tensor(rows))
    assert_close(found["the"], torch.tensor(rows[0]))
    assert (len(found), found.size, "the" in found, "The" in found) == (4, 3, True, False)


def test_the_first_words_are_kept_as_well_and_the_size_is_the_first_lines(file):
    assert read_vectors(file, {"at name@domain.com"}, first=2).words == ["the", ". . .", "at name@domain.com"]
    assert read_vectors(file, ()).table.shape == (0, 3)


def test_the_header_of_word2vec_is_no_word(tmp_path):
    found = read_vectors(packed(tmp_path / "a.vec", b"2 3\nthe 1 2 3 \na 4 5 6\r\n"), {"the", "a", "2"})
    assert (found.words, found.size) == (["the", "a"], 3)
    assert found.table.tolist() == [[1, 2, 3], [4, 5, 6]]


@pytest.mark.parametrize(
    ("text", "size", "what"),
    [
        (b"the 1 2\na 1\nof 1 2\n", None, "line 2: expected a word and 2 numbers, found 1 numbers"),
        (b"the 1 2\na 1 2 3\n", None, "line 2: expected a word and 2 numbers, found more"),
        (b"the 1 2 3\n", 2, "line 1: expected a word and 2 numbers, found more"),
        (b"the 1 2\n", 300, "line 1: expected a word and 300 numbers, found 2 numbers"),
        (b"a 1 2\nthe 1 2x\n", None, "line 2: expected 2 numbers after the word, found '2x'"),
        (b"the 1 nan\n", None, "line 1: expected 2 numbers after the word, found 'nan'"),
        (b"a 1 2\nthe 1 \n", None, "line 2: expected a word and 2 numbers, found 1 numbers"),
        (b"a 1 2\n\nthe 1 2\n", None, "line 2: expected a word"),
        (b"a 1 2\n\xff\xfe 1 2\n", None, "line 2: not UTF-8"),
        (b"x" * 100_000, 2, "line 1: expected a word and 2 numbers"),
        (b"", None, "holds no word vectors"),
    ],
)
def test_malformed_files_are_refused_with_file_line_and_reason(tmp_path, text, size, what):
    path = packed(tmp_path / "bad.txt", text)
    with pytest.raises(UserError) as caught:
        read_vectors(path, {"the"}, size)
    assert what in str(caught.value)
    assert str(path) in str(caught.value)


def test_archives_that_are_damaged_or_hold_several_files_are_refused(tmp_path):
    torn = tmp_path / "torn.txt.gz"
    torn.write_bytes(gzip.compress(TEXT.encode())[:-10])
    with pytest.raises(UserError, match=r"torn\.txt\.gz, after line \d+: the archive is damaged"):
        read_vectors(torn, {"the"})
    for name in ("no.gz", "no.zip"):
        (tmp_path / name).write_bytes(b"no archive")
        with pytest.raises(UserError, match="the archive is damaged"):
            read_vectors(tmp_path / name, {"the"})
    several = packed(tmp_path / "several.zip")
    with zipfile.ZipFile(several, "a") as archive:
        archive.writestr("b.txt", "x 1")
    with pytest.raises(UserError, match=r"holds 2 \(glove\.txt, b\.txt\)"):
        read_vectors(several, {"the"})
    with pytest.raises(UserError, match="cannot read"):
        read_vectors(tmp_path / "nothing.txt", {"the"})


def test_a_second_reading_comes_from_the_cache(file, cache, monkeypatch):
    wanted = {"the", "at name@domain.com"}
    first = read_vectors(file, wanted)
    assert len(list(cache.rglob("*.safetensors"))) == 1
    real = vectors._read
    monkeypatch.setattr(vectors, "_read", None)
    again = read_vectors(file, sorted(wanted))
    assert again.words == first.words
    assert torch.equal(again.table, first.table)
    monkeypatch.setattr(vectors, "_read", real)
    assert read_vectors(file, {"."}).words == ["."], "other words"
    later = file.stat().st_mtime + 1
    file.write_bytes(TEXT.replace("0.1", "9.9").encode())
    os.utime(file, (later, later))
    assert_close(
        read_vectors(file, wanted)["the"], torch.tensor([9.9, -0.2, 0.3])
    )  # another file of the same size


def test_a_cache_that_is_damaged_or_cannot_be_written_is_done_without(file, cache, monkeypatch):
    read_vectors(file, {"."})
    (kept,) = cache.rglob("*.safetensors")
    kept.write_bytes(b"damaged")
    assert read_vectors(file, {"."}).words == ["."]
    monkeypatch.setenv("XDG_CACHE_HOME", str(file))  # no folder
    assert read_vectors(file, {"."}).words == ["."]


def test_memory_does_not_grow_with_the_file(tmp_path):
    program = """
import resource, sys, pathlib
from structattn.recipes.vectors import read_vectors
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
read_vectors(pathlib.Path(sys.argv[1]), {"word7"})
before = peak()
assert read_vectors(pathlib.Path(sys.argv[2]), {"word7"}).table.tolist() == [[7.0] * 50]
print(peak() - before)
"""
    small, large = tmp_path / "small.txt", tmp_path / "large.txt"
    for path, count in ((small, 10), (large, 100_000)):
        path.write_text("".join(f"word{n}" + f" {n}" * 50 + "\n" for n in range(count)))
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path / "c")}
    grown = subprocess.check_output([sys.executable, "-c", program, small, large], env=environment, text=True)
    assert int(grown) < 8_000 < large.stat().st_size / 1024


def test_buckets_are_the_same_everywhere():
    assert [hashed_bucket(word) for word in ("the", "Caf\u00e9", "")] == [90, 51, 56]
    assert {hashed_bucket(str(number), 7) for number in range(100)} == set(range(7))
    table = bucket_vectors(300)
    assert torch.equal(table, bucket_vectors(300))
    assert table.shape == (100, 300)
    assert abs(float(table.mean())) < 0.03
    assert abs(float(table.std()) - 1) < 0.03


@pytest.mark.skipif(not REAL.is_dir(), reason="the real vectors are not beside the checkout")
def test_the_real_vectors_are_read():
    small = read_vectors(REAL / "glove.840B.300d.top256.txt.gz", {"the", "The", "nonesuch"})
    assert (set(small.words), small.size) == ({"the", "The"}, 300)
    found = read_vectors(REAL / "glove.6B.50d.filtered.txt.gz", {"the", "zebra"}, size=50)
    assert found.words == ["the", "zebra"]
    assert_close(found["the"][:2], torch.tensor([0.418, 0.24968]))
