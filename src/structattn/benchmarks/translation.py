"""The translation model of the paper: a step of its training, and its search, with each kind of attention."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

import structattn
from structattn.benchmarks.findings import Outcome, ratio
from structattn.benchmarks.timing import Contestant, Effort, race
from structattn.benchmarks.verification import agree
from structattn.benchmarks.workloads import Settings

if TYPE_CHECKING:
    from structattn.recipes.translation.model import TranslationModel

_SYMBOLS = 5000
_STEPS_EACH = 8
"""A step takes seconds: so many at most."""


def training(settings: Settings, pairs: int = 128, length: int = 50, size: int = 500) -> Outcome:
    """128 pairs of 50 symbols each, 500 units, 2 layers: loss, gradients, and nothing of the optimiser."""
    generator = torch.Generator().manual_seed(0)
    source, target = torch.randint(4, _SYMBOLS, (2, pairs, length + 1), generator=generator)
    batch = source[:, 1:], torch.full((pairs,), length), target
    steps = {attention: _step(_model(attention, size), batch) for attention in _attentions()}
    with structattn.backend("plain"):
        expected = steps["structured"]()
    agree("the plain-torch path", steps["structured"](), expected)
    contestants = {attention: Contestant(attention, step) for attention, step in steps.items()}
    rounds = min(settings.effort.rounds, _STEPS_EACH)
    race(list(contestants.values()), Effort(rounds, 0.0, settings.effort.peer_seconds))
    name, simple = "TRANSLATION-STEP", contestants["simple"]
    findings = [
        ratio(
            name, f"time of a training step, {attention} against simple", contestants[attention], simple, most
        )
        for attention, most in (("structured", 1.10), ("sigmoid", 1.02))
    ]
    return Outcome(findings, [(name, contestant) for contestant in contestants.values()])


def search(settings: Settings, sentences: int = 64, length: int = 15, size: int = 256) -> Outcome:
    """64 sources of 15 symbols, beam 5, 256 units, 2 layers: together, one by one, and with softmax."""
    structured, simple = (_model(attention, size).eval() for attention in ("structured", "simple"))
    sources = torch.randint(4, _SYMBOLS, (sentences, length), generator=torch.Generator().manual_seed(0))
    steps = {
        "structured, together": _search(structured, sources, sentences),
        "structured, one by one": _search(structured, sources, 1),
        "simple, together": _search(simple, sources, sentences),
    }
    agree("a search one by one", *([steps[f"structured, {how}"]()] for how in ("together", "one by one")))
    contestants = [Contestant(name, step) for name, step in steps.items()]
    together, alone, baseline = contestants
    rounds = min(settings.effort.rounds, _STEPS_EACH)
    race(contestants, Effort(rounds, 0.0, settings.effort.peer_seconds))
    name = "TRANSLATION-SEARCH"
    findings = [
        ratio(name, "times faster, together against one by one", alone, together, at_least=8),
        ratio(name, "time of a search, structured against simple", together, baseline, at_most=1.3),
    ]
    return Outcome(findings, [(name, contestant) for contestant in contestants])


def _attentions() -> tuple[str, ...]:
    from structattn.recipes.translation.model import ATTENTIONS

    return ATTENTIONS


def _model(attention: str, size: int) -> TranslationModel:
    """With weights that neither shrink nor saturate what passes through them; no dropout: results are checked."""
    from structattn.recipes.translation.model import TranslationModel, TranslationModelSettings

    torch.manual_seed(0)
    chosen = TranslationModelSettings(attention=attention, size=size, layers=2, dropout=0.0)
    model = TranslationModel(chosen, _SYMBOLS, _SYMBOLS)
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=size**-0.5)
    return model


def _step(model: TranslationModel, batch: tuple[torch.Tensor, ...]) -> Callable[[], Any]:
    weights = list(model.parameters())

    def step() -> tuple[torch.Tensor, ...]:
        loss = model(*batch) / len(batch[0])
        return loss.view(1), *torch.autograd.grad(loss, weights)

    return step


def _search(model: TranslationModel, sources: torch.Tensor, together: int) -> Callable[[], torch.Tensor]:
    from structattn.recipes.decoding import DecodingSettings

    settings = DecodingSettings(beam=5, longest_factor=1.0, longest_extra=0)

    @torch.no_grad()
    def run() -> torch.Tensor:
        found = []
        for part in sources.split(together):
            lengths = torch.full((len(part),), part.shape[1])
            found += [best.score for best, *_ in model.search(part, lengths, settings)]
        return torch.tensor(found).unsqueeze(1)

    return run


BENCHMARKS: dict[str, Callable[[Settings], Outcome]] = {
    "TRANSLATION-STEP": training,
    "TRANSLATION-SEARCH": search,
}
