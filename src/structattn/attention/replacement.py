"""Gives an existing Transformer structured self-attention, in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from torch import nn

from structattn.attention.multihead import StructuredMultiheadAttention

Model = TypeVar("Model", bound=nn.Module)


def replace(
    model: Model,
    structure: str | Sequence[str] = "segmentation",
    names: Sequence[str] = ("self_attn",),
    **options: Any,
) -> Model:
    """Swaps every torch.nn.MultiheadAttention of one of these names inside the model, and returns the model.

    structure    one for all heads, or a sequence of one for each head
    names        attributes to swap: "self_attn" is what torch's encoder and decoder layers call theirs
    options      further arguments of StructuredMultiheadAttention: normalize, root, single_root

    Parameters stay the very same tensors, so weights, and optimizers made before, stay valid; what a
    structure adds (pairwise potentials, root keys) is new, and starts at zero. A part of a model can be
    given, too: replace(model.layers[0], "projective").
    """
    found = [
        (parent, name)
        for parent in model.modules()
        for name in names
        if isinstance(getattr(parent, name, None), nn.MultiheadAttention)
    ]
    if not found:
        raise ValueError(
            f"model: expected a torch.nn.MultiheadAttention named {' or '.join(names)} inside, found none"
        )
    for parent, name in found:
        setattr(parent, name, structured(getattr(parent, name), structure, **options))
    for module in model.modules():
        if isinstance(module, nn.TransformerEncoder):
            # Nested tensors pay only where torch's own attention takes them.
            module.use_nested_tensor = False
    return model


def structured(
    attention: nn.MultiheadAttention, structure: str | Sequence[str], **options: Any
) -> StructuredMultiheadAttention:
    """The same attention, with the same parameters, as a StructuredMultiheadAttention."""
    like = attention.out_proj.weight
    result = StructuredMultiheadAttention(
        attention.embed_dim,
        attention.num_heads,
        attention.dropout,
        attention.in_proj_bias is not None,
        attention.bias_k is not None,
        attention.add_zero_attn,
        attention.kdim,
        attention.vdim,
        attention.batch_first,
        like.device,
        like.dtype,
        structure=structure,
        **options,
    )
    for name, parameter in attention.named_parameters(recurse=False):
        if name in result._parameters:
            setattr(result, name, parameter)
    result.out_proj = attention.out_proj
    return result.train(attention.training)
