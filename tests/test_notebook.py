"""The notebook runs, on a few examples, and what is committed of it is executed, free of errors and small."""

import json
from pathlib import Path

import torch

NOTEBOOK = Path(__file__).parent.parent / "examples" / "figures.ipynb"
CELLS = [
    cell for cell in json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"
]


def test_its_cells_run_in_order_and_draw_every_picture(monkeypatch, tmp_path):
    monkeypatch.setenv("STRUCTATTN_EXAMPLES", "40")
    monkeypatch.setenv("STRUCTATTN_FIGURES", str(tmp_path / "figures"))
    names = {"__name__": "__main__"}
    threads = torch.get_num_threads()
    for number, cell in enumerate(CELLS):
        exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
    torch.set_num_threads(threads)
    assert {path.name for path in names["folder"].glob("*.png")} == {
        "parents.png",
        "curves.png",
        "segments.png",
        "lattice.png",
    }


def test_it_is_executed_and_small():
    outputs = [output for cell in CELLS for output in cell["outputs"]]
    assert [cell["execution_count"] for cell in CELLS] == list(range(1, len(CELLS) + 1))
    assert all(output["output_type"] != "error" for output in outputs)
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 4
    assert NOTEBOOK.stat().st_size < 250_000
