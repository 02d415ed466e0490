"""The examples run in a fresh interpreter and learn what they say."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
LEARNT = {"pooling_classifier.py": [0, 90], "tree_heads.py": [0, 98], "tagger_and_parser.py": [90, 75]}


@pytest.mark.parametrize("name", LEARNT)
def test_an_example_runs_within_its_bounds(name):
    path = ROOT / "examples" / name
    assert len(path.read_text().splitlines()) < 60
    printed = subprocess.check_output([sys.executable, "-W", "ignore", path], text=True, timeout=120)
    percents = [int(number) for number in re.findall(r"(\d+)%", printed)]
    assert all(given >= least for given, least in zip(percents, LEARNT[name], strict=True)), printed
