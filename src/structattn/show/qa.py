"""Question answering: the facts that a model follows from step to step (the paper's last figure)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from structattn.recipes.errors import UserError
from structattn.recipes.qa.answering import Followed
from structattn.recipes.qa.data import Question, StoryReader
from structattn.recipes.qa.recipe import QARecipe
from structattn.recipes.running import OpenRun
from structattn.show import style
from structattn.show.lattice import Lattice, draw_lattices
from structattn.show.view import View

_LONGEST_FACT = 80
_NAMES = {"memn2n": "MemN2N", "unary": "unary CRF", "binary": "binary CRF"}


def draw_qa(runs: Sequence[OpenRun], text: str | None, out: Path, arcs: bool) -> None:
    """Each run's lattice for the same question. `text` is a story or a file of one; its last question is asked."""
    if arcs:
        raise UserError("--arcs: a chain of facts is drawn as a lattice; leave it out")
    draw_lattices([lattice(run, text) for run in runs], out)


def lattice(run: OpenRun, text: str | None) -> Lattice:
    recipe = _recipe(run)
    question = recipe.splits["test"][0] if text is None else _last_question(text)
    return _panel(recipe, recipe.follow(run.model, question))


def view_qa(run: OpenRun, text: str | None, temperature: float) -> View:
    """The best answers, and the facts that are followed at this temperature."""
    recipe = _recipe(run)
    if text:
        question = _asked(text.splitlines(), "the story")
    else:
        question = recipe.splits["test"][0]
        text = "\n".join([*question.facts, question.text])
    found = recipe.follow(run.model, question, temperature=temperature)
    panel = _panel(recipe, found)
    numbers = {
        "model": recipe.config.model.kind,
        "task": recipe.config.data.task,
        "facts": question.facts,
        "question": question.text,
        "answers": dict(found.answers),
        "temperature": temperature,
        "sequences": [[[fact + 1 for fact in facts], p] for facts, p in found.sequences],
        "nodes": panel.nodes.tolist(),
        "edges": panel.edges.tolist(),
    }
    answer = "\n".join(f"{word} ({probability:.3f})" for word, probability in found.answers)
    return View(text, answer, {"lattice": partial(draw_lattices, [panel])}, numbers)


def _recipe(run: OpenRun) -> QARecipe:
    if not isinstance(run.recipe, QARecipe):
        raise UserError(f"{run.folder.path}: a run of {run.recipe.task} cannot stand beside one of qa")
    return run.recipe


def _panel(recipe: QARecipe, found: Followed) -> Lattice:
    question = found.question
    order = sorted(range(len(found.facts)), key=found.facts.__getitem__)  # from age to the order of the story
    best = found.sequences[0][0] if found.sequences else []
    first = min(found.facts)
    return Lattice(
        f"{_NAMES[recipe.config.model.kind]}, task {recipe.config.data.task}",
        [
            f"{style.brief(question.facts[found.facts[position]], _LONGEST_FACT)}   {number}"
            for number, position in enumerate(order, 1)
        ],
        found.nodes[:, order],
        found.edges[:, order][:, :, order],
        _below(question, found, first),
        [fact - first for fact in best],
    )


def _below(question: Question, found: Followed, first: int) -> list[str]:
    word, probability = found.answers[0]
    lines = [style.brief(question.text, _LONGEST_FACT), f"answer: {word} ({probability:.3f})"]
    if question.answer:
        gold = " → ".join(str(position - first + 1) for position in question.supporting)
        lines.append(f"right: {question.answer}" + (f", by {gold}" if gold else ""))
    for sequence, likelihood in found.sequences:
        lines.append(f"{' → '.join(str(fact - first + 1) for fact in sequence)}   {likelihood:.4f}")
    return lines


def _last_question(text: str) -> Question:
    """Lines of a story, also with / between them."""
    path = Path(text)
    is_file = "\n" not in text and len(text) < 256 and path.is_file()
    lines = (
        path.read_text(encoding="utf-8").splitlines() if is_file else text.replace(" / ", "\n").splitlines()
    )
    return _asked(lines, str(path) if is_file else "the story")


def _asked(lines: Sequence[str], origin: str) -> Question:
    reader, asked = StoryReader(), None
    for number, line in enumerate(lines, 1):
        asked = reader.read(line, f"{origin}, line {number}") or asked
    if asked is None:
        raise UserError("nothing is asked: a story ends with a question and its question mark")
    return asked
