"""Multi-head attention with a structure per head: called and parameterised as torch.nn.MultiheadAttention.

Every head scores keys for queries, theta_ij = q_i . k_j / sqrt(head_dim), as always. Its structure decides
what the scores are potentials of, and the weights w_ij are marginals:

    softmax         query i selects one key                                        w_ij = softmax_j(theta_ij)
    sigmoid         query i selects each key for itself                            w_ij = sigmoid(theta_ij)
    segmentation    query i selects segments of keys: a two-state chain per query  w_ij = p(z_ij = 1) / gamma
    projective,     the queries are the keys, words of a sentence, and theta_ij
    nonprojective   scores "j is the parent of i" in one tree over all of them     w_ij = p(parent of i is j)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structattn.attention.edge import check_choice, check_features, check_normalize
from structattn.attention.heads import segmentation_heads, sigmoid_heads, softmax_heads, tree_heads
from structattn.attention.masks import HeadMasks, pick_heads, read_masks
from structattn.attention.syntactic import TREES

STRUCTURES = ("softmax", "sigmoid", "segmentation", *TREES)


class StructuredMultiheadAttention(nn.MultiheadAttention):
    r"""``torch.nn.MultiheadAttention`` whose heads attend by a structure.

    All arguments of ``torch.nn.MultiheadAttention``, and

    structure     softmax, sigmoid, segmentation, projective or nonprojective; or a sequence of one for each
                  head
    normalize     segmentation: the weights of a query sum to this lambda (the paper's is 2); None: marginals
    root          trees: "virtual": a root symbol without content is put before the words. Its score for word
                  i is q_i . root_key / sqrt(head_dim), with ``root_key`` learned and at first zero; the
                  weights of a word sum to 1 - p(its parent is the root symbol). "first": position 0 is the
                  root symbol, say [CLS]; it attends to nothing
    single_root   trees: only one word may have the root symbol as its parent

    Its own parameters, beside torch's, are ``pairwise`` (num_heads, 2, 2), the b of each segmentation head,
    at first zero, and ``root_key`` (num_heads, head_dim). A state_dict of torch's module loads, and leaves
    these as they are.

    Masks. A key that `key_padding_mask` leaves out does not exist: structures are over the others, closed up.
    A key that `attn_mask` forbids query i (True, or -inf) is not selected by it. For a segmentation head,
    what is forbidden after the last allowed key does not exist either: under a causal mask a query sees the
    chain that ends with itself. For a tree head, word i can not have that parent; where no tree is left, all
    its weights are zero. Numbers in float masks are added to the scores.
    """

    pairwise: Tensor | None
    root_key: Tensor | None

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: Any = None,
        *,
        structure: str | Sequence[str] = "segmentation",
        normalize: float | None = 2.0,
        root: str = "virtual",
        single_root: bool = False,
    ) -> None:
        if num_heads > 0 and embed_dim % num_heads:
            raise ValueError(f"embed_dim: expected a multiple of num_heads = {num_heads}, got {embed_dim}")
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            add_bias_kv,
            add_zero_attn,
            kdim,
            vdim,
            batch_first,
            device,
            dtype,
        )
        check_choice("root", root, ("virtual", "first"))
        check_normalize(normalize)
        self.structure = _structures(structure, num_heads)
        self.normalize, self.root, self.single_root = normalize, root, single_root
        kinds = {*self.structure}
        if (add_bias_kv or add_zero_attn) and not kinds <= {"softmax", "sigmoid"}:
            raise ValueError(
                "add_bias_kv and add_zero_attn: expected only softmax and sigmoid heads (an added key has no "
                f"place in a sequence), got {', '.join(sorted(kinds))}"
            )
        self._has_trees = not kinds.isdisjoint(TREES)
        factory = {"device": device, "dtype": dtype}
        self.pairwise = _zeros((num_heads, 2, 2), "segmentation" in kinds, factory)
        self.root_key = _zeros((num_heads, self.head_dim), self._has_trees and root == "virtual", factory)
        self._groups = [
            (name, [head for head, own in enumerate(self.structure) if own == name])
            for name in dict.fromkeys(self.structure)
        ]

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """(output, weights or None), with the shapes and masks of torch.nn.MultiheadAttention."""
        if query.is_nested:
            return self._forward_nested(query, key, value, need_weights)
        query, key, value, batched = self._batch_first(query, key, value)
        if is_causal and attn_mask is None:
            raise ValueError("attn_mask: expected the causal mask that is_causal=True hints at, got None")
        if not batched and key_padding_mask is not None:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        sizes = (len(query), self.num_heads, query.shape[1], key.shape[1])
        masks = read_masks(key_padding_mask, attn_mask, *sizes, query.dtype)
        output, weights = self._in_order(query, key, value, masks, need_weights)
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return (output if self.batch_first else output.transpose(0, 1)), weights

    def _batch_first(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor, bool]:
        """Checked, with the batch first; what was one tensor stays one. And whether there was a batch."""
        like = self.out_proj.weight
        batched = isinstance(query, Tensor) and query.dim() == 3
        batch: list[int | str] = ["B"] if batched else []
        place = slice(0, 0) if self.batch_first else slice(1, 1)

        def check(name: str, tensor: Tensor, *sizes: int | str) -> None:
            check_features(name, tensor, *sizes[: place.start], *batch, *sizes[place.start :], like=like)

        check("query", query, "L", self.embed_dim)
        if batched:
            batch = [query.shape[place.start]]
        check("key", key, "S", self.kdim)
        check("value", value, key.shape[1 if batched and self.batch_first else 0], self.vdim)
        if self._has_trees and query.shape != key.shape[:-1] + query.shape[-1:]:
            raise ValueError(
                "key: expected as many keys as queries for tree heads (words attend to words), got "
                f"query {tuple(query.shape)} and key {tuple(key.shape)}"
            )
        if batched and self.batch_first:
            return query, key, value, True
        into = (lambda x: x.transpose(0, 1)) if batched else (lambda x: x.unsqueeze(0))
        same_key, same_value = key is query, value is key
        query = into(query)
        key = query if same_key else into(key)
        value = key if same_value else into(value)
        return query, key, value, batched

    def _in_order(
        self, query: Tensor, key: Tensor, value: Tensor, masks: HeadMasks, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Attends while what is padded is moved behind, where structures can leave it out."""
        order = None if masks.padding is None else masks.padding.order
        if order is None or {*self.structure} <= {"softmax", "sigmoid"}:
            return self._attend(query, key, value, masks, need_weights)
        masks, words = masks.in_order(self._has_trees), order.unsqueeze(2)
        same_value = value is key
        key = key.take_along_dim(words, 1)
        value = key if same_value else value.take_along_dim(words, 1)
        if self._has_trees:
            query = query.take_along_dim(words, 1)
        output, weights = self._attend(query, key, value, masks, need_weights)
        back = order.argsort(1)
        if self._has_trees:
            output = output.take_along_dim(back.unsqueeze(2), 1)
        if weights is not None:
            weights = weights.take_along_dim(back[:, None, None], 3)
            if self._has_trees:
                weights = weights.take_along_dim(back[:, None, :, None], 2)
        return output, weights

    def _attend(
        self, query: Tensor, key: Tensor, value: Tensor, masks: HeadMasks, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Output (B, L, embed_dim) and weights (B, H, L, S)."""
        q, k, v = self._project(query, key, value)
        if k.shape[2] > key.shape[1]:
            masks = masks.with_more_keys(k.shape[2] - key.shape[1])
        q = q * self.head_dim**-0.5
        results = [
            self._attend_as(structure, heads, q, k, v, masks, need_weights)
            for structure, heads in self._groups
        ]
        context, weights = results[0]
        if len(results) > 1:
            together = [head for _, heads in self._groups for head in heads]
            back = [together.index(head) for head in range(self.num_heads)]
            context = pick_heads(torch.cat([context for context, _ in results], 1), back, 1)
            per_head = [weights for _, weights in results if weights is not None]
            weights = pick_heads(torch.cat(per_head, 1), back, 1) if need_weights else None
        return self.out_proj(context.transpose(1, 2).flatten(2)), weights

    def _attend_as(
        self,
        structure: str,
        heads: list[int],
        q: Tensor,
        k: Tensor,
        v: Tensor,
        masks: HeadMasks,
        need_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Context (B, H, L, head_dim) and weights (B, H, L, S) of the heads of one structure; q is scaled."""
        q, k, v = (pick_heads(x, heads, 1) for x in (q, k, v))
        masks = masks.of_heads(heads)
        dropout = self.dropout if self.training else 0.0
        if structure == "softmax" and not need_weights:
            added = masks.added()
            added = None if added is None else added.to(q.dtype)
            return F.scaled_dot_product_attention(q, k, v, added, dropout, scale=1.0), None
        if structure in TREES:
            root_key = None if self.root_key is None else pick_heads(self.root_key, heads, 0)
            weights = tree_heads(structure, q, k, masks, root_key, self.single_root)
        elif self.pairwise is not None and structure == "segmentation":
            weights = segmentation_heads(q @ k.mT, masks, pick_heads(self.pairwise, heads, 0), self.normalize)
        else:
            weights = (softmax_heads if structure == "softmax" else sigmoid_heads)(q @ k.mT, masks)
        weights = F.dropout(weights, dropout, self.training)
        return weights @ v, weights if need_weights else None

    def _project(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q (B, H, L, head_dim), k and v (B, H, S, head_dim), with the keys that were asked to be added."""
        if self.in_proj_weight is not None and query is key and key is value:
            q, k, v = F.linear(query, self.in_proj_weight, self.in_proj_bias).chunk(3, -1)
        else:
            separate: list[Tensor] = [self.q_proj_weight, self.k_proj_weight, self.v_proj_weight]
            weights = separate if self.in_proj_weight is None else [*self.in_proj_weight.chunk(3)]
            biases = [None] * 3 if self.in_proj_bias is None else [*self.in_proj_bias.chunk(3)]
            q, k, v = map(F.linear, (query, key, value), weights, biases)
        if self.bias_k is not None and self.bias_v is not None:
            k, v = (
                torch.cat([x, b.to(x.dtype).expand(len(x), -1, -1)], 1)
                for x, b in ((k, self.bias_k), (v, self.bias_v))
            )
        if self.add_zero_attn:
            k, v = F.pad(k, (0, 0, 0, 1)), F.pad(v, (0, 0, 0, 1))
        q, k, v = (x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for x in (q, k, v))
        return q, k, v

    def _forward_nested(
        self, query: Tensor, key: Tensor, value: Tensor, need_weights: bool
    ) -> tuple[Tensor, None]:
        """nn.TransformerEncoder makes nested tensors of padded input in evaluation, and wants them back."""
        if query is not key or key is not value or need_weights:
            raise ValueError(
                "query: expected key and value to be the same nested tensor, and need_weights=False"
            )
        sentences = query.unbind()
        lengths = torch.tensor([len(sentence) for sentence in sentences], device=query.device)
        words = query.to_padded_tensor(0.0)
        ignored = torch.arange(words.shape[1], device=query.device) >= lengths.unsqueeze(1)
        masks = read_masks(
            ignored, None, len(words), self.num_heads, words.shape[1], words.shape[1], words.dtype
        )
        output, _ = self._attend(words, words, words, masks, need_weights=False)
        cut = [row[: len(sentence)] for row, sentence in zip(output, sentences, strict=True)]
        return torch.nested.as_nested_tensor(cut), None

    def _reset_parameters(self) -> None:
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # Where this is true, torch's encoder layers compute plain softmax attention in evaluation themselves,
        # without calling self_attn.
        self._qkv_same_embed_dim = False
        for own in (getattr(self, "pairwise", None), getattr(self, "root_key", None)):
            if own is not None:
                nn.init.zeros_(own)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: Any,
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        own = {prefix + name for name in ("pairwise", "root_key")}
        super()._load_from_state_dict(
            state_dict, prefix, local_metadata, strict, missing_keys, unexpected_keys, error_msgs
        )
        if own.isdisjoint(state_dict):
            # The state of a torch.nn.MultiheadAttention.
            missing_keys[:] = [name for name in missing_keys if name not in own]

    def extra_repr(self) -> str:
        same = len({*self.structure}) == 1
        structure = self.structure[0] if same else self.structure
        return f"{self.embed_dim}, {self.num_heads}, structure={structure!r}, dropout={self.dropout}"


def _structures(structure: str | Sequence[str], num_heads: int) -> tuple[str, ...]:
    structures = (structure,) * num_heads if isinstance(structure, str) else tuple(structure)
    if len(structures) != num_heads:
        raise ValueError(f"structure: expected one for each of {num_heads} heads, got {len(structures)}")
    for name in structures:
        check_choice("structure", name, STRUCTURES)
    return structures


def _zeros(shape: tuple[int, ...], wanted: bool, factory: dict[str, Any]) -> nn.Parameter | None:
    return nn.Parameter(torch.zeros(shape, **factory)) if wanted else None
