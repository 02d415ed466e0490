"""The native functions as torch operators ``torch.ops.structattn.*``: with shapes for tracers and a gradient.

Importing this module registers them. Outside of compiled graphs and tracers nothing passes through here.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.library import custom_op

from structattn.kernels import native


@custom_op("structattn::chain", mutates_args=(), device_types="cpu")
def chain(
    unary: Tensor, transitions: Tensor, lengths: Tensor | None, wanted: int, check: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return native.without_gaps(native.chain_forward(unary, transitions, lengths, wanted, check, torch.zeros))


@chain.register_fake
def _(unary: Tensor, transitions: Tensor, lengths: Tensor | None, wanted: int, check: bool) -> Any:
    batch, n, states = unary.shape
    edges = (batch, max(n - 1, 0), states, states)
    return (
        unary.new_empty(batch, dtype=torch.float64),
        unary.new_empty((batch, n, states) if wanted >= native.MARGINALS else 0),
        unary.new_empty(edges if wanted >= native.EDGE_MARGINALS else 0),
        _fake_workspace("chain", unary),
    )


@custom_op("structattn::chain_gradient", mutates_args=(), device_types="cpu")
def chain_gradient(
    unary: Tensor,
    transitions: Tensor,
    lengths: Tensor | None,
    wanted: int,
    check: bool,
    saved: Tensor,
    grad_log_partition: Tensor | None,
    grad_marginals: Tensor | None,
    grad_edge_marginals: Tensor | None,
) -> tuple[Tensor, Tensor]:
    upstream = (grad_log_partition, grad_marginals, grad_edge_marginals)
    return native.chain_backward(unary, transitions, lengths, wanted, check, saved, *upstream)


@chain_gradient.register_fake
def _(unary: Tensor, transitions: Tensor, *_: Any) -> Any:
    return unary.new_empty(unary.shape), transitions.new_empty(transitions.shape)


@custom_op("structattn::projective", mutates_args=(), device_types="cpu")
def projective(
    arcs: Tensor, lengths: Tensor | None, single_root: bool, wanted: int, check: bool
) -> tuple[Tensor, Tensor, Tensor]:
    return native.without_gaps(
        native.projective_forward(arcs, lengths, single_root, wanted, check, torch.zeros)
    )


@projective.register_fake
def _(arcs: Tensor, lengths: Tensor | None, single_root: bool, wanted: int, check: bool) -> Any:
    marginals = arcs.new_empty(arcs.shape if wanted >= native.MARGINALS else 0)
    return (
        arcs.new_empty(arcs.shape[0], dtype=torch.float64),
        marginals,
        _fake_workspace("projective", arcs[:, 0]),
    )


@custom_op("structattn::projective_gradient", mutates_args=(), device_types="cpu")
def projective_gradient(
    arcs: Tensor,
    lengths: Tensor | None,
    single_root: bool,
    wanted: int,
    check: bool,
    saved: Tensor,
    grad_log_partition: Tensor | None,
    grad_marginals: Tensor | None,
) -> Tensor:
    upstream = (grad_log_partition, grad_marginals)
    return native.projective_backward(arcs, lengths, single_root, wanted, check, saved, *upstream)[0]


@projective_gradient.register_fake
def _(arcs: Tensor, *_: Any) -> Tensor:
    return arcs.new_empty(arcs.shape)


@custom_op("structattn::chain_viterbi", mutates_args=(), device_types="cpu")
def chain_viterbi(unary: Tensor, transitions: Tensor, lengths: Tensor | None, check: bool) -> Tensor:
    return native.chain_viterbi(unary, transitions, lengths, check)


@chain_viterbi.register_fake
def _(unary: Tensor, *_: Any) -> Tensor:
    return unary.new_empty(unary.shape[:2], dtype=torch.int64)


@custom_op("structattn::projective_viterbi", mutates_args=(), device_types="cpu")
def projective_viterbi(arcs: Tensor, lengths: Tensor | None, single_root: bool, check: bool) -> Tensor:
    return native.projective_viterbi(arcs, lengths, single_root, check)


@projective_viterbi.register_fake
def _(arcs: Tensor, *_: Any) -> Tensor:
    return arcs.new_empty(arcs.shape[:2], dtype=torch.int64)


def _fake_workspace(kernel: str, like: Tensor) -> Tensor:
    # How much a kernel saves is its own affair: for symbolic shapes, a size that only the running graph knows.
    shape = tuple(like.shape)
    known = all(isinstance(size, int) for size in shape)
    size = native.workspace_size(kernel, *shape) if known else torch.library.get_ctx().new_dynamic_size()
    return like.new_empty(size, dtype=torch.float64)


def _register_gradient(operator: Any, gradient: Any, count: int) -> None:
    """operator(*count potentials, *rest) -> (*results, saved) has the gradient operator as its derivative."""

    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.set_materialize_grads(False)
        ctx.lengths, *ctx.options = inputs[count:]
        ctx.save_for_backward(*inputs[:count], output[-1])

    def backward(ctx: Any, *upstream: Any) -> Any:
        *potentials, saved = ctx.saved_tensors
        nothing = (None,) * (1 + len(ctx.options))
        if all(grad is None for grad in upstream[:-1]):
            return (None,) * count + nothing
        grads = gradient(*potentials, ctx.lengths, *ctx.options, saved, *upstream[:-1])
        return (grads if count > 1 else (grads,)) + nothing

    operator.register_autograd(backward, setup_context=setup_context)


_register_gradient(chain, chain_gradient, 2)
_register_gradient(projective, projective_gradient, 1)
