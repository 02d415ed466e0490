"""The one training loop. A run folder says what to do; the loop does it, saves, and goes on where it stopped.

What a step computes depends on the seed, the epoch, the batch and the process alone: the order of the batches
is drawn for each epoch and the random numbers of a step (dropout) for each step. So the position is all that
a checkpoint must know of randomness, and a resumed run ends with the very same weights as an unbroken one.

Several processes share every batch, each taking its part of the examples. Losses are divided by what the
whole batch counts, and gradients are averaged, so that the processes together take the step that one process
takes.
"""

from __future__ import annotations

import gc
import inspect
import math
import os
import random
import statistics
import threading
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
from lightning_fabric import Fabric
from lightning_fabric.plugins.environments import LightningEnvironment
from lightning_fabric.strategies import DDPStrategy
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from structattn.recipes.batching import bucketed_batches
from structattn.recipes.config import build
from structattn.recipes.data_folder import DataFolder
from structattn.recipes.errors import UserError
from structattn.recipes.optimisation import OPTIMIZERS, Decay, initialise, renormalise
from structattn.recipes.processes import Companions, by_first, is_broken_group
from structattn.recipes.progress import Progress
from structattn.recipes.recipe import Recipe
from structattn.recipes.run_folder import CHECKPOINT, RunFolder
from structattn.recipes.sharing import examples_of
from structattn.recipes.stopping import stop_signals
from structattn.recipes.tasks import recipe_class

_PATIENCE = timedelta(hours=12)
"""How long the other processes wait for the first one, which reads, pretrains and validates."""
_KNOWN = inspect.signature(DistributedDataParallel).parameters
_STEADY_BUFFERS: dict[str, Any] = {
    "forward_sync_buffers" if "forward_sync_buffers" in _KNOWN else "broadcast_buffers": False
}
"""No step changes a buffer, and the parser's is large: it need not go to the other processes. Its name is new."""
_WHERE = ("NODE_RANK", "MASTER_ADDR", "MASTER_PORT")


@dataclass
class Machine:
    """Where a run computes; nothing here changes its result by more than rounding."""

    accelerator: str = "cpu"
    devices: int = 1
    nodes: int = 1
    precision: str = "32-true"

    def fabric(self) -> Fabric:
        several = self.devices * self.nodes > 1
        try:
            fabric = Fabric(
                accelerator=self.accelerator,
                devices=self.devices,
                num_nodes=self.nodes,
                precision=self.precision,  # type: ignore[arg-type]
                strategy=DDPStrategy(timeout=_PATIENCE, **_STEADY_BUFFERS) if several else "auto",
            )
        except (ValueError, RuntimeError) as error:
            raise UserError(
                f"--accelerator, --devices or --precision: {' '.join(str(error).split())}"
            ) from error
        if self.nodes > 1 and _started_by_us(fabric):
            missing = [name for name in _WHERE if name not in os.environ]
            if missing:
                raise UserError(
                    f"--nodes {self.nodes}: {', '.join(missing)} must be set on each machine: which one it is "
                    "(NODE_RANK, from 0 on), and where the first one listens (MASTER_ADDR, MASTER_PORT)"
                )
        return fabric


def _started_by_us(fabric: Fabric) -> bool:
    """Whether the other processes are no cluster's or torchrun's, which know where they are."""
    return type(getattr(fabric.strategy, "cluster_environment", None)) is LightningEnvironment


def is_first_process() -> bool:
    """Whether this is the process that a user started, or the first that torchrun did."""
    rank = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0"))
    return rank == "0" and os.environ.get("NODE_RANK", os.environ.get("GROUP_RANK", "0")) == "0"


def train(run: RunFolder, folder: DataFolder, machine: Machine, progress: Progress) -> bool:
    """Trains to the end: True; or until SIGINT or SIGTERM, with everything saved: False."""
    fabric = machine.fabric()
    failure = None
    with run.locked() if is_first_process() else nullcontext():
        fabric.launch()
        companions = Companions(
            fabric, f"what was saved is in {run.path}; the same command with --resume goes on"
        )
        try:
            finished = _train(fabric, run, folder, progress)
        except UserError as error:
            failure = str(error)
        except RuntimeError as error:
            if not is_broken_group(error):
                raise
            failure = companions.loss()
    # torch 2.13's gloo aborts at exit unless the model is gone before the group is; the failure would hold
    # its frames.
    gc.collect()
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
    companions.dismiss()
    if failure is not None:
        raise UserError(failure)
    return finished


