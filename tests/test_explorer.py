"""The explorer: its numbers against enumeration and against the runs' own, and the page in a real browser."""

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import oracle
import pytest
import torch
from stories import write_task

from structattn import cli
from structattn.recipes.errors import UserError
from structattn.recipes.running import open_run
from structattn.recipes.tasks import RECIPES
from structattn.recipes.temperature import at_temperature
from structattn.show import figures, playground
from structattn.show.explorer_page import html_of, to_html
from structattn.show.view import View
from structattn.structures.chain import LinearChain
from structattn.structures.projective import ProjectiveTree

SMALL = [
    "train_per_depth=30",
    "valid_per_depth=5",
    "test_per_depth=4",
    "size=8",
    "epochs=1",
    "train_depths=[2]",
]
UNARY = torch.tensor([[0.0, -0.5], [0.0, 0.4], [0.0, 1.2]], dtype=torch.float64)
TRANSITIONS = torch.tensor([[0.7, 0.0], [0.0, 0.7]], dtype=torch.float64)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Folders of four small runs: three of transduction and one of question answering."""
    folder = tmp_path_factory.mktemp("runs")
    write_task(folder)
    shared = ["--threads", "1", "--quiet", "--run"]
    for attention in ("structured", "simple", "none"):
        train = ["train", "transduction", "--attention", attention, *shared, str(folder / attention)]
        assert cli.main([*train, "--set", *SMALL]) == 0
    train = ["train", "qa", "--task", "2", *shared, str(folder / "binary")]
    assert cli.main([*train, "--set", f"folder={folder}", "epochs=2", "linear_start=1"]) == 0
    return {name: folder / name for name in ("structured", "simple", "none", "binary")}


def test_a_chain_equals_enumeration_at_every_temperature():
    for temperature in (0.5, 1.0, 3.0):
        view = playground.view_chain("the old man", UNARY, TRANSITIONS, temperature)
        found = oracle.chain(UNARY / temperature, (TRANSITIONS / temperature).expand(2, 2, 2))
        assert view.numbers["log_partition"] == pytest.approx(found.log_partition.item())
        torch.testing.assert_close(
            torch.tensor(view.numbers["marginals"], dtype=torch.float64), found.marginals
        )
    assert "best sequence: the/1 old/1 man/1" in view.answer


@pytest.mark.parametrize("structure", playground.TREES)
@pytest.mark.parametrize("single_root", [False, True])
def test_a_sentence_equals_enumeration_and_its_seed_decides(structure, single_root):
    view = playground.view_sentence("a b c", structure, single_root, 3, 2.0)
    arcs = torch.tensor(view.numbers["arcs"], dtype=torch.float64) / 2
    found = oracle.tree(arcs, structure == "projective trees", single_root)
    torch.testing.assert_close(torch.tensor(view.numbers["marginals"], dtype=torch.float64), found.marginals)
    assert view.numbers == playground.view_sentence("a b c", structure, single_root, 3, 2.0).numbers
    assert view.numbers != playground.view_sentence("a b c", structure, single_root, 4, 2.0).numbers


@pytest.mark.parametrize("structure", playground.STRUCTURES)
def test_near_zero_the_best_is_left_and_every_picture_is_drawn(structure, tmp_path):
    cold, warm = (playground.view_sentence("a b $ c", structure, False, 1, t) for t in (0.05, 5.0))
    largest = torch.tensor(cold.numbers["marginals"]).max(0 if len(cold.numbers["marginals"]) == 5 else 1)
    assert largest.values.mean() > torch.tensor(warm.numbers["marginals"]).max(0).values.mean()
    for title, picture in cold.pictures.items():
        picture(tmp_path / f"{title}.svg")
        ElementTree.fromstring((tmp_path / f"{title}.svg").read_text())


def test_what_forbids_everything_says_so():
    view = playground.view_chain("a b", UNARY[:2] - torch.inf, TRANSITIONS, 1.0)
    assert "nothing is possible" in view.answer
    assert view.numbers["log_partition"] == "-inf"


@pytest.mark.parametrize(
    ("make", "what"),
    [
        (lambda: playground.words_of(" "), "1 to 30 words, not of 0"),
        (lambda: playground.words_of("a " * 31), "not of 31"),
        (lambda: playground.words_of("a" * 1000), "has 1000"),
        (lambda: playground.words_of("a" * 10_000), "at most 5000 letters"),
        (lambda: playground.words_of("a\x00b"), "cannot be printed"),
        (lambda: playground.scores_of([["0", "abc"]], "scores"), "scores, row 1, column 2: .*'abc'"),
        (lambda: playground.scores_of([["nan"]], "scores"), "found nan"),
        (lambda: playground.scores_of([["inf"]], "scores"), "found inf"),
        (lambda: playground.scores_of([[None]], "scores"), "found 'None'"),
        (lambda: playground.random_scores(-1, 2), "seed"),
        (lambda: playground.random_scores(None, 2), "seed"),
        (
            lambda: playground.view_sentence("a", "projective", False, 1, 1.0),
            'did you mean "projective trees"',
        ),
        (lambda: at_temperature(LinearChain(UNARY), 0.0), "temperature"),
        (lambda: at_temperature(LinearChain(UNARY), float("nan")), "temperature"),
    ],
)
def test_absurd_input_gets_a_message(make, what):
    with pytest.raises(UserError, match=what):
        make()


def test_a_view_is_escaped_and_a_message_too():
    shown = to_html(View("", "<script>alert(1)</script>", {}, {}))
    assert "<script>" not in shown
    assert "&lt;script&gt;" in shown

    def refuse():
        raise UserError("no <b>")

    assert "no &lt;b&gt;" in html_of(refuse)()


def test_a_message_that_quotes_a_long_input_is_cut_in_its_middle():
    def refuse():
        raise UserError("the input " + "x" * 5000 + " is not closed")

    shown = html_of(refuse)()
    assert len(shown) < 600
    assert "the input x" in shown
    assert "x is not closed" in shown


@pytest.mark.parametrize("port", [99_999, -1])
def test_a_port_that_there_is_not_is_refused(port):
    pytest.importorskip("gradio")
    from structattn.show.explorer import build, serve

    with pytest.raises(UserError, match=f"cannot listen at 127.0.0.1:{port}: choose another"):
        serve(build([]), "127.0.0.1", port, False)


def test_every_task_has_pictures_and_a_view():
    assert set(figures.VIEWS) == set(figures.PICTURES) == set(RECIPES)


def test_a_run_is_seen_as_it_predicts_and_as_its_marginals_are(runs):
    run = open_run(runs["structured"])
    view = figures.view(run, "(* (+ 1 2) 3)", 1.0)
    assert [view.answer] == list(run.recipe.predict(run.model, ["(* (+ 1 2) 3)"]))
    assert set(view.pictures) == {"heat map", "arcs"}
    parents = torch.tensor(view.numbers["parents"])
    torch.testing.assert_close(parents[:, 1:].sum(0), torch.ones(len(parents) - 1))
    source = torch.tensor([run.recipe.numbers(view.numbers["symbols"])])
    scores = run.model.parents.scores(run.model.embedding(source))[0]
    sharper = torch.tensor(figures.view(run, "(* (+ 1 2) 3)", 0.05).numbers["parents"])
    torch.testing.assert_close(sharper, ProjectiveTree(scores / 0.05).marginals)
    assert not torch.allclose(sharper, parents)
    simple = figures.view(open_run(runs["simple"]), "(* (+ 1 2) 3)", 0.5).numbers["parents"]
    torch.testing.assert_close(torch.tensor(simple).sum(0), torch.ones(len(simple)))
    with pytest.raises(UserError, match="1 to 200 symbols"):
        figures.view(run, "(+ " + "1 " * 300 + ")", 1.0)


def test_a_story_is_followed_and_never_read_as_a_path(runs):
    run = open_run(runs["binary"])
    view = figures.view(run, None, 1.0)
    assert view.text.endswith("?")
    nodes = torch.tensor(view.numbers["nodes"])
    torch.testing.assert_close(nodes.sum(1), torch.ones(2))
    found = run.recipe.follow(run.model, run.recipe.splits["test"][0])
    places = [fact - min(found.facts) for fact in found.facts]
    edges = torch.tensor(view.numbers["edges"])
    torch.testing.assert_close(nodes[:, places], found.nodes)
    torch.testing.assert_close(edges[:, places][:, :, places], found.edges)
    assert len(set(places)) > 2, "so that their order matters"
    sharper = torch.tensor(figures.view(run, view.text, 0.05).numbers["nodes"])
    assert sharper.max(1).values.sum() > nodes.max(1).values.sum()
    assert figures.view(run, view.text, 0.05).answer == view.answer
    with pytest.raises(UserError, match="nothing is asked"):
        figures.view(run, str(runs["binary"] / "config.toml"), 1.0)


@pytest.fixture(scope="module")
def address(runs):
    """The page of `structattn explore` with all runs, in a process of its own."""
    pytest.importorskip("gradio")
    pytest.importorskip("playwright")
    if CHROMIUM is None:
        pytest.skip("Chromium is not installed")
    program = [sys.executable, "-m", "structattn.cli", "explore", *map(str, runs.values()), "--no-browser"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(program, env=environment, stdout=subprocess.PIPE, text=True) as process:
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert found, "the first line is the address"
        yield found[0]
        process.terminate()


@pytest.fixture(scope="module")
def browser(address):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser, address):
    """A page that must have no console error, no failed request and no request to anywhere else."""
    page, problems = browser.new_page(), []
    page.set_default_timeout(60_000)  # on a busy machine
    page.on("console", lambda message: problems.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("dialog", lambda dialog: problems.append(dialog.message))
    page.on("response", lambda response: problems.append(response.url) if response.status >= 400 else None)
    # The page ends its stream of events by hanging up.
    page.on(
        "requestfailed", lambda request: None if "queue/data" in request.url else problems.append(request.url)
    )
    inside = (address, "data:", "blob:")
    page.on(
        "request", lambda request: None if request.url.startswith(inside) else problems.append(request.url)
    )
    page.goto(address)
    yield page
    page.close()
    assert problems == []


def numbers(view, differ_from=None):
    """The numbers that a view offers for download, once they are others than those."""
    link = view.get_by_text("numbers (JSON)")
    for _ in range(600):
        encoded = link.get_attribute("href").partition("base64,")[2]
        found = json.loads(base64.b64decode(encoded))
        if found != differ_from:
            return found
        view.page.wait_for_timeout(100)
    raise AssertionError("the numbers stay the same")


def set_temperature(page, value):
    field = page.get_by_role("tabpanel").filter(visible=True).get_by_label("number input for Temperature")
    field.fill(str(value))
    field.press("Enter")


def test_a_sentence_in_the_browser(page):
    page.get_by_role("tab", name="Sentence").click()
    view = page.locator("#sentence-view")
    before = numbers(view)
    page.get_by_label("Sentence", exact=True).fill("<b>a</b> <img/src/onerror=f()> c")
    found = numbers(view, before)
    assert found["symbols"][1] == "<b>a</b>"
    expected = oracle.tree(torch.tensor(found["arcs"], dtype=torch.float64), True, False)
    torch.testing.assert_close(torch.tensor(found["marginals"], dtype=torch.float64), expected.marginals)
    assert f"entropy = {found['entropy']:.3f}" in view.inner_text()
    assert view.locator("img").count() == 2
    assert view.locator("b").count() == 0
    set_temperature(page, 0.1)
    assert numbers(view, found)["entropy"] < found["entropy"]
    page.get_by_label("Sentence", exact=True).fill("a " * 40)
    view.get_by_role("alert").get_by_text("not of 40").wait_for()


def test_potentials_are_edited_in_the_browser(page):
    page.get_by_role("tab", name="Potentials").click()
    view, table = page.locator("#potentials-view"), page.locator("#unary")
    before = numbers(view)
    assert before["unary"][2] == [0.0, 1.2]
    edit(table, "1.2", "-inf")
    found = numbers(view, before)
    assert found["unary"][2] == [0.0, "-inf"]
    assert found["marginals"][2] == [1.0, 0.0]
    edit(table, "0.4", "much")
    view.get_by_role("alert").get_by_text("expected a number or -inf, found 'much'").wait_for()


def edit(table, text, new):
    cell = table.get_by_role("gridcell", name=text).or_(table.locator("td").filter(has_text=text)).first
    cell.dblclick()
    editor = table.locator("textarea:focus, input:focus")  # which a busy machine is slow to open
    editor.fill(new)
    editor.press("Enter")


def test_runs_beside_one_another_in_the_browser(page, runs, tmp_path):
    left, right = page.locator("#left-view"), page.locator("#right-view")
    assert numbers(left)["attention"] == "structured"
    assert numbers(right)["attention"] == "simple"
    before = numbers(left)
    page.get_by_label("Input", exact=True).fill("(+ 3 4)")
    page.get_by_role("button", name="Show").click()
    found = numbers(left, before)
    run = open_run(runs["structured"])
    assert found["infix"] == next(run.recipe.predict(run.model, ["(+ 3 4)"]))
    assert found["infix"] in left.inner_text()
    with page.expect_download() as download:
        left.get_by_text("PNG").first.click()
    download.value.save_as(tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")
    with page.expect_download() as download:
        left.get_by_text("SVG").first.click()
    download.value.save_as(tmp_path / "picture.svg")
    assert ElementTree.parse(tmp_path / "picture.svg").getroot().tag.endswith("svg")
    page.get_by_label("Input", exact=True).fill("1 " * 4000)
    page.get_by_role("button", name="Show").click()
    left.get_by_role("alert").get_by_text("at most 5000 letters").wait_for()
    page.get_by_label("Input", exact=True).fill("(+ 3")
    page.get_by_role("button", name="Show").click()
    left.get_by_role("alert").get_by_text("not closed").wait_for()


def test_a_run_named_none_can_stand_beside_another_and_attends_to_nothing(page):
    left, right = page.locator("#left-view"), page.locator("#right-view")
    choose(page, "Beside it", "none")
    right.get_by_text("there is nothing to draw").wait_for()
    assert "infix" in numbers(right)
    before = numbers(left)
    set_temperature(page, 0.1)
    sharper = numbers(left, before)
    assert max(max(row) for row in sharper["parents"]) > max(max(row) for row in before["parents"])
    choose(page, "Beside it", "nothing")
    right.wait_for(state="hidden")
    choose(page, "Run", "binary")
    found = numbers(left, sharper)
    assert len(found["nodes"]) == 2
    assert page.get_by_label("Input", exact=True).input_value().endswith(found["question"])


def choose(page, label, name):
    page.get_by_label(label, exact=True).click()
    page.get_by_role("option", name=re.compile(rf"\b{name}$")).click()
