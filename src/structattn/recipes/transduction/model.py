"""The model of the paper's section 4.1 and appendix A.2: an encoder of embeddings alone and an LSTM decoder.

    x^_i = x_i                                       none
    x^_i = [x_i ; sum_k softmax_k(theta_ki) x_k]     simple       each symbol with a soft partner
    x^_i = [x_i ; sum_k p(z_ki = 1 | x) x_k]         structured   its soft parent in a projective tree

    h'_j = LSTM(y_j, h'_{j-1})      alpha = softmax_i(x^_i W h'_j)      m_j = sum_i alpha_i x^_i
    p(y_{j+1}) = softmax(V tanh(U [m_j ; h'_j]) + b)

The attention does not feed the LSTM, so all steps of a known target go through one call of the LSTM and one
of the attention. Shapes: B sentences, n source symbols, m target symbols, l the size of everything, d the
size of x^.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from structattn.attention.sequence import SoftmaxAttention
from structattn.attention.syntactic import TREES, SyntacticAttention, softmax_parents
from structattn.recipes.decoding import DecodingSettings, beam_search
from structattn.recipes.errors import UserError, did_you_mean
from structattn.recipes.temperature import at_temperature, check_temperature

STRUCTURES = {"none": None, "simple": "softmax", "structured": "projective", "nonprojective": "nonprojective"}


@dataclass
class TransductionModelSettings:
    """[model]: the paper's appendix A.2."""

    attention: str = "structured"
    """none, simple, structured, or nonprojective (not in the paper)"""
    size: int = 50
    """l: of embeddings, decoder, and each direction of the parsing LSTM"""
    share_decoder_embeddings: bool = False
    """whether source and target symbols have the same embeddings"""

    def __post_init__(self) -> None:
        if self.attention not in STRUCTURES:
            raise UserError(f'unknown attention "{self.attention}"{did_you_mean(self.attention, STRUCTURES)}')


class Memory(NamedTuple):
    """What the decoder needs of the sources: x^ (B, n, d), and how many of the n symbols count (B)."""

    representation: Tensor
    lengths: Tensor


class TransductionModel(nn.Module):
    def __init__(self, settings: TransductionModelSettings, symbols: int, padding: int = 0) -> None:
        super().__init__()
        size = settings.size
        self.padding = padding
        self.embedding = nn.Embedding(symbols, size, padding_idx=padding)
        structure = STRUCTURES[settings.attention]
        self.parents = SyntacticAttention(size, size, size, structure=structure) if structure else None
        width = 2 * size if structure else size
        share = settings.share_decoder_embeddings
        self.target_embedding = self.embedding if share else nn.Embedding(symbols, size, padding_idx=padding)
        self.decoder = nn.LSTM(size, size, batch_first=True)
        self.attention = SoftmaxAttention(size, width)  # W
        self.combine = nn.Linear(width + size, size, bias=False)  # U
        self.output = nn.Linear(size, symbols)  # V and b

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The loss, summed over the symbols of all targets; target (B, m) begins with the start symbol."""
        logits, _ = self.decode(self.encode(source, lengths), target[:, :-1], None)
        wanted = target[:, 1:].flatten()
        return nn.functional.cross_entropy(
            logits.flatten(0, 1), wanted, ignore_index=self.padding, reduction="sum"
        )

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        embedded = self.embedding(source)
        if self.parents is not None:
            parent, _ = self.parents(embedded, lengths)
            embedded = torch.cat([embedded, parent], 2)
        return Memory(embedded, lengths)

    def parent_marginals(self, source: Tensor, lengths: Tensor, temperature: float = 1.0) -> Tensor:
        """p (B, n, n): p[b, i, j] that symbol i is the parent of symbol j; temperature divides the potentials."""
        if self.parents is None:
            raise UserError('a model with attention "none" has no parents to show')
        words = self.embedding(source)
        if self.parents.structure in TREES:
            return at_temperature(self.parents.distribution(words, lengths), temperature).marginals
        check_temperature(temperature)
        return softmax_parents(self.parents.scores(words, lengths) / temperature, lengths)

    def decode(
        self, memory: Memory, target: Tensor, state: tuple[Tensor, Tensor] | None
    ) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        """Logits (B, m, symbols) of what follows each target symbol, and the state (None: zeros)."""
        hidden, state = self.decoder(self.target_embedding(target), state)
        return self.predict(memory, hidden), state

    def predict(self, memory: Memory, hidden: Tensor) -> Tensor:
        """Logits (B, k, symbols) of k decoder states (B, k, l) for each source."""
        context, _ = self.attention(hidden, memory.representation, lengths=memory.lengths)
        return self.output(torch.tanh(self.combine(torch.cat([context, hidden], 2))))

    def search(
        self, source: Tensor, lengths: Tensor, settings: DecodingSettings, start: int, end: int
    ) -> list[list[int]]:
        """The best target of each source, without start and end."""
        memory = self.encode(source, lengths)

        def step(symbols: Tensor, state: Any, sentences: Tensor) -> tuple[Tensor, Any]:
            wanted = Memory(memory.representation[sentences], memory.lengths[sentences])
            hidden, state = self.decoder(self.target_embedding(symbols.view(-1, 1)), state)
            return self.predict(wanted, hidden.view(*symbols.shape, -1)).log_softmax(2), state

        found = beam_search(
            step,
            settings.longest(lengths),
            start,
            end,
            settings.beam,
            length_normalisation=settings.length_normalisation,
            state_dimension=1,
        )
        return [hypotheses[0].symbols for hypotheses in found]
