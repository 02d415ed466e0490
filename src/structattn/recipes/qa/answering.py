"""One question, answered in full: the answers, the facts that were followed, and how probable all that is."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from structattn.recipes.qa.data import Encoder, Question
from structattn.recipes.qa.model import QAModel
from structattn.recipes.temperature import at_temperature

_ANSWERS = 5


class Followed(NamedTuple):
    """Facts are named by their positions in the story; M of them fit into the memory, the most recent one first."""

    question: Question
    facts: list[int]
    """(M) which facts those are"""
    answers: list[tuple[str, float]]
    """the best few answers and their probabilities"""
    sequences: list[tuple[list[int], float]]
    """the best sequences of K facts and their probabilities; fewer than asked for, if there are not so many"""
    nodes: Tensor
    """p(z_k = i) (K, M)"""
    edges: Tensor
    """p(z_k = i, z_{k+1} = j) (K - 1, M, M)"""


@torch.no_grad()
def follow(
    model: QAModel, encoder: Encoder, question: Question, sequences: int, temperature: float = 1.0
) -> Followed:
    """What a single model makes of the question. The temperature is that of the facts, not of the answers."""
    device = model.embedding.device
    tensors = [tensor.to(device) for tensor in encoder.encode([question]).rows([0])[:-1]]
    probabilities = model.answer(*tensors)[0].softmax(0)
    best = probabilities.topk(min(_ANSWERS, len(probabilities)))
    answers = [encoder.words[number] for number in best.indices.tolist()]
    chain = at_temperature(model.chains(*tensors), temperature)
    ages, log_probs = chain.topk(sequences)
    newest, count = len(question.facts) - 1, min(len(question.facts), encoder.memory)
    found = [
        ([newest - age for age in sequence], math.exp(log_prob))
        for sequence, log_prob in zip(ages[0].tolist(), log_probs[0].tolist(), strict=True)
        if log_prob > -math.inf
    ]
    return Followed(
        question,
        [newest - age for age in range(count)],
        list(zip(answers, best.values.tolist(), strict=True)),
        found,
        chain.marginals[0, :, :count],
        chain.edge_marginals[0, :, :count, :count],
    )
