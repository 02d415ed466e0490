"""The model of the paper's section 4.2 and appendix A.3: an encoder and a decoder of LSTMs, attention between them.

    h_i  = LSTM(x_i, h_{i-1})           h'_j = LSTM(y_j, h'_{j-1})           theta_i = h_i W h'_j

    c_j = sum_i softmax(theta)_i h_i                    simple
    c_j = sum_i sigmoid(theta_i) h_i                    sigmoid
    c_j = sum_i p(z_i = 1 | theta, b) / gamma h_i       structured: a chain z of two states marks segments

    h^_j = tanh(U [c_j ; h'_j])         p(y_{j+1}) = softmax(V h^_j + b)

The attention does not feed the LSTM, so all steps of a known target go through one call of the LSTM and one of the
attention. With input feeding, h^_{j-1} is part of the decoder's input and the steps go one by one.
Shapes: B sentences, n source symbols, m target symbols, K hypotheses of a sentence, l units.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structattn.attention.sequence import (
    SegmentationAttention,
    SigmoidAttention,
    SoftmaxAttention,
    normalised,
)
from structattn.recipes.decoding import DecodingSettings, Hypothesis, beam_search
from structattn.recipes.errors import UserError, did_you_mean
from structattn.recipes.temperature import at_temperature, check_temperature
from structattn.recipes.translation.preparation import END, PADDING, SPECIAL, START

ATTENTIONS = ("simple", "sigmoid", "structured")
STARTS = ("last", "zeros")
_PADDING, _START, _END = map(SPECIAL.index, (PADDING, START, END))

State = tuple[Tensor, ...]
"""Hidden and cell states (layers, B, l) of the decoder; with input feeding also h^ (1, B, l)."""


@dataclass
class TranslationModelSettings:
    """[model]: the paper's appendix A.3."""

    attention: str = "structured"
    """simple, sigmoid or structured"""
    size: int = 500
    """l: of embeddings, encoder and decoder"""
    layers: int = 2
    """of encoder and decoder each"""
    dropout: float = 0.3
    """on embeddings, between layers, and on h^"""
    input_feeding: bool = False
    """whether h^ of the previous step is part of the decoder's input"""
    decoder_start: str = "last"
    """the decoder's first state: the encoder's "last" one, or "zeros" """
    normalize: float = 2.0
    """lambda: the weights of structured attention sum to it; 0: the plain marginals"""
    pairwise_penalty: float = 0.005
    """of structured attention: so much of ||b||^2 is added to the loss of each sentence"""

    def __post_init__(self) -> None:
        for key, known in (("attention", ATTENTIONS), ("decoder_start", STARTS)):
            value = getattr(self, key)
            if value not in known:
                raise UserError(f'model.{key}: unknown value "{value}"{did_you_mean(value, known)}')
        if min(self.size, self.layers) < 1:
            raise UserError("model.size and model.layers must be at least 1")
        if not 0 <= self.dropout < 1:
            raise UserError(f"model.dropout is a probability below 1, not {self.dropout}")


class Memory(NamedTuple):
    """What the decoder needs of the sources: h (B, n, l), how many of the n count (B), and its own first state."""

    states: Tensor
    lengths: Tensor
    start: State

    def rows(self, sentences: Tensor) -> Memory:
        start = tuple(part[:, sentences] for part in self.start)
        return Memory(self.states[sentences], self.lengths[sentences], start)


class Reading(NamedTuple):
    """What the decoder makes of m target symbols: h^ (B, m, l), h' (B, m, l), and the attention's weights (B, m, n)."""

    combined: Tensor
    hidden: Tensor
    weights: Tensor


