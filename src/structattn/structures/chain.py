"""Linear chains: n positions, each in one of C states, neighbours coupled.

    score(z) = sum_i unary[i, z_i] + sum_i transitions[i, z_i, z_{i+1}]

The plain-torch path filters forwards and smooths backwards. The filter keeps alpha_t(j), the log-probability of state j
given everything up to t, normalised at every step (what is divided out adds up to log Z), so nothing grows with n:

    alpha_{t+1}(j) = unary_{t+1}(j) + log sum_i exp(alpha_t(i) + x_t(i, j)) - normaliser

Given the next state, the past is independent of the future:

    P(z_t = i | z_{t+1} = j) = softmax_i(alpha_t(i) + x_t(i, j))

Multiplying these conditionals backwards gives the marginals; there is no beta table and nothing is subtracted.

Indices: b sentence, t position, i state at t, j state at t + 1.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from structattn import paper
from structattn.kernels import native, native_serves, operators, selected_backend
from structattn.kernels.gradients import differentiable, direct_or_operator
from structattn.kernels.plain import NEG_INF, draw, log_sum, softmax, zero_from
from structattn.structures.distribution import (
    Structure,
    beyond,
    check_potentials,
    computed_in,
    readable,
    shaped,
)


class LinearChain(Structure):
    """A conditional random field over sequences.

    unary          (*batch, n, C) scores of the states
    transitions    broadcastable to (*batch, n - 1, C, C); transitions[..., i, a, b] scores z_i = a, z_{i+1} = b.
                   [C, C] is shared by all sentences and positions and never expanded. Default: no coupling
    lengths        (*batch), the first so many positions count; the default is all
    validate_args  False skips the checks of values. NaN and +inf are found when the first result is computed

    -inf forbids a state or a transition.
    """

    _variant = ("number of states", "_states")

    unary: Tensor
    transitions: Tensor | None

    def __init__(
        self,
        unary: Tensor,
        transitions: Tensor | None = None,
        lengths: Tensor | None = None,
        validate_args: bool | None = None,
    ) -> None:
        check_potentials(
            "unary",
            unary,
            "(*batch, n, C), n and C at least 1",
            lambda shape: len(shape) >= 2 and min(shape[-2:]) > 0,
        )
        self.unary, self.transitions = unary, transitions
        *batch, n, states = unary.shape
        self._set_up(torch.Size(batch), torch.Size((n,)), lengths, validate_args)
        dtype = unary.dtype if transitions is None else torch.promote_types(unary.dtype, _dtype(transitions))
        self._dtype, dtype = dtype, computed_in(dtype)
        flat = self._flat_transitions(transitions)
        self._potentials = (
            shaped(unary, (self._batch_shape.numel(), n, states), dtype),
            shaped(flat, flat.shape, dtype),
        )

    def _flat_transitions(self, transitions: Tensor | None) -> Tensor:
        """(B or 1, n - 1 or 1, C, C)"""
        *batch, n, states = self.unary.shape
        if transitions is None:
            return self.unary.new_zeros(1, 1, states, states)
        wanted = (*batch, max(n - 1, 0), states, states)
        check_potentials(
            "transitions",
            transitions,
            f"broadcastable to {tuple(wanted)}",
            lambda shape: _broadcasts(shape, wanted),
        )
        if transitions.shape == wanted[-2:]:  # the commonest, and as fast as it can be
            return transitions.reshape(1, 1, states, states)
        shape = (1,) * (len(wanted) - transitions.dim()) + tuple(transitions.shape)
        if shape[-2:] != (states, states):
            transitions, shape = (
                transitions.expand(*shape[:-2], states, states),
                (*shape[:-2], states, states),
            )
        if all(size == 1 for size in shape[:-3]):
            return transitions.reshape(1, *shape[-3:])
        return transitions.expand(*batch, *shape[-3:]).reshape(self._batch_shape.numel(), *shape[-3:])

    @property
    def log_partition(self) -> Tensor:
        """log Z (*batch); -inf where no sequence is possible."""
        return shaped(self._inference(native.LOG_PARTITION)[0], self._batch_shape, self._dtype)

    @property
    def marginals(self) -> Tensor:
        """p(z_i = c) (*batch, n, C)."""
        return shaped(self._inference(native.MARGINALS)[1], self.unary.shape, self._dtype)

    @property
    def edge_marginals(self) -> Tensor:
        """p(z_i = a, z_{i+1} = b) (*batch, n - 1, C, C)."""
        edges = self._inference(native.EDGE_MARGINALS)[2]
        return shaped(edges, self._batch_shape + edges.shape[1:], self._dtype)

    def _compute(self, potentials: tuple[Tensor, ...], wanted: int) -> tuple[Tensor, ...]:
        unary, transitions = potentials
        if native_serves(unary):
            return _native_inference(potentials, self._lengths, (wanted, self._validate))
        self._check_plain()
        if selected_backend() == "paper" and wanted < native.EDGE_MARGINALS:
            return (*paper.chain(unary.double(), transitions.double(), self._lengths), unary.new_empty(0))
        return plain_inference(unary, transitions, self._lengths, wanted)

    def _check_plain(self) -> None:
        unary, transitions = _without_padding(self._potentials, self._lengths)
        self._check_values(("unary", unary), ("transitions", transitions))

    @property
    def _states(self) -> int:
        return self.unary.shape[-1]

    def _parts(self) -> list[tuple[Tensor, Tensor]]:
        _, marginals, edge_marginals = self._inference(native.EDGE_MARGINALS, precise=True)
        unary, transitions = (potentials.double() for potentials in self._potentials)
        return [(marginals, unary), (edge_marginals, transitions)]

    def _score(self, value: Tensor) -> Tensor:
        unary, transitions = _double_without_padding(self._potentials, self._lengths)
        batch, n, _ = unary.shape
        states = self._counted_states(value)
        total = unary.expand(len(states), -1, -1, -1).gather(3, states.unsqueeze(3)).flatten(2).sum(2)
        if n == 1:
            return total
        sentence = torch.arange(batch, device=states.device).unsqueeze(1) % len(transitions)
        step = torch.arange(n - 1, device=states.device) % transitions.shape[1]
        pairs = transitions[sentence, step, states[..., :-1], states[..., 1:]]
        if self._lengths is not None:
            pairs = pairs.masked_fill(beyond(self._lengths, n)[:, 1:], 0.0)
        return total + pairs.sum(2)

    def _counted_states(self, value: Tensor) -> Tensor:
        states = self._potentials[0].shape[2]
        if self._lengths is not None:
            value = value.masked_fill(beyond(self._lengths, value.shape[2]), 0)
        if self._validate and value.numel() and readable(value):
            low, high = int(value.min()), int(value.max())
            if low < 0 or high >= states:
                raise ValueError(
                    f"value: expected states from 0 to {states - 1}, got values from {low} to {high}"
                )
        return value

    def _is_structure(self, value: Tensor) -> Tensor:
        return torch.ones(value.shape[:2], dtype=torch.bool, device=value.device)

    def _best(self) -> Tensor:
        unary, transitions = (potentials.detach() for potentials in self._potentials)
        if native_serves(unary):
            return _native_viterbi(unary, transitions, self._lengths, self._validate)
        return self._k_best(1)[0][:, 0]

    def _k_best(self, k: int) -> tuple[Tensor, Tensor]:
        self._check_plain()
        return plain_k_best(*_double_without_padding(self._potentials, self._lengths), self._lengths, k)

    def _draw(self, count: int) -> Tensor:
        self._check_plain()
        return plain_draw(*_double_without_padding(self._potentials, self._lengths), self._lengths, count)

    def expand(self, batch_shape: Any, _instance: Any = None) -> LinearChain:
        """The same distributions for a larger batch shape, without copying potentials."""
        batch_shape = torch.Size(batch_shape)
        lengths = None if self.lengths is None else self.lengths.expand(batch_shape)
        unary = self.unary.expand(batch_shape + self.unary.shape[-2:])
        return LinearChain(unary, self.transitions, lengths, self._validate)


# The plain-torch path: flat shapes, float64 inside.


def plain_inference(
    unary: Tensor, transitions: Tensor, lengths: Tensor | None, wanted: int, _check: bool = False
) -> tuple[Tensor, Tensor, Tensor]:
    """log_partition (B), float64, marginals (B, n, C), edge_marginals (B, n - 1, C, C); empty where not wanted."""
    dtype, nothing = unary.dtype, unary.new_empty(0)
    unary, transitions = _double_without_padding((unary, transitions), lengths)
    log_partition, alphas = _filter(unary, transitions, lengths)
    if wanted == native.LOG_PARTITION:
        return log_partition, nothing, nothing
    marginals, edge_marginals = _smooth(alphas, transitions, lengths, wanted == native.EDGE_MARGINALS)
    if wanted == native.MARGINALS:
        return log_partition, torch.stack(marginals, 1).to(dtype), nothing
    batch, n, states = unary.shape
    edges = torch.stack(edge_marginals, 1) if n > 1 else unary.new_empty(batch, 0, states, states)
    return log_partition, torch.stack(marginals, 1).to(dtype), edges.to(dtype)


def _filter(unary: Tensor, transitions: Tensor, lengths: Tensor | None) -> tuple[Tensor, list[Tensor]]:
    """log Z, and alpha_t (B, C) for every t; beyond a sentence's length alpha stays as at its last position."""
    log_partition = zero_from(unary) + zero_from(transitions)
    alphas: list[Tensor] = []
    for t, scores in enumerate(unary.unbind(1)):
        if t > 0:
            scores = scores + log_sum(alphas[-1].unsqueeze(2) + _step(transitions, t - 1), 1)
        normaliser = log_sum(scores, 1)
        alpha = scores - normaliser.masked_fill(normaliser == NEG_INF, 0.0).unsqueeze(1)
        if lengths is not None:
            counts = t < lengths
            normaliser = torch.where(counts, normaliser, 0.0)
            alpha = torch.where(counts.unsqueeze(1), alpha, alphas[-1] if alphas else NEG_INF)
        log_partition = log_partition + normaliser
        alphas.append(alpha)
    # Without a sequence the normalisers before the blocked position must not have gradients.
    return log_partition.masked_fill(log_partition == NEG_INF, NEG_INF), alphas


