"""The README's first Python block runs as printed, in a fresh interpreter."""

import re
import subprocess
import sys
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"


def test_the_first_block_runs(tmp_path):
    block = re.search(r"^```python\n(.*?)^```", README.read_text(), re.DOTALL | re.MULTILINE)
    assert block, "the README has no Python block"
    subprocess.run([sys.executable, "-W", "ignore", "-c", block[1]], check=True, cwd=tmp_path, timeout=120)
