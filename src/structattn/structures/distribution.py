"""What all structures share: the names of the verbs, lengths, validation, and everything that follows from marginals.

A structure is a distribution p(z) = exp(score(z)) / Z over discrete objects z whose score is a sum of potentials, one
for each part that z has. Writing the potentials as a vector theta and the parts of z as a 0/1 vector,

    log Z(theta) = log sum_z exp <theta, z>         the log-partition function
    p(part) = d log Z / d theta                     marginals
    H(p) = log Z - <theta, marginals>               entropy
    -E_p log q = log Z_q - <theta_q, marginals_p>   cross-entropy

so a structure has only to say what its parts are and how log Z, the best, the k best and random z are found.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import wraps
from typing import Any, ClassVar, Self, TypeVar

import torch
from torch import Tensor
from torch.distributions import Distribution, register_kl

from structattn.kernels import native, selected_backend
from structattn.kernels.plain import NEG_INF

Result = TypeVar("Result")


def kept(compute: Callable[[Any], Result]) -> Any:
    """A property computed when first asked for and kept; with and without gradient are kept apart."""
    name = compute.__name__

    @wraps(compute)
    def ask(self: Any) -> Result:
        key = (name, torch.is_grad_enabled(), selected_backend())
        if key not in self._kept:
            self._kept[key] = compute(self)
        return self._kept[key]

    return property(ask)


class Structure(Distribution, ABC):
    """Base class of the structured distributions."""

    arg_constraints: ClassVar[dict[str, Any]] = {}
    has_rsample = False
    has_enumerate_support = False

    _potentials: tuple[Tensor, ...]
    """Flat over the batch: (B, ...) or, where all sentences share it, (1, ...)."""
    _dtype: torch.dtype
    """The caller's; results come in it."""
    _lengths: Tensor | None
    """Flat, int64, (B); None: all positions count."""

    def _set_up(
        self,
        batch_shape: torch.Size,
        event_shape: torch.Size,
        lengths: Tensor | None,
        validate_args: bool | None,
    ) -> None:
        # Distribution.__init__ walks over constraints, which costs more than a small kernel.
        self._batch_shape, self._event_shape = batch_shape, event_shape
        # torch.compile turns Distribution's own default off for the whole process, without being asked.
        self._validate = validate_args is not False
        self._kept: dict[Any, Any] = {}
        self.lengths = lengths
        self._lengths = None if lengths is None else self._flat_lengths(lengths)

    def _flat_lengths(self, lengths: Tensor) -> Tensor:
        n = self._event_shape[0]
        if not isinstance(lengths, Tensor) or lengths.is_floating_point() or lengths.dtype == torch.bool:
            raise TypeError(f"lengths: expected a tensor of integers, got {_describe(lengths)}")
        if lengths.shape != self._batch_shape:
            raise ValueError(
                f"lengths: expected shape {tuple(self._batch_shape)}, got {tuple(lengths.shape)}"
            )
        if self._validate and lengths.numel() and readable(lengths):
            low, high = int(lengths.min()), int(lengths.max())
            if low < 0 or high > n:
                raise ValueError(f"lengths: expected values from 0 to {n}, got values from {low} to {high}")
        return lengths.reshape(-1).to(torch.int64)

    # What a structure provides.

    @property
    @abstractmethod
    def log_partition(self) -> Tensor:
        """log Z (*batch): the logarithm of the sum over all structures of exp(score); -inf if none is possible."""

    @property
    @abstractmethod
    def marginals(self) -> Tensor:
        """The probability of every part; exactly 0 beyond a sentence's length."""

    @abstractmethod
    def _score(self, value: Tensor) -> Tensor:
        """The scores (samples, B), in float64, of values (samples, B, n)."""

    @abstractmethod
    def _is_structure(self, value: Tensor) -> Tensor:
        """Which values (samples, B, n) are structures of this distribution (samples, B)."""

    @abstractmethod
    def _best(self) -> Tensor: ...

    @abstractmethod
    def _k_best(self, k: int) -> tuple[Tensor, Tensor]:
        """The k best (B, k, n), zeros where there are fewer, and which of them exist (B, k)."""

    @abstractmethod
    def _draw(self, count: int) -> Tensor: ...

    @abstractmethod
    def _compute(self, potentials: tuple[Tensor, ...], wanted: int) -> tuple[Tensor, ...]:
        """log Z (B) in float64, the marginals and what else is wanted (native.LOG_PARTITION, ...), flat."""

    @abstractmethod
    def _parts(self) -> list[tuple[Tensor, Tensor]]:
        """Pairs of (marginals, potentials) in float64 that broadcast to each other, flat over the batch."""

    # What follows.

    def _inference(self, wanted: int, precise: bool = False) -> tuple[Tensor, ...]:
        """_compute, kept: what is wanted may have been found already together with more.

        Sums of probability times potential cancel: for these, precise computes everything in float64.
        """
        potentials = tuple(p.double() for p in self._potentials) if precise else self._potentials
        modes = (potentials[0].dtype, torch.is_grad_enabled(), selected_backend())
        for level in range(wanted, native.EDGE_MARGINALS + 1):
            if (level, *modes) in self._kept:
                return self._kept[(level, *modes)]
        self._kept[(wanted, *modes)] = results = self._compute(potentials, wanted)
        return results

    def score(self, value: Tensor) -> Tensor:
        """The sum of the potentials of value's parts (*sample, *batch); positions beyond the length do not count."""
        flat, shape = self._flat_value(value)
        return self._score(flat).view(shape).to(self._dtype)

    @property
    def mean(self) -> Tensor:
        """The marginals."""
        return self.marginals

    @kept
    def mode(self) -> Tensor:
        """The most probable structure (*batch, n); zeros where no structure is possible."""
        with torch.no_grad():
            return self._best().view(self._batch_shape + self._event_shape)

    def topk(self, k: int) -> tuple[Tensor, Tensor]:
        """The k most probable structures (*batch, k, n), best first, and their log-probabilities (*batch, k).

        Where there are fewer than k, the rest has log-probability -inf and value 0.
        """
        if not isinstance(k, int) or isinstance(k, bool) or k < 1:
            raise ValueError(f"k: expected a whole number of at least 1, got {k!r}")
        with torch.no_grad():
            values, possible = self._k_best(k)
        log_partition = self._inference(native.LOG_PARTITION)[0].unsqueeze(1)
        log_probs = self._score(values.transpose(0, 1)).mT - log_partition.masked_fill(~possible, 0.0)
        log_probs = torch.where(possible, log_probs.clamp_max(0.0), NEG_INF).to(self._dtype)
        return values.view((*self._batch_shape, k, *self._event_shape)), log_probs.view(*self._batch_shape, k)

    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Independent draws (*sample_shape, *batch, n); zeros where no structure is possible."""
        sample_shape = torch.Size(sample_shape)
        with torch.no_grad():
            values = self._draw(sample_shape.numel())
        return values.view(sample_shape + self._batch_shape + self._event_shape)

    def log_prob(self, value: Tensor) -> Tensor:
        """log p(value) (*sample, *batch); -inf for what is no structure of this distribution."""
        flat, shape = self._flat_value(value)
        log_partition = self._inference(native.LOG_PARTITION)[0]
        possible = log_partition != NEG_INF
        log_prob = (self._score(flat) - log_partition.masked_fill(~possible, 0.0)).clamp_max(0.0)
        if self._validate:
            possible = possible & self._is_structure(flat)
        return torch.where(possible, log_prob, NEG_INF).view(shape).to(self._dtype)

    def _flat_value(self, value: Tensor) -> tuple[Tensor, torch.Size]:
        """value broadcast over the batch, as int64 (samples, B, n), and the shape (*sample, *batch)."""
        n = self._event_shape[0]
        if not isinstance(value, Tensor) or value.is_floating_point() or value.dtype == torch.bool:
            raise TypeError(f"value: expected a tensor of integers, got {_describe(value)}")
        try:
            shape = torch.broadcast_shapes(value.shape[:-1], self._batch_shape)
        except RuntimeError:
            shape = None
        if value.dim() == 0 or value.shape[-1] != n or shape is None:
            wanted = ", ".join(map(str, (*self._batch_shape, n)))
            raise ValueError(f"value: expected shape (*sample, {wanted}), got {tuple(value.shape)}")
        samples = shape[: len(shape) - len(self._batch_shape)].numel()
        return value.expand(*shape, n).reshape(samples, self._batch_shape.numel(), n).to(torch.int64), shape

    def entropy(self) -> Tensor:
        """-E log p (*batch), in nats; 0 where no structure is possible."""
        return self._cross_entropy(self)

    def cross_entropy(self, q: Self) -> Tensor:
        """-E log q (*batch) under this distribution; +inf where q forbids what this distribution allows."""
        self._check_same_space(q)
        return self._cross_entropy(q)

    def _cross_entropy(self, q: Self) -> Tensor:
        expected = self._expected([potentials for _, potentials in q._parts()])
        possible = self._inference(native.LOG_PARTITION, precise=True)[0] != NEG_INF
        log_partition = q._inference(native.LOG_PARTITION, precise=True)[0]
        # q without any structure has log Z = -inf, and -log q is +inf, as is -expected then.
        log_partition = log_partition.masked_fill(log_partition == NEG_INF, 0.0)
        return self._finish(torch.where(possible, log_partition - expected, 0.0))

    def _kl_divergence(self, q: Self) -> Tensor:
        mine, other = ([potentials for _, potentials in d._parts()] for d in (self, q))
        # A part that p forbids does not count; -inf - -inf must not arise.
        difference = [a.masked_fill(a == NEG_INF, 0.0) - b for a, b in zip(mine, other, strict=True)]
        own, others = (d._inference(native.LOG_PARTITION, precise=True)[0] for d in (self, q))
        possible = own != NEG_INF
        log_ratio = others - own.masked_fill(~possible, 0.0)
        log_ratio = log_ratio.masked_fill(log_ratio == NEG_INF, 0.0)
        return self._finish(torch.where(possible, self._expected(difference) + log_ratio, 0.0))

    def _finish(self, result: Tensor) -> Tensor:
        return result.view(self._batch_shape).to(self._dtype)

    def _expected(self, potentials: list[Tensor]) -> Tensor:
        """<potentials, marginals> (B), where a part of probability 0 counts 0 whatever its potential."""
        total: Tensor | float = 0.0
        for (marginals, _), weights in zip(self._parts(), potentials, strict=True):
            total = total + (marginals * torch.where(marginals == 0, 0.0, weights)).flatten(1).sum(1)
        return total  # type: ignore[return-value]

    def _check_same_space(self, q: Any) -> None:
        if type(q) is not type(self):
            raise TypeError(f"q: expected a {type(self).__name__}, got {_describe(q)}")
        for name, attribute in (
            ("batch_shape", "batch_shape"),
            ("event_shape", "event_shape"),
            self._variant,
        ):
            mine, other = getattr(self, attribute), getattr(q, attribute)
            if mine != other:
                raise ValueError(f"q: expected {name} {mine}, got {other}")
        mine, other = (d._full_lengths() for d in (self, q))
        if readable(mine) and not torch.equal(mine, other):
            raise ValueError("q: expected the same lengths as this distribution's, got others")

    _variant: ClassVar[tuple[str, str]]
    """What else must agree for two distributions to be over the same structures: its name and its attribute."""

    def _full_lengths(self) -> Tensor:
        if self._lengths is not None:
            return self._lengths
        return torch.full(
            (self._batch_shape.numel(),), self._event_shape[0], device=self._potentials[0].device
        )

    def _check_values(self, *arguments: tuple[str, Tensor]) -> None:
        """Refuses NaN and +inf; the native kernels do this on the way, plain torch here."""
        if self._validate:
            for name, counted in arguments:
                if readable(counted) and not bool((counted < float("inf")).all()):
                    native.refuse_values(name)

    def __repr__(self) -> str:
        dtype = str(self._potentials[0].dtype).removeprefix("torch.")
        lengths = "" if self.lengths is None else f", lengths of {tuple(self.lengths.shape)}"
        return f"{type(self).__name__}(batch {tuple(self._batch_shape)}, n = {self._event_shape[0]}, {dtype}{lengths})"


@register_kl(Structure, Structure)
def _kl_divergence(p: Structure, q: Structure) -> Tensor:
    p._check_same_space(q)
    return p._kl_divergence(q)


def check_potentials(name: str, tensor: Any, shape: str, fits: Callable[[tuple[int, ...]], bool]) -> None:
    """Refuses what is no floating-point tensor of the shape described."""
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{name}: expected a tensor of shape {shape}, got {_describe(tensor)}")
    if not tensor.is_floating_point():
        raise TypeError(f"{name}: expected floating-point scores, got {_describe(tensor)}")
    if not fits(tuple(tensor.shape)):
        raise ValueError(f"{name}: expected shape {shape}, got {tuple(tensor.shape)}")


def beyond(lengths: Tensor, n: int) -> Tensor:
    """(B, n): True at the positions that do not count."""
    return torch.arange(n, device=lengths.device) >= lengths.unsqueeze(1)


def shaped(tensor: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """tensor.to(dtype).reshape(shape), without a call into torch where there is nothing to do."""
    tensor = tensor if tensor.dtype == dtype else tensor.to(dtype)
    return tensor if tensor.shape == shape else tensor.reshape(shape)


def computed_in(dtype: torch.dtype) -> torch.dtype:
    """Half precision is computed in float32 (and internally, where that is not enough, in float64)."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _describe(value: Any) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of {str(value.dtype).removeprefix('torch.')}"
    return f"a {type(value).__name__}"


def readable(tensor: Tensor) -> bool:
    """Whether Python may look at the values: not while compiling, not under vmap, not without storage."""
    if torch.compiler.is_compiling() or tensor.is_meta:
        return False
    return type(tensor) in (
        Tensor,
        torch.nn.Parameter,
    ) and not torch._C._functorch.is_functorch_wrapped_tensor(tensor)
