"""Tree transduction (paper, section 4.1): prefix to infix, and how far a model gets before it errs."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from structattn.recipes.batching import chunks, pad, sorted_batches
from structattn.recipes.data_folder import must_exist
from structattn.recipes.decoding import DecodingSettings
from structattn.recipes.errors import UserError
from structattn.recipes.optimisation import TrainingSettings
from structattn.recipes.recipe import Recipe, Table
from structattn.recipes.transduction.data import (
    END,
    ROOT,
    START,
    Pair,
    TransductionData,
    draw_splits,
    parse_prefix,
    read_pairs,
    vocabulary,
)
from structattn.recipes.transduction.model import TransductionModel, TransductionModelSettings


@dataclass
class TransductionConfig:
    training: TrainingSettings = field(default_factory=TrainingSettings)
    data: TransductionData = field(default_factory=TransductionData)
    model: TransductionModelSettings = field(default_factory=TransductionModelSettings)
    decoding: DecodingSettings = field(default_factory=DecodingSettings)


class Example(NamedTuple):
    """A pair as numbers: the source with its root symbol, the target between start and end."""

    source: list[int]
    target: list[int]


class TransductionRecipe(Recipe):
    task = "transduction"
    config_class = TransductionConfig
    shares = True
    config: TransductionConfig

    @cached_property
    def symbols(self) -> list[str]:
        return vocabulary(self.config.data)

    @cached_property
    def number_of(self) -> dict[str, int]:
        return {symbol: number for number, symbol in enumerate(self.symbols)}

    @cached_property
    def splits(self) -> dict[str, list[Pair]]:
        if self.config.data.folder:
            folder = Path(self.config.data.folder)
            return {name: read_pairs(folder / f"{name}.txt") for name in ("train", "valid", "test")}
        return draw_splits(self.config.data)

    def check_data(self) -> None:
        """Formulas are drawn unless there is a folder."""
        if self.config.data.folder:
            must_exist(Path(self.config.data.folder) / f"{name}.txt" for name in ("train", "valid", "test"))

    def build_model(self) -> TransductionModel:
        return TransductionModel(self.config.model, len(self.symbols))

    def training_examples(self) -> list[Example]:
        return [self.example(pair) for pair in self.splits["train"]]

    def of_rows(self, *rows: list[int]) -> Example:
        return Example(*rows)

    def forget(self) -> None:
        self.splits["train"] = []

    def example(self, pair: Pair) -> Example:
        return Example(self.numbers([ROOT, *pair.source]), self.numbers([START, *pair.target, END]))

    def numbers(self, symbols: Sequence[str]) -> list[int]:
        try:
            return [self.number_of[symbol] for symbol in symbols]
        except KeyError as error:
            largest = self.config.data.largest_number
            raise UserError(
                f"unknown symbol {error.args[0]!r}: a formula has numbers from 0 to {largest}, + * ( and )"
            ) from None

    def size(self, example: Example) -> int:
        return len(example.source)

    def units(self, example: Example) -> int:
        return len(example.target) - 1

    def collate(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
        sources = [example.source for example in examples]
        lengths = torch.tensor([len(source) for source in sources])
        return pad(sources), lengths, pad([example.target for example in examples])

    def validate(self, model: nn.Module) -> dict[str, float]:
        """The loss per symbol and the share of correct symbols before the first failure, by greedy search."""
        pairs = self.splits["valid"]
        examples = [self.example(pair) for pair in pairs]
        loss = 0.0
        for batch in sorted_batches(list(map(self.size, examples)), self.config.decoding.batch_size):
            loss += model(*self.batch(model, [examples[index] for index in batch])).item()
        units = sum(map(self.units, examples))
        predicted = self.transduce(model, [pair.source for pair in pairs], greedy=True)
        prefix = sum(map(share_before_failure, predicted, (pair.target for pair in pairs)))
        return {"loss": loss / units, "prefix": prefix / len(pairs)}

    def transduce(self, model: nn.Module, sources: list[list[str]], greedy: bool = False) -> list[list[str]]:
        """The infix of each source, in order, decoded in batches of similar length."""
        assert isinstance(model, TransductionModel)
        device = next(model.parameters()).device
        settings = self.config.decoding if not greedy else DecodingSettings(beam=1)
        numbers = [self.numbers([ROOT, *source]) for source in sources]
        found: list[list[str]] = [[] for _ in sources]
        for batch in sorted_batches([len(source) for source in numbers], settings.batch_size):
            lengths = torch.tensor([len(numbers[index]) for index in batch], device=device)
            source = pad([numbers[index] for index in batch]).to(device)
            ends = self.number_of[START], self.number_of[END]
            for index, target in zip(batch, model.search(source, lengths, settings, *ends), strict=True):
                found[index] = [self.symbols[number] for number in target]
        return found

    def evaluate(self, model: nn.Module, data: list[Path]) -> dict[str, Any]:
        given = [pair for path in data for pair in read_pairs(_test_file(path))]
        pairs = given or self.splits["test"]
        predicted = self.transduce(model, [pair.source for pair in pairs])
        by_depth = defaultdict(list)
        for pair, target in zip(pairs, predicted, strict=True):
            by_depth[pair.depth].append((share_before_failure(target, pair.target), target == pair.target))
        return {
            "task": self.task,
            "attention": self.config.model.attention,
            "seed": self.config.training.seed,
            "beam": self.config.decoding.beam,
            "depths": {str(depth): _summary(by_depth[depth]) for depth in sorted(by_depth)},
            "all": _summary([result for results in by_depth.values() for result in results]),
        }

    def evaluation_table(self, evaluation: dict[str, Any]) -> Table:
        rows = [
            [depth, str(values["count"]), f"{values['prefix']:.1f}", f"{values['exact']:.1f}"]
            for depth, values in [*evaluation["depths"].items(), ("all", evaluation["all"])]
        ]
        title = f"transduction, attention {evaluation['attention']}, seed {evaluation['seed']}: % by depth"
        return Table(title, ["depth", "formulas", "correct before the first failure", "exact"], rows)

    def predict(self, model: nn.Module, lines: Iterable[str]) -> Iterator[str]:
        for chunk in chunks(lines, self.config.decoding.batch_size):
            sources = [self.formula(line) for line in chunk]
            wanted = [source for source in sources if source]
            found = iter(self.transduce(model, wanted))
            yield from (" ".join(next(found)) if source else "" for source in sources)

    def formula(self, line: str) -> list[str]:
        """The symbols of a formula as people type it: spaces around them are optional."""
        for symbol in "()+*":
            line = line.replace(symbol, f" {symbol} ")
        source = [symbol for symbol in line.split() if symbol != ROOT]
        if source:
            self.numbers(source)
            try:
                parse_prefix(source)
            except ValueError as error:
                raise UserError(f'"{" ".join(source)}" is no formula in prefix notation: {error}') from error
        return source


def share_before_failure(predicted: list[str], wanted: list[str]) -> float:
    """The share of the wanted symbols that were produced before the first wrong one."""
    correct = 0
    for mine, right in zip(predicted, wanted, strict=False):
        if mine != right:
            break
        correct += 1
    return correct / len(wanted)


def _summary(results: list[tuple[float, bool]]) -> dict[str, float]:
    count = len(results)
    return {
        "count": count,
        "prefix": 100 * sum(share for share, _ in results) / count,
        "exact": 100 * sum(exact for _, exact in results) / count,
    }


def _test_file(path: Path) -> Path:
    """A file of pairs, or test.txt in a folder as `structattn data make transduction` writes it."""
    if not path.exists():
        raise UserError(f"--data: there is no {path}")
    return path / "test.txt" if path.is_dir() else path
