"""What a recipe is to the training loop and the command line: data, model and metric."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn

from structattn.recipes.data_folder import DataFolder
from structattn.recipes.errors import UserError


class Table(NamedTuple):
    """Numbers as a person reads them: a title, the heads of the columns, and rows of text."""

    title: str
    columns: list[str]
    rows: list[list[str]]


class Recipe(ABC):
    """One experiment. Its configuration is a dataclass with a section `training` and others.

    An example may be anything; the model's forward takes what `collate` returns and gives the summed loss of
    the batch.
    """

    task: ClassVar[str]
    config_class: ClassVar[type]
    stacks: ClassVar[bool] = False
    """Whether one network holds `training.seeds` models: the first dimension of every weight is of models, `collate`
    gets the examples of one model after those of another, and losses and the values of `validate` are lists."""
    shares: ClassVar[bool] = False
    """Whether `rows` and `tables` hold all that the other processes of a training need; else each reads the files."""
    options: ClassVar[dict[str, str]] = {"attention": "model.attention", "seed": "training.seed"}
    """Options of `structattn train`, and the keys that they are short for."""

    def __init__(self, config: Any, folder: DataFolder, run: Path | None = None) -> None:
        """run: the run folder, for what a trained model needs besides configuration and weights."""
        self.config = config
        self.folder = folder
        self.run = run

    @abstractmethod
    def build_model(self) -> nn.Module: ...

    @abstractmethod
    def training_examples(self) -> Sequence[Any]: ...

    def check_data(self) -> None:
        """Refuses what is missing before many runs start; who reads large files looks only whether they are there."""
        self.training_examples()

    @abstractmethod
    def size(self, example: Any) -> int:
        """Examples of similar size share a batch."""

    def units(self, example: Any) -> int:
        """What the loss of an example is a sum over, such as its target symbols."""
        return 1

    @abstractmethod
    def collate(self, examples: Sequence[Any]) -> tuple[Tensor, ...]: ...

    def batch(self, model: nn.Module, examples: Sequence[Any]) -> tuple[Tensor, ...]:
        """A collated batch where the model is."""
        device = next(model.parameters()).device
        return tuple(tensor.to(device) for tensor in self.collate(examples))

    def rows(self, example: Any) -> Sequence[Sequence[int]]:
        """A training example as rows of numbers, for a file that several processes share."""
        return example

    def of_rows(self, *rows: list[int]) -> Any:
        """The example again."""
        return rows

    def tables(self) -> dict[str, Tensor]:
        """What `build_model` and `collate` know from the training files, for a process that does not read these."""
        return {}

    def use(self, tables: dict[str, Tensor]) -> None:  # noqa: B027 (most recipes have no tables)
        """Takes the tables that another process made."""

    def forget(self) -> None:  # noqa: B027 (examples that are not shared stay)
        """Lets go of the training examples: they are in a file now."""

    @abstractmethod
    def validate(self, model: nn.Module) -> dict[str, Any]:
        """Values of the validation set, "loss" among them; `training.watch` names one."""

    def pretrain(self, model: nn.Module) -> None:  # noqa: B027 (most models begin as they are)
        """Before a run's first epoch and whenever it is resumed; by one process, and the others get its weights."""

    def epoch_begins(self, model: nn.Module, epoch: int) -> None:  # noqa: B027 (most recipes have nothing to change)
        """For models that change on the way; epochs count from 1."""

    def counts(self, epoch: int) -> bool:
        """Whether the model of this epoch may be the best one."""
        return True

    @abstractmethod
    def evaluate(self, model: nn.Module, data: list[Path]) -> dict[str, Any]:
        """The test's numbers, ready for JSON; without data the recipe's own test set."""

    def compare(self, evaluation: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        """Whether this evaluation differs from another run's by more than chance, ready for JSON."""
        raise UserError(f"--against means nothing to {self.task}")

    @abstractmethod
    def evaluation_table(self, evaluation: dict[str, Any]) -> Table: ...

    @abstractmethod
    def predict(self, model: nn.Module, lines: Iterable[str]) -> Iterator[str]:
        """One output for each line of input, in order; it may be of several lines."""

    def predict_n_best(self, model: nn.Module, lines: Iterable[str], count: int) -> Iterator[str]:
        """The best few outputs for each line of input, a line each."""
        raise UserError(f"--n-best means nothing to {self.task}")
