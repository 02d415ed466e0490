"""The long forms of what the tests do in seconds: `make soak`, or one part of it: python tests/soak.py kernels.

kernels      1,000,000 calls of random shapes over four threads, with gradients: same bits as one thread, flat memory
kills        a training killed at 20 random moments ends with the weights of one that was not
processes    20 trainings on two processes end with exit code 0, and one whose process is killed goes on
"""

import os
import random
import signal
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from unittest import mock

import torch
from cases import CASES
from trainings import LONGER, SMALL, children_of, command, run, same, wait_for, weights

from structattn.kernels import native

THREADS = 4
CALLS, KILLS, TRAININGS = 1_000_000, 20, 20
SHAPES = 2_000
"""Different problems, whose results one thread computes beforehand."""
WITH_KERNELS = [case for case in CASES if "nonprojective" not in case.name]
"""The others, which are torch's linear algebra, are there now and then: they take ten times as long."""
WARM_UP = 0.2
"""Share of the calls after which memory must be flat."""
FLAT = 0.01


def problem(number):
    """A case and potentials of a random shape; some scores forbid, and some sentences are short."""
    generator = random.Random(number)
    torch.manual_seed(number)
    case = generator.choice(CASES if generator.random() < 0.05 else WITH_KERNELS)
    batch, n = (generator.randint(0, 5),), generator.randint(1, 14)
    potentials = case.potentials(batch, n, dtype=generator.choice([torch.float32, torch.float64]))
    if generator.random() < 0.3:
        potentials = tuple(p.masked_fill(torch.rand(p.shape) < 0.2, -torch.inf) for p in potentials)
    lengths = torch.randint(0, n + 1, batch) if generator.random() < 0.5 else None
    return case, potentials, lengths


def results(case, potentials, lengths):
    """Values and gradients, the best structure and a random one's score: a kernel each."""
    leaves = tuple(p.clone().requires_grad_() for p in potentials)
    d = case.distribution(leaves, lengths)
    possible = d.log_partition.isfinite()
    target = d.marginals.square().sum() + d.log_partition[possible].sum()
    gradients = torch.autograd.grad(target, leaves)
    return [d.log_partition.detach(), d.marginals.detach(), d.mode, *gradients]


def counted(one):
    """Results, and how many native kernels they took."""
    with mock.patch.object(native, "_succeed", wraps=native._succeed) as ended:
        return results(*one), ended.call_count


