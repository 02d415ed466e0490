"""How weights start and move: initialisation, optimisers, renormalisation, and the paper's rules of decay."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from structattn.recipes.errors import UserError, did_you_mean

OPTIMIZERS: dict[str, Callable[[Iterable[Tensor], TrainingSettings], torch.optim.Optimizer]] = {
    "sgd": lambda weights, settings: torch.optim.SGD(weights, settings.learning_rate),
    "adagrad": lambda weights, settings: torch.optim.Adagrad(
        weights, settings.learning_rate, initial_accumulator_value=settings.initial_accumulator
    ),
    "adam": lambda weights, settings: torch.optim.Adam(weights, settings.learning_rate, fused=True),
}
INITIALISATIONS = ("uniform", "gaussian", "default")


@dataclass
class TrainingSettings:
    """[training]: what all recipes share."""

    seed: int = 1
    seeds: int = 1
    """so many models, with the seeds from `seed` on, train as one; for recipes that can"""
    epochs: int = 13
    batch_size: int = 20
    optimizer: str = "sgd"
    """sgd, adagrad or adam"""
    learning_rate: float = 1.0
    initial_accumulator: float = 0.0
    """of adagrad"""
    decay: float = 0.5
    """the learning rate is multiplied by this after an epoch that decays"""
    decay_after: int = 0
    """every epoch from this one on decays; 0: none by count"""
    decay_when_worse: bool = False
    """every epoch from the first whose watched value is no improvement decays"""
    decay_every: int = 0
    """each epoch whose number this divides decays; 0: none"""
    watch: str = "loss"
    """the validation value that decides improvement; "loss" falls, all others rise"""
    keep: str = "last"
    """whose weights model.safetensors holds: the "last" epoch's or the "best" one's by the watched value"""
    gradient_norm: float = 0.0
    """gradients of a larger l2 norm are renormalised to this one; 0: none"""
    loss_per: str = "sentence"
    """a batch's loss is divided by its "sentence"s, by its "unit"s (target symbols, say), or is a "sum" """
    initialisation: str = "uniform"
    """uniform, gaussian, or torch's default"""
    initial_scale: float = 0.1
    bucket_pool: int = 50
    """batches are made from examples of similar size within a shuffled pool of so many batches"""
    checkpoint_seconds: float = 60.0

    def __post_init__(self) -> None:
        _one_of("training.optimizer", self.optimizer, OPTIMIZERS)
        _one_of("training.keep", self.keep, ("last", "best"))
        _one_of("training.loss_per", self.loss_per, ("sentence", "unit", "sum"))
        _one_of("training.initialisation", self.initialisation, INITIALISATIONS)
        for name in ("epochs", "batch_size", "bucket_pool", "seeds"):
            if getattr(self, name) < 1:
                raise UserError(f"training.{name} must be at least 1, not {getattr(self, name)}")
        if self.seeds > 1 and self.decay_when_worse:
            raise UserError(
                "training.decay_when_worse is about one model: set it to false, or training.seeds to 1"
            )
        if self.learning_rate <= 0:
            raise UserError(f"training.learning_rate must be positive, not {self.learning_rate}")


def _one_of(key: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise UserError(f'{key}: unknown value "{value}"{did_you_mean(value, known)}')


@torch.no_grad()
def initialise(model: nn.Module, settings: TrainingSettings, stacked: bool = False) -> None:
    """Every weight by the paper's one rule; the embedding of padding stays zero.

    stacked: the first dimension of every weight is of models. Each starts as it would alone, from its own seed.
    """
    if stacked:
        if settings.initialisation == "default":
            raise UserError('training.initialisation: "default" is not for models that are trained as one')
        for number in range(settings.seeds):
            torch.manual_seed(settings.seed + number)
            _fill([weights[number] for weights in model.parameters()], settings)
    elif settings.initialisation != "default":
        _fill(model.parameters(), settings)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()


def _fill(tensors: Iterable[Tensor], settings: TrainingSettings) -> None:
    for tensor in tensors:
        if settings.initialisation == "uniform":
            tensor.uniform_(-settings.initial_scale, settings.initial_scale)
        else:
            tensor.normal_(0.0, settings.initial_scale)


def renormalise(weights: Sequence[Tensor], limit: float, models: int = 1) -> list[float]:
    """Scales the gradients of each model to the limit if their joint l2 norm exceeds it (0: never).

    Of several models, the first dimension of every weight. Returns the norms as they were.
    """
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    each = [torch.linalg.vector_norm(gradient.view(models, -1), dim=1) for gradient in gradients]
    norms = torch.linalg.vector_norm(torch.stack(each), dim=0)
    if limit > 0 and bool((norms > limit).any()):
        factors = (limit / norms).clamp_max(1.0)
        for gradient in gradients:
            gradient.view(models, -1).mul_(factors.unsqueeze(1))
    return norms.tolist()


@dataclass
class Decay:
    """What the rules of decay remember from epoch to epoch."""

    settings: TrainingSettings
    best: list[float] | None = None
    started: bool = False

    def epoch_ended(self, epoch: int, watched: list[float]) -> tuple[float, list[bool]]:
        """What to multiply the learning rate by, and for which models this epoch (from 1) is the best so far."""
        settings = self.settings
        values = [-value if settings.watch == "loss" else value for value in watched]
        best = self.best or [-math.inf] * len(values)
        improved = [value > old for value, old in zip(values, best, strict=True)]
        self.best = [max(value, old) for value, old in zip(values, best, strict=True)]
        self.started |= 0 < settings.decay_after <= epoch or (settings.decay_when_worse and not any(improved))
        periodic = settings.decay_every > 0 and epoch % settings.decay_every == 0
        return (settings.decay if self.started or periodic else 1.0), improved
