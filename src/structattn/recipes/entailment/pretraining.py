"""The parsing layer trained on parsed sentences, before the model that it is a part of is trained."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import torch

from structattn.recipes.batching import bucketed_batches
from structattn.recipes.entailment.data import read_pairs
from structattn.recipes.entailment.lexicon import Lexicon
from structattn.recipes.entailment.model import EntailmentModel
from structattn.recipes.entailment.trees import Tree, tree_of
from structattn.recipes.errors import UserError
from structattn.recipes.optimisation import renormalise
from structattn.recipes.treebank import is_projective, lifted, read_treebank


@dataclass
class PretrainingSettings:
    """[pretraining]: of attention "pretrained"; the paper's appendix A.5."""

    files: list[str] = field(default_factory=list)
    """SNLI with parses (.jsonl, .txt) or treebanks (.conllu), in the data folder or elsewhere; by default the parsed
    rows of the training set, or, if there are none, snli_parsed in the data folder"""
    passes: int = 1
    """epochs over them"""
    sentences: int = 32
    """in a batch"""
    rate: float = 0.01
    """of learning, by Adam"""
    beta1: float = 0.9
    beta2: float = 0.999
    norm: float = 5.0
    """gradients of a larger l2 norm are renormalised to this one"""

    def __post_init__(self) -> None:
        for name in ("passes", "sentences"):
            if getattr(self, name) < 1:
                raise UserError(f"pretraining.{name} must be at least 1, not {getattr(self, name)}")


def parsed_sentences(path: Path) -> list[Tree]:
    """The different sentences of a file that have trees; crossing arcs are lifted until none cross."""
    if path.name.removesuffix(".gz").endswith(".conllu"):
        return [
            Tree(tuple(one.words), tuple(one.heads if is_projective(one.heads) else lifted(one.heads)))
            for one in read_treebank(path)
        ]
    statements = {one: None for pair in read_pairs(path) for one in pair.statements}
    return [tree for tree in map(tree_of, statements) if tree is not None]


def pretrain(
    model: EntailmentModel, lexicon: Lexicon, trees: Sequence[Tree], settings: PretrainingSettings, seed: int
) -> None:
    """Raises the probability of the trees."""
    lexicon.learn(word for tree in trees for word in tree.words)
    sentences = [lexicon.encode(tree.words, tree.heads) for tree in trees if tree.words]
    sizes = [len(one.rows) for one in sentences]
    weights = [weight for name, weight in model.named_parameters() if name.startswith("parents.")]
    betas = settings.beta1, settings.beta2
    optimizer = torch.optim.Adam(weights, settings.rate, betas)
    for number in range(1, settings.passes + 1):
        generator = random.Random(f"{seed} pretraining {number}")
        for batch in bucketed_batches(sizes, settings.sentences, generator):
            tensors = [
                one.to(weights[0].device) for one in lexicon.batch([sentences[index] for index in batch])
            ]
            loss = -model.log_prob(*tensors).mean()
            optimizer.zero_grad()
            loss.backward()
            renormalise(weights, settings.norm)
            if not loss.isfinite():
                raise UserError(f"pretraining, pass {number}: the loss is {loss.item()}")
            optimizer.step()
