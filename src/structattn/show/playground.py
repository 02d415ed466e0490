"""What the explorer shows without a trained run: potentials that one edits, and sentences with random scores."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from structattn.recipes.errors import UserError, did_you_mean
from structattn.recipes.temperature import at_temperature, check_temperature
from structattn.show.arcs import draw_arcs
from structattn.show.heat_map import Grid, Parents, draw_heat_maps
from structattn.show.lattice import Lattice, draw_lattices
from structattn.show.view import View, check_text
from structattn.structures.chain import LinearChain
from structattn.structures.nonprojective import NonProjectiveTree
from structattn.structures.projective import ProjectiveTree

SENTENCE = "the old man the boats by the sea"
MOST_WORDS, LONGEST_WORD, MOST_STATES = 30, 24, 6
LARGEST_SCORE = 1e6
TREES = {"projective trees": ProjectiveTree, "non-projective trees": NonProjectiveTree}
SOFTMAX, SEGMENTS = "softmax over parents", "segments: a chain of two states"
STRUCTURES = (*TREES, SOFTMAX, SEGMENTS)


def words_of(sentence: str) -> list[str]:
    check_text(sentence)
    words = sentence.split()
    if not 0 < len(words) <= MOST_WORDS:
        raise UserError(f"expected a sentence of 1 to {MOST_WORDS} words, not of {len(words)}")
    for word in words:
        if len(word) > LONGEST_WORD:
            raise UserError(
                f'a word may have {LONGEST_WORD} letters; "{word[:LONGEST_WORD]}..." has {len(word)}'
            )
    return words


def scores_of(table: Sequence[Sequence[Any]], name: str) -> Tensor:
    """A table of cells as a person fills them in: numbers, or -inf for what is forbidden."""
    rows = []
    for row, cells in enumerate(table, 1):
        rows.append(
            [_score(cell, f"{name}, row {row}, column {column}") for column, cell in enumerate(cells, 1)]
        )
    return torch.tensor(rows, dtype=torch.float64)


def _score(cell: Any, where: str) -> float:
    try:
        score = float(cell)
    except (TypeError, ValueError):
        raise UserError(f"{where}: expected a number or -inf, found {str(cell)[:20]!r}") from None
    if score != -math.inf and not abs(score) <= LARGEST_SCORE:
        raise UserError(f"{where}: expected a number up to {LARGEST_SCORE:g}, or -inf, found {cell}")
    return score


def random_scores(seed: int | None, *shape: int) -> Tensor:
    """Scores from N(0, 1), the same for the same seed."""
    if seed is None or not 0 <= seed < 2**31:
        raise UserError(f"the seed is a whole number from 0 to {2**31 - 1}, not {seed}")
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def view_chain(sentence: str, unary: Tensor, transitions: Tensor, temperature: float) -> View:
    """A chain over the sentence; unary (n, C), transitions (C, C)."""
    words = words_of(sentence)
    if len(words) != len(unary):
        raise UserError(f"{len(unary)} rows of potentials for {len(words)} words")
    chain = at_temperature(LinearChain(unary, transitions), temperature)
    assert isinstance(chain, LinearChain)
    states = [f"state {state}" for state in range(unary.shape[1])]
    best = chain.mode.tolist()
    marginals = chain.marginals
    lines = _lines(
        chain, "best sequence", " ".join(f"{word}/{state}" for word, state in zip(words, best, strict=True))
    )
    lattice = Lattice("chain", states, marginals, chain.edge_marginals, lines, best, words)
    grid = Grid("p(state of the word)", states, words, marginals.T, "", "")
    numbers = {
        "words": words,
        "unary": unary.tolist(),
        "transitions": transitions.tolist(),
        "temperature": temperature,
        **_numbers(chain),
        "edge_marginals": chain.edge_marginals.tolist(),
    }
    pictures = {"marginals": partial(draw_heat_maps, [grid]), "lattice": partial(draw_lattices, [lattice])}
    return View(sentence, "\n".join(lines), pictures, _plain(numbers))


def view_sentence(
    sentence: str, structure: str, single_root: bool, seed: int | None, temperature: float
) -> View:
    """A structure over the sentence with random scores; the root symbol $ is put before it where there are parents."""
    words = words_of(sentence)
    if structure not in STRUCTURES:
        raise UserError(f'unknown structure "{structure}"{did_you_mean(structure, STRUCTURES)}')
    if structure == SEGMENTS:
        unary = torch.nn.functional.pad(random_scores(seed, len(words), 1), (1, 0))
        return view_chain(sentence, unary, torch.eye(2, dtype=torch.float64), temperature)
    symbols = ["$", *words]
    arcs = random_scores(seed, len(symbols), len(symbols))
    numbers = {"symbols": symbols, "arcs": arcs.tolist(), "temperature": temperature, "structure": structure}
    if structure == SOFTMAX:
        check_temperature(temperature)
        marginals = (arcs / temperature).softmax(0)
        heads = marginals.argmax(0).tolist()
        lines = [f"best parents: {_arrows(symbols, heads)}", "which need not be a tree"]
        numbers |= {"marginals": marginals.tolist(), "mode": heads}
    else:
        tree = at_temperature(TREES[structure](arcs, single_root=single_root), temperature)
        marginals, heads = tree.marginals, tree.mode.tolist()
        lines = _lines(tree, "best tree", _arrows(symbols, heads))
        numbers |= {"single_root": single_root, **_numbers(tree)}
    best = torch.nn.functional.one_hot(torch.tensor(heads), len(symbols)).T.to(marginals)
    best[:, 0] = 0  # the root symbol has no parent
    panels = [Parents(f"marginals, {structure}", symbols, marginals), Parents("the best", symbols, best)]
    pictures = {"arcs": partial(draw_arcs, panels), "heat map": partial(draw_heat_maps, panels[:1])}
    return View(sentence, "\n".join(lines), pictures, _plain(numbers))


def _arrows(symbols: Sequence[str], heads: Sequence[int]) -> str:
    return ", ".join(f"{symbols[head]} → {symbols[word]}" for word, head in enumerate(heads) if word > 0)


def _lines(distribution: Any, name: str, best: str) -> list[str]:
    if distribution.log_partition == -math.inf:
        return ["nothing is possible: every structure uses something that is forbidden"]
    probability = distribution.log_prob(distribution.mode).exp().item()
    return [
        f"{name}: {best}   (p = {probability:.3f})",
        f"log Z = {distribution.log_partition.item():.3f}, entropy = {distribution.entropy().item():.3f} nats",
    ]


def _numbers(distribution: Any) -> dict[str, Any]:
    return {
        "marginals": distribution.marginals.tolist(),
        "mode": distribution.mode.tolist(),
        "log_partition": distribution.log_partition.item(),
        "entropy": distribution.entropy().item(),
    }


def _plain(value: Any) -> Any:
    """JSON has no word for infinity: -inf becomes the text "-inf"."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
