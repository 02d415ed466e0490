"""Makes a native forward function and its native backward function differentiable to any order, everywhere.

The first derivative is native. Higher ones, and forward-mode derivatives, differentiate the plain-torch function that
computes the same thing. There are three ways in:

    eager                               Direct: the library is called straight from a torch.autograd.Function
    torch.func, forward mode            Inference, Gradient: the same with torch's rules for transforms, 100 us slower
    compiled graphs, fakes, tracers     the registered operators (operators.py)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import Parameter
from torch.utils._python_dispatch import _get_current_dispatch_mode

from structattn.kernels import native

Tensors = tuple[Tensor, ...]


def differentiable(
    forward: Callable[..., tuple[Tensor | None, ...]],
    backward: Callable[..., Tensors],
    operator: Callable[..., Tensors],
    gradient_operator: Callable[..., Tensors],
    plain: Callable[..., Tensors],
) -> Callable[..., tuple[Any, ...]]:
    """Returns infer(potentials, lengths, options), a tuple of results.

    Potentials are tuples of tensors whose first dimension is the batch B (1: shared); options are constants.

    forward(*potentials, lengths, *options, allocate) -> (*results, saved), None for what is not wanted
    backward(*potentials, lengths, *options, saved, *gradients or None) -> gradients of the potentials
    operator, gradient_operator: the same, registered with torch, without allocate, empty for what is not wanted
    plain(*potentials, lengths, *options) -> results, in differentiable torch operations
    """

    class Gradient(Function):
        @staticmethod
        def forward(lengths: Any, options: Any, saved: Any, count: int, *tensors: Any) -> Any:
            potentials, upstream = tensors[:count], tensors[count:]
            run = backward if _is_plain_eager(potentials[0]) else gradient_operator
            grads = run(*potentials, lengths, *options, saved, *upstream)
            return grads if isinstance(grads, tuple) else (grads,)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.lengths, ctx.options, _, ctx.count, *tensors = inputs
            ctx.save_for_backward(*tensors)

        @staticmethod
        def backward(ctx: Any, *second_order: Tensor) -> Any:
            present = [i for i, tensor in enumerate(ctx.saved_tensors) if tensor is not None]

            def gradients_of(*tensors: Tensor) -> Tensors:
                full = list(ctx.saved_tensors)
                for i, tensor in zip(present, tensors, strict=True):
                    full[i] = tensor
                potentials, upstream = full[: ctx.count], full[ctx.count :]
                results, pull_back = torch.func.vjp(  # type: ignore[misc]
                    lambda *p: plain(*p, ctx.lengths, *ctx.options), *potentials
                )
                pairs = zip(results, upstream, strict=True)
                return pull_back(tuple(torch.zeros_like(r) if g is None else g for r, g in pairs))

            given = [ctx.saved_tensors[i] for i in present]
            returned: list[Tensor | None] = [None] * len(ctx.saved_tensors)
            for i, grad in zip(present, torch.func.vjp(gradients_of, *given)[1](second_order), strict=True):
                returned[i] = grad
            return None, None, None, None, *returned

        @staticmethod
        def vmap(
            info: Any, in_dims: Any, lengths: Any, options: Any, saved: Any, count: int, *tensors: Any
        ) -> Any:
            size, dims = info.batch_size, in_dims[4:]
            if all(dim is None for dim in dims[:count]):
                # Only the upstream gradients are mapped over; `saved` belongs to the one set of potentials.
                rows = [
                    Gradient.apply(lengths, options, saved, count, *map(_row(i), tensors, dims))
                    for i in range(size)
                ]
                return tuple(torch.stack(column) for column in zip(*rows, strict=True)), (0,) * count
            potentials, lengths, batch = _merge_potentials(
                size, tensors[:count], dims[:count], lengths, in_dims[0]
            )
            upstream = (_merge(g, dim, size) for g, dim in zip(tensors[count:], dims[count:], strict=True))
            grads = Gradient.apply(lengths, options, saved, count, *potentials, *upstream)
            return tuple(map(_unmerge(size, batch), grads, tensors, dims)), (0,) * count

    class Inference(Function):
        @staticmethod
        def forward(lengths: Any, options: Any, *potentials: Any) -> Any:
            if _is_plain_eager(potentials[0]):
                return native.without_gaps(forward(*potentials, lengths, *options, torch.empty))
            return operator(*potentials, lengths, *options)

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            ctx.lengths, ctx.options, *potentials = inputs
            ctx.mark_non_differentiable(output[-1])
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*potentials, output[-1])
            ctx.save_for_forward(*potentials)

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            *potentials, saved = ctx.saved_tensors
            if all(grad is None for grad in upstream[:-1]):
                return (None,) * (2 + len(potentials))
            grads = Gradient.apply(
                ctx.lengths, ctx.options, saved, len(potentials), *potentials, *upstream[:-1]
            )
            return None, None, *grads

        @staticmethod
        def jvp(ctx: Any, _lengths: Any, _options: Any, *tangents: Any) -> Any:
            potentials = ctx.saved_tensors
            directions = tuple(
                torch.zeros_like(p) if t is None else t for p, t in zip(potentials, tangents, strict=True)
            )
            derivatives = torch.func.jvp(
                lambda *p: plain(*p, ctx.lengths, *ctx.options), potentials, directions
            )[1]
            return *derivatives, None

        @staticmethod
        def vmap(info: Any, in_dims: Any, lengths: Any, options: Any, *tensors: Any) -> Any:
            potentials, lengths, _ = _merge_potentials(
                info.batch_size, tensors, in_dims[2:], lengths, in_dims[0]
            )
            *results, saved = Inference.apply(lengths, options, *potentials)
            asked_for = [result.dim() > 0 and result.shape[0] == potentials[0].shape[0] for result in results]
            split = [
                r.unflatten(0, (info.batch_size, -1)) if a else r
                for r, a in zip(results, asked_for, strict=True)
            ]
            return (*split, saved), (*(0 if a else None for a in asked_for), None)

    class Direct(Function):
        @staticmethod
        def forward(ctx: Any, lengths: Any, options: Any, *potentials: Any) -> Any:
            *results, saved = forward(*potentials, lengths, *options, torch.empty)
            ctx.lengths, ctx.options = lengths, options
            ctx.set_materialize_grads(False)
            ctx.save_for_backward(*potentials, saved)
            return tuple(results)

        @staticmethod
        def backward(ctx: Any, *upstream: Any) -> Any:
            *potentials, saved = ctx.saved_tensors
            if torch.is_grad_enabled() or _transformed():
                grads = Gradient.apply(
                    ctx.lengths, ctx.options, saved, len(potentials), *potentials, *upstream
                )
            else:
                grads = backward(*potentials, ctx.lengths, *ctx.options, saved, *upstream)
            return None, None, *grads

    def infer(potentials: Tensors, lengths: Tensor | None, options: tuple[Any, ...]) -> tuple[Any, ...]:
        if torch.compiler.is_compiling():
            return operator(*potentials, lengths, *options)[:-1]
        if _transformed():
            return Inference.apply(lengths, options, *potentials)[:-1]
        if not _is_plain_eager(potentials[0]):
            return operator(*potentials, lengths, *options)[:-1]
        if torch.is_grad_enabled() and any(p.requires_grad for p in potentials):
            return Direct.apply(lengths, options, *potentials)
        return forward(*potentials, lengths, *options, None)[:-1]

    return infer


def direct_or_operator(
    direct: Callable[..., Tensor], operator: Callable[..., Tensor]
) -> Callable[..., Tensor]:
    """The same choice for a function that has no derivative."""

    def call(potentials: Tensor, *rest: Any) -> Tensor:
        return (direct if _is_plain_eager(potentials) else operator)(potentials, *rest)

    return call


def _is_plain_eager(tensor: Tensor) -> bool:
    return (
        type(tensor) in (Tensor, Parameter)
        and not torch.compiler.is_compiling()
        and _get_current_dispatch_mode() is None
    )


def _transformed() -> bool:
    # torch.func transforms, and forward-mode differentiation outside of them.
    return (
        torch._C._functorch.peek_interpreter_stack() is not None
        or torch.autograd.forward_ad._current_level >= 0
    )


# How vmap's dimension, wherever it is, is merged into the batch and taken out of it again.


def _to_front(tensor: Tensor, dim: int | None, size: int) -> Tensor:
    return tensor.expand(size, *tensor.shape) if dim is None else tensor.movedim(dim, 0)


def _merge(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    return None if tensor is None else _to_front(tensor, dim, size).flatten(0, 1)


def _merge_potentials(
    size: int,
    potentials: Tensors,
    dims: tuple[int | None, ...],
    lengths: Tensor | None,
    lengths_dim: int | None,
) -> tuple[list[Tensor], Tensor | None, int]:
    # Each gets a batch of its own: a gradient summed over vmap's dimension would be of no use to vmap.
    in_front = [_to_front(p, dim, size) for p, dim in zip(potentials, dims, strict=True)]
    batch = in_front[0].shape[1]
    merged = [p.expand(size, batch, *p.shape[2:]).flatten(0, 1) for p in in_front]
    return merged, _merge(lengths, lengths_dim, size), batch


def _unmerge(size: int, batch: int) -> Callable[[Tensor, Tensor, int | None], Tensor]:
    def unmerge(grad: Tensor, potential: Tensor, dim: int | None) -> Tensor:
        grad = grad.unflatten(0, (size, batch))
        own_batch = _to_front(potential, dim, size).shape[1]
        return grad if own_batch == batch else grad.sum(1, keepdim=True)

    return unmerge


def _row(i: int) -> Callable[[Tensor | None, int | None], Tensor | None]:
    return lambda tensor, dim: tensor if tensor is None or dim is None else tensor.select(dim, i)
