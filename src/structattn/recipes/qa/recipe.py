"""Question answering over facts (paper, section 4.3): the answer, and the chain of facts that leads to it."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structattn.recipes.errors import UserError, did_you_mean
from structattn.recipes.optimisation import TrainingSettings
from structattn.recipes.qa.answering import Followed, follow
from structattn.recipes.qa.data import (
    Batch,
    Encoder,
    Question,
    StoryReader,
    longest_sentence,
    read_questions,
    supporting_ages,
    task_file,
    vocabulary,
)
from structattn.recipes.qa.model import QAModel, QAModelSettings
from structattn.recipes.recipe import Recipe, Table

STEPS = {2: 2, 3: 3, 7: 3, 8: 3, 10: 2, 11: 2, 13: 2, 14: 2, 15: 2, 16: 3, 17: 2, 18: 2, 19: 2}
"""K of the paper's table; a task that is not in it has one step."""

HOLD_OUT = ("last", "random")

_TOGETHER = 100
"""Questions that are answered at once."""


@dataclass
class QAData:
    """[data]: bAbI."""

    task: int = 2
    """the number of the task"""
    folder: str = ""
    """with the original files; by default babi/en in the data folder"""
    held_out: float = 0.1
    """share of the training questions that validates"""
    hold_out: str = "last"
    """which ones: the "last", so that few stories are split, or "random" ones"""
    split_seed: int = 2017
    """of random ones, the same for all seeds of the training"""

    def __post_init__(self) -> None:
        if not 0 < self.held_out < 1:
            raise UserError(f"data.held_out is a share between 0 and 1, not {self.held_out}")
        if self.hold_out not in HOLD_OUT:
            near = did_you_mean(self.hold_out, HOLD_OUT)
            raise UserError(f'data.hold_out: unknown value "{self.hold_out}"{near}')


@dataclass
class QAConfig:
    training: TrainingSettings = field(default_factory=lambda: TrainingSettings(epochs=100))
    data: QAData = field(default_factory=QAData)
    model: QAModelSettings = field(default_factory=QAModelSettings)

    def __post_init__(self) -> None:
        if self.training.epochs <= self.model.linear_start:
            raise UserError(
                f"training.epochs ({self.training.epochs}) must be more than model.linear_start "
                f"({self.model.linear_start}): a model counts from its first epoch after the linear start"
            )


