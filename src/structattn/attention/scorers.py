"""Scores of dependency arcs from hidden vectors: theta (B, n, n); theta[b, i, j] is for i as j's parent."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn


class MLPScorer(nn.Module):
    r"""The paper's scorer (appendix A.1): :math:`\theta_{ij} = \tanh(s^\top \tanh(W_1 h_i + W_2 h_j + b))`.

    input_dim    features of h_i
    hidden_dim   features of the hidden layer

    ``parent`` holds W_1, ``child`` W_2 and b, ``s`` is s.

    The projections are of words; only their sum is of pairs: one (B, n, n, hidden_dim) tensor, in which tanh
    is applied in place, and which is kept for the backward pass.
    """

    def __init__(self, input_dim: int, hidden_dim: int, device: Any = None, dtype: Any = None) -> None:
        super().__init__()
        self.parent = nn.Linear(input_dim, hidden_dim, bias=False, device=device, dtype=dtype)
        self.child = nn.Linear(input_dim, hidden_dim, device=device, dtype=dtype)
        self.s = nn.Parameter(torch.empty(hidden_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.parent.reset_parameters()
        self.child.reset_parameters()
        bound = 1 / math.sqrt(len(self.s))
        nn.init.uniform_(self.s, -bound, bound)

    def forward(self, hidden: Tensor) -> Tensor:
        """theta (B, n, n), within (-1, 1), of hidden vectors (B, n, input_dim)."""
        pairs = self.parent(hidden).unsqueeze(2) + self.child(hidden).unsqueeze(1)
        return (pairs.tanh_() @ self.s).tanh()

    def extra_repr(self) -> str:
        return f"s=({len(self.s)},)"


class BiaffineScorer(nn.Module):
    r"""The scorer of Dozat and Manning (2017): :math:`\theta_{ij} = p_i^\top U c_j + u^\top p_i`, where
    :math:`p_i = \mathrm{relu}(W_1 h_i + b_1)` describes a word as a parent and
    :math:`c_j = \mathrm{relu}(W_2 h_j + b_2)` as a child.

    It is not bounded, and costs matrix products only, no (n, n, hidden) tensor.

    input_dim    features of h_i
    hidden_dim   features of p_i and c_j
    dropout      probability that one of these is dropped in training
    """

    def __init__(
        self, input_dim: int, hidden_dim: int, dropout: float = 0.0, device: Any = None, dtype: Any = None
    ) -> None:
        super().__init__()
        self.parent = nn.Linear(input_dim, hidden_dim, device=device, dtype=dtype)
        self.child = nn.Linear(input_dim, hidden_dim, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        # U c_j + u in one: a word is a good parent for this child, and a good parent for any.
        self.bilinear = nn.Linear(hidden_dim, hidden_dim, device=device, dtype=dtype)

    def reset_parameters(self) -> None:
        for part in (self.parent, self.child, self.bilinear):
            part.reset_parameters()

    def forward(self, hidden: Tensor) -> Tensor:
        """theta (B, n, n) of hidden vectors (B, n, input_dim)."""
        parents = self.dropout(self.parent(hidden).relu())
        children = self.dropout(self.child(hidden).relu())
        return parents @ self.bilinear(children).mT


SCORERS = {"mlp": MLPScorer, "biaffine": BiaffineScorer}
