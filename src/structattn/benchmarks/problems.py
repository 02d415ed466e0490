"""What is computed: potentials of a batch of structures, and the step that is timed.

A step is one forward and one backward pass as it happens inside a network: the distribution is constructed,
its marginals are used, and sum(marginals * weights) is differentiated. So it is for softmax.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

import structattn
from structattn import LinearChain, ProjectiveTree

Step = Callable[[], tuple[Tensor, ...]]
"""Computes a result and its gradients: (result, *gradients)."""


@dataclass(frozen=True, eq=False)
class Problem:
    structure: Callable[..., LinearChain | ProjectiveTree]
    potentials: tuple[Tensor, ...]
    """Leaves: (arcs,) of a tree, (unary, transitions) of a chain: [C, C], shared, or [B, n - 1, C, C]."""
    weights: Tensor
    lengths: Tensor | None = None
    quantity: str = "marginals"

    @property
    def batch(self) -> int:
        return len(self.potentials[0])

    @property
    def n(self) -> int:
        return self.potentials[0].shape[1]

    @property
    def shared(self) -> list[bool]:
        """Which of the potentials all sentences share."""
        return [potentials.dim() == 2 for potentials in self.potentials]

    def distribution(self) -> LinearChain | ProjectiveTree:
        return self.structure(*self.potentials, lengths=self.lengths)

    def result(self) -> Tensor:
        return getattr(self.distribution(), self.quantity)

    def solve(self) -> tuple[Tensor, ...]:
        """The step that is timed."""
        result = self.result()
        return result, *torch.autograd.grad((result * self.weights).sum(), self.potentials)

    def part(self, batch: int, n: int | None = None, states: int | None = None) -> Problem:
        """The first sentences, words and states only."""
        n = self.n if n is None else min(n, self.n)
        if self.structure is LinearChain:
            unary, transitions = self.potentials
            if transitions.dim() > 2:
                transitions = transitions[:batch, : n - 1]
            cut = [unary[:batch, :n, :states], transitions[..., :states, :states]]
            corner = (slice(n), slice(states))
        else:
            cut = [self.potentials[0][:batch, :n, :n]]
            corner = (slice(n), slice(n))
        return replace(
            self,
            potentials=tuple(_leaf(potentials) for potentials in cut),
            weights=self.weights[(slice(batch), *corner)[: self.weights.dim()]],
            lengths=None if self.lengths is None else self.lengths[:batch].clamp_max(n),
        )

    def exactly(self) -> tuple[Tensor, ...]:
        """solve() by the plain-torch path in float64."""
        wide = replace(
            self,
            potentials=tuple(_leaf(potentials.double()) for potentials in self.potentials),
            weights=self.weights.double(),
        )
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # many small operations: threads would only wait for each other
        try:
            with structattn.backend("plain"):
                return wide.solve()
        finally:
            torch.set_num_threads(threads)


def chains(
    batch: int, n: int, states: int, own_transitions: bool = False, quantity: str = "marginals"
) -> Problem:
    """Chains with shared transitions, or each with its own (then there is nothing in the unary)."""
    unary = torch.zeros(batch, n, states) if own_transitions else _normal(batch, n, states)
    transitions = _normal(batch, n - 1, states, states) if own_transitions else _normal(states, states)
    weights = _normal(batch, n, states) if quantity == "marginals" else torch.ones(batch)
    return Problem(LinearChain, (_leaf(unary), _leaf(transitions)), weights, quantity=quantity)


def segmentations(batch: int, n: int) -> Problem:
    """Two-state chains as segmentation attention makes them: the state "not attended to" scores 0."""
    problem = chains(batch, n, 2)
    problem.potentials[0].data[..., 0] = 0.0
    return problem


def trees(batch: int, n: int, lengths: Tensor | None = None) -> Problem:
    return Problem(ProjectiveTree, (_leaf(_normal(batch, n, n)),), _normal(batch, n, n), lengths)


def softmax(*shape: int) -> Step:
    """torch.softmax over the last dimension, forward and backward."""
    scores, weights = _leaf(_normal(*shape)), _normal(*shape)

    def step() -> tuple[Tensor, ...]:
        result = torch.softmax(scores, -1)
        return result, *torch.autograd.grad((result * weights).sum(), scores)

    return step


def without_loss(compute: Callable[[], Tensor], leaves: Sequence[Tensor], weights: Tensor) -> Step:
    """The same step, but the gradient is handed over: what remains is the price of the call."""

    def step() -> tuple[Tensor, ...]:
        result = compute()
        return result, *torch.autograd.grad(result, leaves, weights)

    return step


def _normal(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def _leaf(tensor: Tensor) -> Tensor:
    return tensor.detach().clone().requires_grad_()