def _smooth(
    alphas: list[Tensor], transitions: Tensor, lengths: Tensor | None, keep_edges: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """The marginals of every position and, if they are to be kept, of every pair of neighbours."""
    n = len(alphas)
    last = torch.full((len(alphas[0]),), n, device=alphas[0].device) if lengths is None else lengths
    # A sentence in which some prefix is impossible has no structure at all.
    possible = alphas[-1].detach().amax(1) != NEG_INF
    nexts = torch.zeros_like(alphas[0])
    marginals, edge_marginals = [], []
    for t in reversed(range(n)):
        if t < n - 1:
            past_given_next = softmax(alphas[t].unsqueeze(2) + _step(transitions, t), 1)
            edges = past_given_next * nexts.unsqueeze(1)
            if keep_edges:
                edge_marginals.append(edges)
            nexts = edges.sum(2)
        starts = ((last == t + 1) & possible).unsqueeze(1)
        nexts = torch.where(starts, alphas[t].exp(), nexts)
        marginals.append(nexts)
    return marginals[::-1], edge_marginals[::-1]


def plain_k_best(unary: Tensor, transitions: Tensor, lengths: Tensor | None, k: int) -> tuple[Tensor, Tensor]:
    """The k best sequences (B, k, n), and which of them exist (B, k)."""
    # A cell is a state and a rank in it: i * k + rank.
    n = unary.shape[1]
    rank = torch.arange(k, device=unary.device)
    scores = unary[:, 0].unsqueeze(2).masked_fill(rank > 0, NEG_INF)
    if lengths is not None:
        # The empty sequence is one structure, of score 0: let it stand in state 0.
        scores = scores.masked_fill((lengths == 0).view(-1, 1, 1), NEG_INF)
        scores[:, 0, 0] = scores[:, 0, 0].masked_fill(lengths == 0, 0.0)
    here = torch.arange(scores.shape[1] * k, device=unary.device)
    pointers = []
    for t in range(1, n):
        paths = scores.unsqueeze(3) + _step(transitions, t - 1).unsqueeze(2)
        best, came_from = paths.flatten(1, 2).transpose(1, 2).topk(k, 2)
        best = best + unary[:, t].unsqueeze(2)
        came_from = came_from.flatten(1)
        if lengths is not None:
            counts = (t < lengths).view(-1, 1)
            best, came_from = (
                torch.where(counts.unsqueeze(2), best, scores),
                torch.where(counts, came_from, here),
            )
        scores = best
        pointers.append(came_from)
    final, cell = scores.flatten(1).topk(k, 1)
    cells = [cell]
    for came_from in reversed(pointers):
        cells.append(came_from.gather(1, cells[-1]))
    values = torch.stack(cells[::-1], 2) // k
    if lengths is not None:
        values = values.masked_fill(beyond(lengths, n).unsqueeze(1), 0)
    possible = final > NEG_INF
    return values.masked_fill(~possible.unsqueeze(2), 0), possible


def plain_draw(unary: Tensor, transitions: Tensor, lengths: Tensor | None, count: int) -> Tensor:
    """count sequences for every sentence (count, B, n): the last state from the filter, then backwards."""
    _, alphas = _filter(unary, transitions, lengths)
    batch, n, _ = unary.shape
    last = torch.full((batch,), n, device=unary.device) if lengths is None else lengths
    sentence = torch.arange(batch, device=unary.device) % len(transitions)
    states = torch.zeros(count, batch, dtype=torch.int64, device=unary.device)
    drawn = []
    for t in reversed(range(n)):
        weights = alphas[t].expand(count, -1, -1)
        if t < n - 1:
            step = _step(transitions, t)
            conditional = weights + step.transpose(1, 2)[sentence, states]
            weights = torch.where((last == t + 1).unsqueeze(1), weights, conditional)
        states = torch.where(t < last, draw(softmax(weights, 2), 2).squeeze(2), 0)
        drawn.append(states)
    impossible = alphas[-1].amax(1) == NEG_INF
    return torch.stack(drawn[::-1], 2).masked_fill(impossible.unsqueeze(1), 0)


def _step(transitions: Tensor, t: int) -> Tensor:
    """The scores between t and t + 1 (B or 1, C, C)."""
    return transitions[:, t if transitions.shape[1] > 1 else 0]


def _double_without_padding(potentials: tuple[Tensor, ...], lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    return _without_padding(tuple(tensor.double() for tensor in potentials), lengths)


def _without_padding(potentials: tuple[Tensor, ...], lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """Potentials with 0 wherever no sentence looks: what stands there may be anything, NaN included."""
    unary, transitions = potentials
    if lengths is None:
        return unary, transitions
    ignored = beyond(lengths, unary.shape[1])
    no_step = ignored[:, 1:]
    if len(transitions) == 1:
        no_step = no_step.all(0, keepdim=True)
    if transitions.shape[1] == 1:
        no_step = no_step.all(1, keepdim=True)
    return unary.masked_fill(ignored.unsqueeze(2), 0.0), transitions.masked_fill(
        no_step[..., None, None], 0.0
    )


def _dtype(transitions: Any) -> torch.dtype:
    return transitions.dtype if isinstance(transitions, Tensor) else torch.float32


def _broadcasts(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    # A step dimension of 1 serves n = 1 as well, where there is no step.
    pairs = zip(reversed(shape), reversed(wanted), strict=False)
    return 2 <= len(shape) <= len(wanted) and all(size in (1, other) for size, other in pairs)


_native_viterbi = direct_or_operator(native.chain_viterbi, operators.chain_viterbi)
_native_inference = differentiable(
    native.chain_forward, native.chain_backward, operators.chain, operators.chain_gradient, plain_inference
)
