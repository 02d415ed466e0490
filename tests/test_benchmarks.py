"""The benchmark measures what it says, refuses what is wrong, reports what it found. No speed is asserted."""

import json
from functools import partial
from itertools import product

import oracle
import pytest
import torch

from structattn import LinearChain, ProjectiveTree
from structattn.benchmarks import command, layers, main, peers, picture, report, studies, translation
from structattn.benchmarks.findings import Finding, Outcome
from structattn.benchmarks.problems import chains, segmentations, softmax, trees, without_loss
from structattn.benchmarks.timing import Contestant, Effort, race
from structattn.benchmarks.verification import Disagreement, agree, by_enumeration, is_projective, verify
from structattn.benchmarks.workloads import WORKLOADS, Settings, Workload
from structattn.kernels import selected_backend

PROBLEMS = {
    "shared": lambda: chains(4, 6, 3),
    "own": lambda: chains(4, 3, 5, own_transitions=True),
    "two-state": lambda: segmentations(5, 7),
    "log Z": lambda: chains(4, 6, 3, quantity="log_partition"),
    "tree": lambda: trees(3, 6),
    "tree-lengths": lambda: trees(4, 6, torch.tensor([6, 2, 3, 5])),
}
SETTINGS = Settings(Effort(rounds=2, burst_seconds=0.0, peer_seconds=0.0), peers=False)
SMALL_TRANSLATION = partial(translation.training, pairs=2, length=4, size=6)
close = torch.testing.assert_close


@pytest.fixture(params=PROBLEMS.values(), ids=PROBLEMS)
def problem(request):
    return request.param()


@pytest.fixture
def tiny_benchmark(monkeypatch):
    workload = Workload(
        "TINY", "", lambda: chains(4, 6, 3), (4, 5), at_most=1.3, stretch=1.0, peer_at_least=100
    )
    monkeypatch.setattr(command, "BENCHMARKS", {"TINY": workload.run})
    monkeypatch.setattr(command, "_QUICK", SETTINGS.effort)


class Spoil(torch.autograd.Function):
    """Makes a result, or its gradient, wrong by one in a thousand."""

    @staticmethod
    def forward(ctx, what, result):
        ctx.what = what
        return result * 1.001 if what == "result" else result.clone()

    @staticmethod
    def backward(ctx, gradient):
        return None, gradient * 1.001 if ctx.what == "gradient" else gradient


def spoil(monkeypatch, what):
    """Everywhere but in plain torch, which is the oracle."""
    right = LinearChain.marginals.fget

    def wrong(self):
        return right(self) if selected_backend() == "plain" else Spoil.apply(what, right(self))

    monkeypatch.setattr(LinearChain, "marginals", property(wrong))


def test_a_right_result_passes(problem):
    verify(problem)


@pytest.mark.parametrize("what", ["result", "gradient"])
def test_a_wrong_result_is_refused(what, monkeypatch):
    spoil(monkeypatch, what)
    with pytest.raises(Disagreement, match=what):
        verify(chains(4, 6, 3))


def test_nan_and_wrong_shapes_are_refused():
    right = torch.ones(2, 3)
    agree("itself", [right], [right])
    for wrong in (right.clone().fill_(torch.nan), right[:, :2], right + 1e-4):
        with pytest.raises(Disagreement):
            agree("itself", [wrong], [right])


@pytest.mark.parametrize("what", ["result", "gradient"])
def test_no_speed_is_printed_for_a_wrong_result(what, monkeypatch, capsys, tmp_path, tiny_benchmark):
    spoil(monkeypatch, what)
    assert main(["--quick", "--no-peers", "--json", str(tmp_path / "found.json")]) == 1
    assert "NO SPEED IS PRINTED" in capsys.readouterr().out
    found = json.loads((tmp_path / "found.json").read_text())
    assert not found["findings"]
    assert not found["seconds"]
    assert len(found["refused"]) == 1


def test_enumeration_agrees_with_plain_torch(problem):
    tiny = problem.part(3, 4, 3)
    for enumerated, exact in zip(by_enumeration(tiny), tiny.exactly(), strict=True):
        close(enumerated, exact)


@pytest.mark.parametrize("n", [2, 3, 4, 5])
def test_the_trees_that_are_enumerated_are_the_projective_ones(n):
    heads = [(0, *candidate) for candidate in product(range(n), repeat=n - 1) if is_projective(candidate)]
    assert heads == oracle.trees(n, True, False)


