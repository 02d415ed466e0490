"""Who trains the runs of a table: processes of this machine, or the workers of a Ray cluster.

A job is to train a run to its end, on one thread, and to evaluate it. What is done lies in the run folders, so whoever
takes up a job again goes on where it stopped, and nothing is lost with a worker. A Ray cluster must see the folders
under the same path on all its machines.
"""

from __future__ import annotations

import os
import queue
import signal
import subprocess
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from structattn.recipes.errors import UserError, did_you_mean
from structattn.recipes.running import train_and_evaluate
from structattn.recipes.stopping import of_this_parent

_SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
_TRIES = 5
"""A job whose worker died is given to another one, so often at most."""


class Labour(NamedTuple):
    """Who trains: an engine, how many single-threaded workers it has, the address of its cluster, and where data is."""

    engine: str = "local"
    workers: int | None = None
    address: str | None = None
    data_dir: Path | None = None


class Engine(ABC):
    """Trains the runs of these names inside `folder`."""

    def __init__(self, task: str, folder: Path, names: Sequence[str], labour: Labour) -> None:
        self.task, self.folder, self.names, self.data_dir = task, folder, list(names), labour.data_dir
        self.workers = labour.workers or os.cpu_count() or 1
        self.failed: dict[str, str] = {}
        """Why runs failed, by name."""

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def working(self) -> bool:
        """Whether some run is neither done nor failed."""

    @abstractmethod
    def begun(self, name: str) -> bool: ...

    @abstractmethod
    def stop(self) -> None:
        """Ends all runs, saved, and waits for them."""


class LocalEngine(Engine):
    """So many processes at a time. Two of one thread train faster than one of two: the models are small."""

    def __init__(self, task: str, folder: Path, names: Sequence[str], labour: Labour) -> None:
        super().__init__(task, folder, names, labour)
        self.waiting: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.stopped = threading.Event()
        count = min(self.workers, len(self.names))
        self.threads = [threading.Thread(target=self._work) for _ in range(count)]

    def start(self) -> None:
        for name in self.names:
            self.waiting.put(name)
        for thread in self.threads:
            thread.start()

    def working(self) -> bool:
        return any(thread.is_alive() for thread in self.threads)

    def begun(self, name: str) -> bool:
        return name in self.processes

    def stop(self) -> None:
        self.stopped.set()
        for process in list(self.processes.values()):
            process.send_signal(signal.SIGINT)
        for thread in self.threads:
            thread.join()

    def _work(self) -> None:
        while not self.stopped.is_set():
            try:
                name = self.waiting.get_nowait()
            except queue.Empty:
                return
            self._train(name)

    def _train(self, name: str) -> None:
        for _ in range(_TRIES):
            code, errors = self._run(name)
            if (
                code >= 0 or self.stopped.is_set()
            ):  # below zero: something killed the process, not its own error
                break
        if code != 0 and not self.stopped.is_set():
            ended = (
                f"ended by {signal.Signals(-code).name}, {_TRIES} times" if code < 0 else f"exit code {code}"
            )
            lines = errors.strip().splitlines()
            self.failed[name] = lines[-1].removeprefix("structattn: ") if lines and code > 0 else ended

    def _run(self, name: str) -> tuple[int, str]:
        """The exit code, and what was said. Its own session keeps Ctrl-C from the process: we tell it to stop, once;
        and if we cannot any more, it sees that we are gone."""
        options = ["--resume", "--then-evaluate", "--threads", "1", "--quiet"]
        if self.data_dir is not None:
            options += ["--data-dir", str(self.data_dir)]
        process = subprocess.Popen(
            [*_program(), "train", self.task, "--run", str(self.folder / name), *options],
            env={**os.environ, **_SINGLE_THREADED, **of_this_parent()},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self.processes[name] = process
        if self.stopped.is_set():  # in between, when nobody could tell it
            process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
        return process.returncode, errors.decode(errors="replace")


def _program() -> list[str]:
    """How to call the command line: the script that was installed beside this Python, else the module."""
    script = Path(sys.executable).with_name("structattn")
    return [str(script)] if script.exists() else [sys.executable, "-m", "structattn.cli"]


class RayEngine(Engine):
    """One processor a run, wherever the cluster has one. Without an address: a cluster on this machine."""

    def __init__(self, task: str, folder: Path, names: Sequence[str], labour: Labour) -> None:
        super().__init__(task, folder, names, labour)
        self.ray = _ray()
        self.references: dict[Any, str] = {}
        self.began_here = not self.ray.is_initialized()
        if self.began_here:
            size = {"address": labour.address} if labour.address else {"num_cpus": self.workers}
            self.ray.init(**size, include_dashboard=False, log_to_driver=False, logging_level="error")

    def start(self) -> None:
        remote = self.ray.remote(num_cpus=1, max_retries=_TRIES, runtime_env={"env_vars": _SINGLE_THREADED})(
            train_and_evaluate
        )
        data_dir = None if self.data_dir is None else self.data_dir.absolute()
        self.references = {
            remote.remote((self.folder / name).absolute(), data_dir): name for name in self.names
        }

    def working(self) -> bool:
        done, _ = self.ray.wait(list(self.references), num_returns=len(self.references), timeout=0)
        for reference in done:
            name = self.references.pop(reference)
            try:
                self.ray.get(reference)
            except Exception as error:
                cause = getattr(error, "cause", None) or error
                self.failed[name] = str(cause).strip().splitlines()[-1]
        if not self.references:
            self._leave()
        return bool(self.references)

    def begun(self, name: str) -> bool:
        return True

    def stop(self) -> None:
        for reference in self.references:
            self.ray.cancel(reference, force=False)
        self.ray.wait(list(self.references), num_returns=len(self.references), timeout=60)
        self._leave()

    def _leave(self) -> None:
        if self.began_here and self.ray.is_initialized():
            self.ray.shutdown()


def _ray() -> Any:
    # Ray would otherwise write a token into the user's home.
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ImportError as error:
        raise UserError(
            "--engine ray needs a package that is missing: pip install structattn[ray]"
        ) from error
    return ray


def hire(labour: Labour, task: str, folder: Path, names: Sequence[str]) -> Engine:
    """The engine that was asked for, ready to start."""
    if labour.engine not in ENGINES:
        raise UserError(f'--engine: unknown engine "{labour.engine}"{did_you_mean(labour.engine, ENGINES)}')
    if labour.engine != "ray" and labour.address is not None:
        raise UserError("--address is for --engine ray")
    return ENGINES[labour.engine](task, folder, names, labour)


ENGINES: dict[str, type[Engine]] = {"local": LocalEngine, "ray": RayEngine}
