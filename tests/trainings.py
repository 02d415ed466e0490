"""Small trainings on the command line, in this process and in others, for tests that watch, kill and compare them."""

import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from structattn import cli
from structattn.recipes.run_folder import read_tensors

SETTINGS = ["train_per_depth=40", "valid_per_depth=5", "test_per_depth=4", "size=8", "epochs=3", "beam=2"]
SETTINGS += ["train_depths=[2]", "test_depths=[2,3]"]
SMALL = ["--preset", "quick", "--threads", "1", "--quiet", "--set", *SETTINGS]
LONGER = [*SMALL, "epochs=6", "train_per_depth=200", "checkpoint_seconds=0.05"]


def run(*arguments):
    return cli.main([str(argument) for argument in arguments])


def command(*arguments, program=("-m", "structattn.cli")):
    """The command line, or what takes its arguments, in a process of its own, single-threaded."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        [sys.executable, *map(str, [*program, *arguments])],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def weights(folder):
    return read_tensors(Path(folder) / "model.safetensors")[0]


def same(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


def wait_for(path, process):
    while not path.exists():
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)


def children_of(process):
    """All processes below this one, by number: their command lines."""
    found, above = {}, {process}
    for _ in range(6):
        for path in Path("/proc").glob("[0-9]*/stat"):
            try:
                fields = path.read_text().rpartition(")")[2].split()
                line = (path.parent / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if int(fields[1]) in above:
                above.add(int(path.parent.name))
                found[int(path.parent.name)] = line
    return found
