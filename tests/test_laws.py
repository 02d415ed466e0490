"""Runs every law for every structure, in plain torch and with the kernels; the core laws on paper too."""

import laws
import laws_of_verbs  # noqa: F401 - registers its laws
import pytest

import structattn as sa

PAPER = [pair for pair in laws.PAIRS if pair[0] in laws.PAPER and not str(pair[1]).startswith("nonproj")]


def identify(item):
    return getattr(item, "__name__", None) or str(item)


@pytest.mark.parametrize("backend", ["plain", "auto"])
@pytest.mark.parametrize(("law", "case"), laws.PAIRS, ids=identify)
def test_law(law, case, backend):
    with sa.backend(backend):
        law(case)


@pytest.mark.parametrize(("law", "case"), PAPER, ids=identify)
def test_law_as_the_paper_prints_it(law, case):
    with sa.backend("paper"):
        law(case)
