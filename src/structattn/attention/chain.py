r"""Attention over facts in several steps (paper, section 4.3 and appendix A.4): which fact first, which next.

With x_i^k the i-th of n facts as step k sees it, q^k its query and q^{k+1} = Q q^k,

    unary     theta_k(i)          = x_i^k . q^k                                             independent steps
    binary    theta_{k,k+1}(i, j) = x_i^k . q^k + x_i^k . x_j^{k+1} + x_j^{k+1} . q^{k+1}   a chain of n
              states

and the context is one vector, c = sum_k sum_i p(z_k = i) o_i^k.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structattn.attention.edge import check_choice, check_features, check_lengths
from structattn.attention.sequence import softmax_weights
from structattn.structures.chain import LinearChain
from structattn.structures.distribution import beyond

COUNTS = ("printed", "once", "twice")


class ChainAttention(nn.Module):
    r"""Attends to a sequence of K facts out of n.

    embed_dim       features of queries and facts
    steps           K
    potentials      "binary" or "unary", as above
    forbid_repeats  theta_{k,k+1}(i, i) = -inf: no fact twice in a row (binary only). One fact alone then has
                    no chain of two steps, and gets probability zero
    count_unaries   how often x_i^k . q^k counts in the score of a binary chain. "printed": in each of the
                    potentials theta_{k,k+1} that it stands in, so the first and the last step's once, the
                    others' twice; "once"; "twice" (as in the authors' program, which has start and stop
                    edges)
    dropout         probability that a weight is dropped in training

    ``transition`` (embed_dim, embed_dim) is Q.
    """

    def __init__(
        self,
        embed_dim: int,
        steps: int,
        potentials: str = "binary",
        forbid_repeats: bool = True,
        count_unaries: str = "printed",
        dropout: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_choice("potentials", potentials, ("binary", "unary"))
        check_choice("count_unaries", count_unaries, COUNTS)
        if steps < 1:
            raise ValueError(f"steps: expected a whole number of at least 1, got {steps!r}")
        self.embed_dim, self.steps, self.potentials = embed_dim, steps, potentials
        self.forbid_repeats, self.count_unaries, self.dropout = forbid_repeats, count_unaries, dropout
        self.transition = nn.Parameter(torch.empty(embed_dim, embed_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.kaiming_uniform_(self.transition, a=math.sqrt(5))

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor | None = None, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The context (B, value_dim) and the marginals p(z_k = i) (B, K, n).

        query      q^1 (B, embed_dim), or q^1 ... q^K (B, K, embed_dim), used as they are instead of Q
        key        x (B, K, n, embed_dim), or (B, n, embed_dim) where every step sees the same
        value      o (B, K, n, value_dim), or (B, n, value_dim); the default is key
        lengths    (B), the first so many facts count; the default is all
        """
        unary, transitions = self._scores(query, key, lengths)
        if transitions is None:
            # Independent steps: the chain's marginals are a softmax each.
            marginals = softmax_weights(unary, None if lengths is None else unary == float("-inf"))
        else:
            marginals = LinearChain(unary, transitions).marginals
        weights = F.dropout(marginals, self.dropout, self.training)
        batch, _, n = weights.shape
        value = self._at_every_step("value", key if value is None else value, batch, n, "value_dim")
        context = weights.flatten(1).unsqueeze(1) @ value.flatten(1, 2)
        return context.squeeze(1), weights

    def queries(self, query: Tensor) -> Tensor:
        """q^1 ... q^K (B, K, embed_dim) of q^1 (B, embed_dim)."""
        queries = [query]
        for _ in range(self.steps - 1):
            queries.append(F.linear(queries[-1], self.transition))
        return torch.stack(queries, 1)

    def distribution(self, query: Tensor, key: Tensor, lengths: Tensor | None = None) -> LinearChain:
        """The chains (B) of K positions and n states: mode, topk, edge_marginals, samples, log_prob, ..."""
        return LinearChain(*self._scores(query, key, lengths))

    def edge_marginals(self, query: Tensor, key: Tensor, lengths: Tensor | None = None) -> Tensor:
        """p(z_k = i, z_{k+1} = j) (B, K - 1, n, n)."""
        return self.distribution(query, key, lengths).edge_marginals

    @torch.no_grad()
    def best(self, query: Tensor, key: Tensor, lengths: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The most probable sequence of facts (B, K), and its probability (B)."""
        chains = self.distribution(query, key, lengths)
        return chains.mode, chains.log_prob(chains.mode).exp()

    @torch.no_grad()
    def topk(
        self, k: int, query: Tensor, key: Tensor, lengths: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """The k best sequences (B, k, K) and their probabilities (B, k); both 0 where there are fewer."""
        sequences, log_probs = self.distribution(query, key, lengths).topk(k)
        return sequences, log_probs.exp()

    def _scores(self, query: Tensor, key: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Unary (B, K, n), and transitions (B, K - 1, n, n) for binary potentials."""
        all_steps = isinstance(query, Tensor) and query.dim() == 3
        sizes = (self.steps, self.embed_dim) if all_steps else (self.embed_dim,)
        check_features("query", query, "B", *sizes, like=self.transition)
        key = self._at_every_step("key", key, len(query), "n", self.embed_dim)
        queries = query if all_steps else self.queries(query)
        if lengths is not None:
            lengths = check_lengths(lengths, len(key), key.shape[2])
        options = self.potentials, self.forbid_repeats, self.count_unaries
        return chain_potentials(queries.unbind(1), key.unbind(1), lengths, *options)

    def _at_every_step(
        self, name: str, facts: Tensor, batch: int, n: int | str, features: int | str
    ) -> Tensor:
        """facts (B, K, n, features), of the same or of (B, n, features)."""
        if isinstance(facts, Tensor) and facts.dim() == 3:
            check_features(name, facts, batch, n, features, like=self.transition)
            return facts.unsqueeze(1).expand(-1, self.steps, -1, -1)
        check_features(name, facts, batch, self.steps, n, features, like=self.transition)
        return facts

    def extra_repr(self) -> str:
        options = f"potentials={self.potentials!r}, forbid_repeats={self.forbid_repeats}"
        return f"{self.embed_dim}, steps={self.steps}, {options}, count_unaries={self.count_unaries!r}"


def chain_potentials(
    queries: Sequence[Tensor],
    keys: Sequence[Tensor],
    lengths: Tensor | None,
    potentials: str = "binary",
    forbid_repeats: bool = True,
    count_unaries: str = "printed",
) -> tuple[Tensor, Tensor | None]:
    """Unary (B, K, n), and transitions (B, K - 1, n, n) of binary potentials, from K queries (B, d) and keys (B, n, d).

    For lengths and the options see :class:`ChainAttention`.
    """
    pairs = zip(keys, queries, strict=True)
    unary = torch.stack([(key @ query.unsqueeze(2)).squeeze(2) for key, query in pairs], 1)
    batch, _, n = unary.shape
    transitions = None
    if potentials == "binary":
        unary = unary * _multiplicities(unary, count_unaries)
        joint = [key @ following.mT for key, following in pairwise(keys)]
        transitions = torch.stack(joint, 1) if joint else unary.new_zeros(batch, 0, n, n)
        if forbid_repeats:
            same = torch.eye(n, dtype=torch.bool, device=unary.device)
            transitions = transitions.masked_fill(same, float("-inf"))
    if lengths is not None:
        unary = unary.masked_fill(beyond(lengths, n).unsqueeze(1), float("-inf"))
    return unary, transitions


def _multiplicities(unary: Tensor, count_unaries: str) -> Tensor:
    """How often each of the K steps' unary potentials counts (K, 1)."""
    times = torch.full((unary.shape[1], 1), 1.0 if count_unaries == "once" else 2.0).to(unary)
    if count_unaries == "printed":
        times[0] = times[-1] = 1.0
    return times
