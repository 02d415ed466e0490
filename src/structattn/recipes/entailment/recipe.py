"""Natural language inference (paper, section 4.4): entailed, contradicted or neither, by words and their parents."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from structattn.recipes.batching import chunks, sorted_batches
from structattn.recipes.data_folder import must_exist
from structattn.recipes.entailment.data import LABELS, Pair, Statement, read_pairs, split_file, statement
from structattn.recipes.entailment.lexicon import Encoded, Lexicon
from structattn.recipes.entailment.model import EntailmentModel, EntailmentModelSettings
from structattn.recipes.entailment.pretraining import PretrainingSettings, parsed_sentences, pretrain
from structattn.recipes.entailment.scores import label_scores, tree_scores
from structattn.recipes.entailment.trees import Tree, place_of_trees, source_of_trees, tree_of, trees_of
from structattn.recipes.errors import UserError
from structattn.recipes.optimisation import TrainingSettings
from structattn.recipes.recipe import Recipe, Table

_TOGETHER = 128
"""Pairs that are judged at once."""
_AHEAD = 512
"""Lines of input that are read before the first is answered."""
_LONGEST = 1000
"""Premises count more than hypotheses where pairs are sorted by size: no sentence has so many words."""


@dataclass
class EntailmentData:
    """[data]: SNLI and word vectors."""

    folder: str = ""
    """as the official archive unpacks; by default snli in the data folder"""
    train: list[str] = field(default_factory=list)
    """files to train on, instead of the folder's"""
    valid: list[str] = field(default_factory=list)
    """files to validate on, instead of the folder's dev file"""
    pairs: int = 0
    """train on at most so many pairs, drawn from all; 0: on all"""
    draw_seed: int = 2017
    """of this draw: the same pairs for all seeds of the training"""
    vectors: str = "glove.840B.300d.txt"
    """a file, or the name of one in vectors of the data folder"""
    vector_size: int = 300
    buckets: int = 100
    """so many fixed Gaussian vectors for words that have none, chosen by a hash of the word"""
    normalise_buckets: bool = True
    """whether these have norm 1, as all others do"""

    def __post_init__(self) -> None:
        if min(self.vector_size, self.buckets) < 1 or self.pairs < 0:
            raise UserError("data.vector_size and data.buckets must be at least 1, data.pairs at least 0")


@dataclass
class EntailmentConfig:
    training: TrainingSettings = field(default_factory=TrainingSettings)
    data: EntailmentData = field(default_factory=EntailmentData)
    model: EntailmentModelSettings = field(default_factory=EntailmentModelSettings)
    pretraining: PretrainingSettings = field(default_factory=PretrainingSettings)


class Example(NamedTuple):
    premise: Encoded
    hypothesis: Encoded
    label: int


class Parents(NamedTuple):
    """Of the n words of a statement."""

    words: Sequence[str]
    heads: list[int]
    """of the best tree: numbers from 1 on, 0 for the root symbol; of "simple", each word's best partner"""
    marginals: Tensor
    """(n + 1, n + 1): [i, j] that word i is the parent of word j; word 0 is the root symbol"""


