"""Other libraries that compute the same thing, where they are installed, each in the form that it takes.

Potentials that a library wants stacked are stacked beforehand, at no cost to it. A library is entered when it
computes what we compute; one that does not, or that does not work here, is left out, with a remark.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import pad

from structattn import LinearChain
from structattn.benchmarks import jax_peers
from structattn.benchmarks.problems import Problem
from structattn.benchmarks.timing import Contestant

_AGREEMENT = 1e-3
"""Peers lose more digits than we allow ourselves."""

_UNROLLED = 8
"""torch.compile unrolls the loop over positions: longer chains would compile for minutes."""


@dataclass(frozen=True)
class Entry:
    """A peer's way to solve a problem: the step to be timed, and its result in our form."""

    step: Callable[[], object]
    result: Callable[[], Tensor]


Prepare = Callable[[Problem], Entry | None]
"""None: the peer has nothing for this kind of problem."""


def enter(
    problem: Problem, seconds: float, names: Iterable[str] | None = None
) -> tuple[list[Contestant], list[str]]:
    """Those of the named peers (None: all) that can solve the problem, and remarks on the others."""
    warnings.filterwarnings("ignore", module="torch_struct|supar|torchcrf|synjax|jax")
    contestants, notes = [], []
    for name in PEERS if names is None else names:
        try:
            entry = PEERS[name](problem)
            if entry is None:
                continue
            difference = float((entry.result() - problem.solve()[0]).detach().abs().max())
        except ImportError:
            notes.append(f"{name} is not installed")
        except Exception as error:  # whatever it is, a peer's failure must not end the benchmark
            notes.append(f"{name} does not work here: {type(error).__name__}: {error}")
        else:
            if difference <= _AGREEMENT:
                contestants.append(Contestant(name, entry.step, seconds))
            else:
                notes.append(f"{name} is left out: its result is off by {difference:.1e}")
    return contestants, notes


def torch_struct(problem: Problem) -> Entry | None:
    import torch_struct

    if problem.lengths is not None:
        return None
    if problem.structure is not LinearChain:
        arcs = problem.potentials[0].detach()
        words = torch.arange(problem.n - 1)
        inner = arcs[:, 1:, 1:].clone()
        inner[:, words, words] = arcs[:, 0, 1:]
        inner.requires_grad_()

        def heads(marginals: Tensor) -> Tensor:
            roots = marginals.diagonal(0, 1, 2)
            return torch.cat(
                [pad(roots, (1, 0)).unsqueeze(1), pad(marginals - roots.diag_embed(), (1, 0))], 1
            )

        weights = torch.randn_like(inner)
        return _with_torch(lambda: torch_struct.DependencyCRF(inner).marginals, [inner], weights, heads)
    edges = stacked_edges(problem).mT.contiguous().requires_grad_()
    if problem.quantity == "log_partition":
        return _with_torch(lambda: torch_struct.LinearChainCRF(edges).partition, [edges], problem.weights)

    def nodes(marginals: Tensor) -> Tensor:
        return torch.cat([marginals[:, :1].sum(2), marginals.sum(3)], 1)

    weights = torch.randn_like(edges)
    return _with_torch(lambda: torch_struct.LinearChainCRF(edges).marginals, [edges], weights, nodes)


def supar(problem: Problem) -> Entry | None:
    from supar.structs import DependencyCRF, LinearChainCRF

    if problem.lengths is not None:
        return None
    if problem.structure is not LinearChain:
        scores = problem.potentials[0].detach().mT.contiguous().requires_grad_()
        weights = torch.randn_like(scores)

        def by_dependent() -> Tensor:
            return DependencyCRF(scores, multiroot=True).marginals

        return _with_torch(by_dependent, [scores], weights, lambda marginals: marginals.mT)
    unary, transitions = (potentials.detach().clone() for potentials in problem.potentials)
    if transitions.dim() > 2:
        return None
    unary, transitions = unary.requires_grad_(), pad(transitions, (0, 1, 0, 1)).requires_grad_()

    def compute() -> Tensor:
        return getattr(LinearChainCRF(unary, transitions), problem.quantity)

    return _with_torch(compute, [unary, transitions], problem.weights)


