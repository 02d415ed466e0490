"""Sphinx configuration: `make docs`."""

import re

project = "structattn"
author = "the structattn authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax"]
myst_enable_extensions = ["dollarmath", "amsmath", "deflist"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "structattn"
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


def setup(app):
    app.connect("autodoc-process-docstring", as_restructured_text)
