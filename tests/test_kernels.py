"""The native kernels against the plain-torch path, which the laws hold against enumeration."""

import importlib.util
import os
import subprocess
import sys

import pytest
import torch
from torch.testing import assert_close

import structattn as sa
from structattn.kernels import native, operators

pytestmark = pytest.mark.skipif(not native.available(), reason="built without the native kernels")

TOLERANCE = {torch.float32: {"rtol": 2e-5, "atol": 2e-6}, torch.float64: {"rtol": 1e-9, "atol": 1e-11}}


@pytest.fixture
def _poisoned_memory():
    """Fresh memory holds NaN: a result that nobody wrote shows."""
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(False)


def lengths_up_to(n, batch):
    return (
        torch.randint(0, n + 1, (batch,)).index_fill(0, torch.tensor([0]), n)
        if batch
        else torch.zeros(0).long()
    )


def forbid(potentials, share=0.3):
    return potentials.masked_fill(torch.rand_like(potentials) < share, -torch.inf)


def everything(distribution, leaves, names):
    """Results, and the gradient of a random combination of them, as float64."""
    torch.manual_seed(5)
    results = [getattr(distribution, name) for name in names]
    weights = [torch.randn(result.shape, dtype=torch.double) for result in results]
    total = sum((r.masked_fill(r == -torch.inf, 0) * w).sum() for r, w in zip(results, weights, strict=True))
    gradients = torch.autograd.grad(total, leaves, materialize_grads=True)
    return [tensor.detach().double() for tensor in (*results, *gradients)]


def same_natively(make, leaves, names, dtype):
    leaves = [leaf.to(dtype).requires_grad_() for leaf in leaves]
    with sa.backend("native"):
        ours = everything(make(*leaves), leaves, names)
    with sa.backend("plain"):
        reference = [leaf.detach().double().requires_grad_() for leaf in leaves]
        expected = everything(make(*reference), reference, names)
    for actual, wanted, name in zip(ours, expected, [*names, *("gradient" for _ in leaves)], strict=True):
        scale = wanted[wanted.isfinite()].abs().max().clamp_min(1) if wanted.isfinite().any() else 1
        tolerance = TOLERANCE[dtype] | {"atol": TOLERANCE[dtype]["atol"] * float(scale)}
        assert_close(actual, wanted, **tolerance, msg=lambda m, name=name: f"{name}: {m}")


@pytest.mark.parametrize(
    "make", [lambda x, n: sa.LinearChain(x, None, n), sa.ProjectiveTree], ids=["chain", "tree"]
)
def test_expanded_lengths_are_not_read_as_if_they_lay_side_by_side(make):
    one_length = torch.tensor([3, 1, 5, 0])[:1]  # 3 is followed in memory by other numbers
    potentials = torch.randn(4, 5, 5)
    marginals = make(potentials, one_length.expand(4)).marginals
    assert_close(marginals, make(potentials, torch.full((4,), 3)).marginals)


LAYOUTS = {
    "none": None,
    "shared": lambda b, n, c: (c, c),
    "per step": lambda b, n, c: (n - 1, c, c),
    "per chain": lambda b, n, c: (b, 1, c, c),
    "full": lambda b, n, c: (b, n - 1, c, c),
}


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize(
    "names", [["log_partition"], ["marginals"], ["log_partition", "edge_marginals"]], ids=str
)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("batch", "n", "states"), [(1, 1, 1), (3, 2, 2), (37, 9, 2), (17, 6, 5), (5, 4, 33)])
def test_chains(batch, n, states, dtype, layout, names):
    torch.manual_seed(batch * n + states)
    for scale, share, with_lengths in ((1, 0, False), (1, 0.2, True), (100, 0.1, True)):
        leaves = [forbid(torch.randn(batch, n, states, dtype=torch.double) * scale, share)]
        if LAYOUTS[layout]:
            leaves.append(
                forbid(torch.randn(LAYOUTS[layout](batch, n, states), dtype=torch.double) * scale, share / 3)
            )
        lengths = lengths_up_to(n, batch) if with_lengths else None
        leaves = [leaf.float() for leaf in leaves]  # the same numbers for both precisions

        def make(unary, transitions=None, lengths=lengths):
            if transitions is None:
                return sa.LinearChain(unary + 0, None, lengths)
            return sa.LinearChain(unary, transitions, lengths)

        same_natively(make, leaves, names, dtype)


