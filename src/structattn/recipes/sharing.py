"""What processes that train together know of the examples: the sizes of all of them, and of its own part the rest.

The first process reads the training files and writes every example as numbers into one file of the run folder. All
processes map this file into memory, and its name goes away: of the file, a process reads what it makes batches of, and
no process but the first one opens a training file.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from lightning_fabric import Fabric
from torch import Tensor

from structattn.recipes.batching import flat
from structattn.recipes.errors import UserError
from structattn.recipes.processes import by_first
from structattn.recipes.recipe import Recipe
from structattn.recipes.run_folder import map_tensors, write_tensors

_FILE = ".examples.safetensors"
_TABLE = "table."


class Examples(NamedTuple):
    """Of a training."""

    by_number: Sequence[Any]
    sizes: list[int]
    units: list[int]


def examples_of(recipe: Recipe, fabric: Fabric, folder: Path) -> Examples:
    """As this process sees them; it has read nothing yet, unless it is alone or the first one."""
    if fabric.world_size == 1 or not recipe.shares:
        examples = recipe.training_examples()
        return Examples(examples, list(map(recipe.size, examples)), list(map(recipe.units, examples)))
    path = folder / _FILE
    by_first(fabric, lambda: _write(recipe, path))
    if not path.exists():
        raise UserError(f"there is no {path}: all machines must see the same run folder")
    tensors = map_tensors(path)
    fabric.barrier()
    if fabric.global_rank == 0:
        path.unlink()  # the mapping stays
        recipe.forget()
    else:
        recipe.use({name.removeprefix(_TABLE): tensors[name] for name in tensors if name.startswith(_TABLE)})
    return Examples(SharedExamples(recipe, tensors), tensors["sizes"].tolist(), tensors["units"].tolist())


def _write(recipe: Recipe, path: Path) -> None:
    examples = recipe.training_examples()
    tensors = {f"{_TABLE}{name}": table for name, table in recipe.tables().items()}
    for name, measure in (("sizes", recipe.size), ("units", recipe.units)):
        tensors[name] = torch.tensor(list(map(measure, examples)))
    for number, field in enumerate(zip(*map(recipe.rows, examples), strict=True)):
        tensors[f"{number}"], tensors[f"{number}.lengths"] = flat(field)
    write_tensors(path, tensors)


class SharedExamples(Sequence[Any]):
    """Examples of which only those that are asked for are read."""

    def __init__(self, recipe: Recipe, tensors: dict[str, Tensor]) -> None:
        self.recipe = recipe
        count = sum(name.endswith(".lengths") for name in tensors)
        self.fields = [tensors[f"{number}"] for number in range(count)]
        self.starts = [F.pad(tensors[f"{number}.lengths"].cumsum(0), (1, 0)) for number in range(count)]

    def __len__(self) -> int:
        return len(self.starts[0]) - 1

    def __getitem__(self, index: Any) -> Any:
        rows = []
        for numbers, starts in zip(self.fields, self.starts, strict=True):
            first, behind = starts[index : index + 2].tolist()
            rows.append(numbers[first:behind].tolist())
        return self.recipe.of_rows(*rows)
