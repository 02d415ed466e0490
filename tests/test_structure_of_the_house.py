"""Imports point one way only, the core needs torch alone, and what is heavy is imported when it is needed."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import structattn

PACKAGE = Path(structattn.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))
# Each may import what has a lower or the same rank. The package itself only gathers the names of the core.
RANKS = {"kernels": 0, "structures": 1, "paper": 1, "attention": 2, "": 3, "recipes": 4, "show": 5}
RANKS |= {"benchmarks": 5, "cli": 6, "__main__": 7}
CORE = 3
EXTRAS = {"cyclopts", "gradio", "lightning", "matplotlib", "pooch", "ray", "rich", "sacrebleu", "safetensors"}


def part(names):
    """The part of the house that a module belongs to: structattn.kernels.native -> kernels."""
    return names[1] if len(names) > 1 else ""


def imported_part(names):
    """The same for an imported name, which may be an object of the package, as structattn.LinearChain."""
    return part(names) if part(names) in RANKS else ""


def home(path):
    names = ["structattn", *path.relative_to(PACKAGE).with_suffix("").parts]
    return names[:-1] if names[-1] == "__init__" else names


def imports(path):
    """Every module that a file imports, at the top or inside a function, as lists of names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            package = home(path) if path.name == "__init__.py" else home(path)[:-1]
            base = package[: len(package) + 1 - node.level] if node.level else []
            base = [*base, *(node.module.split(".") if node.module else [])]
            yield from ([*base, alias.name] for alias in node.names)


def test_there_is_something_to_walk():
    assert {"kernels", "structures"} <= {part(home(path)) for path in MODULES}
    assert ["torch"] in imports(PACKAGE / "kernels" / "native.py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_arrow_points_back_and_the_core_imports_torch_only(path):
    assert part(home(path)) in RANKS, "a new part of the house: give it its rank"
    rank = RANKS[part(home(path))]
    for names in imports(path):
        if names[0] == "structattn":
            assert RANKS[imported_part(names)] <= rank, f"{'.'.join(names)} is above {part(home(path))}"
        elif rank <= CORE:
            assert names[0] == "torch" or names[0] in sys.stdlib_module_names, f"the core imports {names[0]}"


def test_no_module_is_called_utils():
    assert not [path for path in MODULES if path.stem in ("utils", "util", "helpers", "common", "misc")]


def test_no_star_imports():
    assert not [(path, names) for path in MODULES for names in imports(path) if names[-1] == "*"]


def test_importing_the_package_brings_no_extras():
    program = "import sys, torch; old = set(sys.modules); import structattn; print(*set(sys.modules) - old)"
    printed = subprocess.check_output([sys.executable, "-c", program], text=True)
    brought = [name.split(".") for name in printed.split()]
    assert ["structattn"] in brought
    assert not {part(names) for names in brought if names[0] == "structattn"} & {"recipes", "show", "cli"}
    assert not {names[0] for names in brought} & EXTRAS


def test_only_training_imports_what_training_needs():
    program = (
        "import sys; from structattn.recipes import tasks; list(map(tasks.recipe_class, tasks.RECIPES)); "
    )
    printed = subprocess.check_output([sys.executable, "-c", program + "print(*sys.modules)"], text=True)
    brought = {name.split(".")[0] for name in printed.split()}
    assert "structattn" in brought
    assert not brought & {"lightning_fabric", "matplotlib", "ray"}  # a second more before a prediction starts


def test_the_oracle_shares_no_code_with_what_it_judges():
    oracle = Path(__file__).with_name("oracle.py")
    assert {names[0] for names in imports_of_test(oracle)} <= {"itertools", "math", "functools", "torch"}


def imports_of_test(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module.split(".")
