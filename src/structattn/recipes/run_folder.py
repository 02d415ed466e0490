"""A run's folder explains itself, and nothing in it is ever unpickled.

    config.toml          what was asked for, with the command in the first line
    environment.json     versions, machine, threads
    metrics.jsonl        one line an epoch
    model.safetensors    the weights that count (training.keep)
    checkpoint.safetensors   weights, optimiser and position, to go on from: tensors, and the rest as JSON in the header
    previous.safetensors     the checkpoint before that one, for the day when that one is damaged
    evaluation.json      what `structattn evaluate` found

Every file is written beside its place and then moved there, so a kill at any moment leaves the previous one
intact. Tensors come with a checksum, so that a file which was altered is refused, too.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import platform
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

import structattn
from structattn.kernels import native, selected_backend
from structattn.recipes.config import build, read_toml, write_toml
from structattn.recipes.errors import UserError, did_you_mean

CONFIG, ENVIRONMENT, METRICS = "config.toml", "environment.json", "metrics.jsonl"
WEIGHTS, CHECKPOINT, EVALUATION = "model.safetensors", "checkpoint.safetensors", "evaluation.json"
PREVIOUS = "previous.safetensors"
_STATE, _DIGEST = "structattn", "sha256"


class RunFolder:
    def __init__(self, path: Path) -> None:
        self.path = path

    def exists(self) -> bool:
        return (self.path / CONFIG).is_file()

    def must_exist(self) -> None:
        if self.exists():
            return
        where = self.path.parent
        others = sorted(path.parent.name for path in where.glob(f"*/{CONFIG}")) if where.is_dir() else []
        near = did_you_mean(self.path.name, others) if others else ""
        raise UserError(f"{self.path} is no run folder: it holds no {CONFIG}{near}")

    def create(self, config: Any, task: str, heading: str) -> None:
        """config.toml, whose first key is the task, and environment.json."""
        text = write_toml(config).lstrip("\n")
        commented = "".join(f"# {line}\n" for line in heading.splitlines())
        self.path.mkdir(parents=True, exist_ok=True)
        write_text(self.path / CONFIG, f"{commented}task = {json.dumps(task)}\n\n{text}")
        write_text(self.path / ENVIRONMENT, json.dumps(environment(), indent=2) + "\n")

    def task(self) -> str:
        self.must_exist()
        task = read_toml(self.path / CONFIG).get("task")
        if not isinstance(task, str):
            raise UserError(f"{self.path / CONFIG} does not name its task")
        return task

    def config(self, config_class: type[Any]) -> Any:
        table = read_toml(self.path / CONFIG)
        table.pop("task", None)
        return build(config_class, table, str(self.path / CONFIG))

    def metrics(self) -> list[dict[str, Any]]:
        path = self.path / METRICS
        if not path.exists():
            return []
        try:
            lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged: {error}") from error
        for number, line in enumerate(lines, 1):
            if not (isinstance(line, dict) and isinstance(line.get("epoch"), int)):
                raise UserError(f"{path} is damaged: line {number} is of no epoch")
        return lines

    def write_metrics(self, lines: list[dict[str, Any]]) -> None:
        write_text(self.path / METRICS, "".join(json.dumps(line) + "\n" for line in lines))

    def save_weights(self, model: nn.Module) -> None:
        write_tensors(self.path / WEIGHTS, _owned(model.state_dict()))

    def replace_weights(self, model: nn.Module, chosen: list[bool]) -> None:
        """Saves the chosen ones of the models that the first dimension of every weight counts; keeps the others."""
        tensors, _ = read_tensors(self.path / WEIGHTS)
        rows = torch.tensor(chosen).nonzero().flatten()
        for name, tensor in model.state_dict().items():
            tensors[name][rows] = tensor[rows].cpu()
        write_tensors(self.path / WEIGHTS, tensors)

    def load_weights(self, model: nn.Module) -> None:
        tensors, _ = read_tensors(self.path / WEIGHTS)
        load_state(model, tensors, self.path / WEIGHTS)

    def save_evaluation(self, evaluation: dict[str, Any]) -> None:
        write_text(self.path / EVALUATION, json.dumps(evaluation, indent=2) + "\n")

    def evaluation(self) -> dict[str, Any] | None:
        path = self.path / EVALUATION
        if not path.exists():
            return None
        try:
            evaluation = json.loads(path.read_text(encoding="utf-8"))
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} is damaged: {error}") from error
        if not isinstance(evaluation, dict):
            raise UserError(f"{path} is damaged: it holds no object")
        return evaluation

    def save_checkpoint(
        self, model: nn.Module, optimizer: torch.optim.Optimizer, state: dict[str, Any]
    ) -> None:
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        moments, plain = _flatten_optimizer(optimizer.state_dict())
        state = {**state, "optimizer": plain}
        write_tensors(self.path / CHECKPOINT, _owned({**tensors, **moments}), state, self.path / PREVIOUS)

    def load_checkpoint(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        warn: Callable[[str], Any] = lambda message: None,
    ) -> dict[str, Any] | None:
        """What the checkpoint says besides the tensors, which are put into place; None if there is none.

        If it is damaged, or was lost while the next one took its place, the one before it serves.
        """
        paths = [path for path in (self.path / CHECKPOINT, self.path / PREVIOUS) if path.exists()]
        if not paths:
            return None
        path, tensors, state = _first_undamaged(paths, warn)
        weights = {
            name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")
        }
        load_state(model, weights, path)
        try:
            optimizer.load_state_dict(_unflatten_optimizer(tensors, state.pop("optimizer")))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{path} does not fit this optimiser: {error}") from error
        return state

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One process at a time may write into a run folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        with open(self.path / ".lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise UserError(f"{self.path} is in use by another process") from None
            yield


def _first_undamaged(
    paths: list[Path], warn: Callable[[str], Any]
) -> tuple[Path, dict[str, Tensor], dict[str, Any]]:
    path, *others = paths
    try:
        return path, *read_tensors(path)
    except UserError as error:
        if not others:
            raise
        warn(f"{error}; going on from {others[0].name}")
        return _first_undamaged(others, warn)


def load_state(model: nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    # torch would take whole or complex numbers for real ones.
    for name, weights in model.state_dict().items():
        given = tensors.get(name, weights)
        if given.is_floating_point() != weights.is_floating_point():
            raise UserError(f"{path}: {name} is of {given.dtype}, and of {weights.dtype} in the model")
    try:
        model.load_state_dict(tensors)
    except RuntimeError as error:
        summary = " ".join(str(error).split())
        raise UserError(f"{path} does not fit the model that {CONFIG} describes: {summary}") from error


def write_text(path: Path, text: str) -> None:
    _replace(path, lambda temporary: temporary.write_text(text, encoding="utf-8"))


def write_tensors(
    path: Path, tensors: dict[str, Tensor], state: dict[str, Any] | None = None, previous: Path | None = None
) -> None:
    """previous: where the file that is there goes, instead of being overwritten."""
    text = json.dumps(state or {})
    header = {_STATE: text, _DIGEST: _digest(tensors, text)}
    _replace(path, lambda temporary: save_file(tensors, temporary, header), previous)


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    if not path.exists():
        raise UserError(f"there is no {path}: the run has not finished an epoch")
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
            header = file.metadata() or {}
        text = header.get(_STATE, "{}")
        state = json.loads(text)
    except (SafetensorError, ValueError, RecursionError, OSError) as error:
        raise UserError(f"{path} is damaged: {error}") from error
    if header.get(_DIGEST, "") not in ("", _digest(tensors, text)) or not isinstance(state, dict):
        raise UserError(f"{path} is damaged: its checksum is another one than when it was written")
    return tensors, state


def map_tensors(path: Path) -> dict[str, Tensor]:
    """The tensors of a file that this training wrote: unchecked, and read only where they are used."""
    with safe_open(path, framework="pt") as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)


def _digest(tensors: dict[str, Tensor], state: str) -> str:
    """The sha256 of contiguous tensors in main memory, with their names, types and shapes, and of the state."""
    digest = hashlib.sha256(state.encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {list(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _replace(path: Path, write: Callable[[Path], Any], previous: Path | None = None) -> None:
    """Writes beside the file, forces it to disk, and moves it there in one step."""
    temporary = None
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        os.close(descriptor)
        temporary = Path(name)
        write(temporary)
        with open(temporary, "rb") as file:
            os.fsync(file.fileno())
        if previous is not None and path.exists():
            os.replace(path, previous)
        os.replace(temporary, path)
    except (OSError, SafetensorError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or error
        raise UserError(f"cannot write {path}: {reason}; what was there before is untouched") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def _owned(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous copies in main memory: safetensors takes no two names for one tensor (shared embeddings)."""
    return {name: tensor.detach().cpu().clone().contiguous() for name, tensor in tensors.items()}


def _flatten_optimizer(state: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of an optimiser's state by name, and the rest, which JSON can hold."""
    tensors, numbers = {}, {}
    for index, values in state["state"].items():
        for key, value in values.items():
            if isinstance(value, Tensor):
                tensors[f"optimizer.{index}.{key}"] = value
            else:
                numbers[f"{index}.{key}"] = value
    return tensors, {"param_groups": state["param_groups"], "numbers": numbers}


def _unflatten_optimizer(tensors: dict[str, Tensor], plain: dict[str, Any]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {}
    flat = {
        name.removeprefix("optimizer."): value
        for name, value in tensors.items()
        if name.startswith("optimizer.")
    }
    for name, value in {**flat, **plain["numbers"]}.items():
        index, _, key = name.partition(".")
        state.setdefault(int(index), {})[key] = value
    return {"state": state, "param_groups": plain["param_groups"]}


def environment() -> dict[str, Any]:
    """What decides numbers and speed besides the configuration."""
    return {
        "command": sys.argv,
        "structattn": structattn.__version__,
        "kernels": native.level(),
        "backend": selected_backend(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "machine": platform.machine(),
        "system": platform.platform(),
        "processors": os.cpu_count(),
    }
