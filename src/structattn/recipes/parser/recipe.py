"""A dependency parser trained on a treebank: the distribution over trees as a model of its own (appendix A.1)."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from structattn.recipes.batching import chunks, sorted_batches
from structattn.recipes.data_folder import must_exist
from structattn.recipes.errors import UserError
from structattn.recipes.optimisation import TrainingSettings
from structattn.recipes.parser.data import Encoder, Example, ParserData, expressible
from structattn.recipes.parser.model import ParserModel, ParserModelSettings
from structattn.recipes.recipe import Recipe, Table
from structattn.recipes.treebank import Sentence, conllu, read_treebank
from structattn.recipes.vectors import WordVectors, read_vectors
from structattn.structures.tree import DependencyTree

PUNCTUATION = "PUNCT"

_TOGETHER = 64
"""Sentences that are parsed at once."""
_AHEAD = 512
"""Lines of input that are read before their trees are written."""


@dataclass
class ParserConfig:
    training: TrainingSettings = field(default_factory=TrainingSettings)
    data: ParserData = field(default_factory=ParserData)
    model: ParserModelSettings = field(default_factory=ParserModelSettings)


class ParserRecipe(Recipe):
    task = "parser"
    config_class = ParserConfig
    shares = True
    options = {"treebank": "data.treebank", "valid": "data.valid", "seed": "training.seed"}  # noqa: RUF012
    config: ParserConfig

    @property
    def treebank(self) -> Path:
        given = self.config.data.treebank
        return Path(given) if given else self.folder.need("ud_ewt/train.conllu.gz")

    @property
    def validating(self) -> list[Path]:
        """The files that validate; none: a share of the treebank is held out instead."""
        data = self.config.data
        if data.valid or data.treebank:
            return list(map(Path, data.valid))
        return [self.folder.need("ud_ewt/dev.conllu.gz")]

    def check_data(self) -> None:
        must_exist([self.treebank, *self.validating])
        if self.config.data.vectors:
            self.folder.vectors(self.config.data.vectors)

    @cached_property
    def splits(self) -> dict[str, list[Sentence]]:
        """All sentences of train and valid, whatever their trees."""
        data, train = self.config.data, read_treebank(self.treebank)
        if self.validating:
            return {"train": train, "valid": [one for path in self.validating for one in read_treebank(path)]}
        order = list(range(len(train)))
        random.Random(data.split_seed).shuffle(order)
        count = round(data.held_out * len(train))
        if not 0 < count < len(train):
            raise UserError(f"data.held_out: {count} of {len(train)} sentences would be held out")
        return {
            "train": [train[index] for index in sorted(order[count:])],
            "valid": [train[index] for index in sorted(order[:count])],
        }

    @cached_property
    def vectors(self) -> WordVectors | None:
        data = self.config.data
        if not data.vectors:
            return None
        path = self.folder.vectors(data.vectors)
        words = {word for sentences in self.splits.values() for one in sentences for word in one.words}
        wanted = {word.lower() for word in words} if data.vectors_lowercase else words
        return read_vectors(path, wanted, first=data.vectors_first)

    @cached_property
    def encoder(self) -> Encoder:
        return Encoder(self.splits["train"], self.vectors, self.config.data)

    def build_model(self) -> ParserModel:
        words, affixes = self._tables["counts"].tolist()
        return ParserModel(self.config.model, words, affixes, self._tables.get("vectors"))

    @cached_property
    def _tables(self) -> dict[str, Tensor]:
        """How many words and affixes have an embedding, and the vectors, if there are any."""
        counts = torch.tensor([len(self.encoder.words), len(self.encoder.affixes)])
        return {"counts": counts} | ({} if self.vectors is None else {"vectors": self.vectors.table})

    def tables(self) -> dict[str, Tensor]:
        return self._tables

    def use(self, tables: dict[str, Tensor]) -> None:
        self._tables = tables

    def training_examples(self) -> list[Example]:
        return self._examples(self.splits["train"])

    def _examples(self, sentences: Iterable[Sentence]) -> list[Example]:
        """Those that the model can give a probability to."""
        model = self.config.model
        kept = expressible(sentences, model.structure, model.single_root, self.config.data.crossing)
        if not kept:
            raise UserError(f"no sentence has a tree that a {model.structure} parser can learn")
        return [self.encoder.example(sentence) for sentence in kept]

    def rows(self, example: Example) -> list[list[int]]:
        return [example.features.flatten().tolist(), example.heads.tolist()]

    def of_rows(self, *rows: list[int]) -> Example:
        features, heads = rows
        return Example(
            torch.tensor(features, dtype=torch.int32).view(len(heads) - 1, -1), torch.tensor(heads)
        )

    def forget(self) -> None:
        self.splits["train"] = []

    def size(self, example: Example) -> int:
        return len(example.features)

    def units(self, example: Example) -> int:
        return len(example.features)

    def collate(self, examples: Sequence[Example]) -> tuple[Tensor, Tensor, Tensor]:
        features, heads = zip(*examples, strict=True)
        lengths = torch.tensor([len(one) for one in features])
        return pad_sequence(list(features), True), lengths, pad_sequence(list(heads), True)

    def validate(self, model: nn.Module) -> dict[str, float]:
        """The loss per word where the gold tree has a probability, and the UAS (%) of all sentences."""
        examples = self._examples(self.splits["valid"])
        loss = 0.0
        for batch in sorted_batches(list(map(self.size, examples)), _TOGETHER):
            loss += model(*self.batch(model, [examples[index] for index in batch])).item()
        scores = self._scores(model, self.splits["valid"])
        return {"loss": loss / sum(map(self.units, examples)), "uas": scores.uas, "exact": scores.exact}

    @torch.no_grad()
    def parse(self, model: nn.Module, sentences: Sequence[Sequence[str]]) -> list[list[int]]:
        """The heads of each sentence's best tree, in order: words from 1 on, 0 for the root symbol."""
        found: list[list[int]] = [[] for _ in sentences]
        wanted = [index for index, words in enumerate(sentences) if words]
        for batch in sorted_batches([len(sentences[index]) for index in wanted], _TOGETHER):
            indices = [wanted[position] for position in batch]
            heads = self.trees(model, [sentences[index] for index in indices]).mode
            for index, row in zip(indices, heads.tolist(), strict=True):
                found[index] = row[1 : len(sentences[index]) + 1]
        return found

    def trees(self, model: nn.Module, sentences: Sequence[Sequence[str]]) -> DependencyTree:
        """The distributions over the trees of sentences, none of them empty."""
        assert isinstance(model, ParserModel)
        device = next(model.parameters()).device
        features = [self.encoder.features(words) for words in sentences]
        lengths = torch.tensor([len(words) for words in sentences])
        return model.trees(pad_sequence(features, True).to(device), lengths.to(device))

    def _scores(self, model: nn.Module, sentences: Sequence[Sentence]) -> Scores:
        return scores_of(sentences, self.parse(model, [sentence.words for sentence in sentences]))

    def evaluate(self, model: nn.Module, data: list[Path]) -> dict[str, Any]:
        """Without data, of the validation sentences: a treebank's test part is not ours to have."""
        sentences = [one for path in data for one in read_treebank(path)] or self.splits["valid"]
        started = time.perf_counter()
        scores = self._scores(model, sentences)
        seconds = time.perf_counter() - started
        return {
            "task": self.task,
            "structure": self.config.model.structure,
            "seed": self.config.training.seed,
            "sentences": len(sentences),
            "words": sum(len(sentence.words) for sentence in sentences),
            **scores._asdict(),
            "sentences_per_second": round(len(sentences) / seconds),
        }

    def evaluation_table(self, evaluation: dict[str, Any]) -> Table:
        title = f"parser, {evaluation['structure']}, seed {evaluation['seed']}: %"
        columns = ["sentences", "UAS", "UAS without punctuation", "exact match", "sentences/s"]
        shares = [f"{evaluation[name]:.1f}" for name in ("uas", "uas_without_punctuation", "exact")]
        counts = [str(evaluation[name]) for name in ("sentences", "sentences_per_second")]
        return Table(title, columns, [[counts[0], *shares, counts[1]]])

    def predict(self, model: nn.Module, lines: Iterable[str]) -> Iterator[str]:
        """Words with spaces between become a block of CoNLL-U with its empty line; an empty line stays one."""
        for chunk in chunks(lines, _AHEAD):
            sentences = [line.split() for line in chunk]
            for words, heads in zip(sentences, self.parse(model, sentences), strict=True):
                block = conllu(Sentence(words, heads, ["_"] * len(words), []))
                yield f"# text = {' '.join(words)}\n{block}\n" if words else ""


class Scores(NamedTuple):
    """In percent."""

    uas: float
    """of all words"""
    uas_without_punctuation: float
    """of words whose tag is not PUNCT"""
    exact: float
    """of sentences with no wrong head"""


def scores_of(sentences: Sequence[Sentence], predicted: Sequence[Sequence[int]]) -> Scores:
    """Shares of right heads, over all words together, and of wholly right sentences."""
    words = right = plain_words = plain_right = exact = 0
    for sentence, heads in zip(sentences, predicted, strict=True):
        hits = [mine == gold for mine, gold in zip(heads, sentence.heads, strict=True)]
        plain = [hit for hit, tag in zip(hits, sentence.tags, strict=True) if tag != PUNCTUATION]
        words, right = words + len(hits), right + sum(hits)
        plain_words, plain_right = plain_words + len(plain), plain_right + sum(plain)
        exact += all(hits)
    return Scores(
        100 * right / words, 100 * plain_right / max(plain_words, 1), 100 * exact / max(len(sentences), 1)
    )
