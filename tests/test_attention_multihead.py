"""Structured heads equal torch's module for softmax, and enumeration for the rest, under any mask."""

import copy
import io
import re

import oracle
import pytest
import torch
from torch import nn

from structattn import SegmentationAttention, StructuredMultiheadAttention

B, H, n, E = 2, 4, 5, 16
STRUCTURES = ("softmax", "sigmoid", "segmentation", "projective", "nonprojective")
MIXED = ("projective", "softmax", "segmentation", "softmax")


def pair(structure="softmax", **options):
    """torch's module and ours, with the same parameters."""
    torch_options = {k: v for k, v in options.items() if k not in ("normalize", "root", "single_root")}
    theirs = nn.MultiheadAttention(E, H, dtype=torch.float64, **torch_options)
    for name, parameter in theirs.named_parameters():
        if "bias" in name:
            nn.init.normal_(parameter)
    ours = StructuredMultiheadAttention(E, H, dtype=torch.float64, structure=structure, **options)
    assert ours.load_state_dict(theirs.state_dict()) == ([], [])
    for own in (ours.pairwise, ours.root_key):
        if own is not None:
            nn.init.normal_(own)
    return theirs, ours


def words(batch=B, length=n):
    return torch.randn(batch, length, E, dtype=torch.float64)


