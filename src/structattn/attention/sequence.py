"""Attention over a sequence by a query: three distributions over what is selected, one way to call them.

With the paper's bilinear potentials theta_i = h_i W h', where h_i is a key and h' the query,

    SoftmaxAttention        exactly one position       p(z = i) = softmax(theta)_i
    SigmoidAttention        each position for itself   p(z_i = 1) = sigmoid(theta_i)
    SegmentationAttention   neighbours together        p(z) = softmax(sum_i theta_i z_i + sum_i b[z_i,
                            z_{i+1}])

and the context is the expected sum of what is selected, c = sum_i p(z_i = 1) value_i (eq. 2).
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structattn.attention.edge import Padding, check_features, check_normalize, padding_of
from structattn.structures.chain import LinearChain
from structattn.structures.distribution import computed_in


class SoftmaxAttention(nn.Module):
    r"""Selects one position: :math:`c_j = \sum_i \mathrm{softmax}_i(h_i W h'_j) \, v_i`.

    This is the paper's *simple* attention.

    query_dim    features of a query h'_j
    key_dim      features of a key h_i; the default is query_dim
    dropout      probability that a weight is dropped in training

    ``weight`` (key_dim, query_dim) is W.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int | None = None,
        dropout: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        self.query_dim, self.key_dim = query_dim, query_dim if key_dim is None else key_dim
        self.dropout = dropout
        self.weight = nn.Parameter(torch.empty(self.key_dim, query_dim, device=device, dtype=dtype))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        # Features of variance 1 then have potentials of variance 1, as in scaled dot-product attention.
        bound = math.sqrt(3 / self.weight.numel())
        nn.init.uniform_(self.weight, -bound, bound)

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor | None = None,
        lengths: Tensor | None = None,
        key_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The contexts (B, m, value_dim) of m queries, and the weights (B, m, n) of the n keys for each.

        query               (B, m, query_dim); or (B, query_dim) for one query, then the results have no m
        key                 (B, n, key_dim)
        value               (B, n, value_dim); the default is key
        lengths             (B), the first so many keys count; the default is all
        key_padding_mask    (B, n), instead of lengths: True where a key does not count
        """
        one_query = isinstance(query, Tensor) and query.dim() == 2
        theta = self.potentials(query.unsqueeze(1) if one_query else query, key)
        batch, _, n = theta.shape
        if value is None:
            value = key
        check_features("value", value, batch, n, "value_dim", like=self.weight)
        weights = self._weights(theta, padding_of(lengths, key_padding_mask, batch, n))
        weights = F.dropout(weights, self.dropout, self.training)
        context = weights @ value
        return (context.squeeze(1), weights.squeeze(1)) if one_query else (context, weights)

    def potentials(self, query: Tensor, key: Tensor) -> Tensor:
        """theta (B, m, n) of queries (B, m, query_dim) and keys (B, n, key_dim)."""
        check_features("query", query, "B", "m", self.query_dim, like=self.weight)
        check_features("key", key, query.shape[0], "n", self.key_dim, like=self.weight)
        return F.linear(query, self.weight) @ key.mT

    def _weights(self, theta: Tensor, padding: Padding | None) -> Tensor:
        return softmax_weights(theta, None if padding is None else padding.ignored.unsqueeze(1))

    def extra_repr(self) -> str:
        return f"query_dim={self.query_dim}, key_dim={self.key_dim}, dropout={self.dropout}"


class SigmoidAttention(SoftmaxAttention):
    r"""Selects each position for itself: :math:`c_j = \sum_i \mathrm{sigmoid}(h_i W h'_j) \, v_i`.

    normalize    None: the plain expectation. A number lambda: the weights p_i / gamma sum to lambda,
                 :math:`\gamma = \frac{1}{\lambda} \sum_i p_i`
    and the rest as in :class:`SoftmaxAttention`.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int | None = None,
        dropout: float = 0.0,
        normalize: float | None = None,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_dim, key_dim, dropout, device, dtype)
        check_normalize(normalize)
        self.normalize = normalize

    def _weights(self, theta: Tensor, padding: Padding | None) -> Tensor:
        selected = theta.sigmoid()
        if padding is not None:
            selected = selected.masked_fill(padding.ignored.unsqueeze(1), 0.0)
        return normalised(selected, self.normalize)

    def extra_repr(self) -> str:
        return f"{super().extra_repr()}, normalize={self.normalize}"