@pytest.mark.usefixtures("_poisoned_memory")
@pytest.mark.parametrize("names", [["log_partition"], ["marginals"], ["log_partition", "marginals"]], ids=str)
@pytest.mark.parametrize("single_root", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize(("batch", "n"), [(1, 1), (1, 2), (9, 3), (20, 7), (3, 13), (1, 22)])
def test_projective_trees(batch, n, dtype, single_root, names):
    torch.manual_seed(batch * n)
    for scale, share, with_lengths in ((1, 0, False), (1, 0.3, True), (300, 0.3, True)):
        arcs = forbid(torch.randn(batch, n, n) * scale, share)
        lengths = lengths_up_to(n, batch) if with_lengths else None
        same_natively(lambda arcs, ls=lengths: sa.ProjectiveTree(arcs, ls, single_root), [arcs], names, dtype)


@pytest.mark.usefixtures("_poisoned_memory")
def test_best_structures():
    for scale in (1.0, 300.0):
        unary, transitions = (
            forbid(torch.randn(40, 11, 5) * scale, 0.1),
            forbid(torch.randn(5, 5) * scale, 0.1),
        )
        arcs, lengths = forbid(torch.randn(40, 11, 11) * scale, 0.2), lengths_up_to(11, 40)
        for d in (
            sa.LinearChain(unary, transitions, lengths),
            sa.ProjectiveTree(arcs, lengths),
            sa.ProjectiveTree(arcs, lengths, single_root=True),
        ):
            with sa.backend("plain"):
                expected = d.mode
            assert d.mode.equal(expected)


@pytest.mark.parametrize("n", [12, 33])
def test_results_do_not_depend_on_threads_or_company(n):
    """A sentence's bits are the same in every batch and at every thread count."""
    arcs, unary = torch.randn(21, n, n), torch.randn(70, n, 2)
    transitions, threads = torch.randn(2, 2), torch.get_num_threads()
    results = []
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            leaves = [leaf.clone().requires_grad_() for leaf in (arcs, unary, transitions)]
            total = sa.ProjectiveTree(leaves[0]).marginals.square().sum()
            total = total + sa.LinearChain(leaves[1], leaves[2]).marginals.square().sum()
            results.append(torch.autograd.grad(total, leaves))
    finally:
        torch.set_num_threads(threads)
    for other in results[1:]:
        assert all(a.equal(b) for a, b in zip(results[0], other, strict=True))
    alone = torch.stack([sa.ProjectiveTree(sentence).marginals for sentence in arcs])
    assert alone.equal(sa.ProjectiveTree(arcs).marginals)


@pytest.mark.parametrize("single_root", [False, True])
def test_a_long_sentence_alone_has_all_threads_and_the_same_bits(single_root):
    arcs, threads = torch.randn(3, 70, 70), torch.get_num_threads()

    def results(arcs):
        arcs = arcs.clone().requires_grad_()
        d = sa.ProjectiveTree(arcs, single_root=single_root)
        (gradient,) = torch.autograd.grad(d.marginals.square().sum() + d.log_partition.sum(), arcs)
        return torch.cat([d.marginals.detach(), gradient])

    together = results(arcs).view(2, 3, 70, 70)
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for sentence, expected in zip(arcs, together.unbind(1), strict=True):
                assert results(sentence).view(2, 70, 70).equal(expected)
    finally:
        torch.set_num_threads(threads)


def test_registered_operators_keep_torchs_rules():
    unary, transitions = torch.randn(3, 4, 2, requires_grad=True), torch.randn(1, 1, 2, 2, requires_grad=True)
    arcs, lengths = torch.randn(3, 5, 5, requires_grad=True), torch.tensor([5, 2, 0])
    for wanted in (native.LOG_PARTITION, native.MARGINALS, native.EDGE_MARGINALS):
        torch.library.opcheck(operators.chain, (unary, transitions, None, wanted, True))
    for wanted in (native.LOG_PARTITION, native.MARGINALS):
        torch.library.opcheck(operators.projective, (arcs, lengths, True, wanted, True))
    torch.library.opcheck(operators.chain_viterbi, (unary.detach(), transitions.detach(), None, True))
    torch.library.opcheck(operators.projective_viterbi, (arcs.detach(), lengths, False, True))


def test_a_compiled_graph_checks_values_when_it_runs():
    compiled = torch.compile(lambda arcs: sa.ProjectiveTree(arcs).marginals, fullgraph=True)
    good = torch.randn(2, 4, 4)
    assert_close(compiled(good), sa.ProjectiveTree(good).marginals)
    with pytest.raises(ValueError, match="arcs: expected finite scores"):
        compiled(good.index_fill(1, torch.tensor([1]), torch.nan))


def call(name, *sizes):
    """The native function with these sizes, null pointers, and 1 for every switch."""
    left = iter(sizes)
    arguments = {"q": lambda: next(left, 0), "p": lambda: None, "i": lambda: 1}
    return getattr(native.library(), name)(*(arguments[letter]() for letter in native._SIGNATURES[name]))


@pytest.mark.parametrize("name", native._SIGNATURES)
def test_sizes_that_overflow_are_refused(name):
    """Before anything is read: the pointers are null."""
    sizes = [(1 << 40, 1 << 12, 1 << 12), (1 << 62, 3, 3), (3, 1 << 62, 3), (1 << 62, 1 << 62, 1 << 62)]
    for refused in sizes:
        assert call(name, *refused) == (-1 if name.endswith("size") else native._TOO_LARGE)
    with pytest.raises(ValueError, match="too large for 64-bit indices"):
        native.workspace_size("chain", *sizes[0])
    with pytest.raises(ValueError, match="arcs: too large"):
        native._succeed(native._TOO_LARGE, "arcs")


@pytest.mark.skipif(sys.platform != "linux", reason="memory cannot be limited here")
@pytest.mark.skipif("libasan" in os.environ.get("LD_PRELOAD", ""), reason="the sanitizer ends the process")
def test_too_little_memory_is_a_memory_error():
    program = """
import resource, torch, structattn as sa
torch.set_num_threads(1)

def problems(words, positions, requires_grad):
    for states in (2, 8):
        yield sa.LinearChain(torch.zeros(positions, states, requires_grad=requires_grad))
    yield sa.ProjectiveTree(torch.zeros(words, words, requires_grad=requires_grad))

for small in problems(5, 5, False):
    small.mode, small.log_partition
large = [*problems(1000, 400_000, False), *problems(1000, 400_000, True)]
pages = int(open("/proc/self/statm").read().split()[0])
resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (16 << 20),) * 2)
for problem, quantity in [*((p, "log_partition") for p in large), (large[-1], "mode")]:
    try:
        print(quantity, getattr(problem, quantity).shape)
    except MemoryError:
        print("MemoryError")
"""
    found = subprocess.run([sys.executable, "-c", program], timeout=120, capture_output=True, text=True)
    assert found.stdout.split() == ["MemoryError"] * 7, found.stderr


def test_another_build_may_be_loaded(monkeypatch):
    """What CMake built elsewhere, by name; a name that leads nowhere is no reason to compute in plain torch."""
    origin = importlib.util.find_spec("structattn.kernels._native").origin
    monkeypatch.setenv("STRUCTATTN_NATIVE", origin)
    assert native.library.__wrapped__()._name == origin
    monkeypatch.setenv("STRUCTATTN_NATIVE", "/nowhere/_native.so")
    with pytest.raises(OSError, match="/nowhere"):
        native.library.__wrapped__()


def test_without_the_library_plain_torch_serves_with_one_warning():
    program = """
import importlib.util, os, warnings
os.environ.pop("STRUCTATTN_NATIVE", None)
find = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name.endswith("_native") else find(name, *rest)
import torch, structattn as sa
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    for _ in range(3):
        assert sa.ProjectiveTree(torch.zeros(5, 5)).log_partition.exp().round() == 55
messages = [str(w.message) for w in caught if "plain torch" in str(w.message)]
assert len(messages) == 1 and "g++" in messages[0], messages
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)
