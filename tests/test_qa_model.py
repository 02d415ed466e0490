"""The three models of question answering against sums over all sequences of facts, fact by fact and word by word."""

import itertools

import pytest
import torch
from stories import STORY
from torch.testing import assert_close

from structattn.recipes.qa.data import Encoder, longest_sentence, parse_questions, vocabulary, words_of
from structattn.recipes.qa.model import QAModel, QAModelSettings

LONGEST = 5
"""Words of the story's longest sentences, such as: Ann went to the shed."""
NEAR = {"rtol": 1e-5, "atol": 1e-5}  # position encoding comes in float32


def model_and_rows(kind, steps=2, models=1, **settings):
    torch.manual_seed(3)
    questions = parse_questions(STORY.splitlines(), "story")
    chosen = QAModelSettings(kind=kind, size=4, memory=3, **settings)
    words = vocabulary(questions)
    encoder = Encoder(
        words,
        chosen.memory,
        chosen.position_encoding,
        chosen.position_scale,
        longest_sentence(questions),
    )
    model = QAModel(chosen, steps, len(encoder.words), models).double()
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.5)
    batch = encoder.encode(questions)
    batch.sentences = batch.sentences.double()
    return model, encoder, questions, batch


def vector(model, matrix, encoder, sentence):
    """sum_j s l_j * A w_j, with l_jk = (1 - j / J) - (k / d) (1 - 2 j / J), word by word; s l = 1 without encoding."""
    words, size, scale = words_of(sentence), matrix.shape[1], model.settings.position_scale
    longest = {"longest": LONGEST, "sentence": len(words), "none": None}[model.settings.position_encoding]
    total = torch.zeros(size, dtype=torch.double)
    for j, word in enumerate(words, 1):
        for k in range(1, size + 1):
            factor = (
                1 if longest is None else scale * ((1 - j / longest) - (k / size) * (1 - 2 * j / longest))
            )
            total[k - 1] += factor * matrix[encoder.number_of[word], k - 1]
    return total


def naive_facts(model, encoder, question, which):
    """The vectors (M, d) of the most recent facts by matrix `which`, youngest first."""
    recent = question.facts[::-1][: model.settings.memory]
    matrix, ages = model.embedding[0, which], model.ages[0, which]
    return torch.stack([vector(model, matrix, encoder, fact) + ages[age] for age, fact in enumerate(recent)])


def naive_queries(model, query, keys):
    """q^1 ... q^K of a CRF, fact by fact."""
    queries = [query]
    for key, next_key in itertools.pairwise(keys):
        if model.settings.query_update == "matrix":
            queries.append(model.transition[0] @ queries[-1])
            continue
        hop, scores = model.settings.query_update == "hop", key @ queries[-1]
        weights = scores.softmax(0) if hop and not model.linear else scores
        found = sum(weight * following for weight, following in zip(weights, next_key, strict=True))
        queries.append(found + queries[-1] if hop else found)
    return queries


@pytest.mark.parametrize("query_update", ["hop", "memory", "matrix"])
@pytest.mark.parametrize("after_the_start", [False, True])
@pytest.mark.parametrize("kind", ["unary", "binary"])
@pytest.mark.parametrize("steps", [2, 3])
def test_a_crf_answers_by_the_sum_over_all_sequences(kind, steps, after_the_start, query_update):
    settings = {"query_update": query_update, "log_softmax": "potentials", "linear_crf": False}
    model, encoder, questions, batch = model_and_rows(kind, steps, **settings)
    model.linear = not after_the_start
    logits = model.answer(*batch.rows([0, 1])[:-1])
    for row, question in enumerate(questions[:2]):
        keys = [naive_facts(model, encoder, question, k) for k in range(steps)]
        queries = naive_queries(model, vector(model, model.embedding[0, 0], encoder, question.text), keys)
        seen = [q.log_softmax(0) for q in queries] if after_the_start else queries
        values = [naive_facts(model, encoder, question, k + 1) for k in range(steps)]
        weights, contexts = [], []
        for z in itertools.product(range(3), repeat=steps):
            pairs = list(itertools.pairwise(z))
            if kind == "binary" and any(i == j for i, j in pairs):
                continue
            if kind == "unary":
                score = sum(keys[k][i] @ seen[k] for k, i in enumerate(z))
            else:
                score = sum(
                    keys[k][i] @ seen[k] + keys[k][i] @ keys[k + 1][j] + keys[k + 1][j] @ seen[k + 1]
                    for k, (i, j) in enumerate(pairs)
                )
            weights.append(score)
            contexts.append(sum(values[k][i] for k, i in enumerate(z)))
        context = torch.stack(weights).softmax(0) @ torch.stack(contexts)
        assert_close(logits[row], model.embedding[0, -1] @ (queries[-1] + context), **NEAR)


@pytest.mark.parametrize("kind", ["unary", "binary"])
def test_the_linear_start_of_a_crf_has_scores_for_marginals(kind):
    model, encoder, questions, batch = model_and_rows(kind, 3)
    model.linear = True
    logits = model.answer(*batch.rows([1])[:-1])
    keys = [naive_facts(model, encoder, questions[1], k) for k in range(3)]
    queries = naive_queries(model, vector(model, model.embedding[0, 0], encoder, questions[1].text), keys)
    context = sum(
        (key @ query) @ naive_facts(model, encoder, questions[1], k + 1)
        for k, (key, query) in enumerate(zip(keys, queries, strict=True))
    )
    assert_close(logits[0], model.embedding[0, -1] @ (queries[-1] + context), **NEAR)


@pytest.mark.parametrize("position_encoding", ["longest", "sentence", "none"])
@pytest.mark.parametrize("linear", [True, False])
def test_memn2n_answers_hop_by_hop(linear, position_encoding):
    settings = {"position_encoding": position_encoding, "position_scale": 1.5}
    model, encoder, questions, batch = model_and_rows("memn2n", 3, **settings)
    model.linear = linear
    logits = model.answer(*batch.rows([2])[:-1])
    query = vector(model, model.embedding[0, 0], encoder, questions[2].text)
    context = torch.zeros_like(query)
    for k in range(3):
        query = query + context
        scores = naive_facts(model, encoder, questions[2], k) @ query
        context = (scores if linear else scores.softmax(0)) @ naive_facts(model, encoder, questions[2], k + 1)
    assert_close(logits[0], model.embedding[0, -1] @ (query + context), **NEAR)


@pytest.mark.parametrize(
    "settings", [{"tie_embeddings": False}, {"temporal_encoding": False}, {"query_update": "matrix"}]
)
@pytest.mark.parametrize("kind", ["memn2n", "unary", "binary"])
def test_a_question_does_not_depend_on_its_batch_and_everything_is_trained(kind, settings):
    model, _, _, batch = model_and_rows(kind, **settings)
    together = model.answer(*batch.rows([0, 1, 2])[:-1])
    for row in range(3):
        assert_close(model.answer(*batch.rows([row])[:-1])[0], together[row])
    model(*batch.rows([0, 1])).sum().backward()
    for name, weights in model.named_parameters():
        assert weights.grad.isfinite().all(), name
        assert weights.grad.any(), name
