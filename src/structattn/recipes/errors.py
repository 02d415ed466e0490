"""What a user can put right: one line that says what is wrong and what is near."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Shown as one line, without a traceback; the exit code is 2."""


def did_you_mean(given: str, known: Iterable[str]) -> str:
    """'; did you mean "x"?' for the nearest known name, else the list of them."""
    known = list(known)
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    if not near:  # the end of a dotted name counts too: "epoch" is near "training.epochs"
        ends = {name.rpartition(".")[2]: name for name in known}
        near = [
            ends[end] for end in difflib.get_close_matches(given.rpartition(".")[2], ends, n=1, cutoff=0.6)
        ]
    if near:
        return f'; did you mean "{near[0]}"?'
    return f"; there is {', '.join(known)}" if known else ""