class EntailmentRecipe(Recipe):
    task = "entailment"
    config_class = EntailmentConfig
    shares = True
    options = {  # noqa: RUF012
        "attention": "model.attention",
        "train": "data.train",
        "valid": "data.valid",
        "seed": "training.seed",
    }
    config: EntailmentConfig

    @cached_property
    def path(self) -> Path:
        return Path(self.config.data.folder) if self.config.data.folder else self.folder.need("snli")

    def files(self, part: str) -> list[Path]:
        """The files of train or valid."""
        given = [Path(name) for name in getattr(self.config.data, part)]
        return given or [split_file(self.path, {"train": "train", "valid": "dev"}[part])]

    def check_data(self) -> None:
        must_exist([*self.files("train"), *self.files("valid"), self.lexicon.path])
        if self.config.model.attention == "hard":
            place_of_trees(self.config.model.trees)
        if self.config.model.attention == "pretrained":
            must_exist(self._in_data_folder(name) for name in self.config.pretraining.files)

    @cached_property
    def train_pairs(self) -> list[Pair]:
        data = self.config.data
        pairs = [pair for path in self.files("train") for pair in read_pairs(path)]
        enough = 0 < data.pairs < len(pairs)
        return random.Random(data.draw_seed).sample(pairs, data.pairs) if enough else pairs

    @cached_property
    def valid_pairs(self) -> list[Pair]:
        return [pair for path in self.files("valid") for pair in read_pairs(path)]

    @cached_property
    def lexicon(self) -> Lexicon:
        return self._lexicon(self.folder.vectors(self.config.data.vectors))

    def _lexicon(self, path: Path) -> Lexicon:
        data = self.config.data
        return Lexicon(path, data.vector_size, data.buckets, data.normalise_buckets)

    @cached_property
    def examples(self) -> dict[str, list[Example]]:
        """Of train and valid, whose words are looked up together."""
        pairs = [*self.train_pairs, *self.valid_pairs]
        found = self.encode(pairs)
        return {"train": found[: len(self.train_pairs)], "valid": found[len(self.train_pairs) :]}

    def encode(self, pairs: Sequence[Pair]) -> list[Example]:
        statements = list({one: None for pair in pairs for one in pair.statements})
        encoded = dict(zip(statements, self.sentences(statements), strict=True))
        return [
            Example(
                encoded[pair.premise],
                encoded[pair.hypothesis],
                LABELS.index(pair.label) if pair.label else 0,
            )
            for pair in pairs
        ]

    def sentences(self, statements: Sequence[Statement]) -> list[Encoded]:
        """Statements as numbers, with trees where the model wants them."""
        trees = [Tree(one.words, ()) for one in statements]
        if self.config.model.attention == "hard":
            name = self.config.model.trees
            trees = trees_of(statements, self._source_of_trees, name)
        self.lexicon.learn(word for tree in trees for word in tree.words)
        return [self.lexicon.encode(*tree) for tree in trees]

    @cached_property
    def _source_of_trees(self) -> Any:
        data_dir = self.folder.path if self.folder.path.is_dir() else None
        return source_of_trees(self.config.model.trees, data_dir)

    def build_model(self) -> EntailmentModel:
        return EntailmentModel(self.config.model, self.config.data.vector_size)

    def training_examples(self) -> list[Example]:
        return self.examples["train"]

    def rows(self, example: Example) -> list[list[int]]:
        return [*example.premise, *example.hypothesis, [example.label]]

    def of_rows(self, *rows: list[int]) -> Example:
        *sentences, (label,) = rows
        return Example(Encoded(*sentences[:2]), Encoded(*sentences[2:]), label)

    def tables(self) -> dict[str, Tensor]:
        return {"vectors": self.lexicon.table}

    def use(self, tables: dict[str, Tensor]) -> None:
        self.lexicon = self._lexicon(Path(self.config.data.vectors))  # which it will not read
        self.lexicon.table = tables["vectors"]

    def forget(self) -> None:
        del self.train_pairs
        self.examples["train"] = []

    def size(self, example: Example) -> int:
        return _LONGEST * len(example.premise.rows) + len(example.hypothesis.rows)

    def collate(self, examples: Sequence[Example]) -> tuple[Tensor, ...]:
        sentences = [example.premise for example in examples] + [example.hypothesis for example in examples]
        vectors, words, lengths, *heads = self.lexicon.batch(sentences)
        return vectors, words, lengths, torch.tensor([example.label for example in examples]), *heads

    def pretrain(self, model: nn.Module) -> None:
        if self.config.model.attention == "pretrained" and not model.is_pretrained:
            assert isinstance(model, EntailmentModel)
            pretrain(model, self.lexicon, self.parsed, self.config.pretraining, self.config.training.seed)
            model.is_pretrained = torch.ones_like(model.is_pretrained)

    @property
    def parsed(self) -> list[Tree]:
        """The sentences to pretrain on."""
        files = [self._in_data_folder(name) for name in self.config.pretraining.files]
        if not files:
            statements = {one: None for pair in self.train_pairs for one in pair.statements}
            trees = [tree for tree in map(tree_of, statements) if tree is not None]
            if trees:
                return trees
            files = sorted(self.folder.need("snli_parsed").glob("*.jsonl*"))
        trees = [tree for path in files for tree in parsed_sentences(path)]
        if not trees:
            raise UserError(f"pretraining.files: no sentence in {', '.join(map(str, files))} has a parse")
        return trees

    def _in_data_folder(self, name: str) -> Path:
        return Path(name) if Path(name).exists() else self.folder.need(name)

    def validate(self, model: nn.Module) -> dict[str, float]:
        """The loss per pair, and the accuracy (%)."""
        examples = self.examples["valid"]
        logits = self.judge(model, examples)
        labels = torch.tensor([example.label for example in examples])
        right = (logits.argmax(1) == labels).double().mean()
        return {"loss": F.cross_entropy(logits, labels).item(), "accuracy": 100 * right.item()}

    @torch.no_grad()
    def judge(self, model: nn.Module, examples: Sequence[Example]) -> Tensor:
        """Logits (N, labels) of N examples, in order, computed in batches of similar length."""
        assert isinstance(model, EntailmentModel)
        found = torch.empty(len(examples), len(LABELS))
        for batch in sorted_batches(list(map(self.size, examples)), _TOGETHER):
            vectors, words, lengths, _, *heads = self.batch(model, [examples[index] for index in batch])
            found[batch] = model.logits(vectors, words, lengths, *heads).float().cpu()
        return found

    def evaluate(self, model: nn.Module, data: list[Path]) -> dict[str, Any]:
        """Without data, of the folder's test file, or, if it has none, of the pairs that validate."""
        origin, pairs = self._test_pairs(data)
        examples = self.encode(pairs)
        predicted = self.judge(model, examples).argmax(1).tolist()
        return {
            "task": self.task,
            "attention": self.config.model.attention,
            "seed": self.config.training.seed,
            "data": origin,
            **label_scores([example.label for example in examples], predicted),
            "trees": self._tree_scores(model, pairs),
        }

    def _test_pairs(self, data: list[Path]) -> tuple[str, list[Pair]]:
        files = [split_file(path, "test") if path.is_dir() else path for path in data]
        if not files and not self.config.data.valid:
            try:
                files = [split_file(self.path, "test")]
            except UserError:
                files = [split_file(self.path, "dev")]
        if not files:
            return ", ".join(Path(name).name for name in self.config.data.valid), self.valid_pairs
        return ", ".join(path.name for path in files), [pair for path in files for pair in read_pairs(path)]

    def _tree_scores(self, model: nn.Module, pairs: Sequence[Pair]) -> dict[str, Any] | None:
        """Of the different sentences with parses; None without such sentences, or without latent trees."""
        if self.config.model.attention in ("none", "hard"):
            return None
        statements = {one: None for pair in pairs for one in pair.statements}
        gold = [tree for tree in map(tree_of, statements) if tree is not None]
        if not gold:
            return None
        return tree_scores(
            [tree.heads for tree in gold], self.latent_heads(model, [tree.words for tree in gold])
        )

    @torch.no_grad()
    def latent_heads(self, model: nn.Module, sentences: Sequence[Sequence[str]]) -> list[list[int]]:
        """The heads of the words in each sentence's best latent tree; with "simple", each word's best partner."""
        assert isinstance(model, EntailmentModel)
        self.lexicon.learn(word for words in sentences for word in words)
        encoded = [self.lexicon.encode(words) for words in sentences]
        found: list[list[int]] = [[] for _ in sentences]
        for batch in sorted_batches([len(one.rows) for one in encoded], _TOGETHER):
            tensors = self.lexicon.batch([encoded[index] for index in batch])
            heads = model.heads(*(tensor.to(model.output.weight.device) for tensor in tensors))
            for index, row in zip(batch, heads.tolist(), strict=True):
                found[index] = row[1 : len(encoded[index].rows)]
        return found

    def evaluation_table(self, evaluation: dict[str, Any]) -> Table:
        rows = [
            [
                label,
                *(f"{values[name]:.1f}" if name != "pairs" else str(values[name]) for name in values),
                *(str(count) for count in evaluation["confusion"][label].values()),
            ]
            for label, values in evaluation["labels"].items()
        ]
        about = f"attention {evaluation['attention']}, seed {evaluation['seed']}, {evaluation['data']}"
        title = f"entailment, {about}: accuracy {evaluation['accuracy']:.2f} % of {evaluation['pairs']} pairs"
        if evaluation["trees"]:
            trees = evaluation["trees"]
            title += (
                f"\nheads as in the parses: {trees['uas']:.1f} % of {trees['words']} words (left-branching "
                f"{trees['left_branching']:.1f}, right-branching {trees['right_branching']:.1f}, random "
                f"{trees['random']:.1f})"
            )
        return Table(
            title, ["label", "pairs", "precision", "recall", *(f"as {label}" for label in LABELS)], rows
        )

    def predict(self, model: nn.Module, lines: Iterable[str]) -> Iterator[str]:
        """A premise, a tab and a hypothesis become a label, a tab, and the probabilities of all labels.

        Where trees are given by parses, a line has none: such a model takes them from a file or a parser.
        """
        first = 1
        for chunk in chunks(lines, _AHEAD):
            pairs = [
                self.pair(line, f"line {number}") for number, line in enumerate(chunk, first) if line.strip()
            ]
            first += len(chunk)
            answers = iter(self.judge(model, self.encode(pairs)).softmax(1).tolist())
            yield from (_answer(next(answers)) if line.strip() else "" for line in chunk)

    def pair(self, line: str, where: str) -> Pair:
        fields = line.split("\t")
        if len(fields) != 2:
            raise UserError(
                f"{where}: expected a premise, one tab and a hypothesis; found {len(fields) - 1} tabs"
            )
        return Pair(statement(fields[0]), statement(fields[1]), origin=where)

    @torch.no_grad()
    def parents(self, model: nn.Module, one: Statement, temperature: float = 1.0) -> Parents:
        """What a statement's words have as parents."""
        assert isinstance(model, EntailmentModel)
        if self.config.model.attention == "none":
            raise UserError('a model with attention "none" has no parents to show')
        (encoded,), words = self.sentences([one]), one.words
        if encoded.heads:
            given = torch.tensor(encoded.heads)
            marginals = F.one_hot(given, len(given)).T.float()
            marginals[:, 0] = 0.0
            return Parents(words, encoded.heads[1:], marginals)
        (heads,) = self.latent_heads(model, [words])
        vectors, rows, lengths = (
            tensor.to(model.output.weight.device) for tensor in self.lexicon.batch([encoded])
        )
        return Parents(words, heads, model.marginals(vectors, rows, lengths, temperature)[0])


def _answer(probabilities: list[float]) -> str:
    best = max(range(len(LABELS)), key=probabilities.__getitem__)
    each = " ".join(f"{label} {share:.3f}" for label, share in zip(LABELS, probabilities, strict=True))
    return f"{LABELS[best]}\t{each}"