def pytorch_crf(problem: Problem) -> Entry | None:
    from torchcrf import CRF

    shared = problem.structure is LinearChain and problem.potentials[1].dim() == 2
    if problem.quantity != "log_partition" or not shared:
        return None
    unary, transitions = problem.potentials
    crf = CRF(unary.shape[2], batch_first=True)
    for parameter, scores in zip(crf.parameters(), (0.0, 0.0, transitions.detach()), strict=True):
        parameter.data.copy_(torch.as_tensor(scores))
    gold = torch.zeros(unary.shape[:2], dtype=torch.long)
    score = LinearChain(unary, transitions).score(gold).detach()

    def loss() -> Tensor:
        return -crf(unary, gold, reduction="none")

    return _with_torch(loss, [unary, crf.transitions], problem.weights, lambda result: result + score)


def loop_in_torch(problem: Problem) -> Entry | None:
    """The forward-backward algorithm as one writes it by hand."""
    if problem.structure is not LinearChain:
        return None
    return _by_hand(problem, forward_backward)


def compiled_loop_in_torch(problem: Problem) -> Entry | None:
    """The same, by torch.compile."""
    if problem.structure is not LinearChain or problem.n > _UNROLLED:
        return None
    return _by_hand(problem, torch.compile(forward_backward))


def _by_hand(problem: Problem, compute: Callable[[Tensor, Tensor, str], Tensor]) -> Entry:
    unary, transitions = problem.potentials
    leaves = [unary, transitions]
    return _with_torch(lambda: compute(unary, transitions, problem.quantity), leaves, problem.weights)


def forward_backward(unary: Tensor, transitions: Tensor, quantity: str) -> Tensor:
    n = unary.shape[1]
    steps = [transitions if transitions.dim() == 2 else transitions[:, t] for t in range(n - 1)]
    alphas = [unary[:, 0]]
    for t in range(1, n):
        alphas.append((alphas[-1].unsqueeze(2) + steps[t - 1]).logsumexp(1) + unary[:, t])
    if quantity == "log_partition":
        return alphas[-1].logsumexp(1)
    betas = [torch.zeros_like(alphas[-1])]
    for t in reversed(range(n - 1)):
        betas.append((steps[t] + (unary[:, t + 1] + betas[-1]).unsqueeze(1)).logsumexp(2))
    return (torch.stack(alphas, 1) + torch.stack(betas[::-1], 1)).softmax(2)


def stacked_edges(problem: Problem) -> Tensor:
    """All scores of a chain as (B, n - 1, C, C), [b, t, i, j] for states i at t and j at t + 1."""
    unary, transitions = (potentials.detach() for potentials in problem.potentials)
    edges = transitions + unary[:, 1:].unsqueeze(2)
    edges[:, 0] += unary[:, 0].unsqueeze(2)
    return edges


def _with_torch(
    compute: Callable[[], Tensor],
    leaves: list[Tensor],
    weights: Tensor,
    as_ours: Callable[[Tensor], Tensor] = lambda result: result,
) -> Entry:
    """compute() with the gradients of its weighted sum; nothing is computed yet."""

    def step() -> tuple[Tensor, ...]:
        return torch.autograd.grad((compute() * weights).sum(), leaves)

    return Entry(step, lambda: as_ours(compute()).detach())


def _with_jax(prepare: Callable[[Problem], jax_peers.Prepared | None]) -> Prepare:
    def entry(problem: Problem) -> Entry | None:
        prepared = prepare(problem)
        return None if prepared is None else Entry(*prepared)

    return entry


PEERS: dict[str, Prepare] = {
    "torch-struct": torch_struct,
    "SuPar": supar,
    "pytorch-crf": pytorch_crf,
    "SynJax": _with_jax(jax_peers.synjax),
    "JAX scan": _with_jax(jax_peers.scan),
    "torch loop": loop_in_torch,
    "torch.compile": compiled_loop_in_torch,
}


def versions() -> dict[str, str]:
    """What is installed of the peers."""
    found = {}
    for package in ("torch-struct", "supar", "pytorch-crf", "jax", "synjax"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
