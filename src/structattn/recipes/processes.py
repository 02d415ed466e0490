"""The processes that train together: when one of them dies, the others end, and say so.

Fabric starts the other processes of a machine and kills everybody, without a word, when one of them fails; under
torchrun, or on other machines, somebody else started them. Whoever is left learns it from the group's broken
connections, and the first process of a machine watches those that it started, too: it may be busy with something that
needs no connection.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import torch
from lightning_fabric import Fabric

from structattn.recipes.errors import UserError

_SECONDS_BETWEEN_LOOKS = 0.2
_SECONDS_TO_LEAVE = 5.0
"""How long a process may take to end by itself once another one has died."""


class Companions:
    """The processes that this one started on this machine; none, if there is one process, or somebody else did."""

    def __init__(self, fabric: Fabric, advice: str) -> None:
        started: list[subprocess.Popen[Any]] = getattr(fabric.strategy.launcher, "procs", [])
        self.processes = list(started)
        started.clear()  # what is not in its list, Fabric does not watch
        self.advice = advice
        self.over = threading.Event()
        if self.processes:
            threading.Thread(target=self._watch, daemon=True).start()

    def loss(self) -> str:
        """What is said when the group is broken: its connections are gone a moment before the process is."""
        deadline = time.monotonic() + _SECONDS_BETWEEN_LOOKS
        while not (dead := self._dead()) and self.processes and time.monotonic() < deadline:
            time.sleep(_SECONDS_BETWEEN_LOOKS / 10)
        return f"{dead or 'another process of this training died'}; {self.advice}"

    def dismiss(self) -> None:
        """This process is leaving: nobody it started may stay behind."""
        self.over.set()
        for process in self.processes:
            try:
                process.wait(_SECONDS_TO_LEAVE)
            except subprocess.TimeoutExpired:
                process.kill()

    def _watch(self) -> None:
        while not self.over.wait(_SECONDS_BETWEEN_LOOKS):
            if self._dead() and not self.over.wait(_SECONDS_TO_LEAVE):
                print(f"structattn: {self.loss()}", file=sys.stderr, flush=True)
                for process in self.processes:
                    process.kill()
                os._exit(2)  # the main thread may be anywhere

    def _dead(self) -> str:
        """The first process that failed, in words; empty if none did."""
        for number, process in enumerate(self.processes, 2):
            code = process.poll()
            if code:
                how = (
                    f"was ended by {signal.Signals(-code).name}"
                    if code < 0
                    else f"ended with exit code {code}"
                )
                return f"process {number} of {len(self.processes) + 1} {how}"
        return ""


def by_first(fabric: Fabric, act: Callable[[], Any]) -> Any:
    """What the first process finds, while the others wait; what it cannot do, it says in the name of all."""
    found, failure = None, ""
    if fabric.global_rank == 0:
        try:
            found = act()
        except UserError as error:
            failure = str(error)
    found, failure = fabric.broadcast((found, failure))
    if failure:
        raise UserError(failure)
    return found


def is_broken_group(error: RuntimeError) -> bool:
    """Whether an operation failed because another process is gone."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error)
