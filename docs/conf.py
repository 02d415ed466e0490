"""Sphinx configuration: `make docs`."""

import re

from docutils.nodes import SkipNode
from docutils.utils.math.latex2mathml import tex2mathml

project = "structattn"
author = "the structattn authors"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "structattn"
html_show_copyright = False
html_math_renderer = "mathml"
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "description"


def as_restructured_text(_app, _what, _name, _object, _options, lines):
    """Docstrings are written to be read in an editor: columns stay columns, and a star is a star."""
    paragraphs = re.split(r"\n\s*\n", "\n".join(lines).strip("\n"))
    in_directive, result = False, []
    for paragraph in paragraphs:
        in_directive = paragraph.lstrip().startswith("..") or (in_directive and paragraph.startswith(" "))
        if in_directive:
            result.append(paragraph)
        elif re.search(r"\S {2,}\S|^ ", paragraph, re.MULTILINE):
            result.append("::\n\n" + re.sub("^", "    ", paragraph, flags=re.MULTILINE))
        else:
            result.append(re.sub(r"([*|]|_\b)", r"\\\1", paragraph))
    lines[:] = [*"\n\n".join(result).split("\n"), ""]


def inline_formula(translator, node):
    translator.body.append(mathml(node.astext(), as_block=False))
    raise SkipNode


def formula(translator, node):
    translator.body.append(
        f'<div class="math" style="margin: 1em 0">{mathml(node.astext(), as_block=True)}</div>'
    )
    raise SkipNode


def mathml(tex, as_block):
    """What docutils does not know is said otherwise; brackets grow by themselves, and "log Z" are two words."""
    tex = re.sub(r"\\[bB]igg?[lr]?(?![A-Za-z])", "", tex)
    found = tex2mathml(re.sub(r"\\dots(?![A-Za-z])", r"\\ldots", tex), as_block=as_block)
    return re.sub(r"<mo>&ApplyFunction;</mo>(?!\s*<mo[^>]*>\()", '<mspace width="0.17em"/>', found)


def setup(app):
    # Browsers show MathML by themselves: pages need no script from outside, and can be read without a network.
    app.add_html_math_renderer("mathml", (inline_formula, None), (formula, None))
    app.connect("autodoc-process-docstring", as_restructured_text)
