"""How weights start and move: initialisation, optimisers, renormalisation, and the paper's rules of decay."""

from __future__ import annotations

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
    "adam": lambda weights, settings: torch.optim.Adam(weights, settings.learning_rate),
}
INITIALISATIONS = ("uniform", "gaussian", "default")


@dataclass
class TrainingSettings:
    """[training]: what all recipes share."""

    seed: int = 1
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
        if min(self.epochs, self.batch_size, self.bucket_pool) < 1:
            raise UserError("training.epochs, training.batch_size and training.bucket_pool must be 1 or more")
        if self.learning_rate <= 0:
            raise UserError(f"training.learning_rate must be positive, not {self.learning_rate}")


def _one_of(key: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        raise UserError(f'{key}: unknown value "{value}"{did_you_mean(value, known)}')


def initialise(model: nn.Module, settings: TrainingSettings) -> None:
    """Every weight by the paper's one rule; the embedding of padding stays zero."""
    if settings.initialisation == "default":
        return
    with torch.no_grad():
        for weights in model.parameters():
            if settings.initialisation == "uniform":
                weights.uniform_(-settings.initial_scale, settings.initial_scale)
            else:
                weights.normal_(0.0, settings.initial_scale)
        for module in model.modules():
            if isinstance(module, nn.Embedding) and module.padding_idx is not None:
                module.weight[module.padding_idx].zero_()


def renormalise(weights: Sequence[Tensor], limit: float) -> float:
    """Scales the gradients to the limit if their joint l2 norm exceeds it (0: never); the norm as it was."""
    gradients = [weight.grad for weight in weights if weight.grad is not None]
    norm = torch.nn.utils.get_total_norm(gradients)
    if 0 < limit < norm:
        torch._foreach_mul_(gradients, (limit / norm).to(gradients[0].dtype))
    return float(norm)


@dataclass
class Decay:
    """What the rules of decay remember from epoch to epoch."""

    settings: TrainingSettings
    best: float | None = None
    started: bool = False

    def epoch_ended(self, epoch: int, watched: float) -> tuple[float, bool]:
        """What to multiply the learning rate by, and whether this epoch (from 1) is the best so far."""
        settings = self.settings
        value = -watched if settings.watch == "loss" else watched
        improved = self.best is None or value > self.best
        if improved:
            self.best = value
        self.started |= 0 < settings.decay_after <= epoch or (settings.decay_when_worse and not improved)
        periodic = settings.decay_every > 0 and epoch % settings.decay_every == 0
        return (settings.decay if self.started or periodic else 1.0), improved