def scores(attention, head, query, key):
    """theta (L, S) of one head and sentence, query (L, E) and key (S, E), from the parameters."""
    part = slice(head * E // H, (head + 1) * E // H)
    (wq, wk, _), (bq, bk, _) = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    q, k = query @ wq[part].T + bq[part], key @ wk[part].T + bk[part]
    return q @ k.T / (E // H) ** 0.5, q


def enumerated(attention, head, query, key):
    """The weights (L, S) of one head for one sentence by enumeration."""
    theta, q = scores(attention, head, query, key)
    structure = attention.structure[head]
    if structure == "softmax":
        return theta.softmax(-1)
    if structure == "sigmoid":
        return theta.sigmoid()
    if structure == "segmentation":
        b = attention.pairwise[head].expand(len(key) - 1, 2, 2)
        chains = (oracle.chain(torch.stack([torch.zeros_like(row), row], 1), b) for row in theta)
        p = torch.stack([chain.marginals[:, 1] for chain in chains])
        return p if attention.normalize is None else attention.normalize * p / p.sum(-1, keepdim=True)
    arcs = theta.T
    if attention.root == "virtual":
        arcs = torch.zeros(len(key) + 1, len(key) + 1, dtype=torch.float64)
        arcs[1:, 1:] = theta.T
        arcs[0, 1:] = q @ attention.root_key[head] / (E // H) ** 0.5
    parents = oracle.tree(arcs, structure == "projective", attention.single_root).marginals.T
    return parents if attention.root == "first" else parents[1:, 1:]


MASKS = {
    "none": {},
    "padding": {"key_padding_mask": torch.tensor([[0, 0, 0, 0, 0], [0, 0, 1, 1, 1]]).bool()},
    "left padding": {"key_padding_mask": torch.tensor([[1, 1, 0, 0, 0], [0, 1, 0, 0, 1]]).bool()},
    "causal": {"attn_mask": torch.ones(n, n).triu(1).bool(), "is_causal": True},
    "float": {"attn_mask": torch.randn(n, n, dtype=torch.float64)},
    "per head": {"attn_mask": (torch.rand(B * H, n, n) < 0.3) & ~torch.eye(n).bool()},
    "both": {
        "attn_mask": torch.ones(n, n).triu(1).bool(),
        "key_padding_mask": torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool(),
    },
    "float padding": {"key_padding_mask": torch.randn(B, n, dtype=torch.float64)},
}


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masks", MASKS)
def test_softmax_heads_equal_torch(masks, need_weights):
    theirs, ours = pair(batch_first=True)
    query, value = words(), words()
    key = words()
    for arguments in ((query, query, query), (query, key, value), (query, key, key)):
        options = {"need_weights": need_weights, "average_attn_weights": False} | MASKS[masks]
        expected, expected_weights = theirs(*arguments, **options)
        output, weights = ours(*arguments, **options)
        torch.testing.assert_close(output, expected, rtol=0, atol=1e-6)
        assert (weights is None) == (expected_weights is None)
        if need_weights:
            torch.testing.assert_close(weights, expected_weights, rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"batch_first": True, "bias": False},
        {"kdim": 6, "vdim": 7},
        {"kdim": 6, "vdim": 7, "bias": False, "batch_first": True},
        {"add_bias_kv": True, "add_zero_attn": True},
    ],
)
@pytest.mark.parametrize("batched", [True, False])
def test_every_constructor_argument_and_layout_equals_torch(options, batched):
    theirs, ours = pair(**options)
    query = torch.randn(3, E, dtype=torch.float64)
    key = torch.randn(n, options.get("kdim", E), dtype=torch.float64)
    value = torch.randn(n, options.get("vdim", E), dtype=torch.float64)
    if batched:
        dim = 0 if options.get("batch_first") else 1
        query, key, value = (torch.stack([x, -x], dim) for x in (query, key, value))
    mask = torch.rand(n) < 0.3
    mask = torch.stack([mask, ~mask]) if batched else mask
    for average in (True, False):
        arguments = {"key_padding_mask": mask, "average_attn_weights": average}
        for given, expected in zip(
            ours(query, key, value, **arguments), theirs(query, key, value, **arguments), strict=True
        ):
            torch.testing.assert_close(given, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize("root", ["virtual", "first"])
@pytest.mark.parametrize("structure", [*STRUCTURES, MIXED], ids=str)
def test_weights_are_the_marginals_of_the_structure(structure, root):
    _, attention = pair(structure, root=root, batch_first=True)
    x = words()
    output, weights = attention(x, x, x, average_attn_weights=False)
    value = x @ attention.in_proj_weight.chunk(3)[2].T + attention.in_proj_bias.chunk(3)[2]
    contexts = []
    for head in range(H):
        expected = torch.stack([enumerated(attention, head, s, s) for s in x])
        torch.testing.assert_close(weights[:, head], expected)
        contexts.append(expected @ value.chunk(H, -1)[head])
    torch.testing.assert_close(output, attention.out_proj(torch.cat(contexts, -1)))
    averaged = attention(x, x, x)[1]
    torch.testing.assert_close(averaged, weights.mean(1))
    without, nothing = attention(x, x, x, need_weights=False)
    assert nothing is None
    torch.testing.assert_close(without, output)


@pytest.mark.parametrize("floats", [False, True])
@pytest.mark.parametrize("mask", ["padding", "left padding"])
@pytest.mark.parametrize("structure", [*STRUCTURES, MIXED], ids=str)
def test_what_is_padded_does_not_exist_wherever_it_stands(structure, mask, floats):
    _, attention = pair(structure, batch_first=True)
    x, ignored = words(), MASKS[mask]["key_padding_mask"]
    given = torch.zeros(B, n, dtype=torch.float64).masked_fill(ignored, -torch.inf) if floats else ignored
    output, weights = attention(x, x, x, key_padding_mask=given, average_attn_weights=False)
    for b in range(B):
        alone = x[b : b + 1, ~ignored[b]]
        alone_output, alone_weights = attention(alone, alone, alone, average_attn_weights=False)
        torch.testing.assert_close(output[b, ~ignored[b]], alone_output[0])
        torch.testing.assert_close(weights[b][:, ~ignored[b]][..., ~ignored[b]], alone_weights[0])
        assert (weights[b][..., ignored[b]] == 0).all()


def test_under_a_causal_mask_a_query_sees_the_chain_that_ends_with_itself():
    _, attention = pair("segmentation", batch_first=True)
    x, mask = words(), MASKS["both"]
    output, weights = attention(x, x, x, average_attn_weights=False, **mask)
    for i in range(n):
        seen = x[:, : i + 1]
        padding = mask["key_padding_mask"][:, : i + 1]
        step, step_weights = attention(
            x[:, i : i + 1], seen, seen, key_padding_mask=padding, average_attn_weights=False
        )
        torch.testing.assert_close(output[:, i], step[:, 0])
        torch.testing.assert_close(weights[:, :, i, : i + 1], step_weights[:, :, 0])
        assert (weights[:, :, i, i + 1 :] == 0).all()


def test_a_key_that_is_forbidden_in_between_is_not_selected():
    _, attention = pair("segmentation", normalize=None, batch_first=True)
    x = words(1)
    forbidden = torch.zeros(n, n).bool()
    forbidden[:, 1] = True
    weights = attention(x, x, x, attn_mask=forbidden, average_attn_weights=False)[1]
    theta, _ = scores(attention, 2, x[0], x[0])
    unary = torch.stack([torch.zeros(n), theta[3]], 1).masked_fill(
        torch.tensor([[False, i == 1] for i in range(n)]), -torch.inf
    )
    chain = oracle.chain(unary, attention.pairwise[2].expand(n - 1, 2, 2))
    torch.testing.assert_close(weights[0, 2, 3], chain.marginals[:, 1])


@pytest.mark.parametrize("structure", ["projective", "nonprojective"])
@pytest.mark.parametrize("mask", ["causal", "float", "per head", "both"])
def test_masks_of_trees_are_about_parents(structure, mask):
    _, attention = pair(structure, batch_first=True)
    x = words()
    weights = attention(x, x, x, average_attn_weights=False, **MASKS[mask])[1]
    attn_mask = MASKS[mask]["attn_mask"]
    added = attn_mask
    if attn_mask.dtype == torch.bool:
        added = torch.zeros(attn_mask.shape, dtype=torch.float64).masked_fill(attn_mask, -torch.inf)
    added = added.expand(B * H, n, n).view(B, H, n, n)
    lengths = [5, 3] if mask == "both" else [5, 5]
    for b in range(B):
        for head in range(H):
            theta, q = scores(attention, head, x[b], x[b])
            arcs = torch.zeros(n + 1, n + 1, dtype=torch.float64)
            arcs[1:, 1:] = (theta + added[b, head]).T
            arcs[0, 1:] = q @ attention.root_key[head] / (E // H) ** 0.5
            judge = oracle.tree(arcs, structure == "projective", False, lengths[b] + 1)
            torch.testing.assert_close(weights[b, head], judge.marginals.T[1:, 1:])


def test_segmentation_heads_are_segmentation_attention():
    _, attention = pair("segmentation", batch_first=True)
    query, key = words(length=3), words()
    weights = attention(query, key, key, average_attn_weights=False)[1]
    one = SegmentationAttention(E, dtype=torch.float64)
    head, part = 1, slice(E // H, 2 * E // H)
    with torch.no_grad():
        one.weight.copy_(torch.eye(E))
        one.pairwise.copy_(attention.pairwise[head])
    (wq, wk, _), (bq, bk, _) = attention.in_proj_weight.chunk(3), attention.in_proj_bias.chunk(3)
    q, k = torch.zeros_like(query), torch.zeros_like(key)
    q[..., part] = (query @ wq.T + bq)[..., part] / 2
    k[..., part] = (key @ wk.T + bk)[..., part]
    torch.testing.assert_close(weights[:, head], one(q, k)[1])


@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("structure", [*STRUCTURES, MIXED], ids=str)
def test_a_fully_padded_sentence_has_zero_weights_and_no_gradient(structure, need_weights):
    _, attention = pair(structure, batch_first=True)
    x = words().requires_grad_()
    ignored = torch.tensor([[True] * n, [False] * n])
    output, weights = attention(x, x, x, key_padding_mask=ignored, need_weights=need_weights)
    torch.testing.assert_close(output[0], attention.out_proj.bias.expand(n, E))
    output.square().sum().backward()
    assert (x.grad[0] == 0).all()
    assert x.grad[1].abs().max() > 0
    assert all(p.grad is None or p.grad.isfinite().all() for p in attention.parameters())
    if need_weights:
        assert (weights[0] == 0).all()


@pytest.mark.parametrize("structure", ["segmentation", "projective"])
def test_gradients_reach_every_parameter_and_are_right(structure):
    _, attention = pair(structure, batch_first=True)
    names = dict(attention.named_parameters())

    def call(x, *values):
        return torch.func.functional_call(attention, dict(zip(names, values, strict=True)), (x, x, x))

    x = words(1, 3).requires_grad_()
    attention.eval()
    assert torch.autograd.gradcheck(call, (x, *names.values()), fast_mode=True)
    call(x, *names.values())[0].square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in names.values())


def test_dropout_follows_torch():
    theirs, ours = pair(dropout=0.4, batch_first=True)
    x = words()
    torch.manual_seed(1)
    expected = theirs(x, x, x, average_attn_weights=False)[1]
    torch.manual_seed(1)
    torch.testing.assert_close(ours(x, x, x, average_attn_weights=False)[1], expected)
    _, trees = pair("projective", dropout=0.4, batch_first=True)
    assert not torch.equal(trees(x, x, x)[0], trees(x, x, x)[0])
    assert torch.equal(trees.eval()(x, x, x)[0], trees(x, x, x)[0])


def test_state_dicts_go_both_ways():
    theirs, ours = pair(MIXED, batch_first=True)
    again = StructuredMultiheadAttention(E, H, structure=MIXED, dtype=torch.float64)
    again.load_state_dict(ours.state_dict())
    assert torch.equal(again.pairwise, ours.pairwise)
    again.load_state_dict(theirs.state_dict())
    assert torch.equal(again.pairwise, ours.pairwise)
    own = {name: v for name, v in ours.state_dict().items() if name != "root_key"}
    with pytest.raises(RuntimeError, match="root_key"):
        again.load_state_dict(own)
    with pytest.raises(RuntimeError, match="in_proj_weight"):
        again.load_state_dict({"out_proj.bias": torch.zeros(E)})
    assert {*theirs.state_dict()} < {*ours.state_dict()}


@pytest.mark.parametrize("structure", [*STRUCTURES, MIXED], ids=str)
def test_copies_and_pickles(structure):
    _, attention = pair(structure, batch_first=True)
    x, file = words(), io.BytesIO()
    torch.save(attention, file)
    file.seek(0)
    for other in (copy.deepcopy(attention), torch.load(file, weights_only=False)):
        assert torch.equal(other(x, x, x)[0], attention(x, x, x)[0])


@pytest.mark.parametrize("structure", [*STRUCTURES, MIXED], ids=str)
def test_autocast_and_half_precision(structure):
    _, attention = pair(structure, batch_first=True)
    x = words()
    expected, expected_weights = attention(x, x, x)
    attention.float()
    with torch.autocast("cpu", torch.bfloat16):
        output, weights = attention(x.float(), x.float(), x.float())
        output.float().square().sum().backward()
    assert output.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), expected, rtol=0.1, atol=0.1)
    torch.testing.assert_close(weights.double(), expected_weights, rtol=0.1, atol=0.1)
    assert all(p.grad is None or p.grad.isfinite().all() for p in attention.parameters())
    x = x.bfloat16()
    output, weights = attention.bfloat16()(x, x, x)
    assert output.dtype == weights.dtype == torch.bfloat16
    torch.testing.assert_close(output.double(), expected, rtol=0.1, atol=0.1)


def test_repr_and_reset():
    attention = StructuredMultiheadAttention(16, 4, 0.1, structure=MIXED)
    assert repr(attention).startswith(
        f"StructuredMultiheadAttention(\n  16, 4, structure={MIXED}, dropout=0.1\n"
    )
    nn.init.normal_(attention.pairwise)
    attention._reset_parameters()
    assert (attention.pairwise == 0).all()
    assert isinstance(attention, nn.MultiheadAttention)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"structure": "tree"}, "structure: expected one of softmax, sigmoid, segmentation, projective"),
        ({"structure": ["softmax"]}, "structure: expected one for each of 4 heads, got 1"),
        ({"root": "last"}, "root: expected one of virtual, first, got 'last'"),
        ({"add_zero_attn": True}, "add_bias_kv and add_zero_attn: expected only softmax and sigmoid heads"),
        ({"normalize": -1.0}, "normalize: expected a number above 0, or None, got -1.0"),
        ({"embed_dim": 18}, "embed_dim: expected a multiple of num_heads = 4, got 18"),
    ],
)
def test_constructor_errors(options, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        StructuredMultiheadAttention(**{"embed_dim": 16, "num_heads": 4} | options)


X = torch.zeros(5, 2, 16)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"query": X.long()}, TypeError, "query: expected a floating-point tensor, got int64"),
        ({"query": X[..., :8]}, ValueError, "query: expected shape (L, B, 16), got (5, 2, 8)"),
        (
            {"query": X.double()},
            TypeError,
            "query: expected float32 as the layer's parameters are, got float64",
        ),
        ({"key": X[:, :1]}, ValueError, "key: expected shape (S, 2, 16), got (5, 1, 16)"),
        ({"value": X[:4]}, ValueError, "value: expected shape (5, 2, 16), got (4, 2, 16)"),
        ({"key": X[:4], "value": X[:4]}, ValueError, "key: expected as many keys as queries for tree heads"),
        (
            {"attn_mask": torch.zeros(4, 5)},
            ValueError,
            "attn_mask: expected shape (5, 5) or (8, 5, 5), got (4, 5)",
        ),
        (
            {"attn_mask": torch.zeros(5, 5).long()},
            TypeError,
            "attn_mask: expected a tensor of bool or floats",
        ),
        (
            {"key_padding_mask": torch.zeros(5, 2)},
            ValueError,
            "key_padding_mask: expected shape (2, 5), got (5, 2)",
        ),
        ({"is_causal": True}, ValueError, "attn_mask: expected the causal mask that is_causal=True hints at"),
    ],
)
def test_errors_say_what_is_expected(arguments, error, message):
    attention = StructuredMultiheadAttention(16, 4, structure="projective")
    with pytest.raises(error, match=re.escape(message)):
        attention(**{"query": X, "key": X, "value": X} | arguments)