class QARecipe(Recipe):
    task = "qa"
    config_class = QAConfig
    stacks = True
    options = {"model": "model.kind", "task": "data.task", "seed": "training.seed"}  # noqa: RUF012
    config: QAConfig

    @cached_property
    def path(self) -> Path:
        return Path(self.config.data.folder) if self.config.data.folder else self.folder.need("babi/en")

    @cached_property
    def splits(self) -> dict[str, list[Question]]:
        data = self.config.data
        questions = read_questions(task_file(self.path, data.task, "train"))
        order = list(range(len(questions)))[::-1]
        if data.hold_out == "random":
            random.Random(data.split_seed).shuffle(order)
        count = round(data.held_out * len(questions))
        if not 0 < count < len(questions):
            raise UserError(f"data.held_out: {count} of {len(questions)} questions would be held out")
        return {
            "train": [questions[index] for index in sorted(order[count:])],
            "valid": [questions[index] for index in sorted(order[:count])],
            "test": read_questions(task_file(self.path, data.task, "test")),
        }

    @cached_property
    def encoder(self) -> Encoder:
        settings = self.config.model
        words = vocabulary(question for questions in self.splits.values() for question in questions)
        longest = longest_sentence(self.splits["train"])
        return Encoder(words, settings.memory, settings.position_encoding, settings.position_scale, longest)

    @cached_property
    def encoded(self) -> dict[str, Batch]:
        return {name: self.encoder.encode(questions) for name, questions in self.splits.items()}

    @property
    def steps(self) -> int:
        return self.config.model.steps or STEPS.get(self.config.data.task, 1)

    def build_model(self) -> QAModel:
        return QAModel(
            self.config.model, self.steps, len(self.encoder.words), models=self.config.training.seeds
        )

    def training_examples(self) -> list[int]:
        return list(range(len(self.splits["train"])))

    def size(self, example: int) -> int:
        return 1

    def collate(self, examples: Sequence[int]) -> tuple[Tensor, ...]:
        return self.encoded["train"].rows(examples)

    def epoch_begins(self, model: nn.Module, epoch: int) -> None:
        model.linear = not self.counts(epoch)  # type: ignore[assignment]

    def counts(self, epoch: int) -> bool:
        return epoch > self.config.model.linear_start

    def validate(self, model: nn.Module) -> dict[str, Any]:
        logits, answers = self._answers(model, self.encoded["valid"])
        losses = torch.stack([F.cross_entropy(of_model, answers) for of_model in logits])
        right = (logits.argmax(2) == answers).double().mean(1)
        values = {"loss": losses.tolist(), "accuracy": (100 * right).tolist()}
        return (
            values if self.config.training.seeds > 1 else {name: value[0] for name, value in values.items()}
        )

    @torch.no_grad()
    def _answers(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Logits (S, B, V), and the answers (B)."""
        assert isinstance(model, QAModel)
        logits = [
            model.answer(*self._for_each_model(model, batch, rows)).view(model.models, len(rows), -1)
            for rows in _parts(len(batch.lengths))
        ]
        return torch.cat(logits, 1), batch.answers.to(logits[0].device)

    @torch.no_grad()
    def best_facts(self, model: nn.Module, batch: Batch) -> Tensor:
        """The ages of the most probable sequence of facts (S, B, K): exact, by Viterbi; MemN2N's is greedy."""
        assert isinstance(model, QAModel)
        found = [
            model.chains(*self._for_each_model(model, batch, rows)).mode.view(model.models, len(rows), -1)
            for rows in _parts(len(batch.lengths))
        ]
        return torch.cat(found, 1)

    def _for_each_model(self, model: QAModel, batch: Batch, rows: Sequence[int]) -> list[Tensor]:
        """The rows' tensors without the answers, repeated for each of the stacked models."""
        device = model.embedding.device
        sentences, *tensors = (tensor.to(device) for tensor in batch.rows(rows)[:-1])
        return [sentences, *(tensor.repeat(model.models, *[1] * (tensor.dim() - 1)) for tensor in tensors)]

    def evaluate(self, model: nn.Module, data: list[Path]) -> dict[str, Any]:
        """For every seed: validation and test accuracy, and how often its best sequence of facts is the given one."""
        questions = [question for path in data for question in read_questions(self._test_file(path))]
        batch = self.encoder.encode(questions) if questions else self.encoded["test"]
        questions = questions or self.splits["test"]
        logits, answers = self._answers(model, batch)
        accuracies = (100 * (logits.argmax(2) == answers).double().mean(1)).tolist()
        facts = self._fact_accuracies(model, batch, questions)
        found = self.validate(model)["accuracy"]
        valid = found if isinstance(found, list) else [found]
        best = _best(valid)
        return {
            "task": self.task,
            "babi_task": self.config.data.task,
            "model": self.config.model.kind,
            "steps": self.steps,
            "questions": len(questions),
            "accuracy": accuracies[best],
            "facts": None if facts is None else facts[best],
            "best_seed": self.config.training.seed + best,
            "seeds": [
                {
                    "seed": self.config.training.seed + number,
                    "valid_accuracy": valid[number],
                    "accuracy": accuracies[number],
                    "facts": None if facts is None else facts[number],
                }
                for number in range(len(valid))
            ],
        }

    def _fact_accuracies(
        self, model: nn.Module, batch: Batch, questions: list[Question]
    ) -> list[float] | None:
        """In percent, of each model; None where not all questions have as many supporting facts as there are steps."""
        wanted = [supporting_ages(question) for question in questions]
        if any(len(ages) != self.steps for ages in wanted):
            return None
        found = self.best_facts(model, batch)
        right = (found == torch.tensor(wanted, device=found.device)).all(2)
        return (100 * right.double().mean(1)).tolist()

    def _test_file(self, path: Path) -> Path:
        return task_file(path, self.config.data.task, "test") if path.is_dir() else path

    def evaluation_table(self, evaluation: dict[str, Any]) -> Table:
        rows = [
            [str(one["seed"]), *(_percent(one[name]) for name in ("valid_accuracy", "accuracy", "facts"))]
            for one in evaluation["seeds"]
        ]
        if len(rows) > 1:
            best = evaluation["best_seed"]
            rows.append(
                [f"best ({best})", "", _percent(evaluation["accuracy"]), _percent(evaluation["facts"])]
            )
        title = (
            f"qa, bAbI task {evaluation['babi_task']}, {evaluation['model']}, K = {evaluation['steps']}: %"
        )
        return Table(title, ["seed", "validation", "answers", "facts"], rows)

    def predict(self, model: nn.Module, lines: Iterable[str]) -> Iterator[str]:
        """Stories as bAbI writes them, or plain sentences; a question, with or without its answer, is answered.

        A fact's line of output is empty. A question's has the answer, its probability, the facts that were followed
        (the numbers of their lines in the story) and the probability of this sequence of facts, with tabs between.
        """
        reader = StoryReader()
        for number, line in enumerate(lines, 1):
            question = reader.read(line, f"line {number}")
            yield "" if question is None else self._answer_line(model, question, reader.numbers)

    def _answer_line(self, model: nn.Module, question: Question, numbers: list[str]) -> str:
        found = self.follow(model, question, sequences=1)
        (word, probability), (facts, likelihood) = found.answers[0], found.sequences[0]
        return f"{word}\t{probability:.3f}\t{' '.join(numbers[fact] for fact in facts)}\t{likelihood:.3f}"

    def follow(
        self, model: nn.Module, question: Question, sequences: int = 3, temperature: float = 1.0
    ) -> Followed:
        """What the model answers, and the facts that it follows; of several, the one that validates best."""
        return follow(self._best_of(model), self.encoder, question, sequences, temperature)

    def _best_of(self, model: nn.Module) -> QAModel:
        assert isinstance(model, QAModel)
        if model.models == 1:
            return model
        best = _best(self.validate(model)["accuracy"])
        alone = QAModel(self.config.model, self.steps, len(self.encoder.words))
        alone.load_state_dict({name: rows[best : best + 1] for name, rows in model.state_dict().items()})
        return alone.to(model.embedding.device).eval()


def _parts(count: int) -> list[range]:
    return [range(start, min(start + _TOGETHER, count)) for start in range(0, count, _TOGETHER)]


def _best(values: list[float]) -> int:
    """The position of the largest, the first of equals."""
    return max(range(len(values)), key=values.__getitem__)


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
