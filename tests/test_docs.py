"""Every Python block of README and docs runs and prints what the page says; every command line names what there is."""

import contextlib
import io
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import NamedTuple

import pytest

from structattn import cli
from structattn.benchmarks import command as benchmarks
from structattn.recipes import running, tasks
from structattn.recipes.config import override

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
PEERS = {"torch_struct", "torchcrf", "supar", "nltk"}
"""Other libraries that a page compares with; where one is missing, its block is skipped."""
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
FIRST_WORDS = ("structattn", "make", "pip", "python")


class Block(NamedTuple):
    page: Path
    line: int
    language: str
    text: str
    printed: str | None
    """What the page says that it prints: the block of text right after it."""


def blocks(page):
    text = page.read_text(encoding="utf-8")
    found = list(FENCE.finditer(text))
    for number, fence in enumerate(found):
        following = found[number + 1] if number + 1 < len(found) else None
        is_output = following and following[1] == "text" and not text[fence.end() : following.start()].strip()
        line = text.count("\n", 0, fence.start()) + 2
        yield Block(page, line, fence[1], fence[2], following[2] if is_output else None)


def named(block):
    return f"{block.page.name}:{block.line}"


PYTHON = [block for page in PAGES for block in blocks(page) if block.language == "python"]
COMMANDS = [
    pytest.param(command, id=f"{named(block)} {command[:50]}")
    for page in PAGES
    for block in blocks(page)
    if block.language in ("", "shell")
    for line in block.text.replace("\\\n", " ").splitlines()
    for command in [line.rpartition("|")[2].strip()]
    if command.startswith(FIRST_WORDS)
]


@pytest.mark.parametrize("block", PYTHON, ids=named)
def test_a_python_block_runs_alone_and_prints_what_the_page_says(block, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = io.StringIO()
    # Line numbers of the page, should it fail.
    program = "\n" * (block.line - 1) + block.text
    try:
        with contextlib.redirect_stdout(printed):
            exec(compile(program, str(block.page), "exec"), {"__name__": "__main__"})
    except ModuleNotFoundError as missing:
        if missing.name not in PEERS:
            raise
        pytest.skip(f"{missing.name} is not installed")
    if block.printed is not None:
        assert printed.getvalue() == block.printed


def test_the_last_block_of_the_readme_runs_in_a_fresh_interpreter(tmp_path):
    last = [block for block in PYTHON if block.page.name == "README.md"][-1]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    program = [sys.executable, "-W", "ignore", "-c", last.text]
    subprocess.run(program, check=True, cwd=tmp_path, timeout=120, env=environment)


def test_links_of_the_readme_lead_somewhere():
    text = FENCE.sub("", (ROOT / "README.md").read_text(encoding="utf-8"))
    targets = [target for target in re.findall(r"\]\(([^)\s]+)\)", text) if "://" not in target]
    assert [target for target in targets if not (ROOT / target.partition("#")[0]).exists()] == []


def test_numbers_of_the_readme_are_those_of_the_pages_they_come_from():
    readme, results, performance = (
        (ROOT / name).read_text(encoding="utf-8").splitlines()
        for name in ("README.md", "docs/results.md", "docs/performance.md")
    )
    depths = [line for line in readme if re.match(r"\| \d \|", line)]
    assert len(depths) == 5
    assert [line for line in depths if line not in results] == []
    speeds = [line for line in readme if re.search(r"\| `[A-Z0-9-]+` \|", line)]
    assert len(speeds) == 9
    for line in speeds:
        (workload,) = re.findall(r"`([A-Z0-9-]+)`", line)
        measured = [row for row in performance if row.startswith(f"| {workload} |") and "x |" in row]
        for ratio, other in re.findall(r"([\d.]+x)(?:, ([\w. -]+\w))?", line):
            assert any(f"| {ratio} |" in row and (other or "softmax") in row for row in measured), line


@pytest.mark.parametrize("line", COMMANDS)
def test_a_command_line_names_what_there_is(line):
    program, *arguments = shlex.split(line, comments=True)
    {"structattn": check_structattn, "make": check_make, "pip": check_pip, "python": check_python}[program](
        arguments
    )


def check_structattn(arguments):
    if arguments[0] == "bench":
        options = benchmarks._parser().parse_args(arguments[1:])
        benchmarks.chosen(options.only)
        return
    command, bound, _ = cli.app.parse_args(arguments, exit_on_error=False, print_error=False)
    given = bound.arguments
    if command.__name__ == "train_model":
        chosen = {name: given.get(name) for name in ("attention", "model", "task", "source", "seed")}
        config = tasks.preset(given["recipe"], given.get("preset", "quick"))
        override(
            config, [*(given.get("settings") or []), *running.chosen_by_options(given["recipe"], chosen)]
        )
    elif command.__name__ == "reproduce":
        task = tasks.table_class(given["table"]).task
        override(tasks.preset(task, given.get("preset", "quick")), given.get("settings") or [])


def check_make(targets):
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in targets:
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), f"the Makefile has no {target}"


def check_pip(arguments):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert arguments[0] == "install"
    for asked in re.findall(r"(?:structattn|\.)\[([\w,]+)\]", " ".join(arguments)):
        assert set(asked.split(",")) <= set(extras), f"no such extra: {asked}"


def check_python(arguments):
    assert (ROOT / arguments[0]).is_file(), f"there is no {arguments[0]}"
