"""Formulas in prefix and infix notation: the generator, the text files and the vocabulary.

    source   ( * ( + ( + 15 7 ) 1 8 ) ( + 19 0 11 ) )      target   ( ( 15 + 7 ) + 1 + 8 ) * ( 19 + 0 + 11 )

The depth of a formula counts its outer parenthesis: the example, which the paper prints, has depth 3.

The paper leaves the distribution of the formulas open. Ours, every number a key of [data]:

- an expression has from `least_operands` to `most_operands` operands, each count as likely as the others, and
"+" or "*";
- a formula of depth d is forced to reach d: one operand, chosen evenly, is an expression of depth d - 1;
- every other operand is a number with probability `leaf_probability`, and always where d leaves no room; else
it is an
  expression with room for depth d - 1, made in the same way but without a forced operand;
- numbers are drawn evenly from 0 to `largest_number`;
- a formula longer than `longest_source` symbols is drawn again, and so is one that was drawn before
(`duplicates`
  = false): training, validation and test share no formula.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from structattn.recipes.errors import UserError
from structattn.recipes.text import read_lines

PADDING, START, END, ROOT = "<pad>", "<s>", "</s>", "$"
OPERATORS = ("+", "*")
_ATTEMPTS_PER_FORMULA = 10_000

Tree = int | tuple[str, list["Tree"]]


@dataclass
class TransductionData:
    """[data]: how formulas are drawn."""

    seed: int = 2017
    """of the generator; the formulas do not depend on the seed of the training"""
    train_per_depth: int = 5000
    valid_per_depth: int = 200
    test_per_depth: int = 200
    train_depths: list[int] = field(default_factory=lambda: [2, 3, 4])
    test_depths: list[int] = field(default_factory=lambda: [2, 3, 4, 5, 6])
    least_operands: int = 2
    most_operands: int = 4
    leaf_probability: float = 0.85
    largest_number: int = 20
    longest_source: int = 200
    duplicates: bool = False
    folder: str = ""
    """a folder with train.txt, valid.txt and test.txt to use instead of drawing"""

    def __post_init__(self) -> None:
        if not 1 <= self.least_operands <= self.most_operands:
            raise UserError("data.least_operands must be at least 1 and at most data.most_operands")
        if not 0 <= self.leaf_probability <= 1:
            raise UserError(f"data.leaf_probability is a probability, not {self.leaf_probability}")
        if min([*self.train_depths, *self.test_depths], default=0) < 1:
            raise UserError("data.train_depths and data.test_depths: at least one depth, and none below 1")


class Pair(NamedTuple):
    """One formula, as symbols: source without the root symbol, target without end."""

    source: list[str]
    target: list[str]
    depth: int


def vocabulary(settings: TransductionData) -> list[str]:
    """Every symbol, source and target alike; its position is its number, and padding is 0."""
    numbers = [str(number) for number in range(settings.largest_number + 1)]
    return [PADDING, START, END, ROOT, "(", ")", *OPERATORS, *numbers]


def draw_tree(settings: TransductionData, depth: int, generator: random.Random, forced: bool = True) -> Tree:
    """An expression of exactly this depth if forced, else of at most this depth."""
    count = generator.randint(settings.least_operands, settings.most_operands)
    deepest = generator.randrange(count) if forced and depth > 1 else None
    operands: list[Tree] = []
    for position in range(count):
        if position == deepest:
            operands.append(draw_tree(settings, depth - 1, generator))
        elif depth == 1 or generator.random() < settings.leaf_probability:
            operands.append(generator.randint(0, settings.largest_number))
        else:
            operands.append(draw_tree(settings, depth - 1, generator, forced=False))
    return generator.choice(OPERATORS), operands


def prefix(tree: Tree) -> list[str]:
    if isinstance(tree, int):
        return [str(tree)]
    operator, operands = tree
    return ["(", operator, *(symbol for operand in operands for symbol in prefix(operand)), ")"]


def infix(tree: Tree, outermost: bool = True) -> list[str]:
    if isinstance(tree, int):
        return [str(tree)]
    operator, operands = tree
    symbols = infix(operands[0], False)
    for operand in operands[1:]:
        symbols += [operator, *infix(operand, False)]
    return symbols if outermost else ["(", *symbols, ")"]


def parse_prefix(symbols: list[str]) -> Tree:
    """The tree of a formula in prefix notation; ValueError says what is wrong with it."""
    open_expressions: list[tuple[str, list[Tree]]] = []
    position = 0
    while position < len(symbols):
        symbol = symbols[position]
        done: Tree
        if symbol == "(":
            operator = symbols[position + 1] if position + 1 < len(symbols) else "nothing"
            if operator not in OPERATORS:
                raise ValueError(f"symbol {position + 2}: expected + or * after '(', found {operator!r}")
            open_expressions.append((operator, []))
            position += 2
            continue
        if symbol == ")":
            if not open_expressions or not open_expressions[-1][1]:
                raise ValueError(f"symbol {position + 1}: ')' closes no expression with operands")
            done = open_expressions.pop()
        elif symbol.isascii() and symbol.isdigit():
            done = int(symbol)
        else:
            raise ValueError(f"symbol {position + 1}: expected a number or a parenthesis, found {symbol!r}")
        position += 1
        if not open_expressions:
            if position < len(symbols):
                raise ValueError(f"symbol {position + 1}: {symbols[position]!r} after the end of the formula")
            if isinstance(done, int):
                raise ValueError("a formula is an expression in parentheses, such as ( + 1 2 )")
            return done
        open_expressions[-1][1].append(done)
    raise ValueError(f"{len(open_expressions)} parentheses are not closed" if symbols else "it is empty")


def depth_of(symbols: list[str]) -> int:
    """How deep the parentheses of a formula in prefix notation nest."""
    depth = deepest = 0
    for symbol in symbols:
        depth += (symbol == "(") - (symbol == ")")
        deepest = max(deepest, depth)
    return deepest


def draw_pairs(
    settings: TransductionData, depths: list[int], per_depth: int, generator: random.Random, taken: set[str]
) -> Iterator[Pair]:
    """`per_depth` formulas for each depth, none of them in `taken`, which grows by them."""
    for depth in depths:
        for _ in range(per_depth):
            for _ in range(_ATTEMPTS_PER_FORMULA):
                tree = draw_tree(settings, depth, generator)
                source = prefix(tree)
                name = " ".join(source)
                if len(source) <= settings.longest_source and (settings.duplicates or name not in taken):
                    break
            else:
                raise UserError(
                    f"no new formula of depth {depth} in {_ATTEMPTS_PER_FORMULA} draws: "
                    "ask for fewer, or allow data.duplicates, larger numbers or a larger data.longest_source"
                )
            taken.add(name)
            yield Pair(source, infix(tree), depth)


def draw_splits(settings: TransductionData) -> dict[str, list[Pair]]:
    """train, valid and test. The test is drawn first, so that it stays the same when the others grow."""
    taken: set[str] = set()

    def draw(name: str, depths: list[int], per_depth: int) -> list[Pair]:
        generator = random.Random(f"{settings.seed} {name}")
        return list(draw_pairs(settings, depths, per_depth, generator, taken))

    test = draw("test", settings.test_depths, settings.test_per_depth)
    valid = draw("valid", settings.train_depths, settings.valid_per_depth)
    return {
        "train": draw("train", settings.train_depths, settings.train_per_depth),
        "valid": valid,
        "test": test,
    }


def write_pairs(pairs: list[Pair], path: Path) -> None:
    """One pair a line: source, tab, target."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(
        "".join(f"{' '.join(pair.source)}\t{' '.join(pair.target)}\n" for pair in pairs), encoding="utf-8"
    )


def read_pairs(path: Path) -> list[Pair]:
    """The pairs of a file; what is wrong with a line is said with its number."""
    pairs = []
    for number, line in enumerate(read_lines(path), 1):
        fields = line.split("\t")
        if len(fields) != 2:
            raise UserError(
                f"{path}, line {number}: expected source, one tab, target; found {len(fields) - 1} tabs"
            )
        source, target = fields[0].split(), fields[1].split()
        try:
            parse_prefix(source)
        except ValueError as error:
            raise UserError(
                f"{path}, line {number}: the source is no formula in prefix notation: {error}"
            ) from error
        if not target:
            raise UserError(f"{path}, line {number}: the target is empty")
        pairs.append(Pair(source, target, depth_of(source)))
    if not pairs:
        raise UserError(f"{path} holds no pairs")
    return pairs
