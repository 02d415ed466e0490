r"""Three models that answer a question from a chain of facts (paper, section 4.3 and appendix A.4).

With K + 1 embedding matrices A_0 ... A_K, tied as adjacent layers, fact i has at step k the key x_i^k = A_{k-1} s_i and
the value o_i^k = A_k s_i, where s_i is its bag of words, position-encoded, and each has a vector for its age added; the
question is q^1 = A_0 s.

    MemN2N    p(z_k = i) = softmax_i(x_i^k . q^k)    c^k = sum_i p(z_k = i) o_i^k    q^{k+1} = q^k + c^k    c = c^K
    unary     theta_k(i) = x_i^k . q^k
    binary    theta_{k,k+1}(i, j) = x_i^k . q^k + x_i^k . x_j^{k+1} + x_j^{k+1} . q^{k+1}, -inf for i = j
              q^{k+1} = Q q^k, or as MemN2N's, or sum_i (x_i^k . q^k) o_i^k
              c = sum_k sum_i p(z_k = i) o_i^k
    answer    softmax(A_K (q^K + c))

Linear start: for the first epochs x_i^k . q^k stands in the place of p(z_k = i), without softmax or chain.

Several models, of other seeds, are one: every weight has a first dimension S, and nothing passes from one model to
another. Shapes: S models, B questions each, M facts, K steps, d features, V words, N distinct sentences.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structattn.attention.chain import COUNTS, chain_potentials
from structattn.attention.sequence import softmax_weights
from structattn.recipes.errors import UserError, did_you_mean
from structattn.structures.chain import LinearChain
from structattn.structures.distribution import beyond

KINDS = ("memn2n", "unary", "binary")
QUERY_UPDATES = ("hop", "memory", "matrix")
LOG_SOFTMAX = ("potentials", "everywhere", "nowhere")
POSITION_ENCODINGS = ("longest", "sentence", "none")

Steps = Sequence[Tensor]
"""One tensor for each of the K steps."""


@dataclass
class QAModelSettings:
    """[model]: the paper's appendix A.4."""

    kind: str = "binary"
    """memn2n, unary or binary"""
    steps: int = 0
    """K; 0: as many as the paper's table has for the task"""
    size: int = 20
    """d"""
    memory: int = 25
    """M, at most so many facts, the most recent ones"""
    position_encoding: str = "longest"
    """a word's place is counted in shares of the "longest" sentence, of its own "sentence", or not at all ("none")"""
    position_scale: float = 2.0
    """position encoding is multiplied by this; 1: as printed. With 2 its weights are 1 on average, as without it"""
    temporal_encoding: bool = True
    tie_embeddings: bool = True
    """adjacent tying; else A_k of keys, values, question and answer are all their own"""
    linear_start: int = 20
    """so many epochs"""
    linear_crf: bool = True
    """whether a CRF has a linear start, too; else these epochs only do not count"""
    query_update: str = "hop"
    """q^{k+1} of a CRF: "hop", as MemN2N's; "memory", sum_i (x_i^k . q^k) o_i^k; "matrix", Q q^k"""
    log_softmax: str = "nowhere"
    """over a CRF's queries after the linear start: in the "potentials" only, "everywhere", or "nowhere" """
    forbid_repeats: bool = True
    """theta(i, i) = -inf (binary)"""
    count_unaries: str = "printed"
    """how often x_i^k . q^k counts: "printed", "once" or "twice" (see ChainAttention)"""

    def __post_init__(self) -> None:
        choices = {"kind": KINDS, "log_softmax": LOG_SOFTMAX, "count_unaries": COUNTS}
        choices |= {"position_encoding": POSITION_ENCODINGS, "query_update": QUERY_UPDATES}
        for name, known in choices.items():
            value = getattr(self, name)
            if value not in known:
                raise UserError(f'model.{name}: unknown value "{value}"{did_you_mean(value, known)}')
        if self.position_scale <= 0:
            raise UserError(f"model.position_scale must be positive, not {self.position_scale}")
        if min(self.size, self.memory) < 1 or min(self.steps, self.linear_start) < 0:
            raise UserError(
                "model.size and model.memory must be at least 1, steps and linear_start at least 0"
            )


