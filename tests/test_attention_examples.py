"""The examples run in a fresh interpreter and learn what they say; the page of docs is right."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "attention.md"
LEARNT = {"pooling_classifier.py": [0, 90], "tree_heads.py": [0, 98], "tagger_and_parser.py": [90, 75]}


@pytest.mark.parametrize("name", LEARNT)
def test_an_example_runs_within_its_bounds(name):
    path = ROOT / "examples" / name
    assert len(path.read_text().splitlines()) < 60
    printed = subprocess.check_output([sys.executable, "-W", "ignore", path], text=True, timeout=120)
    percents = [int(number) for number in re.findall(r"(\d+)%", printed)]
    assert all(given >= least for given, least in zip(percents, LEARNT[name], strict=True)), printed


@pytest.mark.parametrize(
    "block", re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
)
def test_a_block_of_the_page_about_attention_runs_alone(block):
    exec(compile(block, str(PAGE), "exec"), {})
