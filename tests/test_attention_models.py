"""Structured heads inside torch's Transformers, compiled, exported, and in several processes."""

import copy
import gc
import multiprocessing
import socket

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from structattn import SegmentationAttention, StructuredMultiheadAttention, SyntacticAttention
from structattn.attention import replace

B, n, E = 2, 5, 16
STRUCTURES = ("softmax", "sigmoid", "segmentation", "projective", "nonprojective")
PADDING = torch.tensor([[0, 0, 0, 0, 0], [0, 0, 0, 1, 1]]).bool()


def encoder(layers=2, **options):
    options = {"dropout": 0.0, "batch_first": True} | options
    return nn.TransformerEncoder(nn.TransformerEncoderLayer(E, 4, 32, **options), layers)


def perturbed(model):
    for module in model.modules():
        for own in (getattr(module, "pairwise", None), getattr(module, "root_key", None)):
            if own is not None:
                nn.init.normal_(own)
    return model


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("structure", STRUCTURES)
def test_an_encoder_computes_the_same_in_training_and_in_evaluation(structure, padded, norm_first):
    """In evaluation torch's layers bypass self_attn.forward if they can; its encoder nests tensors."""
    plain = encoder(norm_first=norm_first)
    x, mask = torch.randn(B, n, E), PADDING if padded else None
    unstructured = plain(x, src_key_padding_mask=mask)
    by_hand = copy.deepcopy(plain)
    model = perturbed(replace(plain, structure))
    for layer, replaced in zip(by_hand.layers, model.layers, strict=True):
        layer.self_attn = copy.deepcopy(replaced.self_attn)
    expected = model.train()(x, src_key_padding_mask=mask)
    counted = torch.ones(B, n).bool() if mask is None else ~mask
    assert torch.allclose(expected[counted], unstructured[counted], atol=1e-5) == (structure == "softmax")
    with torch.no_grad():
        for evaluated in (model.eval(), by_hand.eval()):
            output = evaluated(x, src_key_padding_mask=mask)
            torch.testing.assert_close(output[counted], expected[counted], rtol=1e-4, atol=1e-5)


def test_the_forward_of_the_heads_is_called_in_evaluation():
    layer, calls = nn.TransformerEncoderLayer(E, 4, 32, batch_first=True), []
    layer.self_attn = StructuredMultiheadAttention(E, 4, batch_first=True, structure="projective")
    forward = layer.self_attn.forward
    layer.self_attn.forward = lambda *arguments, **options: calls.append(1) or forward(*arguments, **options)
    with torch.no_grad():
        layer.eval()(torch.randn(B, n, E))
    assert calls


def test_replace_keeps_parameters_and_leaves_the_rest_alone():
    model = nn.Transformer(E, 4, 2, 1, 32, batch_first=True)
    before = dict(model.named_parameters())
    assert replace(model, ["softmax", "segmentation", "projective", "softmax"], normalize=1.0) is model
    assert all(before[name] is parameter for name, parameter in model.named_parameters() if name in before)
    added = {name for name, _ in model.named_parameters()} - {*before}
    assert added == {
        f"{place}.self_attn.{own}"
        for place in ("encoder.layers.0", "encoder.layers.1", "decoder.layers.0")
        for own in ("pairwise", "root_key")
    }
    assert model.encoder.layers[0].self_attn.normalize == 1.0
    assert type(model.decoder.layers[0].multihead_attn) is nn.MultiheadAttention
    model(torch.randn(B, n, E), torch.randn(B, 3, E)).sum().backward()
    replace(model.decoder, "softmax")
    assert model.decoder.layers[0].self_attn.structure == ("softmax",) * 4
    with pytest.raises(ValueError, match=r"model: expected a torch\.nn\.MultiheadAttention named self_attn"):
        replace(nn.Linear(2, 2))


def test_an_encoder_trains():
    torch.manual_seed(0)
    model = replace(encoder(1), "segmentation")
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    x = torch.randn(8, n, E)
    target = x.cumsum(1)
    losses = []
    for _ in range(30):
        loss = (model(x) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]


@pytest.mark.parametrize("structure", ["segmentation", "projective"])
def test_compiled_heads_equal_eager_ones(structure):
    torch._dynamo.reset()
    attention = perturbed(StructuredMultiheadAttention(E, 2, batch_first=True, structure=structure))
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    x = torch.randn(B, n, E)
    results = []
    for layer in (attention, compiled):
        attention.zero_grad()
        output, weights = layer(x, x, x, key_padding_mask=PADDING)
        output.square().sum().backward()
        results.append((output, weights, [p.grad for p in attention.parameters()]))
    torch.testing.assert_close(*results, rtol=1e-4, atol=1e-5)


def test_a_compiled_segmentation_layer_equals_the_eager_one():
    torch._dynamo.reset()
    attention = perturbed(SegmentationAttention(E))
    query, key, lengths = torch.randn(B, 3, E), torch.randn(B, n, E), torch.tensor([5, 2])
    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    for given, expected in zip(
        compiled(query, key, lengths=lengths), attention(query, key, lengths=lengths), strict=True
    ):
        torch.testing.assert_close(given, expected)


class Scored(nn.Module):
    """What an exported program may hold: tensors in, tensors out."""

    def __init__(self, structure):
        super().__init__()
        self.attention = perturbed(StructuredMultiheadAttention(E, 2, batch_first=True, structure=structure))

    def forward(self, x):
        return self.attention(x, x, x)[0]


@pytest.mark.parametrize("structure", ["softmax", "segmentation", "projective"])
def test_exported_heads_equal_eager_ones(structure):
    model, x = Scored(structure).eval(), torch.randn(B, n, E)
    exported = torch.export.export(model, (x,)).module()
    other = torch.randn(B, n, E)
    torch.testing.assert_close(exported(other), model(other), rtol=1e-5, atol=1e-6)


def train_in_two_processes(rank, port, results):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = DistributedDataParallel(Stack())
    step(model, batch()[rank * 2 : rank * 2 + 2])
    if rank == 0:
        results.put([p.grad.tolist() for p in model.module.parameters()])
    # torch 2.13's gloo aborts at exit unless the model is gone before its group.
    del model
    gc.collect()
    dist.destroy_process_group()


def two_layers():
    attention = SyntacticAttention(E, 4, 8, root="learned")
    return nn.ModuleList([attention, replace(encoder(1), ["segmentation", "projective"] * 2)])


class Stack(nn.Module):
    def __init__(self):
        super().__init__()
        self.parts = two_layers()

    def forward(self, x):
        context, _ = self.parts[0](x)
        return self.parts[1](x + context)


def batch():
    return torch.randn(4, n, E, generator=torch.Generator().manual_seed(1))


def step(model, x):
    model(x).square().mean().backward()


def test_two_processes_find_the_gradient_of_one():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    results = context.SimpleQueue()
    processes = [context.Process(target=train_in_two_processes, args=(r, port, results)) for r in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(100)
    assert [process.exitcode for process in processes] == [0, 0]
    torch.manual_seed(0)
    model = Stack()
    step(model, batch())
    for given, parameter in zip(results.get(), model.parameters(), strict=True):
        torch.testing.assert_close(torch.tensor(given), parameter.grad, rtol=1e-4, atol=1e-6)