def test_a_part_is_the_same_problem_for_some_sentences(problem):
    part = problem.part(2)
    assert part.batch == 2
    results = zip(problem.solve(), part.solve(), [False, *problem.shared], strict=True)
    for whole, cut, shared in results:
        if not shared:
            close(whole[:2], cut)


def test_steps_give_result_and_gradients_and_change_nothing(problem):
    before = [potentials.detach().clone() for potentials in problem.potentials]
    result, *gradients = problem.solve()
    assert [gradient.shape for gradient in gradients] == [potentials.shape for potentials in before]
    _, *handed_over = without_loss(problem.result, problem.potentials, problem.weights)()
    close(gradients, handed_over)
    assert result.shape == problem.weights.shape
    for potentials, old in zip(problem.potentials, before, strict=True):
        assert potentials.grad is None
        assert potentials.equal(old)


def test_softmax_step():
    result, gradient = softmax(4, 5)()
    close(result.sum(1), torch.ones(4))
    close(gradient.sum(1), torch.zeros(4), atol=1e-6, rtol=0)


def test_the_workloads_are_those_of_the_goals():
    shapes = {w.name: [tuple(p.shape) for p in w.make().potentials] for w in WORKLOADS}
    assert shapes == {
        "SEG": [(6400, 50, 2), (2, 2)],
        "QA": [(640, 3, 25), (640, 2, 25, 25)],
        "TAG": [(32, 128, 32), (32, 32)],
        **{f"TREE-{n}": [(20, n, n)] for n in (20, 40, 80, 160)},
        "TAG-LOSS": [(32, 128, 32), (32, 32)],
    }
    unary = next(w for w in WORKLOADS if w.name == "SEG").make().potentials[0]
    assert not unary[..., 0].any()
    assert unary[..., 1].all()


def test_everybody_gets_a_turn_in_every_round_but_peers_stop_at_their_budget():
    order = []
    contestants = [
        Contestant("ours", lambda: order.append("ours")),
        Contestant("peer", lambda: order.append("peer"), budget=0.0),
    ]
    race(contestants, Effort(rounds=3, burst_seconds=0.0))
    assert order == ["ours", "peer", *["ours"] * 3]  # one to warm up
    contestants = [Contestant(name, lambda name=name: order.append(name)) for name in "ab"]
    order.clear()
    race(contestants, Effort(rounds=2, burst_seconds=0.0))
    assert order == list("ababab")
    assert [len(c.seconds) for c in contestants] == [2, 2]


def test_contestants_may_have_threads_of_their_own():
    before, seen = torch.get_num_threads(), []
    race([Contestant("two", lambda: seen.append(torch.get_num_threads()), threads=2)], SETTINGS.effort)
    assert set(seen[1:]) == {2}
    assert torch.get_num_threads() == before


def test_goals():
    below = Finding("W", "time", 1.2, "x", at_most=1.3, stretch=1.0)
    assert (below.goal, below.verdict, below.reached) == ("≤ 1.3 (stretch 1)", "reached", True)
    assert Finding("W", "time", 0.9, "x", at_most=1.3, stretch=1.0).verdict == "stretch reached"
    assert Finding("W", "time", float("nan"), "x", at_most=1.3).verdict == "not reached"
    above = Finding("W", "speed", 99.0, "x", at_least=100)
    assert (above.goal, above.verdict, above.reached) == ("≥ 100", "not reached", False)
    without = Finding("W", "memory", 5.0, "MB")
    assert (without.goal, without.verdict, without.reached) == ("", "", None)


def found():
    contestants = [Contestant("structattn", print), Contestant("softmax", print)]
    contestants[0].seconds, contestants[1].seconds = [2e-6, 4e-6, 4e-6], [1e-6, 2e-6, 9e-6]
    findings = [
        Finding("W", "time", 1234.5, "x", at_most=1.3, median=0.123),
        Finding("W", "memory", 45.6, "MB"),
    ]
    return Outcome(findings, [("W", contestant) for contestant in contestants], ["a note"])


def test_tables():
    goals, times = report.of_goals(found().findings), report.of_times(found())
    assert goals.rows == [
        ("W", "time", "1,234x", "0.12x", "≤ 1.3", "not reached"),
        ("W", "memory", "45.6 MB", "", "", ""),
    ]
    assert times.rows == [("W", "structattn", "2.00", "4.00", "3"), ("W", "softmax", "1.00", "2.00", "3")]
    header, first, _ = report.plain(goals).splitlines()[1:]
    assert header.index("what") == first.index("time")
    assert report.markdown(goals).splitlines()[1] == "| --- | --- | ---: | ---: | --- | --- |"
    assert report.doubts(found()) == []


