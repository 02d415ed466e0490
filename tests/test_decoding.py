"""Greedy and beam search against the enumeration of all sequences, and batches against sentences alone."""

import itertools
import math

import pytest
import torch

from structattn.recipes.decoding import DecodingSettings, beam_search
from structattn.recipes.errors import UserError

START, END, SYMBOLS, STEPS = 0, 1, 4, 6


def markov_step(tables):
    """A decoder whose next symbol depends on sentence, step and last symbol; its state counts its steps."""

    def step(symbols, state, sentences):
        rows = symbols.numel()
        state = torch.zeros(rows, 1) if state is None else state
        assert state.shape == (rows, 1), "the state follows the hypotheses"
        assert (state == state[0]).all()
        table = tables[:, min(int(state[0]), tables.shape[1] - 1)]
        return table[sentences.unsqueeze(1), symbols].log_softmax(2), state + 1

    return step


def enumerate_best(table, cap, normalisation=0.0):
    """Every sequence with its score, best first: those that end, and those that the cap cuts."""
    log_probs = table.double().log_softmax(2)
    found = []
    others = [symbol for symbol in range(SYMBOLS) if symbol != END]
    for length in range(1, cap + 1):
        last = range(SYMBOLS) if length == cap else [END]
        for body in itertools.product(others, repeat=length - 1):
            for final in last:
                symbols = [*body, final]
                steps = enumerate(itertools.pairwise([START, *symbols]))
                score = sum(log_probs[step, a, b].item() for step, (a, b) in steps)
                found.append((score / length**normalisation, [s for s in symbols if s != END]))
    return sorted(found, key=lambda pair: -pair[0])


@pytest.mark.parametrize("normalisation", [0.0, 1.0])
def test_a_wide_beam_finds_the_best_of_all_sequences(normalisation):
    tables, caps = torch.randn(3, STEPS, SYMBOLS, SYMBOLS) * 2, torch.tensor([4, 2, 5])
    found = beam_search(markov_step(tables), caps, START, END, 400, 3, normalisation)
    for table, cap, hypotheses in zip(tables, caps.tolist(), found, strict=True):
        for hypothesis, (score, symbols) in zip(
            hypotheses, enumerate_best(table, cap, normalisation), strict=False
        ):
            assert hypothesis.score == pytest.approx(score, abs=1e-5)
            assert hypothesis.symbols == symbols


def test_a_beam_of_one_is_greedy_search():
    table = torch.randn(1, STEPS, SYMBOLS, SYMBOLS)
    symbol, expected = START, []
    for step in range(6):
        symbol = table[0, step, symbol].argmax().item()
        if symbol == END:
            break
        expected.append(symbol)
    assert beam_search(markov_step(table), torch.tensor([6]), START, END, 1)[0][0].symbols == expected


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_who_shares_a_batch_does_not_matter(beam):
    tables, caps = torch.randn(20, STEPS, SYMBOLS, SYMBOLS), torch.arange(1, 21)
    together = beam_search(markov_step(tables), caps, START, END, beam, 2)
    for sentence in range(20):
        only = slice(sentence, sentence + 1)
        (alone,) = beam_search(markov_step(tables[only]), caps[only], START, END, beam, 2)
        assert [one.symbols for one in alone] == [one.symbols for one in together[sentence]]
        assert [one.score for one in alone] == pytest.approx([one.score for one in together[sentence]])


def test_a_wider_beam_is_never_worse_here_and_the_n_best_are_sorted_and_different():
    tables = torch.randn(10, STEPS, SYMBOLS, SYMBOLS)
    caps = torch.full((10,), 6)
    narrow = beam_search(markov_step(tables), caps, START, END, 1)
    wide = beam_search(markov_step(tables), caps, START, END, 300, 4)
    for one, several in zip(narrow, wide, strict=True):
        scores = [hypothesis.score for hypothesis in several]
        assert scores == sorted(scores, reverse=True)
        assert len({tuple(hypothesis.symbols) for hypothesis in several}) == len(several)
        assert scores[0] >= one[0].score - 1e-6


def test_a_sentence_without_an_end_stops_at_its_cap():
    never = torch.zeros(1, 1, SYMBOLS, SYMBOLS)
    never[..., END] = -math.inf
    (found,) = beam_search(markov_step(never), torch.tensor([7]), START, END, 3)
    assert len(found[0].symbols) == 7


def test_no_sentences_and_impossible_settings():
    assert (
        beam_search(markov_step(torch.zeros(0, 1, 4, 4)), torch.empty(0, dtype=torch.int64), START, END) == []
    )
    with pytest.raises(UserError, match="at least 1"):
        DecodingSettings(beam=0)
