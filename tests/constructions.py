"""Structures made of arguments that are mostly right, for hypothesis to search; and all that one can ask of them."""

import math

import torch
from hypothesis import strategies as st

import structattn as sa

SIZES = st.sampled_from([0, 1, 1, 2, 2, 3, 3, 4, 5])
KINDS = [
    torch.float32,
    torch.float64,
    torch.bfloat16,
    torch.float16,
    torch.int64,
    torch.bool,
    torch.complex64,
]
VALUES = [0.0, -0.0, 1.0, -1.0, 1e30, -1e30, 1e-40, math.inf, -math.inf, -math.inf, math.nan]


@st.composite
def tensors(draw, shape):
    """Of this shape mostly, and of a kind that will do; now and then with a value that is none."""
    if draw(st.integers(0, 9)) == 0:
        shape = draw(st.lists(SIZES, max_size=5))
    kind = draw(st.sampled_from(KINDS[:2] * 9 + KINDS))
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(draw(st.integers(0, 99))))
    if tensor.numel() and draw(st.booleans()):
        tensor.view(-1)[draw(st.integers(0, tensor.numel() - 1))] = draw(st.sampled_from(VALUES))
    return tensor.to(kind)


NO_TENSORS = [0, 1.5, "x", [[0.0]], (), {}, torch.nn.Linear(1, 1)]


@st.composite
def constructions(draw):
    """The arguments of a structure: most of them right."""
    kind = draw(st.sampled_from([sa.LinearChain, sa.ProjectiveTree, sa.NonProjectiveTree]))
    batch, n, states = draw(st.lists(SIZES, max_size=2)), draw(SIZES), draw(SIZES)
    chain = kind is sa.LinearChain
    lengths = st.lists(st.integers(0, n), min_size=math.prod(batch), max_size=math.prod(batch))
    choices = {
        "potentials": tensors([*batch, n, states if chain else n]),
        "lengths": st.one_of(
            st.none(), lengths.map(lambda found: torch.tensor(found, dtype=torch.int64).view(batch))
        ),
        "validate_args": st.sampled_from([None, True, False]),
    }
    if chain:
        shapes = st.sampled_from([[states, states], [*batch, max(n - 1, 0), states, states]])
        choices["transitions"] = st.one_of(st.none(), shapes.flatmap(tensors))
    else:
        choices["single_root"] = st.booleans()
    given = {name: draw(choice) for name, choice in choices.items()}
    if draw(st.integers(0, 9)) == 0:
        wrong = draw(st.sampled_from(["potentials", "lengths", *(["transitions"] if chain else [])]))
        given[wrong] = draw(
            st.one_of(st.sampled_from(NO_TENSORS), st.lists(SIZES, max_size=3).flatmap(tensors))
        )
    return kind, given.pop("potentials"), given


def ask_everything(_, drawn):
    """All verbs; where the values are not checked, they may come to nothing, but not to a crash."""
    kind, potentials, given = drawn
    d = kind(potentials, **given)
    chain = kind is sa.LinearChain
    for question in ("log_partition", "marginals", "mode", *(["edge_marginals"] if chain else [])):
        getattr(d, question)
    d.entropy()
    d.topk(2)
    d.log_prob(d.mode)
    if given["validate_args"] is not False:
        d.sample((2,))
