"""Sharper and flatter versions of a distribution, to look at."""

from __future__ import annotations

from typing import TypeVar

from structattn.recipes.errors import UserError
from structattn.structures.chain import LinearChain
from structattn.structures.distribution import Structure
from structattn.structures.tree import DependencyTree

Kind = TypeVar("Kind", bound=Structure)

LOWEST, HIGHEST = 0.05, 20.0


def check_temperature(temperature: float) -> None:
    if not LOWEST <= temperature <= HIGHEST:
        raise UserError(
            f"the temperature must lie between {LOWEST:g} and {HIGHEST:g}, not be {temperature:g}"
        )


def at_temperature(distribution: Kind, temperature: float) -> Kind:
    """The same structures with the potentials divided by the temperature: near 0 only the best one is left."""
    check_temperature(temperature)
    if isinstance(distribution, LinearChain):
        transitions = distribution.transitions
        divided = None if transitions is None else transitions / temperature
        return type(distribution)(distribution.unary / temperature, divided, distribution.lengths)
    assert isinstance(distribution, DependencyTree)
    arcs = distribution.arcs / temperature
    return type(distribution)(arcs, distribution.lengths, distribution.single_root)
