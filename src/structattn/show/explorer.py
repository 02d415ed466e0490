"""The explorer: a local page to watch marginals, of edited potentials, of random scores and of trained runs.

Nothing is fetched from outside: system fonts, no analytics, pictures inside the page. What a user types reaches it
escaped, or inside a picture.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from structattn.recipes.errors import UserError
from structattn.recipes.running import OpenRun
from structattn.recipes.temperature import LOWEST
from structattn.show import explorer_page, figures, playground
from structattn.show.view import LONGEST_TEXT, View

os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"  # gradio reads it when it is imported
os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

import gradio as gr

_NO_RUN = ("nothing", "")
_TOO_LONG = LONGEST_TEXT + 1
"""Where a field cuts what is pasted: one letter later than allowed, so that this is said."""
_ONE_AT_A_TIME: dict[str, Any] = {
    "concurrency_id": "drawing",  # matplotlib's settings are the process's
    "concurrency_limit": 1,
    "trigger_mode": "always_last",
    "show_progress": "hidden",
    "api_visibility": "private",
}


def build(runs: Sequence[OpenRun]) -> gr.Blocks:
    """The page, with a tab for the runs if there are any."""
    with gr.Blocks(title="structattn explorer", analytics_enabled=False) as page:
        gr.HTML(explorer_page.HEADING)
        with gr.Tabs():
            if runs:
                with gr.Tab("Trained runs") as tab:
                    _runs(tab, {str(run.folder.path): run for run in runs})
            with gr.Tab("Sentence") as tab:
                _sentence(tab)
            with gr.Tab("Potentials") as tab:
                _potentials(tab)
    return page


def serve(page: gr.Blocks, host: str, port: int | None, open_browser: bool) -> str:
    """Starts the server, in a thread, and returns the address of the page."""
    try:
        _, address, _ = page.launch(
            server_name=host,
            server_port=port,
            inbrowser=open_browser,
            prevent_thread_lock=True,
            quiet=True,
            share=False,
            ssr_mode=False,
            pwa=False,
            footer_links=[],
            theme=gr.themes.Base(font=explorer_page.FONT, font_mono=explorer_page.FONT_MONO),
            css=explorer_page.STYLE,
            head=explorer_page.SCRIPT,
        )
    except (OSError, OverflowError) as error:  # taken, or beyond 65535
        where = f"{host}:{port}" if port else host
        raise UserError(f"the explorer cannot listen at {where}: choose another --port or --host") from error
    return address


def _temperature() -> gr.Slider:
    return gr.Slider(LOWEST, 5, value=1, step=0.05, label="Temperature: divides the potentials")


def _sentence(tab: gr.Tab) -> None:
    with gr.Row():
        sentence = gr.Textbox(playground.SENTENCE, label="Sentence", max_length=_TOO_LONG, scale=3)
        structure = gr.Dropdown(
            list(playground.STRUCTURES), value=playground.STRUCTURES[0], label="Structure", scale=2
        )
    with gr.Row():
        seed = gr.Number(1, label="Seed of the random scores", precision=0)
        single_root = gr.Checkbox(label="The root symbol $ has one child only")
        temperature = _temperature()
    inputs: list[Any] = [sentence, structure, single_root, seed, temperature]
    shown = gr.HTML(elem_id="sentence-view")
    triggers = [tab.select, *(component.change for component in inputs)]
    gr.on(triggers, explorer_page.html_of(playground.view_sentence), inputs, shown, **_ONE_AT_A_TIME)


def _potentials(tab: gr.Tab) -> None:
    unary = [["the", 0.0, -0.5], ["old", 0.0, 0.4], ["man", 0.0, 1.2]]
    gr.HTML(explorer_page.POTENTIALS)
    with gr.Row():
        table = gr.Dataframe(
            unary,
            headers=["word", "state 0", "state 1"],
            label="Words and the scores of their states",
            type="array",
            row_count=len(unary),
            column_count=3,
            elem_id="unary",
        )
        transitions = gr.Dataframe(
            [[0.7, 0.0], [0.0, 0.7]],
            headers=["to 0", "to 1"],
            label="Transitions: from the row's state to the column's",
            type="array",
            row_count=2,
            column_count=2,
            elem_id="transitions",
        )
    temperature = _temperature()
    shown = gr.HTML(elem_id="potentials-view")
    inputs: list[Any] = [table, transitions, temperature]
    triggers = [tab.select, *(component.change for component in inputs)]
    gr.on(triggers, explorer_page.html_of(_view_of_tables), inputs, shown, **_ONE_AT_A_TIME)


def _view_of_tables(table: list[list[Any]], transitions: list[list[Any]], temperature: float) -> View:
    states = len(table[0]) - 1 if table else 0
    if not 1 <= states <= playground.MOST_STATES:
        raise UserError(f"expected 1 to {playground.MOST_STATES} states, not {states}")
    words = ["".join(str(row[0]).split()) or "-" for row in table]
    unary = playground.scores_of([row[1:] for row in table], "scores")
    scores = playground.scores_of(transitions, "transitions")
    if scores.shape != (states, states):
        raise UserError(f"{states} states need {states} rows and columns of transitions")
    return playground.view_chain(" ".join(words), unary, scores, temperature)


def _runs(tab: gr.Tab, runs: dict[str, OpenRun]) -> None:
    names = list(runs)
    first = figures.view(runs[names[0]], None, 1.0)
    with gr.Row():
        left = gr.Dropdown(names, value=names[0], label="Run")
        beside = [_NO_RUN, *zip(names, names, strict=True)]
        right = gr.Dropdown(beside, value=names[1] if len(names) > 1 else _NO_RUN[1], label="Beside it")
    with gr.Row():
        text = gr.Textbox(first.text, label="Input", lines=1, max_lines=12, max_length=_TOO_LONG, scale=3)
        ask = gr.Button("Show", variant="primary", scale=0)
    temperature = _temperature()
    with gr.Row():
        shown = [gr.HTML(elem_id="left-view"), gr.HTML(elem_id="right-view")]

    def show(left: str, right: str, text: str, temperature: float) -> list[gr.HTML]:
        views = [
            explorer_page.html_of(figures.view)(runs[name], text, temperature)
            for name in (left, right)
            if name != _NO_RUN[1]
        ]
        return [gr.HTML(view, visible=True) for view in views] + [gr.HTML(visible=False)] * (2 - len(views))

    def example(name: str) -> str:
        return figures.view(runs[name], None, 1.0).text

    inputs = [left, right, text, temperature]
    left.input(example, left, text, **_ONE_AT_A_TIME).then(show, inputs, shown, **_ONE_AT_A_TIME)
    triggers = [tab.select, ask.click, text.submit, right.input, temperature.change]
    gr.on(triggers, show, inputs, shown, **_ONE_AT_A_TIME)
