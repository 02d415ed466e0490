"""What a picture says, read back from its SVG: which cell is dark, which are framed, how thick and wide a line is."""

import base64
import io
import re
import xml.etree.ElementTree as ElementTree

import torch

from structattn.recipes.run_folder import RunFolder
from structattn.show import style
from structattn.show.arcs import arcs_svg
from structattn.show.curves import draw_curves
from structattn.show.heat_map import Grid, Parents, draw_heat_maps
from structattn.show.lattice import Lattice, draw_lattices

SVG = "{http://www.w3.org/2000/svg}"
BEST = style.SERIES[1]


def read(draw, panels, folder):
    draw(panels, folder / "a.svg")
    return ElementTree.parse(folder / "a.svg")


def cells(tree, rows, columns):
    """The colours of a heat map's cells (rows, columns, 3), from the middle of each."""
    from matplotlib.image import imread

    image = next(tree.iter(f"{SVG}image"))
    encoded = image.get("{http://www.w3.org/1999/xlink}href").partition("base64,")[2]
    pixels = torch.tensor(imread(io.BytesIO(base64.b64decode(encoded)))[..., :3])
    if image.get("transform", "").startswith("scale(1 -1)"):
        pixels = pixels.flip(0)
    down = ((torch.arange(rows) + 0.5) / rows * len(pixels)).long()
    right = ((torch.arange(columns) + 0.5) / columns * pixels.shape[1]).long()
    return pixels[down][:, right]


def numbers_of(path):
    return torch.tensor([float(number) for number in re.findall(r"-?[\d.]+", path.get("d"))]).view(-1, 2)


def value_of(element, name):
    return re.search(rf"(?:^|[ ;]){name}: ([^;]+)", element.get("style"))[1]


def test_a_cell_has_the_colour_of_its_probability_on_a_scale_from_0_to_1(tmp_path):
    values = torch.tensor([[0.0, 0.5, 0.25], [0.75, 0.0, 0.1]])
    found = cells(
        read(draw_heat_maps, [Grid("", ["a", "b"], ["x", "y", "z"], values, "", "")], tmp_path), 2, 3
    )
    expected = torch.tensor(style.probability_colours()(values.numpy())[..., :3])
    torch.testing.assert_close(found.double(), expected, atol=0.02, rtol=0)


def test_a_row_is_a_symbol_and_a_column_its_parent(tmp_path):
    marginals = torch.zeros(3, 3)
    marginals[0, 2] = 1.0  # "$" is the parent of "b"
    tree = read(draw_heat_maps, [Parents("", ["$", "a", "b"], marginals)], tmp_path)
    darkness = 3 - cells(tree, 3, 3).sum(2)
    assert divmod(int(darkness.argmax()), 3) == (2, 0)
    turned = {text.text: "rotate(-90" in text.get("transform") for text in tree.iter(f"{SVG}text")}
    assert turned["symbol"], "beside the rows"
    assert not turned["parent"], "below the columns"


def test_frames_stand_around_neighbours_that_are_chosen(tmp_path):
    chosen = torch.tensor(
        [[True, True, False, True], [False, False, False, False], [False, True, True, True]]
    )
    grid = Grid("", list("abc"), list("wxyz"), torch.zeros(3, 4), "", "", chosen)
    tree = read(draw_heat_maps, [grid], tmp_path)
    frames = [numbers_of(path) for path in tree.iter(f"{SVG}path") if BEST in path.get("style", "")]
    boxes = [torch.cat((frame.min(0).values, frame.max(0).values)) for frame in frames]
    cell = boxes[1][2] - boxes[1][0]
    corner = boxes[0][:2]
    found = [((box - corner.repeat(2)) / cell).round().int().tolist() for box in boxes]
    assert found == [[0, 0, 2, 1], [3, 0, 4, 1], [1, 2, 4, 3]]


def test_arcs_that_are_more_probable_than_not_have_a_tip():
    marginals = torch.zeros(3, 3)
    marginals[0, 1], marginals[1, 2], marginals[0, 2] = 0.5, 0.7, 0.3
    tree = ElementTree.fromstring(arcs_svg([Parents("", ["$", "a", "b"], marginals)]))
    tips = {arc.get("stroke-opacity"): arc.get("marker-end") for arc in tree.findall(f"{SVG}g/{SVG}path")}
    assert tips == {"0.50": "url(#tip)", "0.70": "url(#tip)", "0.30": None}


def test_a_lattice_has_large_nodes_and_wide_lines_where_probability_is_and_its_best_in_colour(tmp_path):
    nodes = torch.tensor([[0.1, 0.3, 0.6], [0.7, 0.2, 0.1]])
    edges = torch.zeros(1, 3, 3)
    edges[0, 2, 0], edges[0, 1, 2] = 0.6, 0.1
    tree = read(draw_lattices, [Lattice("", list("abc"), nodes, edges, [], [2, 0])], tmp_path)
    steps = [group for group in tree.iter(f"{SVG}g") if group.get("id", "").startswith("PathCollection")]
    circles = [list(step.iter(f"{SVG}path")) for step in steps]
    areas = torch.stack([torch.stack([area(circle) for circle in step]) for step in circles])
    torch.testing.assert_close(areas / areas.max(), (nodes * 260 + 4) / 186, atol=0.01, rtol=0)
    assert [[value_of(circle, "fill") == BEST for circle in step] for step in circles] == [
        [False, False, True],
        [True, False, False],
    ]
    middle = [[numbers_of(circle).mean(0) for circle in step] for step in circles]
    lines = [path for path in tree.iter(f"{SVG}path") if "stroke-opacity" in path.get("style", "")]
    wide, narrow = sorted(lines, key=lambda line: -float(value_of(line, "stroke-width")))
    assert (value_of(wide, "stroke"), value_of(narrow, "stroke")) == (BEST, style.WEIGHT)
    for line, (source, target) in ((wide, (2, 0)), (narrow, (1, 2))):
        ends = torch.stack((middle[0][source], middle[1][target]))
        torch.testing.assert_close(numbers_of(line), ends, atol=2.0, rtol=0)


def area(circle):
    size = numbers_of(circle)
    return (size.max(0).values - size.min(0).values).prod()


def test_curves_rise_where_values_do_and_only_validation_is_dashed(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.toml").write_text("")
    run = RunFolder(tmp_path / "run")
    run.write_metrics(
        [{"epoch": n, "loss": 9.0 - n, "valid_loss": 4.0, "valid_uas": 10.0 * n} for n in (1, 2, 3)]
    )
    tree = read(draw_curves, [run], tmp_path)
    lines = [
        path
        for path in tree.iter(f"{SVG}path")
        if style.SERIES[0] in path.get("style", "") and len(numbers_of(path)) == 3 and path.get("clip-path")
    ]
    loss, valid, uas = (numbers_of(line) for line in lines)
    assert loss[0, 1] < loss[1, 1] < loss[2, 1], "down on the page"
    assert uas[0, 1] > uas[1, 1] > uas[2, 1]
    assert valid[:, 1].unique().numel() == 1
    assert ["stroke-dasharray" in line.get("style") for line in lines] == [False, True, True]
    assert "validation unlabeled attachment score (%)" in {text.text for text in tree.iter(f"{SVG}text")}
