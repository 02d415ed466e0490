"""Pictures by their structure: what is drawn, escaped, and the same twice."""

import xml.etree.ElementTree as ElementTree

import pytest
import torch

from structattn.recipes.errors import UserError
from structattn.show import style
from structattn.show.arcs import arcs_svg, draw_arcs
from structattn.show.heat_map import Parents, draw_heat_maps

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
    assert [text.text for text in groups[1].findall(f"{SVG}text")] == ["structured", "$", "a", "b"]
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
