"""What a job costs beyond its training, by engine and number of workers: python tests/overhead.py [JOBS].

Sweeps of JOBS (8 by default) and of twice as many small trainings are timed: their difference is what jobs cost, what
remains is the start. The bare time of a job is that of its training and evaluation in this process. Nothing else should
be running.
"""

import contextlib
import io
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
from trainings import SETTINGS

from structattn import cli
from structattn.recipes.running import create, train_and_evaluate

JOBS = 8


def bare_seconds(folder, jobs):
    """Of a training with its evaluation; a first one brings everything that is imported or compiled once."""
    seconds = []
    for seed in range(jobs + 1):
        create(
            folder / str(seed), "transduction", "quick", [*SETTINGS, f"training.seed={seed + 1}"], "overhead"
        )
        started = time.perf_counter()
        train_and_evaluate(folder / str(seed), None)
        seconds.append(time.perf_counter() - started)
    return statistics.fmean(seconds[1:])


def sweep_seconds(folder, jobs, *options):
    folder.mkdir()
    settings = "".join(f'"{key}" = {value}\n' for key, _, value in (one.partition("=") for one in SETTINGS))
    path = folder / "jobs.toml"
    path.write_text(f'task = "transduction"\nseeds = {jobs}\n[settings]\n{settings}')
    started = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert cli.main(["sweep", str(path), "--folder", str(folder / "runs"), *options]) == 0
    return time.perf_counter() - started


def main(jobs=JOBS):
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bare = bare_seconds(folder / "bare", jobs)
        print(f"a job alone: {bare:.2f} s")
        for engine in ("local", "ray"):
            for workers in (1, 2):
                options = ["--engine", engine, "--workers", str(workers)]
                few = sweep_seconds(folder / f"{engine}-{workers}-few", jobs, *options)
                many = sweep_seconds(folder / f"{engine}-{workers}-many", 2 * jobs, *options)
                each = (many - few) / jobs
                print(
                    f"{engine}, {workers} workers: {each:.2f} s a job, overhead {each * workers - bare:+.2f} s "
                    f"a job and worker, {few - jobs * each:.2f} s to start"
                )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
