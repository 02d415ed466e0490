"""Pictures by their structure: what is drawn, escaped, and the same twice."""

import importlib.util
import re
import xml.etree.ElementTree as ElementTree

import pytest
import torch

from structattn.recipes.errors import UserError
from structattn.recipes.run_folder import RunFolder
from structattn.show import style
from structattn.show.arcs import arcs_svg, draw_arcs
from structattn.show.curves import draw_curves
from structattn.show.heat_map import Grid, Parents, draw_heat_maps
from structattn.show.lattice import Lattice, draw_lattices

SVG = "{http://www.w3.org/2000/svg}"


def panel(symbols="$ a b", title="simple"):
    symbols = symbols.split()
    marginals = torch.zeros(len(symbols), len(symbols))
    marginals[0, 1], marginals[1, 2], marginals[0, 2] = 1.0, 0.75, 0.25
    return Parents(title, symbols, marginals)


def test_arcs_are_well_formed_and_as_many_as_there_are_probable_parents():
    tree = ElementTree.fromstring(arcs_svg([panel(), panel(title="structured")]))
    groups = tree.findall(f"{SVG}g")
    assert len(groups) == 2
    arcs = groups[0].findall(f"{SVG}path")
    assert sorted(arc.get("stroke-opacity") for arc in arcs) == ["0.25", "0.75", "1.00"]
    texts = [text.text for text in groups[1].findall(f"{SVG}text")]
    assert texts == ["structured", "0.75", "$", "a", "b"], "a number where it is neither faint nor certain"
    assert len(ElementTree.fromstring(arcs_svg([panel()], least=0.5)).findall(f".//{SVG}title")) == 2


def test_arcs_stay_inside_the_picture():
    n = 60
    marginals = torch.zeros(n, n)
    marginals[0, n - 1] = marginals[n - 1, 1] = 1.0
    tree = ElementTree.fromstring(arcs_svg([Parents("long", ["20"] * n, marginals)]))
    width = float(tree.get("width"))
    for text in tree.findall(f".//{SVG}text"):
        assert 0 <= float(text.get("x")) <= width
    for arc in tree.findall(f"{SVG}g/{SVG}path"):
        base = float(arc.get("d").split("C")[0].split()[1])
        control = float(arc.get("d").split("C")[1].split()[1])
        assert base - 0.75 * (base - control) >= 20, "below the title"


def test_an_arc_goes_from_its_parent_to_its_symbol_and_no_two_leave_from_one_point():
    marginals = torch.zeros(4, 4)
    marginals[2, 0] = marginals[2, 1] = marginals[2, 3] = 1.0
    tree = ElementTree.fromstring(arcs_svg([Parents("", ["$", "a", "b", "c"], marginals)]))
    middle = {text.text: float(text.get("x")) for text in tree.findall(f"{SVG}g/{SVG}text")}
    ends = {}
    for arc in tree.findall(f"{SVG}g/{SVG}path"):
        numbers = [float(number) for number in re.findall(r"[\d.]+", arc.get("d"))]
        ends[numbers[-2]] = numbers[0]
        assert arc.get("marker-end") == "url(#tip)"
    assert set(ends) == {middle[symbol] for symbol in "$ac"}
    assert ends[middle["a"]] < ends[middle["$"]] < middle["b"] < ends[middle["c"]] < middle["c"]


def test_numbers_on_arcs_do_not_cover_one_another_and_long_names_are_cut(tmp_path):
    marginals = torch.zeros(3, 3)
    marginals[1, 2], marginals[2, 1] = 0.7, 0.8
    one = Parents("", ["$", "a" * 500, "b"], marginals)
    texts = [text.text for text in ElementTree.fromstring(arcs_svg([one])).iter(f"{SVG}text")]
    assert texts == [None, "0.80", "$", "a" * 29 + "…", "b"]
    draw_heat_maps([one], tmp_path / "a.svg")
    assert float(ElementTree.parse(tmp_path / "a.svg").getroot().get("width").removesuffix("pt")) < 500


