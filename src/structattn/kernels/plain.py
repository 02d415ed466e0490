"""The building blocks of the plain-torch path: sums over alternatives that take -inf as it is.

A recursion over structures is written once, over cells of shape (..., K); the sum decides what comes out of it:

    LogSum      K = 1   log-partition function; its gradient is the marginals
    Best        K = 1   score of the best structure; its gradient marks it
    KBest(k)    K = k   scores of the k best, in order; the gradient of each marks it
    Draw        K = 1   like LogSum, but each time its gradient is taken it marks one structure drawn at random
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd import Function

NEG_INF = float("-inf")


def log_sum(terms: Tensor, dim: int) -> Tensor:
    """logsumexp; where all terms are -inf the result is -inf, and its derivatives of every order are 0."""
    top = terms.detach().amax(dim, keepdim=True)
    top = top.masked_fill(top == NEG_INF, 0.0)
    total = (terms - top).exp().sum(dim)
    possible = total > 0
    return torch.where(possible, total.masked_fill(~possible, 1.0).log() + top.squeeze(dim), NEG_INF)


def softmax(terms: Tensor, dim: int) -> Tensor:
    """softmax that is 0, with gradient 0, where all terms are -inf."""
    top = terms.detach().amax(dim, keepdim=True)
    weights = (terms - top.masked_fill(top == NEG_INF, 0.0)).exp()
    total = weights.sum(dim, keepdim=True)
    return weights / total.masked_fill(total == 0, 1.0)


def zero_from(potentials: Tensor) -> Tensor:
    """(B) zeros that depend on the potentials: a result that happens to be constant has a gradient, of zeros."""
    return potentials.masked_fill(torch.ones_like(potentials, dtype=torch.bool), 0.0).flatten(1).sum(1)


class Sum(Protocol):
    """How alternatives are added up."""

    width: int
    """K, the number of values in a cell."""

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        """Joins parts (..., splits, K) and (..., splits, K) and sums over the splits: (..., K)."""


class LogSum:
    width = 1

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        return log_sum(left + right, -2)


class Best:
    width = 1

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        return (left + right).max(-2).values


class KBest:
    def __init__(self, k: int) -> None:
        self.width = k

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        pairs = left.unsqueeze(-1) + right.unsqueeze(-2)
        return pairs.flatten(-3).topk(self.width, -1).values


class Draw:
    width = 1

    def __call__(self, left: Tensor, right: Tensor) -> Tensor:
        return _DrawFunction.apply(left + right)


class _DrawFunction(Function):
    @staticmethod
    def forward(ctx: Any, terms: Tensor) -> Tensor:
        ctx.save_for_backward(softmax(terms, -2))
        return log_sum(terms, -2)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Tensor:
        (weights,) = ctx.saved_tensors
        return torch.zeros_like(weights).scatter_(-2, draw(weights, -2), 1.0) * upstream[0].unsqueeze(-2)


def draw(weights: Tensor, dim: int) -> Tensor:
    """Indices (dim of size 1) drawn in proportion to weights; index of a zero weight only where all are zero."""
    # The winner of a race between exponential clocks; 1 - rand is never 0, so its logarithm is finite.
    clocks = -(1 - torch.rand_like(weights)).log()
    return (weights / clocks.clamp_min(torch.finfo(weights.dtype).tiny)).argmax(dim, keepdim=True)