def resident():
    """Bytes of main memory that this process holds."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def soak_kernels(calls=CALLS, shapes=SHAPES, report=print):
    """The growth of memory after warming up, as a share. Raises if any result differs from one thread's."""
    torch.set_num_threads(1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-4)  # threads that change places often find more, and wait less for each other
    problems = [problem(number) for number in range(shapes)]
    expected, kernels = zip(*map(counted, problems), strict=True)
    progress = Progress("kernel calls", calls, report)
    memory = []

    def work(seed):
        order = random.Random(seed)
        while progress.done < calls:
            number = order.randrange(shapes)
            found = results(*problems[number])
            if not all(a.equal(b) for a, b in zip(found, expected[number], strict=True)):
                raise AssertionError(
                    f"problem {number} ({problems[number][0]}) has another result in a thread"
                )
            progress.add(kernels[number])

    with ThreadPoolExecutor(THREADS) as pool:
        workers = [pool.submit(work, seed) for seed in range(THREADS)]
        while not all(worker.done() for worker in workers):
            time.sleep(min(0.05, calls / 1e6))
            if progress.done >= WARM_UP * calls:
                memory.append(resident())
    sys.setswitchinterval(interval)
    for worker in workers:
        worker.result()
    third = max(len(memory) // 3, 1)
    growth = max(memory[-third:]) / max(memory[:third]) - 1
    progress.close(f"memory {memory[-1] / 1e6:.0f} MB, {growth:+.2%} after warming up")
    return growth


def soak_kills(folder, kills=KILLS, epochs=80, report=print, seed=0):
    """Kills a training at random moments, resumes it each time, and compares its weights with an unbroken one's."""
    generator = random.Random(seed)
    broken, unbroken = folder / "broken", folder / "unbroken"
    settings = [*LONGER, f"epochs={epochs}"]
    assert run("train", "transduction", "--run", unbroken, *settings) == 0
    arguments = ["train", "transduction", "--run", broken, "--resume", *settings]
    progress = Progress("kills", kills, report)
    while progress.done < kills:
        checkpoint = broken / "checkpoint.safetensors"
        before = written(checkpoint)
        with command(*arguments) as process:
            while process.poll() is None and written(checkpoint) == before:
                time.sleep(0.002)
            time.sleep(generator.uniform(0, 0.2))
            process.kill()
        assert process.returncode == -signal.SIGKILL, "the training ended before it was killed often enough"
        progress.add(1)
    assert run(*arguments) == 0
    assert same(weights(broken), weights(unbroken)), "the broken training ended with other weights"
    progress.close("and bit for bit the weights of the unbroken training")


def written(path):
    return path.stat().st_mtime_ns if path.exists() else None


TWO = ["--devices", 2, *SMALL, "training.batch_size=13"]


def soak_processes(folder, trainings=TRAININGS, report=print):
    """Trains on two processes, again and again; then kills the second one of a training, which another one resumes."""
    progress = Progress("trainings on two processes", trainings, report)
    for number in range(trainings):
        with command("train", "transduction", "--run", folder / str(number), *TWO, "epochs=1") as process:
            _, errors = process.communicate(timeout=600)
        assert process.returncode == 0, f"training {number}: exit code {process.returncode}: {errors}"
        progress.add(1)
    code, errors = train_and_kill_one_of_two(folder / "killed")
    assert code == 2, f"exit code {code}: {errors}"
    assert "process 2 of 2 was ended by SIGKILL" in errors, errors
    settings = [*TWO, *FOUR_EPOCHS]
    with command("train", "transduction", "--run", folder / "killed", "--resume", *settings) as process:
        _, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    assert run("train", "transduction", "--run", folder / "one", *TWO[2:], *FOUR_EPOCHS) == 0
    killed, one = weights(folder / "killed"), weights(folder / "one")
    for name in one:
        torch.testing.assert_close(killed[name], one[name], rtol=0, atol=1e-5)
    progress.close("all with exit code 0; a killed one went on to the weights that one process reaches")


FOUR_EPOCHS = ["epochs=4", "train_per_depth=200", "checkpoint_seconds=0.05"]


def train_and_kill_one_of_two(path):
    """Exit code and standard error of a training on two processes, the second of which is killed in an epoch."""
    with command("train", "transduction", "--run", path, *TWO, *FOUR_EPOCHS) as process:
        wait_for(path / "checkpoint.safetensors", process)
        (second,) = (number for number, line in children_of(process.pid).items() if "structattn.cli" in line)
        os.kill(second, signal.SIGKILL)
        _, errors = process.communicate(timeout=60)
    return process.returncode, errors


class Progress:
    """A line now and then, and a figure at the end."""

    SECONDS = 10

    def __init__(self, what, total, report):
        self.what, self.total, self.report = what, total, report
        self.done, self.lock = 0, threading.Lock()
        self.started = self.shown = time.monotonic()

    def add(self, count):
        with self.lock:
            self.done += count
            if time.monotonic() - self.shown > self.SECONDS:
                self.shown = time.monotonic()
                self.report(
                    f"{self.what}: {self.done:,} of {self.total:,}, {self.shown - self.started:.0f} s"
                )

    def close(self, figure):
        self.report(f"{self.what}: {self.done:,} in {time.monotonic() - self.started:.0f} s; {figure}")


def main(arguments):
    parts = {
        "kernels": soak_the_kernels,
        "kills": in_a_folder(soak_kills),
        "processes": in_a_folder(soak_processes),
    }
    for name in arguments or parts:
        if name not in parts:
            return f"unknown part {name!r}; there is {', '.join(parts)}"
        parts[name]()
    return 0


def soak_the_kernels():
    growth = soak_kernels()
    assert growth < FLAT, f"memory grew by {growth:.2%}"


def in_a_folder(soak):
    def begin():
        with tempfile.TemporaryDirectory() as folder:
            soak(Path(folder))

    return begin


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
