"""One pair of sentences, looked at: what each target symbol attends to, and the segments that this makes."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch
from torch import Tensor

from structattn.recipes.translation.model import TranslationModel
from structattn.recipes.translation.preparation import Vocabularies, example


class Alignment(NamedTuple):
    """n source symbols, m target symbols."""

    source: list[str]
    target: list[str]
    weights: Tensor
    """(m, n) of the attention: structured attention's sum to lambda, sigmoid attention's to anything"""
    selected: Tensor
    """(m, n) True: what the attention selects at its most probable"""

    def segments(self) -> list[list[str]]:
        """The source, cut wherever two neighbours matter most to different target symbols."""
        attended = zip(self.weights.argmax(0).tolist(), self.source, strict=True)
        return [[symbol for _, symbol in group] for _, group in groupby(attended, key=lambda pair: pair[0])]


@torch.no_grad()
def align(
    model: TranslationModel,
    vocabularies: Vocabularies,
    source: Sequence[str],
    target: Sequence[str],
    temperature: float = 1.0,
) -> Alignment:
    """What a model attends to while it is made to write the target."""
    device = next(model.parameters()).device
    numbers = example(vocabularies, source, target)
    memory = model.encode(
        torch.tensor([numbers.source], device=device), torch.tensor([len(source)], device=device)
    )
    reading = model.read(memory, torch.tensor([numbers.target[:-2]], device=device))
    weights, selected = model.selection(memory, reading, temperature)
    return Alignment(list(source), list(target), weights[0].cpu(), selected[0].cpu())
