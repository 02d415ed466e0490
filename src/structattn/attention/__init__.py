"""Attention layers: potentials -> marginals -> context.

``sequence.py``      softmax, sigmoid and segmentation attention by queries
``syntactic.py``     attention to parents and children in latent trees; ``scorers.py`` scores their arcs
``chain.py``         attention to facts in several steps
``multihead.py``     heads of any structure, called as torch.nn.MultiheadAttention is; ``masks.py``,
                     ``heads.py``
``replacement.py``   puts these into an existing Transformer
``edge.py``          checks what callers give
"""

from structattn.attention.chain import ChainAttention
from structattn.attention.multihead import StructuredMultiheadAttention
from structattn.attention.replacement import replace
from structattn.attention.scorers import BiaffineScorer, MLPScorer
from structattn.attention.sequence import SegmentationAttention, SigmoidAttention, SoftmaxAttention
from structattn.attention.syntactic import SyntacticAttention

__all__ = [
    "BiaffineScorer",
    "ChainAttention",
    "MLPScorer",
    "SegmentationAttention",
    "SigmoidAttention",
    "SoftmaxAttention",
    "StructuredMultiheadAttention",
    "SyntacticAttention",
    "replace",
]
