"""The one binding to the native library (kernels/native/api.h), by ctypes, and its registration as torch operators.

Shapes here are flat: one batch dimension B. log Z and its gradient are float64, whatever the potentials are.
Transitions come as (B or 1, n - 1 or 1, C, C); a dimension of size 1 is shared, and is never expanded. ``saved`` is
what a forward function leaves for its backward function, a float64 vector.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import os
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

LOG_PARTITION, MARGINALS, EDGE_MARGINALS = 0, 1, 2
"""What a forward function is asked for; each includes the ones before. What was not asked for comes back as None."""

_OK, _OUT_OF_MEMORY, _TOO_LARGE, _BAD_FIRST_ARGUMENT, _BAD_SECOND_ARGUMENT = range(5)

# i: int, q: 64-bit size, p: pointer, as in api.h.
_SIGNATURES = {
    "structattn_chain_saved_size": "qqq",
    "structattn_chain_forward": "iqqqppqqpiipppp",
    "structattn_chain_backward": "iqqqppqqpipppppp",
    "structattn_chain_viterbi": "iqqqppqqpiip",
    "structattn_projective_saved_size": "qq",
    "structattn_projective_forward": "iqqppiiippp",
    "structattn_projective_backward": "iqqppiipppp",
    "structattn_projective_viterbi": "iqqppiiip",
}
_CTYPES = {"i": ctypes.c_int, "q": ctypes.c_int64, "p": ctypes.c_void_p}


@functools.cache
def library() -> Any:
    """The loaded library; None, with one warning, where there is none.

    The environment variable STRUCTATTN_NATIVE=0 leaves it out; STRUCTATTN_NATIVE=FILE loads that build of it.
    """
    chosen = os.environ.get("STRUCTATTN_NATIVE")
    if chosen:
        return None if chosen == "0" else _load(chosen)
    found = importlib.util.find_spec("structattn.kernels._native")
    reason = "this installation was built without a C++ compiler"
    if found is not None and found.origin is not None:
        try:
            return _load(found.origin)
        except (OSError, AttributeError) as error:
            reason = f"the native library {found.origin} cannot be loaded: {error}"
    warnings.warn(
        f"structattn computes in plain torch, which is exact but slow, because {reason}. "
        "Install a C++ compiler with OpenMP (Debian: g++) and reinstall structattn to get the fast kernels.",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _load(path: str) -> Any:
    # torch was imported before, so that both share one OpenMP.
    loaded = ctypes.CDLL(path)
    for name, signature in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes = [_CTYPES[letter] for letter in signature]
        function.restype = ctypes.c_int64 if name.endswith("_size") else ctypes.c_int
    loaded.structattn_level.restype = ctypes.c_char_p
    return loaded


def called_once_when_compiling(function: Callable[[], Any]) -> Callable[[], Any]:
    """torch.compile does not trace this function but calls it, once, and takes the answer for a constant.

    torch.compiler.assume_constant_result does this and no more, but imports the compiler, which takes 2 s.
    """
    function._dynamo_marked_constant = True  # type: ignore[attr-defined]
    return function


@called_once_when_compiling
def available() -> bool:
    """Whether the native kernels can be used."""
    return library() is not None


def level() -> str:
    """The instruction set in use: "v2", "v3", "v4" (of x86-64), "baseline", or "none"."""
    loaded = library()
    return "none" if loaded is None else loaded.structattn_level().decode()


_threads: Callable[[], int] = torch.get_num_threads
"""How many a kernel may use."""


def _alone() -> None:
    """A fork copies one thread and OpenMP's belief that there are more: whoever asked for them would wait forever."""
    global _threads
    _threads = lambda: 1  # noqa: E731


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_alone)

Allocate = Callable[..., Tensor]
"""torch.empty, or torch.zeros where an output may not hold cells that nobody wrote."""


@functools.lru_cache(1024)
def workspace_size(kernel: str, *shape: int) -> int:
    """How many float64 numbers the forward function of "chain" (B, n, C) or "projective" (B, n) saves."""
    size = getattr(library(), f"structattn_{kernel}_saved_size")(*shape)
    if size < 0:
        raise ValueError(f"potentials: a batch of shape {shape} is too large for 64-bit indices")
    return size


def _workspace(allocate: Allocate | None, kernel: str, *shape: int) -> Tensor | None:
    if allocate is None:
        return None
    size = workspace_size(kernel, *shape)
    try:
        return allocate(size, dtype=torch.float64)
    except RuntimeError as error:  # torch's way to say that there is not so much memory
        raise _out_of_memory() from error


def without_gaps(results: tuple[Tensor | None, ...]) -> Any:
    """The results with an empty tensor for what was not asked for: torch's operators return nothing but tensors."""
    return tuple(torch.empty(0) if result is None else result for result in results)


