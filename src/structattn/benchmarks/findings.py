"""What a benchmark found, and whether the goal was reached."""

from __future__ import annotations

from dataclasses import dataclass, field

from structattn.benchmarks.timing import Contestant


@dataclass(frozen=True)
class Finding:
    """One number with its goal, if it has one. `median` is the same ratio, between medians."""

    workload: str
    quantity: str
    value: float
    unit: str = ""
    at_most: float | None = None
    at_least: float | None = None
    stretch: float | None = None
    median: float | None = None

    @property
    def reached(self) -> bool | None:
        """Whether the goal was reached; None without a goal."""
        if self.at_most is None and self.at_least is None:
            return None
        below = self.at_most is None or self.value <= self.at_most
        above = self.at_least is None or self.value >= self.at_least
        return below and above

    @property
    def verdict(self) -> str:
        if self.reached is None:
            return ""
        if self.stretch is not None and self.value <= self.stretch:
            return "stretch reached"
        return "reached" if self.reached else "not reached"

    @property
    def goal(self) -> str:
        stretch = "" if self.stretch is None else f" (stretch {self.stretch:g})"
        limits = (("≤", self.at_most), ("≥", self.at_least))
        return " and ".join(f"{sign} {limit:g}" for sign, limit in limits if limit is not None) + stretch


@dataclass
class Outcome:
    """All that one benchmark found."""

    findings: list[Finding] = field(default_factory=list)
    contestants: list[tuple[str, Contestant]] = field(default_factory=list)
    """With the workload that they were timed on."""
    notes: list[str] = field(default_factory=list)
    curves: dict[str, dict[int, float]] = field(default_factory=dict)
    """Seconds over n, for the scaling picture."""

    def add(self, other: Outcome) -> None:
        self.findings += other.findings
        self.contestants += other.contestants
        self.notes += [note for note in other.notes if note not in self.notes]
        self.curves |= other.curves


def ratio(
    workload: str,
    quantity: str,
    numerator: Contestant,
    denominator: Contestant,
    at_most: float | None = None,
    at_least: float | None = None,
    stretch: float | None = None,
    factor: float = 1.0,
) -> Finding:
    """How many times the one takes of the other's time; factor converts what the two did to the same work."""
    return Finding(
        workload,
        quantity,
        factor * numerator.minimum / denominator.minimum,
        "x",
        at_most,
        at_least,
        stretch,
        median=factor * numerator.median / denominator.median,
    )
