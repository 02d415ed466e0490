"""The workloads of the paper's three kinds of model, and what they are allowed to cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from structattn.benchmarks import peers
from structattn.benchmarks.findings import Finding, Outcome, ratio
from structattn.benchmarks.problems import Problem, chains, segmentations, softmax, trees
from structattn.benchmarks.timing import Contestant, Effort, race
from structattn.benchmarks.verification import verify


@dataclass(frozen=True)
class Settings:
    effort: Effort
    peers: bool = True


@dataclass(frozen=True)
class Workload:
    """A problem, and a softmax over as many scores."""

    name: str
    about: str
    make: Callable[[], Problem]
    scores: tuple[int, ...]
    at_most: float
    """Our time against softmax's."""
    stretch: float | None
    peer_at_least: float
    """The best peer's time against ours."""
    rival: str | None = None
    """The one peer that peer_at_least speaks of; None: the best of all."""

    def run(self, settings: Settings) -> Outcome:
        problem = self.make()
        verify(problem)
        ours = Contestant("structattn", problem.solve)
        baseline = Contestant("softmax", softmax(*self.scores))
        others, notes = peers.enter(problem, settings.effort.peer_seconds) if settings.peers else ([], [])
        race([ours, baseline, *others], settings.effort)
        against = ratio(self.name, "time against softmax", ours, baseline, self.at_most, stretch=self.stretch)
        findings = [against, *self._against_peers(ours, others)]
        return Outcome(findings, [(self.name, entered) for entered in (ours, baseline, *others)], notes)

    def _against_peers(self, ours: Contestant, others: list[Contestant]) -> list[Finding]:
        rivals = [peer for peer in others if self.rival in (None, peer.name)]
        if not rivals:
            return []
        best = min(rivals, key=lambda peer: peer.minimum)
        quantity = f"times faster than {best.name}" + ("" if self.rival else ", the best peer")
        return [ratio(self.name, quantity, best, ours, at_least=self.peer_at_least)]


def _tree(n: int, at_most: float, stretch: float, peer_at_least: float) -> Workload:
    return Workload(
        f"TREE-{n}",
        f"20 projective trees, n = {n}",
        partial(trees, 20, n),
        (20, n, n),
        at_most,
        stretch,
        peer_at_least,
    )


WORKLOADS = (
    Workload(
        "SEG",
        "6400 two-state chains, n = 50, shared transitions and their gradient",
        partial(segmentations, 6400, 50),
        (6400, 50),
        1.3,
        1.0,
        100,
    ),
    Workload(
        "QA",
        "640 chains, n = 3, 25 states, own pairwise potentials",
        partial(chains, 640, 3, 25, own_transitions=True),
        (640, 2, 25, 25),
        1.2,
        0.8,
        5,
    ),
    Workload(
        "TAG",
        "32 chains, n = 128, 32 states, shared transitions",
        partial(chains, 32, 128, 32),
        (32, 127, 32, 32),
        1.0,
        0.65,
        15,
    ),
    _tree(20, 3, 2, 100),
    _tree(40, 8, 5, 150),
    _tree(80, 26, 20, 120),
    _tree(160, 70, 50, 60),
    Workload(
        "TAG-LOSS",
        "log Z and its gradient alone, as a CRF loss: 32 chains, n = 128, 32 states",
        partial(chains, 32, 128, 32, quantity="log_partition"),
        (32, 127, 32, 32),
        0.8,
        None,
        20,
        rival="pytorch-crf",
    ),
)
