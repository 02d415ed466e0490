r"""Decomposable attention over words and their parents (paper, section 4.4 and appendix A.5).

    x^_i = x_i                                       none
    x^_i = [x_i ; x_head(i)]                         hard         the parent in a tree that is given
    x^_i = [x_i ; sum_k softmax_k(theta_ki) x_k]     simple       a soft partner
    x^_i = [x_i ; sum_k p(z_ki = 1 | x) x_k]         structured   the soft parent in a projective tree

    e_ij = f(x^_i) . f(y^_j)
    x-_i = [x^_i ; sum_j softmax_j(e_ij) y^_j]        y-_j = [y^_j ; sum_i softmax_i(e_ij) x^_i]
    p(label) = softmax(V h([sum_i g(x-_i) ; sum_j g(y-_j)]) + b)

x_i is a trained projection of a fixed vector; the scores theta come from a biLSTM over the fixed vectors. f, g and h
have two layers of rectified units, with dropout before each.

Premises and hypotheses go through everything as one batch, the premises first. Projected is each word of the batch
once; f and g see the words that count and no padding. Shapes: B pairs, n words of the longest sentence, the root symbol
first, U different words in the batch, T words that count.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structattn.attention.scorers import SCORERS
from structattn.attention.sequence import softmax_weights
from structattn.attention.syntactic import TREES, SyntacticAttention, softmax_parents
from structattn.recipes.entailment.data import LABELS
from structattn.recipes.entailment.trees import PARSES
from structattn.recipes.errors import UserError, did_you_mean
from structattn.recipes.temperature import at_temperature, check_temperature
from structattn.structures.distribution import beyond

STRUCTURES = {
    "none": None,
    "hard": "hard",
    "simple": "softmax",
    "structured": "projective",
    "pretrained": "projective",
    "nonprojective": "nonprojective",
}


@dataclass
class EntailmentModelSettings:
    """[model]: the paper's appendix A.5."""

    attention: str = "structured"
    """none, hard, simple, structured, pretrained (structured), or nonprojective (not in the paper)"""
    size: int = 300
    """of a projected word"""
    hidden: int = 300
    """units of each layer of f, g and h"""
    projection_bias: bool = False
    lstm: int = 100
    """units of the parsing LSTM in each direction"""
    scorer: str = "mlp"
    """of arcs: "mlp", the paper's, or "biaffine" (see SyntacticAttention)"""
    arc_size: int = 100
    """units of the scorer's hidden layer"""
    single_root: bool = False
    """whether one word only may have the root symbol as its parent"""
    dropout: float = 0.2
    trees: str = PARSES
    """of "hard": "parses", those of the rows; or a CoNLL-U file, or the run folder of a parser"""

    def __post_init__(self) -> None:
        if self.attention not in STRUCTURES:
            raise UserError(f'unknown attention "{self.attention}"{did_you_mean(self.attention, STRUCTURES)}')
        if self.scorer not in SCORERS:
            raise UserError(
                f'model.scorer: unknown value "{self.scorer}"{did_you_mean(self.scorer, SCORERS)}'
            )
        for name in ("size", "hidden", "lstm", "arc_size"):
            if getattr(self, name) < 1:
                raise UserError(f"model.{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.dropout < 1:
            raise UserError(f"model.dropout is a probability below 1, not {self.dropout}")


class Dropout(nn.Module):
    """torch's dropout of float numbers, drawn four at a time: a random word of 64 bits decides four of them.

    torch's own draws one after another, and then takes as long as the matrix product that follows. The probability is
    met to 1 / 65536.
    """

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.kept = round((1 - probability) * 65536)

    def forward(self, x: Tensor) -> Tensor:
        if not self.training or self.kept == 65536:
            return x
        drawn = torch.empty((x.numel() + 3) // 4, dtype=torch.int64, device=x.device).random_(-(2**63), None)
        bits = drawn.view(torch.int16)[: x.numel()].view(x.shape)
        return x * ((bits < self.kept - 32768) * (65536 / self.kept)).to(x.dtype)

    def extra_repr(self) -> str:
        return f"p={1 - self.kept / 65536:.4f}"


class EntailmentModel(nn.Module):
    def __init__(self, settings: EntailmentModelSettings, vector_size: int) -> None:
        super().__init__()
        size, hidden = settings.size, settings.hidden
        self.projection = nn.Linear(vector_size, size, bias=settings.projection_bias)
        structure = STRUCTURES[settings.attention]
        self.parents = None
        if structure is not None:
            self.parents = SyntacticAttention(
                vector_size,
                settings.lstm,
                settings.arc_size,
                structure,
                settings.scorer,
                single_root=settings.single_root,
            )
        width = 2 * size if structure else size
        self.attend = _layers(width, hidden, settings.dropout)  # f
        self.compare = _layers(2 * width, hidden, settings.dropout)  # g
        self.combine = _layers(2 * hidden, hidden, settings.dropout)  # h
        self.output = nn.Linear(hidden, len(LABELS))  # V and b
        if settings.attention == "pretrained":
            # Part of a checkpoint, so that a resumed run does not pretrain again.
            self.register_buffer("is_pretrained", torch.zeros(()))
            self.is_pretrained: Tensor

    def forward(
        self, vectors: Tensor, words: Tensor, lengths: Tensor, labels: Tensor, heads: Tensor | None = None
    ) -> Tensor:
        """The loss, summed over the pairs; labels (B), the rest as in `logits`."""
        return F.cross_entropy(self.logits(vectors, words, lengths, heads), labels, reduction="sum")

    def logits(self, vectors: Tensor, words: Tensor, lengths: Tensor, heads: Tensor | None = None) -> Tensor:
        """(B, labels).

        vectors    (U, vector_size), fixed
        words      (2 B, n), which of them the words are
        lengths    (2 B), the first so many words count
        heads      (2 B, n) for given trees
        """
        pairs, n = len(words) // 2, words.shape[1]
        vectors = vectors.to(self.projection.weight.dtype)
        x = F.embedding(words, self.projection(vectors))
        if self.parents is not None:
            context, _ = self.parents(F.embedding(words, vectors), lengths, x, heads)
            x = torch.cat([x, context], 2)
        ignored = beyond(lengths, n)
        counting = (~ignored).flatten().nonzero().squeeze(1)
        f = _scattered(self.attend(_gathered(x, counting)), counting, words)
        e = f[:pairs] @ f[pairs:].mT
        weights = softmax_weights(torch.cat([e, e.mT]), _exchanged(ignored).unsqueeze(1))
        x = torch.cat([x, weights @ _exchanged(x)], 2)
        total = _scattered(self.compare(_gathered(x, counting)), counting, words).sum(1)
        return self.output(self.combine(torch.cat([total[:pairs], total[pairs:]], 1)))

    def heads(self, vectors: Tensor, words: Tensor, lengths: Tensor) -> Tensor:
        """The heads (2 B, n) of the best latent trees; with "simple", each word's best partner."""
        return self._scored_parents().heads(F.embedding(words, vectors), lengths)

    def marginals(self, vectors: Tensor, words: Tensor, lengths: Tensor, temperature: float = 1.0) -> Tensor:
        """p (2 B, n, n): p[b, i, j] that word i is the parent of word j; temperature divides the potentials."""
        parents, embedded = self._scored_parents(), F.embedding(words, vectors)
        if parents.structure in TREES:
            return at_temperature(parents.distribution(embedded, lengths), temperature).marginals
        check_temperature(temperature)
        return softmax_parents(parents.scores(embedded, lengths) / temperature, lengths)

    def log_prob(self, vectors: Tensor, words: Tensor, lengths: Tensor, heads: Tensor) -> Tensor:
        """Of given trees (2 B, n): what pretraining raises."""
        return self._scored_parents().distribution(F.embedding(words, vectors), lengths).log_prob(heads)

    def _scored_parents(self) -> SyntacticAttention:
        if self.parents is None or self.parents.structure == "hard":
            raise UserError('a model with attention "none" or "hard" has no latent trees')
        return self.parents


def _layers(size: int, hidden: int, dropout: float) -> nn.Sequential:
    def layer(size: int) -> list[nn.Module]:
        return [Dropout(dropout), nn.Linear(size, hidden), nn.ReLU()]

    return nn.Sequential(*layer(size), *layer(hidden))


def _exchanged(sentences: Tensor) -> Tensor:
    """For each premise its hypothesis, and for each hypothesis its premise: (2 B, ...)."""
    return sentences.roll(len(sentences) // 2, 0)


def _gathered(x: Tensor, counting: Tensor) -> Tensor:
    """The T words that count (T, features) of (2 B, n, features)."""
    return x.flatten(0, 1).index_select(0, counting)


def _scattered(x: Tensor, counting: Tensor, words: Tensor) -> Tensor:
    """The words that count back in their places (2 B, n, features), zeros elsewhere."""
    padded = x.new_zeros(words.numel(), x.shape[1]).index_copy(0, counting, x)
    return padded.view(*words.shape, -1)
