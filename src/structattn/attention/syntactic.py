"""Syntactic attention (paper, section 3.2, appendix A.1): words attend to their parents in a latent tree."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from structattn.attention.edge import check_choice, check_features, check_integers, check_lengths, check_range
from structattn.attention.scorers import SCORERS
from structattn.attention.sequence import softmax_weights
from structattn.structures.distribution import beyond
from structattn.structures.nonprojective import NonProjectiveTree
from structattn.structures.projective import ProjectiveTree
from structattn.structures.tree import DependencyTree

TREES: dict[str, type[DependencyTree]] = {"projective": ProjectiveTree, "nonprojective": NonProjectiveTree}
STRUCTURES = (*TREES, "softmax", "hard")
SELECTIONS = ("parents", "children", "both")


class SyntacticAttention(nn.Module):
    r"""Soft parents by a distribution over dependency trees:

    .. math::
        h = \mathrm{biLSTM}(x), \quad \theta_{ij} = \tanh(s^\top \tanh(W_1 h_i + W_2 h_j + b)), \quad
        c_j = \sum_i p(z_{ij} = 1 \mid x) \, v_i

    where z_ij = 1 says that word i is the parent of word j. Word 0 is the root symbol; it has no parent, c_0
    = 0.

    input_dim    features of x
    lstm_dim     features of the LSTM in each direction; None: no LSTM, the words are scored as they come
    hidden_dim   features of the scorer's hidden layer
    structure    "projective", "nonprojective": the marginals of trees. "softmax" (the paper's *simple*):
                 every word, the root symbol too, chooses among all words, itself included. "hard": heads are
                 given
    scorer       "mlp" (the paper's), "biaffine", or a module that makes theta (B, n, n) of h (B, n, features)
    root         "first": the caller's first word is the root symbol, as in the paper. "learned": a learned
                 vector ``root`` is put before every sentence; trees are then over n + 1 words, contexts of n
    select       "parents": c_j as above; "children": c_i = sum_j p(z_ij = 1) v_j; "both": parents, children
    single_root  only one word may have the root symbol as its parent
    num_layers   layers of the LSTM
    dropout      probability that a weight is dropped in training
    """

    root: Tensor | None

    def __init__(
        self,
        input_dim: int,
        lstm_dim: int | None = 100,
        hidden_dim: int = 100,
        structure: str = "projective",
        scorer: str | nn.Module = "mlp",
        root: str = "first",
        select: str = "parents",
        single_root: bool = False,
        num_layers: int = 1,
        dropout: float = 0.0,
        device: Any = None,
        dtype: Any = None,
    ) -> None:
        super().__init__()
        check_choice("structure", structure, STRUCTURES)
        check_choice("root", root, ("first", "learned"))
        check_choice("select", select, SELECTIONS)
        self.input_dim, self.structure, self.select = input_dim, structure, select
        self.single_root, self.dropout = single_root, dropout
        factory = {"device": device, "dtype": dtype}
        # Given heads need neither an encoder nor a scorer, and parameters without a gradient trouble DDP.
        self.encoder: nn.LSTM | None = None
        self.scorer: nn.Module | None = None
        if structure != "hard":
            if lstm_dim is not None:
                self.encoder = nn.LSTM(
                    input_dim, lstm_dim, num_layers, batch_first=True, bidirectional=True, **factory
                )
            features = input_dim if lstm_dim is None else 2 * lstm_dim
            self.scorer = _scorer(scorer, features, hidden_dim, factory)
        self.register_parameter(
            "root", nn.Parameter(torch.empty(input_dim, **factory)) if root == "learned" else None
        )
        if self.root is not None:
            nn.init.normal_(self.root, std=input_dim**-0.5)

    def forward(
        self,
        words: Tensor,
        lengths: Tensor | None = None,
        value: Tensor | None = None,
        heads: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The contexts (B, n, value_dim), twice as wide for both, and the marginals (B, n, n).

        words      x (B, n, input_dim)
        lengths    (B), the first so many words count; the default is all
        value      v (B, n, value_dim); the default is words
        heads      (B, n) for structure "hard": heads[..., j] is the parent of word j, and heads[..., 0] is
                   ignored

        Of the marginals, [..., i, j] is p(z_ij = 1): columns sum to 1, but the root symbol's and what is
        padded. With a learned root, marginals and heads are over n + 1 words, the root first, and its value
        is its vector, or zero where values are given.
        """
        if value is not None and isinstance(words, Tensor):
            check_features("value", value, *words.shape[:2], "value_dim", like=next(self.parameters(), None))
        words, lengths = self._from_root(words, lengths)
        if value is None:
            value = words
        elif self.root is not None:
            value = F.pad(value, (0, 0, 1, 0))
        marginals = F.dropout(self._marginals(words, lengths, heads), self.dropout, self.training)
        selected = []
        if self.select != "children":
            selected.append(marginals.mT @ value)
        if self.select != "parents":
            selected.append(marginals @ value)
        context = torch.cat(selected, -1) if len(selected) > 1 else selected[0]
        return (context if self.root is None else context[:, 1:]), marginals

    def scores(self, words: Tensor, lengths: Tensor | None = None) -> Tensor:
        """theta (B, n, n), or (B, n + 1, n + 1) with a learned root."""
        return self._theta(*self._from_root(words, lengths))

    def distribution(self, words: Tensor, lengths: Tensor | None = None) -> DependencyTree:
        """The distribution over trees: log_prob of a treebank's heads to train a parser, samples, ..."""
        if self.structure not in TREES:
            raise ValueError(
                f"structure: expected one of {', '.join(TREES)} for a distribution, got {self.structure!r}"
            )
        return self._trees(*self._from_root(words, lengths))

    @torch.no_grad()
    def heads(self, words: Tensor, lengths: Tensor | None = None) -> Tensor:
        """The heads (B, n), or (B, n + 1) with a learned root, of the best tree; "softmax": each word's best.

        heads[..., 0] is 0, and so is what is padded.
        """
        words, lengths = self._from_root(words, lengths)
        if self.structure in TREES:
            return self._trees(words, lengths).mode
        theta = self._theta(words, lengths)
        best = softmax_parents(theta, lengths).argmax(1)
        return best * (torch.arange(best.shape[1], device=best.device) > 0)

    def _from_root(self, words: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """words and lengths, checked, with the root symbol first."""
        check_features("words", words, "B", "n", self.input_dim, like=next(self.parameters(), None))
        batch, n, _ = words.shape
        if lengths is not None:
            lengths = check_lengths(lengths, batch, n)
        if self.root is None:
            return words, lengths
        root = self.root.to(words.dtype).expand(batch, 1, -1)
        return torch.cat([root, words], 1), None if lengths is None else lengths + 1

    def _marginals(self, words: Tensor, lengths: Tensor | None, heads: Tensor | None) -> Tensor:
        if self.structure == "hard":
            return self._given(words, lengths, heads)
        if heads is not None:
            raise ValueError(f"heads: expected None for structure {self.structure!r}, got heads")
        if self.structure in TREES:
            return self._trees(words, lengths).marginals
        return softmax_parents(self._theta(words, lengths), lengths)

    def _trees(self, words: Tensor, lengths: Tensor | None) -> DependencyTree:
        return TREES[self.structure](self._theta(words, lengths), lengths, self.single_root)

    def _theta(self, words: Tensor, lengths: Tensor | None) -> Tensor:
        if self.scorer is None:
            raise ValueError(f"structure: expected one that scores arcs, got {self.structure!r}")
        return self.scorer(words if self.encoder is None else _encode(self.encoder, words, lengths))

    def _given(self, words: Tensor, lengths: Tensor | None, heads: Tensor | None) -> Tensor:
        batch, n, _ = words.shape
        heads = check_integers("heads", heads, (batch, n))
        counts = torch.arange(n, device=heads.device).expand(batch, n) > 0
        if lengths is not None:
            counts = counts & ~beyond(lengths, n)
        heads = heads.masked_fill(~counts, 0)
        check_range("heads", heads, n - 1)
        return (F.one_hot(heads, n) * counts.unsqueeze(2)).to(words.dtype).mT

    def extra_repr(self) -> str:
        root = "first" if self.root is None else "learned"
        options = f"structure={self.structure!r}, root={root!r}, select={self.select!r}"
        return f"{self.input_dim}, {options}, single_root={self.single_root}, dropout={self.dropout}"


def _encode(encoder: nn.LSTM, words: Tensor, lengths: Tensor | None) -> Tensor:
    """The LSTM's states (B, n, 2 * lstm_dim); padded words change nothing and get zeros.

    Sentences that torch packs take twice the time on a CPU. Here they stay padded, and the direction that begins at the
    end gets them turned round, so that it too sees the padding last. torch.compile cannot take an LSTM and leaves it
    alone only as a module: for it, sentences are packed.
    """
    if lengths is None:
        return encoder(words)[0]
    n = words.shape[1]
    if torch.compiler.is_compiling():
        # torch refuses to pack an empty sentence: let it have one word, which no tree looks at.
        counts = lengths.clamp_min(1).cpu()
        packed = pack_padded_sequence(words, counts, batch_first=True, enforce_sorted=False)
        return pad_packed_sequence(encoder(packed)[0], batch_first=True, total_length=n)[0]
    places, last = torch.arange(n, device=words.device), lengths.unsqueeze(1) - 1
    turned = torch.where(places > last, places, last - places).unsqueeze(2)
    states = words
    for layer in range(encoder.num_layers):
        forward, backward = encoder.all_weights[2 * layer : 2 * layer + 2]
        ahead = _one_direction(states, forward)
        behind = _one_direction(states.take_along_dim(turned, 1), backward).take_along_dim(turned, 1)
        states = torch.cat([ahead, behind], 2)
    return states.masked_fill((places > last).unsqueeze(2), 0.0)


def _one_direction(words: Tensor, weights: list[Any]) -> Tensor:
    """The states (B, n, lstm_dim) of one direction of one layer of an LSTM."""
    start = words.new_zeros(1, len(words), weights[1].shape[1])
    return torch.lstm(words, (start, start), weights, True, 1, 0.0, False, False, True)[0]


def softmax_parents(theta: Tensor, lengths: Tensor | None) -> Tensor:
    """p(z_ij = 1) (B, n, n) where every word chooses among all words."""
    if lengths is None:
        return softmax_weights(theta.mT, None).mT
    ignored = beyond(lengths, theta.shape[1])
    return softmax_weights(theta.mT, ignored.unsqueeze(1) | ignored.unsqueeze(2)).mT


def _scorer(scorer: str | nn.Module, features: int, hidden_dim: int, factory: dict[str, Any]) -> nn.Module:
    if isinstance(scorer, nn.Module):
        return scorer
    check_choice("scorer", scorer, tuple(SCORERS))
    return SCORERS[scorer](features, hidden_dim, **factory)