def _pointer(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _contiguous(*tensors: Any) -> Any:
    """The tensors as the kernels read them: one number behind the other. What is expanded is not."""
    return [None if tensor is None else tensor.contiguous() for tensor in tensors]


def _out_of_memory() -> MemoryError:
    return MemoryError("structattn: not enough memory for the workspace of the native kernel")


def _succeed(status: int, first: str, second: str = "") -> None:
    if status == _OK:
        return
    if status == _OUT_OF_MEMORY:
        raise _out_of_memory()
    if status == _TOO_LARGE:
        raise ValueError(f"{first}: too large for 64-bit indices")
    refuse_values(second if status == _BAD_SECOND_ARGUMENT else first)


def refuse_values(argument: str) -> None:
    """The one message for potentials that are no potentials."""
    raise ValueError(f"{argument}: expected finite scores or -inf (forbidden), got NaN or +inf")


def _transition_strides(transitions: Tensor) -> tuple[int, int]:
    batch, steps, states, _ = transitions.shape
    block = states * states
    return (0 if batch == 1 else steps * block), (0 if steps == 1 else block)


def chain_forward(
    unary: Tensor,
    transitions: Tensor,
    lengths: Tensor | None,
    wanted: int,
    check: bool,
    allocate: Allocate | None,
) -> tuple[Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """log_partition (B), marginals (B, n, C), edge_marginals (B, n - 1, C, C), saved (with allocate)."""
    loaded = library()
    unary, transitions, lengths = _contiguous(unary, transitions, lengths)
    batch, n, states = unary.shape
    log_partition = unary.new_empty(batch, dtype=torch.float64)
    marginals = torch.empty_like(unary) if wanted >= MARGINALS else None
    edges = (batch, max(n - 1, 0), states, states)
    edge_marginals = unary.new_empty(edges) if wanted >= EDGE_MARGINALS else None
    saved = _workspace(allocate, "chain", batch, n, states)
    status = loaded.structattn_chain_forward(
        unary.dtype == torch.float64,
        batch,
        n,
        states,
        unary.data_ptr(),
        transitions.data_ptr(),
        *_transition_strides(transitions),
        _pointer(lengths),
        check,
        _threads(),
        _pointer(saved),
        log_partition.data_ptr(),
        _pointer(marginals),
        _pointer(edge_marginals),
    )
    _succeed(status, "unary", "transitions")
    return log_partition, marginals, edge_marginals, saved


def chain_backward(
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
    """The gradients to unary and transitions, each in its own shape."""
    loaded = library()
    unary, transitions, lengths = _contiguous(unary, transitions, lengths)
    batch, n, states = unary.shape
    upstream = _contiguous(grad_log_partition, grad_marginals, grad_edge_marginals)
    grad_unary, grad_transitions = torch.empty_like(unary), torch.empty_like(transitions)
    status = loaded.structattn_chain_backward(
        unary.dtype == torch.float64,
        batch,
        n,
        states,
        unary.data_ptr(),
        transitions.data_ptr(),
        *_transition_strides(transitions),
        _pointer(lengths),
        _threads(),
        saved.data_ptr(),
        *map(_pointer, upstream),
        grad_unary.data_ptr(),
        grad_transitions.data_ptr(),
    )
    _succeed(status, "unary", "transitions")
    return grad_unary, grad_transitions


def chain_viterbi(unary: Tensor, transitions: Tensor, lengths: Tensor | None, check: bool) -> Tensor:
    """The best states (B, n)."""
    loaded = library()
    unary, transitions, lengths = _contiguous(unary, transitions, lengths)
    batch, n, states = unary.shape
    best = unary.new_empty((batch, n), dtype=torch.int64)
    status = loaded.structattn_chain_viterbi(
        unary.dtype == torch.float64,
        batch,
        n,
        states,
        unary.data_ptr(),
        transitions.data_ptr(),
        *_transition_strides(transitions),
        _pointer(lengths),
        check,
        _threads(),
        best.data_ptr(),
    )
    _succeed(status, "unary", "transitions")
    return best


def projective_forward(
    arcs: Tensor,
    lengths: Tensor | None,
    single_root: bool,
    wanted: int,
    check: bool,
    allocate: Allocate | None,
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """log_partition (B), marginals (B, n, n), saved (with allocate)."""
    loaded = library()
    arcs, lengths = _contiguous(arcs, lengths)
    batch, n, _ = arcs.shape
    log_partition = arcs.new_empty(batch, dtype=torch.float64)
    marginals = torch.empty_like(arcs) if wanted >= MARGINALS else None
    saved = _workspace(allocate, "projective", batch, n)
    status = loaded.structattn_projective_forward(
        arcs.dtype == torch.float64,
        batch,
        n,
        arcs.data_ptr(),
        _pointer(lengths),
        single_root,
        check,
        _threads(),
        _pointer(saved),
        log_partition.data_ptr(),
        _pointer(marginals),
    )
    _succeed(status, "arcs")
    return log_partition, marginals, saved


def projective_backward(
    arcs: Tensor,
    lengths: Tensor | None,
    single_root: bool,
    wanted: int,
    check: bool,
    saved: Tensor,
    grad_log_partition: Tensor | None,
    grad_marginals: Tensor | None,
) -> tuple[Tensor]:
    """The gradient to arcs."""
    loaded = library()
    arcs, lengths = _contiguous(arcs, lengths)
    batch, n, _ = arcs.shape
    upstream = _contiguous(grad_log_partition, grad_marginals)
    grad_arcs = torch.empty_like(arcs)
    status = loaded.structattn_projective_backward(
        arcs.dtype == torch.float64,
        batch,
        n,
        arcs.data_ptr(),
        _pointer(lengths),
        single_root,
        _threads(),
        saved.data_ptr(),
        *map(_pointer, upstream),
        grad_arcs.data_ptr(),
    )
    _succeed(status, "arcs")
    return (grad_arcs,)


def projective_viterbi(arcs: Tensor, lengths: Tensor | None, single_root: bool, check: bool) -> Tensor:
    """The heads (B, n) of the best trees."""
    loaded = library()
    arcs, lengths = _contiguous(arcs, lengths)
    batch, n, _ = arcs.shape
    heads = arcs.new_empty((batch, n), dtype=torch.int64)
    status = loaded.structattn_projective_viterbi(
        arcs.dtype == torch.float64,
        batch,
        n,
        arcs.data_ptr(),
        _pointer(lengths),
        single_root,
        check,
        _threads(),
        heads.data_ptr(),
    )
    _succeed(status, "arcs")
    return heads
