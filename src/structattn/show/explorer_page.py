"""What the explorer's page says and looks like, and a view as HTML: what a user typed is escaped, or in a picture."""

from __future__ import annotations

import base64
import html
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from structattn.recipes.errors import UserError
from structattn.show.view import Picture, View

FONT = ["system-ui", "DejaVu Sans", "Noto Sans", "sans-serif"]
FONT_MONO = ["ui-monospace", "DejaVu Sans Mono", "Noto Sans Mono", "monospace"]

_LONGEST_MESSAGE = 400

HEADING = """
<h1>structattn explorer</h1>
<p>Exact probabilities of chains and trees. Move the temperature: near 0 only the best structure is left, far above 1
all structures are alike.</p>
"""

POTENTIALS = """
<p>Edit any cell (double click), or write <code>-inf</code> to forbid something. A word per row, a state per column;
rows and columns can be added from the menus of the tables, transitions as many as there are states.</p>
"""

STYLE = """
.answer { white-space: pre-wrap; tab-size: 12; font-size: 1rem; margin: 0.5rem 0; }
.problem { border-left: 4px solid #d55e00; padding: 0.5rem 1rem; }
figure { margin: 1rem 0; overflow-x: auto; }
figure img { max-width: 100%; height: auto; background: #ffffff; }
.downloads { font-size: 0.85rem; }
.downloads a { text-decoration: underline; }
"""

SCRIPT = """
<script>
// PNG: the SVG of the same figure, drawn at twice its size.
document.addEventListener("click", (event) => {
  if (!event.target.matches("a.png")) return;
  event.preventDefault();
  const picture = event.target.closest("figure").querySelector("img");
  const canvas = document.createElement("canvas");
  canvas.width = 2 * picture.naturalWidth;
  canvas.height = 2 * picture.naturalHeight;
  canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
  const link = document.createElement("a");
  link.href = canvas.toDataURL("image/png");
  link.download = event.target.download;
  link.click();
});
</script>
"""


def html_of(make: Callable[..., View]) -> Callable[..., str]:
    """What the function makes, as HTML; or what is wrong with its input."""

    def show(*inputs: Any) -> str:
        try:
            return to_html(make(*inputs))
        except UserError as error:
            return f'<p class="problem" role="alert">{html.escape(_brief(str(error)))}</p>'

    return show


def _brief(message: str) -> str:
    """A message may quote the input, at any length: its beginning and its end say what is wrong."""
    if len(message) <= _LONGEST_MESSAGE:
        return message
    half = _LONGEST_MESSAGE // 2
    return f"{message[:half]} … {message[-half:]}"


def to_html(view: View) -> str:
    numbers = json.dumps(view.numbers, indent=1, allow_nan=False)
    parts = [
        f'<pre class="answer">{html.escape(view.answer)}</pre>',
        *(_figure(title, picture) for title, picture in view.pictures.items()),
        "" if view.pictures else "<p>A model without attention: there is nothing to draw.</p>",
        f'<p class="downloads">{_download("numbers (JSON)", "numbers.json", "application/json", numbers)}</p>',
    ]
    return "\n".join(parts)


def _figure(title: str, picture: Picture) -> str:
    name = title.replace(" ", "-")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"{name}.svg"
        picture(path)
        svg = path.read_text(encoding="utf-8")
    title = html.escape(title)
    return (
        f'<figure><img alt="{title}" src="{_data("image/svg+xml", svg)}">'
        f'<figcaption class="downloads">{title}: {_download("SVG", f"{name}.svg", "image/svg+xml", svg)} '
        f'<a href="#" class="png" download="{name}.png">PNG</a></figcaption></figure>'
    )


def _download(text: str, name: str, kind: str, content: str) -> str:
    return f'<a download="{name}" href="{_data(kind, content)}">{text}</a>'


def _data(kind: str, content: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content.encode()).decode()}"