def _train(fabric: Fabric, run: RunFolder, folder: DataFolder, progress: Progress) -> bool:
    fabric.barrier()  # the first process has written the run folder by now
    found = recipe_class(run.task())
    recipe = found(run.config(found.config_class), folder, run.path)
    with stop_signals() as stop:
        return TrainingLoop(fabric, recipe, run, progress, stop).run_to_end()


@dataclass
class Position:
    """Where a run is, and what it has summed up on the way: the JSON part of a checkpoint."""

    epoch: int = 1
    batch: int = 0
    loss: list[float] = field(default_factory=list)
    units: int = 0
    seconds: float = 0.0
    decay_best: list[float] | None = None
    decay_started: bool = False
    metrics: list[dict] = field(default_factory=list)


class TrainingLoop:
    def __init__(
        self, fabric: Fabric, recipe: Recipe, run: RunFolder, progress: Progress, stop: threading.Event
    ) -> None:
        self.fabric, self.recipe, self.run, self.progress, self.stop = fabric, recipe, run, progress, stop
        self.settings = recipe.config.training
        self.examples = examples_of(recipe, fabric, run.path)
        torch.manual_seed(self.settings.seed)
        with fabric.init_module():  # in the precision that the weights will have
            self.network: nn.Module = recipe.build_model()
        initialise(self.network, self.settings, recipe.stacks)
        self.models = self.settings.seeds
        if self.models > 1 and not (recipe.stacks and fabric.world_size == 1):
            why = "by one process" if recipe.stacks else f"one by one by {recipe.task}"
            raise UserError(f"training.seeds: several models are trained {why} only")
        self.weights = [weight for weight in self.network.parameters() if weight.requires_grad]
        self.optimizer = OPTIMIZERS[self.settings.optimizer](self.weights, self.settings)
        state = run.load_checkpoint(self.network, self.optimizer, progress.warn)
        self.position = build(Position, state or {}, f"the checkpoint in {run.path}")
        self.decay = Decay(self.settings, self.position.decay_best, self.position.decay_started)
        self.model, self.stepper = fabric.setup(self.network, self.optimizer)
        self.saved_at = time.monotonic()

    def run_to_end(self) -> bool:
        epochs, batches = self.settings.epochs, math.ceil(len(self.examples.sizes) / self.settings.batch_size)
        if self._is_first():
            self.run.write_metrics(self.position.metrics)
        by_first(self.fabric, lambda: self.recipe.pretrain(self.network))
        if self.fabric.world_size > 1:
            for tensor in self.network.state_dict().values():
                torch.distributed.broadcast(tensor, 0)
        with self.progress.of(epochs, batches, self.position.epoch, self.position.batch):
            while self.position.epoch <= epochs:
                if not self._epoch():
                    return False
        return True

    def _epoch(self) -> bool:
        """The rest of the current epoch; False if it was stopped on the way."""
        position, settings = self.position, self.settings
        batches_of_models = [
            bucketed_batches(
                self.examples.sizes,
                settings.batch_size,
                random.Random(f"{settings.seed + number} {position.epoch}"),
                settings.bucket_pool,
            )
            for number in range(self.models)
        ]
        self.recipe.epoch_begins(self.network, position.epoch)
        self.network.train()
        while position.batch < len(batches_of_models[0]):
            started = time.perf_counter()
            indices = [index for batches in batches_of_models for index in batches[position.batch]]
            stop = self._step(indices)
            position.batch += 1
            position.seconds += time.perf_counter() - started
            speed = position.batch * settings.batch_size * self.models / position.seconds
            self.progress.step(position.epoch, position.batch, statistics.fmean(self._loss_per_unit()), speed)
            if stop or time.monotonic() - self.saved_at > settings.checkpoint_seconds:
                self._save_checkpoint()
            if stop:
                return False
        self._end_epoch()
        return True

    def _step(self, indices: list[int]) -> bool:
        """One update by the examples with these numbers; True if some process was asked to stop."""
        position, settings, fabric = self.position, self.settings, self.fabric
        rank, processes = fabric.global_rank, fabric.world_size
        name = f"{settings.seed} {position.epoch} {position.batch} {rank}"
        torch.manual_seed(random.Random(name).getrandbits(63))
        units = sum(self.examples.units[index] for index in indices)
        share = indices[rank::processes]
        # With more processes than examples, a process without one takes part in the average with a loss of
        # zero.
        present = float(bool(share))
        divisor = {"sentence": len(indices), "unit": max(units, 1), "sum": self.models}[settings.loss_per]
        examples = [self.examples.by_number[index] for index in share or indices[:1]]
        losses = self.model(*fabric.to_device(self.recipe.collate(examples))) * present
        self.stepper.zero_grad()
        fabric.backward(losses.sum() * (processes * self.models / divisor))
        norms = renormalise(self.weights, settings.gradient_norm, self.models)
        totals, stop = losses.flatten().tolist(), self.stop.is_set()
        if processes > 1:
            sums = torch.tensor([*totals, stop], dtype=torch.float64)
            *totals, stop = fabric.all_reduce(sums, reduce_op="sum").tolist()  # type: ignore[union-attr]
        for number, (total, norm) in enumerate(zip(totals, norms, strict=True)):
            if not (math.isfinite(total) and math.isfinite(norm)):
                self._refuse(number, total, norm)
        self.stepper.step()
        position.loss = [a + b for a, b in zip(position.loss or [0.0] * self.models, totals, strict=True)]
        position.units += units // self.models
        return bool(stop)

    def _refuse(self, number: int, loss: float, norm: float) -> None:
        """Leaves the last good weights behind: those that this batch was about to change."""
        self._save_checkpoint()
        where = f"epoch {self.position.epoch}, batch {self.position.batch + 1}"
        seed = f", seed {self.settings.seed + number}" if self.models > 1 else ""
        raise UserError(
            f"{where}{seed}: the loss is {loss}, the norm of its gradient {norm}; stopped before it reached "
            f"the weights. The last good ones are in {self.run.path / CHECKPOINT}"
        )

    def _loss_per_unit(self) -> list[float]:
        return [loss / max(self.position.units, 1) for loss in self.position.loss]

    def _end_epoch(self) -> None:
        position, settings = self.position, self.settings
        (rate,) = {group["lr"] for group in self.optimizer.param_groups}
        validation = by_first(self.fabric, self._validate)
        counts = self.recipe.counts(position.epoch)
        watched = _list(validation[settings.watch]) if counts else [-math.inf] * self.models
        factor, improved = self.decay.epoch_ended(position.epoch, watched)
        losses = self._loss_per_unit()
        line = {
            "epoch": position.epoch,
            "loss": losses if self.models > 1 else losses[0],
            **{f"valid_{name}": value for name, value in validation.items()},
            "learning_rate": rate,
            "examples_per_second": round(len(self.examples.sizes) * self.models / position.seconds, 1),
        }
        for group in self.optimizer.param_groups:
            group["lr"] = rate * factor
        metrics = [*position.metrics, line]
        following = position.epoch + 1
        self.position = Position(following, 0, [], 0, 0.0, self.decay.best, self.decay.started, metrics)
        if self._is_first():
            self.run.write_metrics(metrics)
            if settings.keep == "last" or all(improved):
                self.run.save_weights(self.network)
            elif any(improved):
                self.run.replace_weights(self.network, improved)
        self._save_checkpoint()
        self.progress.epoch_ended(line)

    def _validate(self) -> dict[str, Any]:
        self.network.eval()
        with torch.no_grad():
            validation = self.recipe.validate(self.network)
        if self.settings.watch not in validation:
            raise UserError(
                f'training.watch: unknown value "{self.settings.watch}"; there is {", ".join(validation)}'
            )
        return validation

    def _save_checkpoint(self) -> None:
        if self._is_first():
            self.run.save_checkpoint(self.network, self.optimizer, vars(self.position))
        self.saved_at = time.monotonic()

    def _is_first(self) -> bool:
        return self.fabric.global_rank == 0


def _list(values: Any) -> list[float]:
    return values if isinstance(values, list) else [values]
