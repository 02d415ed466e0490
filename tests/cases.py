"""The structures under test, as a small table: how to make potentials, how to build, how to enumerate.

A law takes a case and nothing else; what differs between chains and trees is said here once.
"""

import math
from abc import ABC, abstractmethod
from itertools import product

import oracle
import torch
from torch import Tensor

import structattn as sa

Potentials = tuple[Tensor, ...]


class Case(ABC):
    """`name` is also the test's id. Potentials are a tuple, in the order of the constructor's arguments."""

    name: str
    events: int  # trailing dimensions of the first potential that belong to one sentence

    def __str__(self) -> str:
        return self.name

    @abstractmethod
    def potentials(self, batch=(), n=4, dtype=torch.float64, scale=1.0) -> Potentials: ...

    @abstractmethod
    def distribution(self, potentials, lengths=None, **options): ...

    @abstractmethod
    def sentence(self, potentials, index: tuple[int, ...], length=None) -> Potentials:
        """The potentials of one sentence, cut to its length: as if it had never been in a batch."""

    def rows(self, potentials, which) -> Potentials:
        """Some sentences of a batch; what the sentences share is kept."""
        return tuple(p[which] for p in potentials)

    @abstractmethod
    def spoiled(self, potentials, lengths, garbage: float) -> Potentials:
        """The same potentials with garbage wherever the contract says that nobody looks."""

    @abstractmethod
    def block(self, potentials, row: int) -> None:
        """Makes one sentence impossible, in place: its third position has no choice left."""

    @abstractmethod
    def mirror(self, potentials) -> Potentials:
        """The sentence read from its end."""

    @abstractmethod
    def mirror_marginals(self, marginals) -> Tensor: ...

    @abstractmethod
    def enumerate_one(self, potentials, length) -> oracle.Enumeration: ...

    def batch_shape(self, potentials) -> torch.Size:
        return potentials[0].shape[: -self.events]

    def indices(self, potentials) -> list[tuple[int, ...]]:
        return list(product(*map(range, self.batch_shape(potentials))))

    def enumerate(self, potentials, lengths=None) -> list[oracle.Enumeration]:
        """One enumeration a sentence, in the order of the flattened batch."""
        return [
            self.enumerate_one(self.sentence(potentials, i), None if lengths is None else int(lengths[i]))
            for i in self.indices(potentials)
        ]

    def stacked(self, potentials, quantity: str, lengths=None) -> Tensor:
        """`quantity` of every sentence's enumeration, with the batch dimensions restored."""
        values = torch.stack([getattr(each, quantity) for each in self.enumerate(potentials, lengths)])
        return values.reshape(self.batch_shape(potentials) + values.shape[1:])


class Chain(Case):
    events = 2

    def __init__(self, transitions: str, states: int = 3):
        self.name = f"chain-{transitions}"
        self.transitions = transitions
        self.states = states

    def potentials(self, batch=(), n=4, dtype=torch.float64, scale=1.0):
        unary = scale * torch.randn(*batch, n, self.states, dtype=dtype)
        shape = {"own": (*batch, n - 1), "shared": (), "absent": None}[self.transitions]
        if shape is None:
            return (unary,)
        return unary, scale * torch.randn(*shape, self.states, self.states, dtype=dtype)

    def distribution(self, potentials, lengths=None, **options):
        return sa.LinearChain(*potentials, lengths=lengths, **options)

    def sentence(self, potentials, index, length=None):
        unary = potentials[0][index]
        length = len(unary) if length is None else int(length)
        if self.transitions == "own":
            return unary[:length], potentials[1][index][: length - 1]
        return (unary[:length], *potentials[1:])

    def rows(self, potentials, which):
        unary, *transitions = potentials
        return (unary[which], *(t[which] if self.transitions == "own" else t for t in transitions))

    def spoiled(self, potentials, lengths, garbage):
        position = torch.arange(potentials[0].shape[-2])
        beyond = (position >= lengths[..., None])[..., None]
        unary = potentials[0].masked_fill(beyond, garbage)
        if self.transitions != "own":
            return (unary, *potentials[1:])
        return unary, potentials[1].masked_fill(beyond[..., 1:, :, None], garbage)

    def block(self, potentials, row):
        potentials[0].data[row, 2] = -math.inf

    def mirror(self, potentials):
        unary, *transitions = potentials
        flipped = [t.flip(-3) if self.transitions == "own" else t for t in transitions]
        return (unary.flip(-2), *(t.transpose(-1, -2) for t in flipped))

    def mirror_marginals(self, marginals):
        return marginals.flip(-2)

    def enumerate_one(self, potentials, length):
        unary, *rest = potentials
        transitions = rest[0].expand(len(unary) - 1, -1, -1) if rest else None
        return oracle.chain(unary, transitions, length)


class Tree(Case):
    events = 2

    def __init__(self, projective: bool, single_root: bool):
        self.name = f"{'projective' if projective else 'nonprojective'}{'-single-root' * single_root}"
        self.structure = sa.ProjectiveTree if projective else sa.NonProjectiveTree
        self.projective = projective
        self.single_root = single_root

    def potentials(self, batch=(), n=4, dtype=torch.float64, scale=1.0):
        return (scale * torch.randn(*batch, n, n, dtype=dtype),)

    def distribution(self, potentials, lengths=None, **options):
        return self.structure(*potentials, lengths=lengths, single_root=self.single_root, **options)

    def sentence(self, potentials, index, length=None):
        arcs = potentials[0][index]
        return (arcs[:length, :length],)

    def spoiled(self, potentials, lengths, garbage):
        (arcs,) = potentials
        position = torch.arange(arcs.shape[-1])
        beyond = position >= lengths[..., None]
        ignored = (position == 0) | (position[:, None] == position)
        unread = beyond[..., :, None] | beyond[..., None, :] | ignored
        return (arcs.masked_fill(unread, garbage),)

    def block(self, potentials, row):
        potentials[0].data[row, :, 2] = -math.inf

    def mirror(self, potentials):
        """Words in reverse order; the root symbol stays first (no arc covers it either way)."""
        return (self.mirror_marginals(potentials[0]),)

    def mirror_marginals(self, marginals):
        order = [0, *range(marginals.shape[-1] - 1, 0, -1)]
        return marginals[..., order, :][..., order]

    def enumerate_one(self, potentials, length):
        return oracle.tree(*potentials, self.projective, self.single_root, length)


CHAINS = [Chain("own"), Chain("shared"), Chain("absent")]
TREES = [Tree(projective, single_root) for projective in (True, False) for single_root in (False, True)]
CASES = [*CHAINS, *TREES]
