"""Structured attention for PyTorch: exact, differentiable inference over chains and trees as layers in a network."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
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

_PARTS = ("attention", "kernels", "paper", "structures")
_HOMES = {
    "LinearChain": "structures.chain",
    "NonProjectiveTree": "structures.nonprojective",
    "ProjectiveTree": "structures.projective",
    "backend": "kernels",
}
"""Where names are; the others of __all__ are layers."""


def __getattr__(name: str) -> Any:
    # Found when first asked for: importing torch takes a second, which the command line's help has no use for.
    if name in _PARTS:
        return importlib.import_module(f"structattn.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'structattn' has no attribute {name!r}")
    home = importlib.import_module(f"structattn.{_HOMES.get(name, 'attention')}")
    globals()[name] = getattr(home, name)
    return globals()[name]


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_PARTS})