class QAModel(nn.Module):
    """S models at once; every parameter has S as its first dimension."""

    def __init__(self, settings: QAModelSettings, steps: int, words: int, models: int = 1) -> None:
        super().__init__()
        self.settings, self.steps, self.models = settings, steps, models
        size = settings.size
        # Tied: A_0 ... A_K. Else the keys' K matrices, the values' K, the question's and the answer's.
        count = steps + 1 if settings.tie_embeddings else 2 * steps + 2
        self.embedding = nn.Parameter(torch.zeros(models, count, words, size))
        if settings.temporal_encoding:
            self.ages = nn.Parameter(torch.zeros(models, count, settings.memory, size))
        if settings.kind != "memn2n" and settings.query_update == "matrix":
            self.transition = nn.Parameter(torch.zeros(models, size, size))  # Q
        self.register_buffer("ramp", torch.arange(1, size + 1) / size, persistent=False)
        self.ramp: Tensor
        self.linear = False
        """Whether this is the linear start."""

    def forward(
        self, sentences: Tensor, facts: Tensor, lengths: Tensor, questions: Tensor, answers: Tensor
    ) -> Tensor:
        """The losses (S) of S models, each summed over its B questions; the rows are the models' one after another."""
        logits = self.answer(sentences, facts, lengths, questions)
        losses = F.cross_entropy(logits, answers, reduction="none")
        return losses.view(self.models, -1).sum(1)

    def answer(self, sentences: Tensor, facts: Tensor, lengths: Tensor, questions: Tensor) -> Tensor:
        """Logits (S * B, V)."""
        keys, values, query = self.embed(sentences, facts, questions)
        if self.settings.kind == "memn2n":
            queries, context, _ = self.hops(keys, values, query, lengths)
            query = queries[-1]
        else:
            queries = self.queries(query, keys, values, lengths)
            weights = self.weights(queries, keys, lengths).unsqueeze(2)
            contexts = [weight @ value for weight, value in zip(weights.unbind(1), values, strict=True)]
            context = torch.cat(contexts, 1).sum(1)
            query = queries[-1]
            if self.settings.log_softmax == "everywhere":
                query = self.in_potentials(queries)[-1]
        state = (query + context).view(self.models, -1, self.settings.size)
        return (state @ self.embedding[:, -1].mT).flatten(0, 1)

    def embed(self, sentences: Tensor, facts: Tensor, questions: Tensor) -> tuple[Steps, Steps, Tensor]:
        """Keys and values, K times (S * B, M, d), and the questions (S * B, d)."""
        models, batch = self.models, len(facts) // self.models
        # Every distinct sentence is embedded once by each matrix of each model: (S, N, d).
        matrices = torch.cat([self.embedding, self.embedding * self.ramp], 2)
        joint = sentences.to(matrices.dtype) @ matrices.transpose(1, 2).flatten(2)
        tables = joint.split(self.settings.size, 2)
        first_sentence = (torch.arange(models, device=facts.device) * len(sentences)).repeat_interleave(batch)
        rows = facts + first_sentence.unsqueeze(1)

        def vectors(which: int) -> Tensor:
            found = F.embedding(rows, tables[which].flatten(0, 1))
            if not self.settings.temporal_encoding:
                return found
            ages = self.ages[:, which, : found.shape[1]]
            return (found.view(models, batch, *found.shape[1:]) + ages.unsqueeze(1)).flatten(0, 1)

        if self.settings.tie_embeddings:
            found = [vectors(which) for which in range(self.steps + 1)]
            keys, values, of_question = found[:-1], found[1:], tables[0]
        else:
            found = [vectors(which) for which in range(2 * self.steps)]
            keys, values, of_question = found[: self.steps], found[self.steps :], tables[2 * self.steps]
        return keys, values, F.embedding(questions + first_sentence, of_question.flatten(0, 1))

    def hops(
        self, keys: Steps, values: Steps, query: Tensor, lengths: Tensor
    ) -> tuple[Steps, Tensor, Tensor]:
        """MemN2N's q^1 ... q^K and c^K (S * B, d), and the distribution at every hop (S * B, K, M)."""
        ignored = beyond(lengths, keys[0].shape[1])
        queries, found = [], []
        for key, value in zip(keys, values, strict=True):
            scores = _scores(key, query, ignored)
            weights = scores if self.linear else softmax_weights(scores, ignored)
            context = (weights.unsqueeze(1) @ value).squeeze(1)
            queries.append(query)
            found.append(weights)
            query = query + context
        return queries, context, torch.stack(found, 1)

    def queries(self, query: Tensor, keys: Steps, values: Steps, lengths: Tensor) -> Steps:
        """q^1 ... q^K of a CRF, each (S * B, d), of q^1."""
        if self.settings.query_update == "hop":
            return self.hops(keys, values, query, lengths)[0]
        ignored, queries = beyond(lengths, keys[0].shape[1]), [query]
        for key, value in zip(keys[:-1], values[:-1], strict=True):
            if self.settings.query_update == "memory":
                queries.append((_scores(key, queries[-1], ignored).unsqueeze(1) @ value).squeeze(1))
            else:
                of_models = queries[-1].view(self.models, -1, self.settings.size)
                queries.append((of_models @ self.transition.mT).flatten(0, 1))
        return queries

    def in_potentials(self, queries: Steps) -> Steps:
        """The queries as the potentials see them."""
        as_they_are = self.linear or self.settings.log_softmax == "nowhere"
        return queries if as_they_are else [query.log_softmax(1) for query in queries]

    def weights(self, queries: Steps, keys: Steps, lengths: Tensor) -> Tensor:
        """A CRF's p(z_k = i) (S * B, K, M), or what stands for them in its linear start."""
        if self.linear and self.settings.linear_crf:
            ignored = beyond(lengths, keys[0].shape[1])
            return torch.stack([_scores(*both, ignored) for both in zip(keys, queries, strict=True)], 1)
        unary, transitions = self.potentials(self.in_potentials(queries), keys, lengths)
        if transitions is None:
            return softmax_weights(unary, unary == float("-inf"))
        return LinearChain(unary, transitions).marginals

    def potentials(self, queries: Steps, keys: Steps, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        settings = self.settings
        return chain_potentials(
            queries, keys, lengths, settings.kind, settings.forbid_repeats, settings.count_unaries
        )

    def chains(self, sentences: Tensor, facts: Tensor, lengths: Tensor, questions: Tensor) -> LinearChain:
        """The distributions (S * B) over sequences of K facts; MemN2N's hops are independent in them."""
        keys, values, query = self.embed(sentences, facts, questions)
        if self.settings.kind == "memn2n":
            return LinearChain(self.hops(keys, values, query, lengths)[2].log())
        queries = self.in_potentials(self.queries(query, keys, values, lengths))
        return LinearChain(*self.potentials(queries, keys, lengths))


def _scores(key: Tensor, query: Tensor, ignored: Tensor) -> Tensor:
    """x_i . q (S * B, M); what is ignored scores 0."""
    return (key @ query.unsqueeze(2)).squeeze(2).masked_fill(ignored, 0.0)
