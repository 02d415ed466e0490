"""No speed is printed for a result that is wrong.

Two oracles: the plain-torch path in float64, on the very problem that is timed, and for a tiny corner of it
the list of all structures, one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import compress, product

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from structattn import LinearChain
from structattn.benchmarks.problems import Problem

TOLERANCE = 1e-5
"""Of the largest value, or of 1 where all are smaller: a few roundings of float32."""

_CELLS = 1 << 22
"""What plain torch may keep, n^3 numbers a tree and n C^2 a chain: of long trees the first few have to do."""

_TINY = {"batch": 3, "n": 5, "states": 3}


class Disagreement(Exception):
    """A result is not what the oracle says."""


def verify(problem: Problem) -> None:
    """Raises Disagreement unless the first sentences, alone and among the others, come out right."""
    _, n, parts = problem.potentials[0].shape  # parts of a position: states of a chain, heads in a tree
    first = problem.part(max(1, min(problem.batch, _CELLS // (n * parts**2))))
    exact = first.exactly()
    agree("the plain-torch path", first.solve(), exact)
    # A gradient that is summed over the whole batch says nothing about the first sentences.
    own = [True, *(not shared for shared in problem.shared)]
    among_others, alone = (list(compress(results, own)) for results in (problem.solve(), exact))
    agree("the plain-torch path", among_others, alone)
    tiny = problem.part(**_TINY)
    agree("enumeration", tiny.solve(), by_enumeration(tiny))


def agree(oracle: str, results: Sequence[Tensor], expected: Sequence[Tensor]) -> None:
    """Raises Disagreement unless the results, as far as the oracle looked, are the expected ones."""
    for i, (result, exact) in enumerate(zip(results, expected, strict=True)):
        error, allowed = largest_error(result, exact)
        if not error <= allowed:
            name = "result" if i == 0 else f"gradient {i}"
            raise Disagreement(f"{name}: {oracle} differs by {error:.1e}, allowed are {allowed:.1e}")


def largest_error(result: Tensor, exact: Tensor) -> tuple[float, float]:
    """The largest error in the rows that the exact result has, NaN if there is one; and what is allowed."""
    if result.shape[1:] != exact.shape[1:]:
        raise Disagreement(f"expected shape (batch, {tuple(exact.shape[1:])}), got {tuple(result.shape)}")
    exact = exact.detach().double()
    error = (result.detach()[: len(exact)].double() - exact).abs().max()
    return float(error), TOLERANCE * max(1.0, float(exact.abs().max()))


def by_enumeration(problem: Problem) -> tuple[Tensor, ...]:
    """problem.solve(), from the list of all structures."""
    wide = [potentials.detach().double().requires_grad_() for potentials in problem.potentials]
    sentences = [_sentence(problem, wide, b) for b in range(problem.batch)]
    result = torch.stack(sentences)
    return result, *torch.autograd.grad((result * problem.weights).sum(), wide)


def _sentence(problem: Problem, potentials: Sequence[Tensor], b: int) -> Tensor:
    n = problem.n
    length = n if problem.lengths is None else int(problem.lengths[b])
    if problem.structure is LinearChain:
        unary, transitions = potentials[0][b], potentials[1]
        z = torch.tensor(list(product(range(unary.shape[1]), repeat=length)))
        steps = (transitions if transitions.dim() == 2 else transitions[b]).expand(n - 1, -1, -1)
        pairs = steps[torch.arange(length - 1), z[:, :-1], z[:, 1:]]
        scores = unary[torch.arange(length), z].sum(1) + pairs.sum(1)
        parts = pad(one_hot(z, unary.shape[1]), (0, 0, 0, n - length))
    else:
        candidates = product(range(length), repeat=length - 1)
        heads = torch.tensor([heads for heads in candidates if is_projective(heads)])
        words = torch.arange(1, length)
        scores = potentials[0][b][heads, words].sum(1)
        parts = pad(one_hot(heads, n).mT, (1, n - length))
    if problem.quantity == "log_partition":
        return scores.logsumexp(0)
    return torch.tensordot(scores.softmax(0), parts.double(), 1)


def is_projective(heads: Sequence[int]) -> bool:
    """Whether heads of the words 1, 2, ... make a tree under word 0 in which no two arcs cross."""
    parents = (0, *heads)
    for ancestor in range(len(parents)):
        for _ in parents:
            ancestor = parents[ancestor]
        if ancestor != 0:
            return False
    arcs = [sorted(arc) for arc in enumerate(heads, 1)]
    return not any(a < c < b < d for a, b in arcs for c, d in arcs)
