"""How cost grows; threads, small batches, mixed lengths; memory; the price of a call."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import torch

from structattn.benchmarks import peers
from structattn.benchmarks.findings import Finding, Outcome, ratio
from structattn.benchmarks.problems import Problem, chains, segmentations, trees, without_loss
from structattn.benchmarks.timing import Contestant, race
from structattn.benchmarks.verification import verify
from structattn.benchmarks.workloads import Settings

_CLEAR = Path("/proc/self/clear_refs")


def call_overhead(settings: Settings) -> Outcome:
    """What a call costs when there is next to nothing to compute."""
    outcome = Outcome()
    scores = torch.randn(3, 2, requires_grad=True)
    simple = without_loss(lambda: torch.softmax(scores, -1), [scores], torch.randn(3, 2))
    for name, problem in (("CALL-CHAIN", chains(1, 3, 2)), ("CALL-TREE", trees(1, 3))):
        verify(problem)
        call = without_loss(problem.result, problem.potentials, problem.weights)
        ours, baseline = Contestant("structattn", call), Contestant("softmax", simple)
        race([ours, baseline], settings.effort)
        microseconds = Finding(name, "forward + backward, tiny input", ours.minimum * 1e6, "µs", at_most=30)
        against = ratio(name, "time against softmax, tiny input", ours, baseline)
        outcome.add(Outcome([microseconds, against], [(name, ours), (name, baseline)]))
    return outcome


def mixed_lengths(settings: Settings) -> Outcome:
    """32 trees of 10 to 40 words against 32 of one length with the same sum of n^3."""
    lengths = torch.randint(10, 41, (32,), generator=torch.Generator().manual_seed(0))
    cubes = lengths.double().pow(3)
    n = round(cubes.mean().pow(1 / 3).item())
    problems = trees(32, int(lengths.max()), lengths), trees(32, n)
    for problem in problems:
        verify(problem)
    mixed, equal = Contestant("lengths 10..40", problems[0].solve), Contestant(f"n = {n}", problems[1].solve)
    race([mixed, equal], settings.effort)
    work = 32 * n**3 / cubes.sum().item()
    found = ratio("TREE-LENGTHS", "time per n³, lengths 10..40 against equal", mixed, equal, 1.5, factor=work)
    return Outcome([found], [("TREE-LENGTHS", mixed), ("TREE-LENGTHS", equal)])


def small_batches(settings: Settings) -> Outcome:
    """One tree alone has to use both cores, or at least not cost four times what it costs among eight."""
    outcome = Outcome()
    for n in (20, 40, 80, 160):
        problems = trees(1, n), trees(8, n)
        verify(problems[1])
        one, eight = (Contestant(f"B = {problem.batch}", problem.solve) for problem in problems)
        race([one, eight], settings.effort)
        name = f"TREE-ALONE-{n}"
        found = ratio(name, "time a sentence, B = 1 against B = 8", one, eight, 4, factor=8)
        outcome.add(Outcome([found], [(name, one), (name, eight)]))
    return outcome


def threads(settings: Settings) -> Outcome:
    """One thread against all that torch was given."""
    many = torch.get_num_threads()
    if many == 1:
        return Outcome(notes=["THREADS is left out: torch was given one thread"])
    workloads = {
        "SEG": segmentations(6400, 50),
        "QA": chains(640, 3, 25, own_transitions=True),
        "TAG": chains(32, 128, 32),
        "TREE-20": trees(20, 20),
        "TREE-40": trees(20, 40),
        "TREE-160": trees(20, 160),
    }
    outcome = Outcome()
    for workload, problem in workloads.items():
        verify(problem)
        one, all_ = (Contestant(f"threads: {count}", problem.solve, threads=count) for count in (1, many))
        race([one, all_], settings.effort)
        name = f"THREADS-{workload}"
        goal = 1.7 if many == 2 else None
        found = ratio(name, f"times faster with {many} threads than with 1", one, all_, at_least=goal)
        outcome.add(Outcome([found], [(name, one), (name, all_)]))
    return outcome


def scaling(settings: Settings) -> Outcome:
    """Chains grow as n, trees as n^3: the slope of log time over log n."""
    kinds: dict[str, tuple[Callable[[int], Problem], float]] = {
        "chains": (lambda n: chains(32, n, 16), 1.15),
        "two-state chains": (lambda n: segmentations(1600, n), 1.15),
        "projective trees": (lambda n: trees(16, n), 3.15),
    }
    outcome = Outcome()
    for kind, (make, limit) in kinds.items():
        problems = [make(n) for n in (20, 40, 80, 160, 320)]
        for problem in problems:
            verify(problem)
        contestants = [Contestant(f"{kind}, n = {problem.n}", problem.solve) for problem in problems]
        race(contestants, settings.effort)
        curve = {problem.n: c.minimum for problem, c in zip(problems, contestants, strict=True)}
        findings = [
            Finding("SCALING", f"{kind}: slope over n = 20..320", slope(curve), at_most=limit),
            Finding("SCALING", f"{kind}: slope over n = 160..320", slope({n: curve[n] for n in (160, 320)})),
        ]
        outcome.add(Outcome(findings, [("SCALING", c) for c in contestants], curves={kind: curve}))
    return outcome


def slope(curve: dict[int, float]) -> float:
    """Least squares through (log n, log seconds)."""
    x = [math.log(n) for n in curve]
    y = [math.log(seconds) for seconds in curve.values()]
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    covariance = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return covariance / sum((a - mean_x) ** 2 for a in x)


def memory(settings: Settings) -> Outcome:
    """The most memory that one step needs beyond what stood before it, in a process of its own."""
    if not _CLEAR.exists():
        return Outcome(
            notes=["TREE-MEMORY is left out: this system does not say how much memory was used at most"]
        )
    verify(trees(20, 160))
    outcome = Outcome([Finding("TREE-MEMORY", "peak extra memory", _apart("structattn"), "MB", at_most=100)])
    installed, _ = peers.enter(trees(2, 4), 1.0, ("torch-struct",)) if settings.peers else ([], [])
    for peer in installed:
        quantity = f"peak extra memory of {peer.name}"
        outcome.findings.append(Finding("TREE-MEMORY", quantity, _apart(peer.name), "MB"))
    return outcome


def _apart(name: str) -> float:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        return process.submit(peak_megabytes, name, torch.get_num_threads()).result()


def peak_megabytes(name: str, threads: int) -> float:
    """For 20 trees of 160 words. To be run in a fresh process: an older one may have the memory already."""
    torch.set_num_threads(threads)
    small, large = (_step(name, trees(20, n)) for n in (4, 160))
    small()
    before = _kilobytes("VmRSS")
    _CLEAR.write_text("5")  # forgets the peak up to now
    large()
    return (_kilobytes("VmHWM") - before) / 1000


def _step(name: str, problem: Problem) -> Callable[[], object]:
    entry = None if name == "structattn" else peers.PEERS[name](problem)
    return problem.solve if entry is None else entry.step


def _kilobytes(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1])
