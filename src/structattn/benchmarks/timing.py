"""Interleaved timing: all contestants take turns in short bursts, so that a busy moment hits all.

Ratios are taken between minima: on a shared machine anything else measures the neighbours.
"""

from __future__ import annotations

import gc
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter

import torch


@dataclass(frozen=True)
class Effort:
    """How long is measured: so many rounds of one burst each; a peer stops when its seconds are used up."""

    rounds: int = 30
    burst_seconds: float = 0.004
    peer_seconds: float = 2.0


@dataclass(eq=False)
class Contestant:
    name: str
    step: Callable[[], object]
    budget: float = math.inf
    """Seconds in all. Those with a budget are peers, which may be thousands of times slower."""
    threads: int | None = None
    seconds: list[float] = field(default_factory=list)

    @property
    def minimum(self) -> float:
        return min(self.seconds)

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def disturbed(self) -> bool:
        """Whether most runs took much longer than the best one: then the minimum may be too high as well."""
        return self.budget == math.inf and self.median > 2 * self.minimum

    def burst(self, duration: float) -> None:
        """Runs the step again and again for the duration, once at least."""
        if self.threads is not None:
            torch.set_num_threads(self.threads)
            self.step()
        end = perf_counter() + duration
        while True:
            start = perf_counter()
            self.step()
            now = perf_counter()
            self.seconds.append(now - start)
            if now >= end:
                return


def race(contestants: Sequence[Contestant], effort: Effort) -> None:
    """Fills in the contestants' seconds."""
    threads = torch.get_num_threads()
    _keep_freed_memory()
    for contestant in contestants:
        contestant.step()
    gc.collect()
    gc.disable()
    try:
        for _ in range(effort.rounds):
            for contestant in contestants:
                if sum(contestant.seconds) < contestant.budget:
                    contestant.burst(effort.burst_seconds)
                    if contestant.budget < math.inf:
                        gc.collect()
    finally:
        gc.enable()
        torch.set_num_threads(threads)


def _keep_freed_memory() -> None:
    # glibc returns a large block to the system when it is freed, and the next step pays for its pages again: 1 ms
    # where softmax takes 0.2. Once a block of nearly 32 MiB was freed it keeps what is smaller; a training gets there
    # within its first steps.
    torch.empty(31 << 20, dtype=torch.uint8)
