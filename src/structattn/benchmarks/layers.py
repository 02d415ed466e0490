"""Attention layers against the softmax layers that they replace, parameters and their gradients included."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy

import torch
from torch import Tensor, nn

import structattn
from structattn.attention import SegmentationAttention, SoftmaxAttention, SyntacticAttention, replace
from structattn.benchmarks.findings import Outcome, ratio
from structattn.benchmarks.problems import Step
from structattn.benchmarks.timing import Contestant, race
from structattn.benchmarks.verification import agree
from structattn.benchmarks.workloads import Settings


def segmentation(settings: Settings) -> Outcome:
    """50 queries of each of 128 sentences of 50 words, with 500 features."""
    structured, simple = SegmentationAttention(500), SoftmaxAttention(500)
    nn.init.normal_(structured.pairwise)
    inputs = torch.randn(128, 50, 500), torch.randn(128, 50, 500)
    return _compare("LAYER-SEGMENTATION", structured, simple, inputs, 1.15, settings)


def syntactic(settings: Settings) -> Outcome:
    """Soft parents in 32 sentences of 30 words, 300 features: biLSTM, arc scores with 100 hidden units."""
    structured, simple = (
        SyntacticAttention(300, 100, 100, structure=structure) for structure in ("projective", "softmax")
    )
    return _compare("LAYER-SYNTACTIC", structured, simple, (torch.randn(32, 30, 300),), 1.2, settings)


def transformer(settings: Settings) -> Outcome:
    """An encoder of 4 layers, 8 heads and 256 features on 16 sentences of 64 words."""
    layer = nn.TransformerEncoderLayer(256, 8, dim_feedforward=1024, dropout=0.0, batch_first=True)
    simple = nn.TransformerEncoder(layer, 4)
    structured = deepcopy(simple)
    replace(structured, structure="segmentation")
    return _compare("LAYER-TRANSFORMER", structured, simple, (torch.randn(16, 64, 256),), 1.5, settings)


def _compare(
    name: str,
    structured: nn.Module,
    simple: nn.Module,
    inputs: tuple[Tensor, ...],
    at_most: float,
    settings: Settings,
) -> Outcome:
    # In float64: the gradient of a ReLU jumps wherever a rounding of float32 decides about a sign.
    checked = _step(deepcopy(structured).double(), tuple(tensor.double() for tensor in inputs))
    with structattn.backend("plain"):
        expected = checked()
    agree("the plain-torch path", checked(), expected)
    ours, baseline = (
        Contestant(who, _step(layer, inputs))
        for who, layer in (("structattn", structured), ("softmax", simple))
    )
    race([ours, baseline], settings.effort)
    found = ratio(name, "time against the softmax layer", ours, baseline, at_most)
    return Outcome([found], [(name, ours), (name, baseline)])


def _step(layer: nn.Module, inputs: tuple[Tensor, ...]) -> Step:
    leaves = [tensor.clone().requires_grad_() for tensor in inputs]
    wanted = [*leaves, *layer.parameters()]
    weights = torch.randn_like(inputs[0])

    def step() -> tuple[Tensor, ...]:
        output = layer(*leaves)
        context = output[0] if isinstance(output, tuple) else output
        return context, *torch.autograd.grad((context * weights).sum(), wanted)

    return step


BENCHMARKS: dict[str, Callable[[Settings], Outcome]] = {
    "LAYER-SEGMENTATION": segmentation,
    "LAYER-SYNTACTIC": syntactic,
    "LAYER-TRANSFORMER": transformer,
}
