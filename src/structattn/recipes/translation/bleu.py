"""BLEU by sacrebleu, in the setting that equals multi-bleu.perl, which the paper used, and in its own default."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

SAMPLES = 1000
"""Resamples of the bootstrap."""


def bleu(translations: Sequence[str], references: Sequence[str]) -> dict[str, Any]:
    """Both scores, in percent, and what sacrebleu's signature says about each."""
    printed, default = _as_multi_bleu(), _default()
    score = printed.corpus_score(translations, [references])
    standard = default.corpus_score(translations, [references])
    return {
        "bleu": score.score,
        "precisions": score.precisions,
        "brevity_penalty": score.bp,
        "signature": str(printed.get_signature()),
        "sacrebleu": standard.score,
        "sacrebleu_signature": str(default.get_signature()),
    }


def paired_bootstrap(
    ours: Sequence[str], theirs: Sequence[str], references: Sequence[str], samples: int = SAMPLES
) -> dict[str, float]:
    """How far two systems are apart: `theirs` is the baseline, and p how probable the difference is by chance."""
    from sacrebleu.significance import PairedTest

    systems: list[tuple[str, Sequence[str]]] = [("theirs", theirs), ("ours", ours)]
    test = PairedTest(systems, {"BLEU": _as_multi_bleu()}, [references], "bs", samples)
    baseline, system = (vars(result) for result in test()[1]["BLEU"])
    return {
        "bleu": baseline["score"],
        "bleu_ci": baseline["ci"],
        "ours_ci": system["ci"],
        "p": system["p_value"],
        "samples": samples,
    }


def _as_multi_bleu() -> Any:
    from sacrebleu import BLEU

    return BLEU(tokenize="none", smooth_method="none", force=True)


def _default() -> Any:
    from sacrebleu import BLEU

    return BLEU(force=True)  # the text may look tokenised: no warning
