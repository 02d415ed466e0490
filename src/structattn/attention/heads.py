"""What the heads of one structure make of their scores: weights (B, H, L, S)."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from structattn.attention.masks import NEG_INF, HeadMasks
from structattn.attention.sequence import segmentation_weights, softmax_weights
from structattn.attention.syntactic import TREES


def softmax_heads(scores: Tensor, masks: HeadMasks) -> Tensor:
    """Every query selects one key; none, where all are forbidden."""
    added = masks.added()
    if added is None:
        return scores.softmax(-1)
    return softmax_weights(scores + added.to(scores.dtype), added == NEG_INF)


def sigmoid_heads(scores: Tensor, masks: HeadMasks) -> Tensor:
    """Every query selects each key for itself."""
    added = masks.added()
    return (scores if added is None else scores + added.to(scores.dtype)).sigmoid()


def segmentation_heads(scores: Tensor, masks: HeadMasks, pairwise: Tensor, normalize: float | None) -> Tensor:
    """Every query selects segments of keys; pairwise (H, 2, 2)."""
    if masks.scores is not None:
        scores = scores + masks.scores.to(scores.dtype)
    lengths = masks.chain_lengths()
    if lengths is not None:
        lengths = lengths.expand(scores.shape[:3])
    # One call for each head: transitions that all chains of a call share have a kernel of their own.
    weights = [
        segmentation_weights(
            scores[:, head], pairwise[head], normalize, None if lengths is None else lengths[:, head]
        )
        for head in range(len(pairwise))
    ]
    return torch.stack(weights, 1)


def tree_heads(
    structure: str, query: Tensor, key: Tensor, masks: HeadMasks, root_key: Tensor | None, single_root: bool
) -> Tensor:
    """Every word selects its parent; query, scaled, and key (B, H, n, head_dim); root_key (H, head_dim)."""
    added, lengths = masks.scores, None if masks.padding is None else masks.padding.lengths
    if root_key is not None:
        # The root symbol is a word in front: a key with its own content, and as a query no more than a place.
        root = root_key.to(key.dtype).unsqueeze(1).expand(len(key), -1, -1, -1)
        key, query = torch.cat([root, key], 2), F.pad(query, (0, 0, 1, 0))
        added = None if added is None else F.pad(added.expand(-1, -1, key.shape[2] - 1, -1), (1, 0, 1, 0))
        lengths = None if lengths is None else lengths + 1
    arcs = key @ query.mT
    if added is not None:
        arcs = arcs + added.mT.to(arcs.dtype)
    if lengths is not None:
        lengths = lengths.unsqueeze(1).expand(arcs.shape[:2])
    parents = TREES[structure](arcs, lengths, single_root).marginals.mT
    return parents if root_key is None else parents[..., 1:, 1:]
