"""Peers in JAX: SynJax, and the forward-backward algorithm by hand with lax.scan, both compiled by XLA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from structattn import LinearChain
from structattn.benchmarks.problems import Problem

Prepared = tuple[Callable[[], object], Callable[[], Tensor]]
"""The step to be timed, and the result as a torch tensor of our form."""


def scan(problem: Problem) -> Prepared | None:
    import jax
    import jax.numpy as jnp

    if problem.structure is not LinearChain:
        return None

    def compute(unary: Any, transitions: Any) -> Any:
        by_position = jnp.swapaxes(unary, 0, 1)
        steps = (len(by_position) - 1, *transitions.shape[-2:])
        own = transitions.ndim > 2
        by_step = jnp.swapaxes(transitions, 0, 1) if own else jnp.broadcast_to(transitions, steps)

        def forward(alpha: Any, step: Any) -> Any:
            scores, arriving = step
            alpha = jax.nn.logsumexp(alpha[:, :, None] + scores, axis=1) + arriving
            return alpha, alpha

        last, alphas = jax.lax.scan(forward, by_position[0], (by_step, by_position[1:]))
        if problem.quantity == "log_partition":
            return jax.nn.logsumexp(last, axis=1)

        def backward(beta: Any, step: Any) -> Any:
            scores, leaving = step
            beta = jax.nn.logsumexp(scores + (leaving + beta)[:, None, :], axis=2)
            return beta, beta

        end = jnp.zeros_like(last)
        _, betas = jax.lax.scan(backward, end, (by_step, by_position[1:]), reverse=True)
        alphas = jnp.concatenate([by_position[:1], alphas])
        betas = jnp.concatenate([betas, end[None]])
        return jnp.swapaxes(jax.nn.softmax(alphas + betas, axis=2), 0, 1)

    return _prepared(compute, [potentials.detach() for potentials in problem.potentials])


def synjax(problem: Problem) -> Prepared | None:
    import synjax

    if problem.lengths is not None or problem.quantity != "marginals":
        return None
    if problem.structure is not LinearChain:

        def marginals(arcs: Any) -> Any:
            options = {"directed": True, "projective": True, "single_root_edge": False}
            return synjax.SpanningTreeCRF(arcs, **options).marginals()

        return _prepared(marginals, [problem.potentials[0].detach()])
    unary, transitions = (potentials.detach() for potentials in problem.potentials)
    # Step 0 enters position 0 from the first state of a position before it.
    edges = torch.zeros(*unary.shape, unary.shape[2])
    edges[:, 0, 0] = unary[:, 0]
    edges[:, 1:] = transitions + unary[:, 1:].unsqueeze(2)

    def edge_marginals(edges: Any) -> Any:
        return synjax.LinearChainCRF(edges).marginals()

    return _prepared(edge_marginals, [edges], lambda result: result.sum(2))


def _prepared(
    compute: Callable[..., Any],
    potentials: list[Tensor],
    as_ours: Callable[[Tensor], Tensor] = lambda result: result,
) -> Prepared:
    import jax
    import numpy

    arrays = [jax.numpy.asarray(tensor.numpy()) for tensor in potentials]
    compiled = jax.jit(compute)
    shape = jax.eval_shape(compute, *arrays).shape
    weights = jax.random.normal(jax.random.PRNGKey(0), shape)

    def loss(*inputs: Any) -> Any:
        return (compute(*inputs) * weights).sum()

    gradients = jax.jit(jax.grad(loss, tuple(range(len(arrays)))))

    def step() -> object:
        return jax.block_until_ready(gradients(*arrays))

    return step, lambda: as_ours(torch.from_numpy(numpy.array(compiled(*arrays))))