class SegmentationAttention(SigmoidAttention):
    r"""Selects contiguous segments, by a linear chain z of two states for every query:

    .. math::
        p(z \mid x, q) = \mathrm{softmax}\Big(\sum_i \theta_i(z_i) + \sum_i b_{z_i, z_{i+1}}\Big), \quad
        \theta_i(1) = h_i W h'_j, \; \theta_i(0) = 0

        c_j = \sum_i \frac{p(z_i = 1 \mid x, q)}{\gamma} v_i, \quad
        \gamma = \frac{1}{\lambda} \sum_i p(z_i = 1 \mid x, q), \quad \lambda = 2

    All m queries of a batch go through one call of the kernel; one query at a time gives the same numbers.

    normalize    lambda, the sum of the weights; None: the plain marginals p(z_i = 1)
    and the rest as in :class:`SoftmaxAttention`.

    ``pairwise`` (2, 2) is b, at first zero: then positions are independent, as in :class:`SigmoidAttention`.
    """

    def __init__(
        self,
        query_dim: int,
        key_dim: int | None = None,
        dropout: float = 0.0,
        normalize: float | None = 2.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__(query_dim, key_dim, dropout, normalize, device, dtype)
        self.pairwise = nn.Parameter(torch.zeros(2, 2, device=device, dtype=dtype))

    def pairwise_penalty(self, weight: float = 0.005) -> Tensor:
        """weight * ||b||^2, to be added to the loss."""
        return weight * self.pairwise.square().sum()

    def distribution(self, query: Tensor, key: Tensor, lengths: Tensor | None = None) -> LinearChain:
        """The chains (B, m) over n positions: for the best segmentation (mode), samples, entropy, ..."""
        theta = self.potentials(query, key)
        padding = padding_of(lengths, None, len(theta), theta.shape[2])
        return segmentation_chain(theta, self.pairwise, _for_each_query(theta, padding))

    def _weights(self, theta: Tensor, padding: Padding | None) -> Tensor:
        if padding is None or padding.order is None:
            return segmentation_weights(theta, self.pairwise, self.normalize, _for_each_query(theta, padding))
        theta = theta.take_along_dim(padding.order.unsqueeze(1), 2)
        weights = segmentation_weights(theta, self.pairwise, self.normalize, _for_each_query(theta, padding))
        return weights.take_along_dim(padding.order.argsort(1).unsqueeze(1), 2)


def softmax_weights(theta: Tensor, ignored: Tensor | None) -> Tensor:
    """softmax over what is not ignored; 0, with gradient 0, where everything is."""
    if ignored is None:
        return theta.softmax(-1)
    # Of a row of -inf softmax makes NaN: the second filling removes it, and its gradient on the way back.
    return theta.masked_fill(ignored, float("-inf")).softmax(-1).masked_fill(ignored, 0.0)


def segmentation_chain(theta: Tensor, pairwise: Tensor, lengths: Tensor | None) -> LinearChain:
    """Two-state chains: theta (*batch, n) of state 1, 0 of state 0; pairwise (2, 2), lengths (*batch)."""
    unary = F.pad(theta.to(computed_in(theta.dtype)).unsqueeze(-1), (1, 0))
    return LinearChain(unary, pairwise, lengths)


def segmentation_weights(
    theta: Tensor, pairwise: Tensor, normalize: float | None, lengths: Tensor | None
) -> Tensor:
    """p(z_i = 1) (*batch, n), scaled so that they sum to `normalize`, in the dtype of theta."""
    marginals = segmentation_chain(theta, pairwise, lengths).marginals[..., 1]
    return normalised(marginals, normalize).to(theta.dtype)


def normalised(selected: Tensor, total: float | None) -> Tensor:
    """Probabilities p (*batch, n) divided by gamma = sum(p) / total: they sum to total."""
    if total is None:
        return selected
    # Where (almost) nothing is selected there is nothing to scale; the quotient's gradient would overflow.
    smallest = torch.finfo(selected.dtype).tiny ** 0.5
    return selected * (total / selected.sum(-1, keepdim=True).clamp_min(smallest))


def _for_each_query(theta: Tensor, padding: Padding | None) -> Tensor | None:
    return None if padding is None else padding.lengths.unsqueeze(1).expand(theta.shape[:2])