class TranslationModel(nn.Module):
    def __init__(self, settings: TranslationModelSettings, source_symbols: int, target_symbols: int) -> None:
        super().__init__()
        self.settings = settings
        size, layers = settings.size, settings.layers
        between = settings.dropout if layers > 1 else 0.0
        self.dropout = nn.Dropout(settings.dropout)
        self.source_embedding = nn.Embedding(source_symbols, size, padding_idx=_PADDING)
        self.encoder = nn.LSTM(size, size, layers, batch_first=True, dropout=between)
        self.target_embedding = nn.Embedding(target_symbols, size, padding_idx=_PADDING)
        width = 2 * size if settings.input_feeding else size
        self.decoder = nn.LSTM(width, size, layers, batch_first=True, dropout=between)
        self.attention = _attention(settings)  # W, and b of structured attention
        self.combine = nn.Linear(2 * size, size, bias=False)  # U
        self.output = nn.Linear(size, target_symbols)  # V and b

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> Tensor:
        """The loss, summed over the symbols of all targets; target (B, m) begins with the start symbol."""
        combined = self.read(self.encode(source, lengths), target[:, :-1]).combined
        wanted = target[:, 1:].flatten()
        count = (
            (wanted != _PADDING).nonzero().flatten()
        )  # the vocabulary is large: logits only where they count
        logits = self.output(combined.flatten(0, 1).index_select(0, count))
        loss = F.cross_entropy(logits, wanted[count], reduction="sum")
        if self.training and isinstance(self.attention, SegmentationAttention):
            loss = loss + len(source) * self.attention.pairwise_penalty(self.settings.pairwise_penalty)
        return loss

    def encode(self, source: Tensor, lengths: Tensor) -> Memory:
        states, last = _through(self.encoder, self.dropout(self.source_embedding(source)), lengths)
        start = last if self.settings.decoder_start == "last" else tuple(map(torch.zeros_like, last))
        if self.settings.input_feeding:
            start = (*start, torch.zeros_like(start[0][:1]))
        return Memory(states, lengths, start)

    def read(self, memory: Memory, target: Tensor) -> Reading:
        """Everything that is found for known target symbols (B, m)."""
        if not self.settings.input_feeding:
            hidden, _ = self.decoder(self.dropout(self.target_embedding(target)), memory.start)
            return self._attend(memory, hidden)
        state, steps = memory.start, []
        for symbols in target.split(1, 1):
            step, state = self.advance(memory, symbols, state)
            steps.append(step)
        return Reading(*(torch.cat(parts, 1) for parts in zip(*steps, strict=True)))

    def advance(self, memory: Memory, symbols: Tensor, state: State) -> tuple[Reading, State]:
        """One more symbol of each of K hypotheses (B, K), which are the K queries of one call of the attention.

        The state is of B * K hypotheses, sentence by sentence.
        """
        embedded = self.dropout(self.target_embedding(symbols.view(-1, 1)))
        if self.settings.input_feeding:
            embedded = torch.cat([embedded, state[2].transpose(0, 1)], 2)
        hidden, state = self.decoder(embedded, state[:2])
        reading = self._attend(memory, hidden.view(*symbols.shape, -1))
        if self.settings.input_feeding:
            state = (*state, reading.combined.view(1, len(embedded), -1))
        return reading, state

    def _attend(self, memory: Memory, hidden: Tensor) -> Reading:
        context, weights = self.attention(hidden, memory.states, lengths=memory.lengths)
        combined = torch.tanh(self.combine(torch.cat([context, hidden], 2)))
        return Reading(self.dropout(combined), hidden, weights)

    def selection(self, memory: Memory, reading: Reading, temperature: float = 1.0) -> tuple[Tensor, Tensor]:
        """The weights (B, m, n), with potentials divided by the temperature, and what is most probably selected."""
        check_temperature(temperature)
        if isinstance(self.attention, SegmentationAttention):
            chains = self.attention.distribution(reading.hidden, memory.states, memory.lengths)
            marginals = at_temperature(chains, temperature).marginals[..., 1]
            return normalised(marginals, self.attention.normalize), chains.mode == 1
        query = reading.hidden / temperature  # the potentials are linear in it
        weights = self.attention(query, memory.states, lengths=memory.lengths)[1]
        if isinstance(self.attention, SigmoidAttention):
            return weights, weights > 0.5
        return weights, F.one_hot(weights.argmax(2), weights.shape[2]) == 1

    def search(
        self, source: Tensor, lengths: Tensor, settings: DecodingSettings, n_best: int = 1
    ) -> list[list[Hypothesis]]:
        """The best targets of each source, without start and end."""
        memory = whole = self.encode(source, lengths)

        def step(symbols: Tensor, state: Any, sentences: Tensor) -> tuple[Tensor, Any]:
            nonlocal memory
            if len(sentences) < len(memory.lengths):  # sentences leave the search and never come back
                memory = whole.rows(sentences)
            reading, state = self.advance(memory, symbols, memory.start if state is None else state)
            log_probs = self.output(reading.combined).log_softmax(2)
            log_probs[..., [_PADDING, _START]] = -torch.inf
            return log_probs, state

        return beam_search(
            step,
            settings.longest(lengths),
            _START,
            _END,
            settings.beam,
            n_best,
            settings.length_normalisation,
            state_dimension=1,
        )


def _attention(settings: TranslationModelSettings) -> SoftmaxAttention:
    if settings.attention == "structured":
        return SegmentationAttention(settings.size, normalize=settings.normalize or None)
    return {"simple": SoftmaxAttention, "sigmoid": SigmoidAttention}[settings.attention](settings.size)


def _through(lstm: nn.LSTM, inputs: Tensor, lengths: Tensor) -> tuple[Tensor, State]:
    """The outputs (B, n, l) of a forward LSTM, zero in the padding, and each sentence's last states (layers, B, l).

    Between two lengths at which sentences end, those that go on pass through one call: nothing is computed for
    padding. Batches of similar length have few such pieces; a packed sequence has one for every position.
    """
    order = lengths.argsort(descending=True)
    ends, inverse = lengths.unique().tolist(), order.argsort()
    inputs, ordered = inputs[order], lengths[order]
    start, state, pieces, last = 0, None, [], []
    for end in ends:
        going_on, longer = int((ordered >= end).sum()), int((ordered > end).sum())
        state = None if state is None else tuple(part[:, :going_on].contiguous() for part in state)
        piece, state = lstm(inputs[:going_on, start:end], state)
        pieces.append(F.pad(piece, (0, 0, 0, 0, 0, len(inputs) - going_on)))
        last.append([part[:, longer:going_on] for part in state])
        start = end
    outputs = torch.cat(pieces, 1)[inverse]
    finals = tuple(torch.cat(parts[::-1], 1)[:, inverse] for parts in zip(*last, strict=True))
    return outputs, finals
