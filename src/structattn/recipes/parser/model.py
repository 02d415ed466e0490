r"""A graph-based parser: a biLSTM over words, scores of arcs, and a distribution over dependency trees.

    x_i = [trained embedding; fixed vector; sum of the embeddings of its affixes]
    h = biLSTM(x)      theta_ij = scorer(h_i, h_j)      p(tree) by the structure, over the root symbol and the words

The loss is -log p(gold heads). Shapes: B sentences, n words.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from structattn.attention.scorers import SCORERS, BiaffineScorer
from structattn.attention.syntactic import TREES, SyntacticAttention
from structattn.recipes.errors import UserError, did_you_mean
from structattn.recipes.parser.data import AFFIXES, UNKNOWN
from structattn.structures.tree import DependencyTree


@dataclass
class ParserModelSettings:
    """[model]"""

    structure: str = "projective"
    """projective or nonprojective"""
    scorer: str = "biaffine"
    """biaffine, or the paper's mlp, whose scores are within (-1, 1)"""
    single_root: bool = True
    word_size: int = 100
    affix_size: int = 100
    lstm_size: int = 200
    """in each direction"""
    lstm_layers: int = 2
    arc_size: int = 200
    """units of the hidden layer that scores arcs"""
    dropout: float = 0.33
    """of words' representations, between and after the layers of the LSTM, and inside the biaffine scorer"""
    word_dropout: float = 0.25
    """probability that training takes a word for an unknown one; its vector and affixes stay"""

    def __post_init__(self) -> None:
        for key, value, known in (("structure", self.structure, TREES), ("scorer", self.scorer, SCORERS)):
            if value not in known:
                raise UserError(f'model.{key}: unknown value "{value}"{did_you_mean(value, known)}')


class ParserModel(nn.Module):
    """vectors: the fixed ones (V, size), or None. They are not saved with the weights."""

    def __init__(
        self, settings: ParserModelSettings, words: int, affixes: int, vectors: Tensor | None
    ) -> None:
        super().__init__()
        self.settings = settings
        size, hidden = settings.word_size + settings.affix_size, 2 * settings.lstm_size
        self.words = nn.Embedding(words + 1, settings.word_size)
        self.affixes = nn.Embedding(affixes + 1, settings.affix_size, padding_idx=UNKNOWN)
        self.vectors: Tensor | None
        if vectors is not None:
            size += vectors.shape[1]
            vectors = torch.cat([vectors.new_zeros(1, vectors.shape[1]), vectors])
        self.register_buffer("vectors", vectors, persistent=False)
        self.dropout = nn.Dropout(settings.dropout)
        self.encoder = nn.LSTM(
            size,
            settings.lstm_size,
            settings.lstm_layers,
            batch_first=True,
            bidirectional=True,
            dropout=settings.dropout if settings.lstm_layers > 1 else 0.0,
        )
        scorer: str | nn.Module = settings.scorer
        if scorer == "biaffine":
            scorer = BiaffineScorer(hidden, settings.arc_size, settings.dropout)
        self.arcs = SyntacticAttention(
            hidden,
            None,
            settings.arc_size,
            settings.structure,
            scorer,
            root="learned",
            single_root=settings.single_root,
        )

    def forward(self, features: Tensor, lengths: Tensor, heads: Tensor) -> Tensor:
        """-log p of the heads (B, n + 1), summed over the sentences."""
        return -self.trees(features, lengths).log_prob(heads).sum()

    def trees(self, features: Tensor, lengths: Tensor) -> DependencyTree:
        """The distribution over trees of the root symbol and the words; features (B, n, 2 + affixes)."""
        return self.arcs.distribution(self.encode(features, lengths), lengths)

    def encode(self, features: Tensor, lengths: Tensor) -> Tensor:
        """h (B, n, 2 * lstm_size)."""
        embedded = self.dropout(self.embed(features))
        packed = pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        hidden, _ = pad_packed_sequence(
            self.encoder(packed)[0], batch_first=True, total_length=features.shape[1]
        )
        return self.dropout(hidden)

    def embed(self, features: Tensor) -> Tensor:
        """x (B, n, size)."""
        words, rows, affixes = features.split([1, 1, AFFIXES], 2)
        words, rows = words.squeeze(2), rows.squeeze(2)
        if self.training and self.settings.word_dropout:
            words = words.masked_fill(
                torch.rand(words.shape, device=words.device) < self.settings.word_dropout, UNKNOWN
            )
        parts = [self.words(words), self._spelling(affixes)]
        if self.vectors is not None:
            parts.append(F.embedding(rows, self.vectors))
        return torch.cat(parts, 2)

    def _spelling(self, affixes: Tensor) -> Tensor:
        """The sum of the embeddings of a word's affixes (B, n, affix_size)."""
        summed = F.embedding_bag(
            affixes.flatten(0, 1), self.affixes.weight, mode="sum", padding_idx=self.affixes.padding_idx
        )
        return summed.view(*affixes.shape[:2], -1)