def test_a_disturbed_measurement_says_so():
    outcome = found()
    outcome.contestants[0][1].seconds = [1e-6, 5e-6, 5e-6]
    assert "W" in report.doubts(outcome)[0]


def test_the_whole_run(capsys, tmp_path, tiny_benchmark):
    page = tmp_path / "performance.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    written = tmp_path / "found.json"
    assert (
        main(["--quick", "--no-peers", "--only", "ti", "--json", str(written), "--docs", str(tmp_path)]) == 0
    )
    printed = capsys.readouterr().out
    for expected in (
        "time against softmax",
        "≤ 1.3 (stretch 1)",
        "load average",
        torch.__version__,
        "threads",
    ):
        assert expected in printed
    content = json.loads(written.read_text())
    assert [entry["who"] for entry in content["seconds"]] == ["structattn", "softmax"]
    assert all(0 < entry["minimum"] <= entry["median"] for entry in content["seconds"])
    assert content["findings"][0]["at_most"] == 1.3
    assert {"cpu", "threads", "kernels", "versions", "load average at start"} <= content["environment"].keys()
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| TINY | time against softmax |" in text


def test_a_page_without_marks_is_refused(tmp_path):
    (tmp_path / "page.md").write_text("nothing to fill in")
    with pytest.raises(ValueError, match="measured: begin"):
        report.write_page(tmp_path / "page.md", [], [])


def test_benchmarks_are_chosen_by_how_they_begin():
    assert list(command.chosen(())) == list(command.BENCHMARKS)
    assert list(command.chosen(["tag", "SEG"])) == ["SEG", "TAG", "TAG-LOSS"]
    with pytest.raises(ValueError, match="expected the beginning of one of SEG"):
        command.chosen(["SAG"])


def test_slope():
    assert studies.slope({n: 5.0 * n**3 for n in (20, 40, 80)}) == pytest.approx(3)


@pytest.mark.parametrize("layer", [layers.segmentation, layers.syntactic, SMALL_TRANSLATION])
def test_layer_benchmarks_refuse_wrong_marginals(layer, monkeypatch):
    for structure in (LinearChain, ProjectiveTree):
        right = structure.marginals.fget

        def wrong(self, right=right):
            return right(self) ** (1.0 if selected_backend() == "plain" else 1.1)

        monkeypatch.setattr(structure, "marginals", property(wrong))
    with pytest.raises(Disagreement):
        layer(SETTINGS)


def test_the_translation_model_is_timed():
    found = SMALL_TRANSLATION(SETTINGS)
    assert [finding.at_most for finding in found.findings] == [1.10, 1.02]
    found.add(translation.search(SETTINGS, sentences=3, length=4, size=6))
    assert len(found.contestants) == 6
    assert all(contestant.seconds for _, contestant in found.contestants)


# torch.compile computes the same function as the torch loop, after half a minute.
@pytest.mark.parametrize("name", [name for name in peers.PEERS if name != "torch.compile"])
def test_peers_compute_what_we_compute_or_say_why_not(name, problem):
    contestants, notes = peers.enter(problem, 1.0, [name])
    assert not [note for note in notes if "left out" in note]
    for contestant in contestants:
        contestant.step()


def test_a_peer_that_fails_or_is_wrong_is_left_out(monkeypatch):
    def broken(problem):
        raise RuntimeError("too old")

    def wrong(problem):
        return peers.Entry(lambda: None, lambda: problem.result() + 1)

    monkeypatch.setattr(peers, "PEERS", {"broken": broken, "wrong": wrong})
    contestants, notes = peers.enter(trees(1, 3), 1.0)
    assert not contestants
    assert notes == [
        "broken does not work here: RuntimeError: too old",
        "wrong is left out: its result is off by 1.0e+00",
    ]


def test_the_scaling_picture(tmp_path):
    pytest.importorskip("matplotlib")
    picture.draw({"chains": {20: 1e-3, 40: 2e-3}, "trees": {20: 1e-3, 40: 8e-3}}, tmp_path / "scaling.svg")
    assert "<svg" in (tmp_path / "scaling.svg").read_text()
