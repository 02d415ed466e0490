"""A short form of tests/fuzz.py; and what it found, each by name."""

import zipfile

import pytest
from fuzz import TARGETS, fuzz

from structattn.recipes.config import override, read_toml
from structattn.recipes.entailment.data import read_pairs
from structattn.recipes.errors import UserError
from structattn.recipes.run_folder import RunFolder
from structattn.recipes.sweep import Sweep, jobs_of
from structattn.recipes.tasks import preset
from structattn.recipes.vectors import read_vectors


@pytest.mark.parametrize("name", TARGETS)
def test_hostile_input_is_refused_in_words(name):
    answers = fuzz(name, inputs=100)
    assert answers["read"] > 0
    assert sum(answers.values()) >= 100


def refused(read, path, content, what):
    path.write_bytes(content)
    with pytest.raises(UserError, match=what):
        read(path)


@pytest.mark.parametrize("value", [b"[" * 5000, b"9" * 5000])
def test_toml_and_json_deeper_or_longer_than_python_reads(tmp_path, value):
    refused(read_toml, tmp_path / "a.toml", b"a = " + value, "a.toml is not valid TOML")
    refused(read_pairs, tmp_path / "a.jsonl", b'{"gold_label": ' + value, "line 1: no JSON")
    for name, ask in (("metrics.jsonl", RunFolder.metrics), ("evaluation.json", RunFolder.evaluation)):
        refused(
            lambda path, ask=ask: ask(RunFolder(path.parent)), tmp_path / name, value, f"{name} is damaged"
        )
    with pytest.raises(UserError, match="epochs must be int"):
        override(preset("qa", "full"), [f"epochs={value.decode()}"])


def test_a_parse_that_is_no_text(tmp_path):
    row = b'{"gold_label": "neutral", "sentence1": "A dog.", "sentence2": "It runs.", "sentence2_parse": 3}\n'
    refused(read_pairs, tmp_path / "a.jsonl", row, "line 1: sentence2_parse must be a text, not 3")


def test_metrics_and_evaluations_that_are_none(tmp_path):
    refused(
        lambda _: RunFolder(tmp_path).metrics(), tmp_path / "metrics.jsonl", b'{"epoch": 1}\n3\n', "line 2"
    )
    refused(
        lambda _: RunFolder(tmp_path).evaluation(), tmp_path / "evaluation.json", b"[]", "holds no object"
    )


@pytest.mark.parametrize("number", [b"1e300", b"-4e38", b"1e400", b"nan"])
def test_vectors_with_numbers_that_float32_has_not(tmp_path, number):
    line = b"a" + b" 1 " + number + b" " + number + b"\n"
    refused(lambda path: read_vectors(path, {"a"}), tmp_path / "a.txt", line, f"line 1: .*{number.decode()}")


def test_an_archive_with_a_password_or_a_rare_compression(tmp_path):
    path = tmp_path / "vectors.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("vectors.txt", b"a 1 2\n")
    content = bytearray(path.read_bytes())
    directory = content.index(b"PK\x01\x02")
    for place, value in ((6, 1), (8, 99)):  # the flag of encryption, and the kind of compression
        changed = content.copy()
        changed[place] = changed[directory + place + 2] = value
        refused(lambda path: read_vectors(path, {"a"}), path, bytes(changed), "cannot unpack")


def test_a_sweep_of_more_runs_than_there_can_be():
    for sweep in (
        Sweep("qa", "full", 10**12),
        Sweep("qa", "full", None, {}, {f"k{i}": list(range(99)) for i in range(99)}),
    ):
        with pytest.raises(UserError, match="more than a sweep can have"):
            jobs_of(sweep, "grid.toml")
