"""Which implementation computes: native kernels, plain torch, or the paper's printed algorithms."""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import torch
from torch import Tensor

from structattn.kernels import native

BACKENDS = ("auto", "native", "plain", "paper")

_selected = contextvars.ContextVar("structattn_backend", default="auto")


@contextlib.contextmanager
def backend(name: str) -> Iterator[None]:
    """Within this context (and this thread) distributions compute with the named implementation.

    "auto"    the native kernels for CPU tensors, plain torch for everything else: the default
    "native"  the native kernels; an error where they cannot serve
    "plain"   plain torch, on any device
    "paper"   the algorithms printed in the paper (:mod:`structattn.paper`) for log_partition and marginals of chains
              and projective trees, differentiable once; plain torch for the rest
    """
    if name not in BACKENDS:
        raise ValueError(f"backend: expected one of {', '.join(BACKENDS)}, got {name!r}")
    token = _selected.set(name)
    try:
        yield
    finally:
        _selected.reset(token)


# torch.compile cannot trace a ContextVar.
@native.called_once_when_compiling
def selected_backend() -> str:
    """The name given to the innermost :func:`backend` context."""
    return _selected.get()


@native.called_once_when_compiling
def _inside_function_transform() -> bool:
    return torch._C._functorch.peek_interpreter_stack() is not None


def native_serves(potentials: Tensor) -> bool:
    """Whether the native kernels compute with these potentials here and now."""
    name = selected_backend()
    if name in ("plain", "paper"):
        return False
    if potentials.device.type != "cpu" or not native.available():
        if name == "native":
            where = (
                f"a tensor on {potentials.device}"
                if native.available()
                else "this installation, built without them"
            )
            raise RuntimeError(
                f"backend 'native': the native kernels cannot serve {where}; use backend 'auto'"
            )
        return False
    # A compiled graph calls the registered operators, whose autograd rule does not compose with torch.func (jvp would
    # silently be zero); plain torch does.
    return not (torch.compiler.is_compiling() and _inside_function_transform())