def test_symbols_are_escaped():
    svg = arcs_svg([panel('$ <b>&amp; "x"', title="<script>")])
    assert "<script>" not in svg
    assert "&lt;b&gt;&amp;amp;" in svg
    ElementTree.fromstring(svg)


def test_a_symbol_may_be_its_own_partner():
    marginals = torch.eye(3)
    tree = ElementTree.fromstring(arcs_svg([Parents("simple", ["$", "a", "b"], marginals)]))
    assert len(tree.findall(f"{SVG}g/{SVG}path")) == 3


def test_a_heat_map_is_the_same_file_twice_with_its_symbols_as_text(tmp_path):
    for name in ("a.svg", "b.svg"):
        draw_heat_maps([panel(), panel("$ x y", "structured")], tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    texts = [element.text for element in ElementTree.fromstring(text).iter(f"{SVG}text")]
    assert {"simple", "structured", "x", "y", "parent", "symbol"} <= set(texts)
    assert texts.count("$") == 4


def test_symbols_that_no_font_has_are_told_once_and_stay_text_in_svg(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(style, "JAPANESE_FONTS", ())
    grid = Grid("simple", ["a", "dog"], ["犬", "を"], torch.rand(2, 2), "target", "犬|を", torch.eye(2) > 0)
    draw_heat_maps([grid, grid], tmp_path / "a.svg")
    assert capsys.readouterr().err.count("no installed font has を") == 1
    tree = ElementTree.fromstring((tmp_path / "a.svg").read_text())
    texts = [element.text for element in tree.iter(f"{SVG}text")]
    assert texts.count("犬|を") == texts.count("犬") == 2


def test_a_font_that_a_viewer_need_not_have_comes_as_outlines(tmp_path, capsys):
    if importlib.util.find_spec(style.JAPANESE_PACKAGE) is None:
        pytest.skip(f"{style.JAPANESE_PACKAGE} is not installed")
    grid = Grid("simple", ["a"], ["犬", "を"], torch.rand(1, 2), "target", "source\n犬|を")
    draw_heat_maps([grid], tmp_path / "a.svg")
    tree = ElementTree.parse(tmp_path / "a.svg")
    assert capsys.readouterr().err == ""
    assert not list(tree.iter(f"{SVG}text"))
    assert len(list(tree.iter(f"{SVG}use"))) > 4


def test_cells_are_of_one_size_in_all_panels_and_rows_go_down(tmp_path):
    small, large = torch.eye(2), torch.eye(6)
    grids = [
        Grid("s", list("ab"), list("xy"), small, "r", "c"),
        Grid("l", ["m"] * 6, ["n"] * 6, large, "r", "c"),
    ]
    draw_heat_maps(grids, tmp_path / "a.svg")
    tree = ElementTree.parse(tmp_path / "a.svg")
    texts = [(text.text, place_of(text)) for text in tree.iter(f"{SVG}text")]
    place = dict(texts)
    wide = [x for text, (x, _) in texts if text == "n"]
    assert place["y"][0] - place["x"][0] == pytest.approx(wide[1] - wide[0], abs=0.1)
    assert place["a"][1] < place["b"][1]
    assert place["x"][1] == pytest.approx(place["y"][1])


def test_panels_that_a_page_is_too_narrow_for_stand_below(tmp_path):
    wide = torch.eye(3, 20)
    draw_heat_maps(
        [Grid(name, list("abc"), ["x"] * 20, wide, "r", "c") for name in ("one", "two", "three")],
        tmp_path / "a.svg",
    )
    texts = ElementTree.parse(tmp_path / "a.svg").iter(f"{SVG}text")
    place = {text.text: place_of(text) for text in texts if text.text in ("one", "two", "three")}
    assert place["one"][1] == pytest.approx(place["two"][1])
    assert place["three"][1] > place["one"][1] + 50
    assert place["three"][0] == pytest.approx(place["one"][0], abs=10)
    assert place["two"][0] > place["one"][0] + 100


def place_of(text):
    """Where it stands: matplotlib moves it, or its anchor, there."""
    moved = re.search(r"translate\(([\d.-]+)[ ,]+([\d.-]+)\)", text.get("transform", ""))
    return tuple(map(float, moved.groups())) if moved else (float(text.get("x")), float(text.get("y")))


@pytest.mark.parametrize("name", ["a.gif", "a", "missing/a.svg"])
def test_what_cannot_be_written_is_refused(tmp_path, name):
    with pytest.raises(UserError, match="--out"):
        draw_heat_maps([panel()], tmp_path / name)
    with pytest.raises(UserError, match="--out"):
        draw_arcs([panel()], tmp_path / (name if name != "a.gif" else "a.png"))


def test_colours_rise_from_paper_to_ink():
    colours = style.probability_colours()
    brightness = [sum(colours(value / 10)[:3]) for value in range(11)]
    assert brightness == sorted(brightness, reverse=True)


def run_with(folder, lines):
    run = RunFolder(folder)
    folder.mkdir()
    (folder / "config.toml").write_text("")
    run.write_metrics(lines)
    return run


def test_curves_have_a_line_for_each_value_of_each_run(tmp_path):
    line = {"loss": 2.0, "valid_loss": 3.0, "valid_accuracy": 50.0, "learning_rate": 1.0}
    one = run_with(tmp_path / "one", [{"epoch": 1, **line}, {"epoch": 2, **line}])
    several = [{"epoch": 1, "loss": [1.0, 2.0], "valid_loss": [2.0, 3.0], "valid_accuracy": [10.0, 20.0]}]
    two = run_with(tmp_path / "two", several)
    for name in ("a.svg", "b.svg"):
        draw_curves([one, two], tmp_path / name)
    text = (tmp_path / "a.svg").read_text()
    assert text == (tmp_path / "b.svg").read_text()
    texts = [element.text for element in ElementTree.fromstring(text).iter(f"{SVG}text")]
    named = {f"{run}, {part} loss" for run in ("one", "two") for part in ("training", "validation")}
    assert named | {"one", "two", "validation accuracy (%)", "epoch"} <= set(texts)
    assert not any("learning" in element for element in texts)


def test_curves_of_a_run_without_an_epoch_are_refused(tmp_path):
    with pytest.raises(UserError, match="no epoch to draw yet"):
        draw_curves([run_with(tmp_path / "new", [])], tmp_path / "a.svg")
    with pytest.raises(UserError, match="no run folder"):
        draw_curves([RunFolder(tmp_path / "nothing")], tmp_path / "a.svg")


def test_a_grid_has_its_names_and_a_dollar_is_a_dollar(tmp_path):
    grid = Grid("p", ["$x$ \\frac", "state 1"], ["a long name", "b"], torch.eye(2), "state", "word")
    draw_heat_maps([grid], tmp_path / "a.svg")
    texts = [element.text for element in ElementTree.parse(tmp_path / "a.svg").iter(f"{SVG}text")]
    assert {"$x$ \\frac", "state 1", "a long name", "b", "state", "word"} <= set(texts)


def test_a_lattice_has_a_node_for_every_fact_and_step_and_names_its_steps(tmp_path):
    nodes, edges = torch.tensor([[0.2, 0.3, 0.5]] * 2), torch.full((1, 3, 3), 1 / 9)
    panel = Lattice("chain", ["<a>", "b", "c"], nodes, edges, ["p = 0.1"], [0, 1], ["first", "second"])
    draw_lattices([panel], tmp_path / "a.svg")
    tree = ElementTree.parse(tmp_path / "a.svg")
    texts = [element.text for element in tree.iter(f"{SVG}text")]
    assert {"<a>", "b", "c", "first", "second", "chain", "p = 0.1"} <= set(texts)
    steps = [group for group in tree.iter(f"{SVG}g") if group.get("id", "").startswith("PathCollection")]
    assert [len(list(step.iter(f"{SVG}path"))) for step in steps] == [3, 3]
