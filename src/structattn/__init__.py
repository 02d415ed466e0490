"""Structured attention for PyTorch: exact, differentiable inference over chains and trees as layers in a network."""

from structattn.attention import (
    ChainAttention,
    SegmentationAttention,
    SigmoidAttention,
    SoftmaxAttention,
    StructuredMultiheadAttention,
    SyntacticAttention,
)
from structattn.kernels import backend
from structattn.structures.chain import LinearChain
from structattn.structures.nonprojective import NonProjectiveTree
from structattn.structures.projective import ProjectiveTree

__version__ = "0.1.0"

__all__ = [
    "ChainAttention",
    "LinearChain",
    "NonProjectiveTree",
    "ProjectiveTree",
    "SegmentationAttention",
    "SigmoidAttention",
    "SoftmaxAttention",
    "StructuredMultiheadAttention",
    "SyntacticAttention",
    "__version__",
    "backend",
]
