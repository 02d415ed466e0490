"""Translation (paper, section 4.2): from characters or words, with attention over segments of the source."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from structattn.recipes.batching import chunks, pad, sorted_batches
from structattn.recipes.data_folder import must_exist
from structattn.recipes.decoding import DecodingSettings, Hypothesis
from structattn.recipes.errors import UserError
from structattn.recipes.optimisation import TrainingSettings
from structattn.recipes.recipe import Recipe, Table
from structattn.recipes.translation.alignment import Alignment, align
from structattn.recipes.translation.bleu import bleu, paired_bootstrap
from structattn.recipes.translation.data import Pair, TranslationData, fits, read_pairs, symbols_of, text_of
from structattn.recipes.translation.model import TranslationModel, TranslationModelSettings
from structattn.recipes.translation.preparation import Example, Prepared, Vocabularies, example, prepare

VOCABULARY = "vocabulary.json"
_BATCHES_READ = 8
"""Lines for so many batches are read before the first is translated: sorted by length, they pad less."""


@dataclass
class TranslationConfig:
    training: TrainingSettings = field(default_factory=TrainingSettings)
    data: TranslationData = field(default_factory=TranslationData)
    model: TranslationModelSettings = field(default_factory=TranslationModelSettings)
    decoding: DecodingSettings = field(default_factory=DecodingSettings)


class TranslationRecipe(Recipe):
    task = "translation"
    config_class = TranslationConfig
    shares = True
    options = {  # noqa: RUF012
        "attention": "model.attention",
        "source": "data.source",
        "train": "data.train",
        "valid": "data.valid",
        "seed": "training.seed",
    }
    config: TranslationConfig

    def files(self, part: str) -> list[Path]:
        """The files of train, valid or test; none: pairs of the training files are held out instead."""
        given = getattr(self.config.data, part)
        if given or self.config.data.train or part == "valid":
            return list(map(Path, given))
        folder, name = self.folder.need("enja"), {"train": "train", "test": "dev"}[part]
        return [folder / f"{name}.ja", folder / f"{name}.en"]

    def check_data(self) -> None:
        must_exist(path for part in ("train", "valid", "test") for path in self.files(part))

    @cached_property
    def prepared(self) -> Prepared:
        return prepare(self.config.data, self.files("train"), self.files("valid"))

    @cached_property
    def vocabularies(self) -> Vocabularies:
        """The run's own, so that a model needs nothing else; a new run gets those of the training data."""
        kept = None if self.run is None else self.run / VOCABULARY
        if kept is not None and kept.is_file():
            return Vocabularies.read(kept)
        found = self.prepared.vocabularies
        if kept is not None:
            found.write(kept)
        return found

    def build_model(self) -> TranslationModel:
        source, target = self.vocabularies
        return TranslationModel(self.config.model, len(source), len(target))

    def training_examples(self) -> list[Example]:
        for mine, found in zip(self.vocabularies, self.prepared.vocabularies, strict=True):
            if mine.symbols != found.symbols:
                raise UserError(f"{self.run}: the training files are not those that this run began with")
        return self.prepared.train

    def of_rows(self, *rows: list[int]) -> Example:
        return Example(*rows)

    def forget(self) -> None:
        self.prepared = self.prepared._replace(train=[])

    def example(self, pair: Pair) -> Example:
        data = self.config.data
        return example(
            self.vocabularies, symbols_of(pair.source, data.source), symbols_of(pair.target, data.target)
        )

    def size(self, example: Example) -> int:
        """Sources of nearly the same length share a batch, and among them targets of the same."""
        return len(example.source) // 3 * 1000 + min(len(example.target), 999)

    def units(self, example: Example) -> int:
        return len(example.target) - 1

    def collate(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
        sources = [example.source for example in examples]
        lengths = torch.tensor([len(source) for source in sources])
        return pad(sources), lengths, pad([example.target for example in examples])

    def validate(self, model: nn.Module) -> dict[str, float]:
        """The loss per target symbol, its exponential, and BLEU by greedy search."""
        pairs = self.prepared.valid
        loss = self.loss(model, pairs)
        found = self.translate(model, [pair.source for pair in pairs], greedy=True)
        score = bleu(*self._scored(found, pairs))["bleu"]
        return {"loss": loss, "perplexity": _perplexity(loss), "bleu": score}

    @torch.no_grad()
    def loss(self, model: nn.Module, pairs: Sequence[Pair]) -> float:
        """Of each target symbol, on average."""
        examples = [self.example(pair) for pair in pairs]
        batches = sorted_batches(list(map(self.size, examples)), self.config.decoding.batch_size)
        total = sum(
            model(*self.batch(model, [examples[index] for index in batch])).item() for batch in batches
        )
        return total / sum(map(self.units, examples))

    def translate(
        self, model: nn.Module, sources: Sequence[str], n_best: int = 1, greedy: bool = False
    ) -> list[list[Hypothesis]]:
        """The best hypotheses of each source, in order, decoded in batches of similar length; none of an empty one."""
        beam = 1 if greedy else max(self.config.decoding.beam, n_best)
        settings = replace(self.config.decoding, beam=beam)
        numbers = [self._source(text) for text in sources]
        wanted = [index for index, source in enumerate(numbers) if source]
        found: list[list[Hypothesis]] = [[] for _ in sources]
        for batch in sorted_batches([len(numbers[index]) for index in wanted], settings.batch_size):
            indices = [wanted[position] for position in batch]
            hypotheses = self._search(model, [numbers[index] for index in indices], settings, n_best)
            for index, best in zip(indices, hypotheses, strict=True):
                found[index] = best
        return found

    def _source(self, text: str) -> list[int]:
        return self.vocabularies.source.numbers(symbols_of(text, self.config.data.source))

    @torch.no_grad()
    def _search(
        self, model: nn.Module, sources: Sequence[list[int]], settings: DecodingSettings, n_best: int
    ) -> list[list[Hypothesis]]:
        assert isinstance(model, TranslationModel)
        device = next(model.parameters()).device
        lengths = torch.tensor([len(source) for source in sources], device=device)
        return model.search(pad(sources).to(device), lengths, settings, n_best)

    def text(self, hypothesis: Hypothesis) -> str:
        symbols = self.vocabularies.target.symbols
        return text_of([symbols[number] for number in hypothesis.symbols], self.config.data.target)

    def align(
        self, model: nn.Module, source: str, target: str | None = None, temperature: float = 1.0
    ) -> Alignment:
        """What the model attends to in the source; without a target, while it writes its own translation."""
        assert isinstance(model, TranslationModel)
        data = self.config.data
        symbols = symbols_of(source, data.source)
        if not symbols:
            raise UserError("there is no sentence to attend to")
        if target is None:
            target = self.text(self.translate(model, [source])[0][0])
        written = symbols_of(target, data.target)
        if not written:
            raise UserError(f'the translation of "{source}" is empty: nothing attends to anything')
        return align(model, self.vocabularies, symbols, written, temperature)

    def _scored(self, found: list[list[Hypothesis]], pairs: Sequence[Pair]) -> tuple[list[str], list[str]]:
        """Translations and references as BLEU compares them: symbols with spaces between."""
        symbols = self.vocabularies.target.symbols
        translations = [" ".join(symbols[number] for number in best.symbols) for best, *_ in found]
        return translations, [" ".join(symbols_of(pair.target, self.config.data.target)) for pair in pairs]

    def evaluate(self, model: nn.Module, data: list[Path]) -> dict[str, Any]:
        given = read_pairs(_source_and_target(data)) if data else self._test_pairs()
        pairs = given if data else [pair for pair in given if fits(pair, self.config.data)]
        if not pairs:
            raise UserError(
                "all pairs of the test files are longer than data.longest_source or longest_target"
            )
        found = self.translate(model, [pair.source for pair in pairs])
        translations, references = self._scored(found, pairs)
        return {
            "task": self.task,
            "attention": self.config.model.attention,
            "source": self.config.data.source,
            "target": self.config.data.target,
            "seed": self.config.training.seed,
            "beam": self.config.decoding.beam,
            "pairs": len(pairs),
            "left_out": len(given) - len(pairs),
            "perplexity": _perplexity(self.loss(model, pairs)),
            **bleu(translations, references),
            "translations": translations,
            "references": references,
        }

    def _test_pairs(self) -> list[Pair]:
        files = self.files("test")
        return read_pairs(files) if files else self.prepared.valid

    def compare(self, evaluation: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
        """A paired bootstrap of BLEU against the same pairs' evaluation by another run."""
        if evaluation["references"] != other["references"]:
            raise UserError(
                "--against: the two runs were evaluated on different pairs; name them with --data"
            )
        found = paired_bootstrap(evaluation["translations"], other["translations"], other["references"])
        name = f"{other['source']}, {other['attention']}, seed {other['seed']}"
        return {"name": name, **found}

    def evaluation_table(self, evaluation: dict[str, Any]) -> Table:
        rows = [
            ["BLEU as multi-bleu.perl", f"{evaluation['bleu']:.2f}", _readable(evaluation["signature"])],
            ["sacreBLEU", f"{evaluation['sacrebleu']:.2f}", _readable(evaluation["sacrebleu_signature"])],
            ["perplexity", f"{evaluation['perplexity']:.2f}", f"{evaluation['pairs']} pairs"],
        ]
        if "against" in evaluation:
            against = evaluation["against"]
            difference = evaluation["bleu"] - against["bleu"]
            rows += [
                [
                    f"BLEU of {against['name']}",
                    f"{against['bleu']:.2f}",
                    f"± {against['bleu_ci']:.2f} (95 %)",
                ],
                [
                    "difference",
                    f"{difference:+.2f}",
                    f"p = {against['p']:.4f}, {against['samples']} resamples",
                ],
            ]
        title = (
            f"translation from {evaluation['source']}, attention {evaluation['attention']}, "
            f"seed {evaluation['seed']}, beam {evaluation['beam']}"
        )
        return Table(title, ["measure", "value", "how"], rows)

    def predict(self, model: nn.Module, lines: Iterable[str]) -> Iterator[str]:
        for _, found in self._translated(model, lines, 1):
            yield self.text(found[0]) if found else ""

    def predict_n_best(self, model: nn.Module, lines: Iterable[str], count: int) -> Iterator[str]:
        """The number of the input line, log-probability and translation, best first, with tabs between."""
        if count < 1:
            raise UserError(f"--n-best must be at least 1, not {count}")
        for number, found in self._translated(model, lines, count):
            yield from (f"{number}\t{one.score:.4f}\t{self.text(one)}" for one in found)

    def _translated(
        self, model: nn.Module, lines: Iterable[str], n_best: int
    ) -> Iterator[tuple[int, list[Hypothesis]]]:
        together = _BATCHES_READ * self.config.decoding.batch_size
        done = 0
        for chunk in chunks(lines, together):
            yield from enumerate(self.translate(model, chunk, n_best), done + 1)
            done += len(chunk)


def _source_and_target(data: list[Path]) -> list[Path]:
    if len(data) > 2:
        raise UserError(
            f"--data: expected a source and a target file, or one with tabs, not {len(data)} files"
        )
    return data


def _readable(signature: str) -> str:
    return signature.replace("|", " ")  # a narrow table breaks lines at spaces


def _perplexity(loss: float) -> float:
    return math.exp(min(loss, 700.0))
