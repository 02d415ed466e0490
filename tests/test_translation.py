"""Parallel text, the three models against steps and sums written out, search, and BLEU."""

import gzip
import itertools
import math
from collections import Counter

import pytest
import torch
from parallel import parallel_pairs, write_parallel
from torch.testing import assert_close

from structattn.recipes.decoding import DecodingSettings
from structattn.recipes.errors import UserError
from structattn.recipes.translation import preparation
from structattn.recipes.translation.alignment import Alignment
from structattn.recipes.translation.bleu import bleu, paired_bootstrap
from structattn.recipes.translation.data import Pair, TranslationData, read_pairs, symbols_of, text_of
from structattn.recipes.translation.model import (
    ATTENTIONS,
    TranslationModel,
    TranslationModelSettings,
    _through,
)
from structattn.recipes.translation.preparation import Vocabulary, prepare


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    """Nothing is kept in the cache of whoever runs the tests."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "structattn" / "kept"


def test_pairs_are_read_from_two_files_gzip_and_tabs(tmp_path):
    expected = [Pair("私 は\u2028犬", "i , dog"), Pair("猫 。", "cat .")]
    source, target = tmp_path / "a.ja", tmp_path / "a.en"
    source.write_bytes("\ufeff私 は\u2028犬\r\n猫 。\r\n".encode())
    target.write_bytes(gzip.compress(b"i , dog\ncat ."))
    assert read_pairs([source, target]) == expected
    both = tmp_path / "both.tsv"
    both.write_text("".join(f"{pair.source}\t{pair.target}\n" for pair in expected), encoding="utf-8")
    assert read_pairs([both]) == expected


@pytest.mark.parametrize(
    ("source", "target", "what"),
    [
        (b"a\nb\nc\n", b"x\ny\n", "a.ja has 3 lines and"),
        (b"a\nb\nc\n", b"x\ny\n", "a.ja, line 3 has no partner"),
        (b"a\n", b"x\ny\n", "a.en, line 2 has no partner"),
        (b"a\n\nb\n \n", b"w\nx\ny\nz\n", "a.ja, lines 2, 4: empty"),
        (b"a\n" * 9, b"\n" * 9, "a.en, lines 1, 2, 3, 4, 5 and 4 more: empty"),
        (b"a\nb\xff\n", b"x\ny\n", "a.ja, line 2: not UTF-8 text"),
        (b"", b"", "no pairs in there"),
        (b"\x1f\x8b\x08damaged", b"x\n", "a.ja is damaged"),
        (b"a\tx\nb\n", None, "a.ja, line 2: expected source, one tab, target; found 0 tabs"),
        (b"a\tx\n\ty\n", None, "a.ja, line 2: without a source"),
        (None, b"x\n", "cannot read"),
    ],
)
def test_malformed_text_is_refused_with_file_line_and_reason(tmp_path, source, target, what):
    paths = [tmp_path / "a.ja"]
    if source is not None:
        paths[0].write_bytes(source)
    if target is not None:
        paths.append(tmp_path / "a.en")
        paths[1].write_bytes(target)
    with pytest.raises(UserError) as caught:
        read_pairs(paths)
    assert what in str(caught.value)


def test_units_and_vocabulary():
    assert symbols_of("犬 を\u3000見 た", "char") == ["犬", "を", "見", "た"]
    assert symbols_of("犬 を\u3000見た", "word") == ["犬", "を", "見た"]
    assert text_of(["a", "b"], "char") == "ab"
    assert text_of(["a", "b"], "word") == "a b"
    words = Vocabulary.of([["b", "a", "b", "<unk>"], ["c", "a", "<unk>"]], least_count=2)
    assert words.symbols == ["<pad>", "<unk>", "<s>", "</s>", "a", "b"]
    assert words.numbers(["b", "c", "<unk>", "a"]) == [5, 1, 1, 4]


def test_preparation_holds_out_filters_and_counts(tmp_path):
    pairs = [*parallel_pairs(), ("長 い " * 8, "long"), ("短 い", "short " * 30)]
    files = write_parallel(tmp_path, pairs)
    settings = TranslationData(least_count=5, longest_source=15, longest_target=12, held_out=30)
    found = prepare(settings, files, [])
    assert (len(found.valid), len(found.train), found.left_out) == (30, 144 - 30, 2)
    assert [Pair(*pair) for pair in pairs if pair in found.valid] == found.valid, "in the order of the file"
    characters, words = found.vocabularies
    assert "長" not in characters.number_of
    assert {"猫", "女"} <= set(characters.symbols)
    for source, target in found.train:
        text = "".join(characters.symbols[number] for number in source)
        assert text not in {"".join(pair.source.split()) for pair in found.valid}
        assert [words.symbols[target[0]], words.symbols[target[-1]]] == ["<s>", "</s>"]
    apart = prepare(settings, files, write_parallel(tmp_path, pairs[:10], "valid"))
    assert (len(apart.valid), len(apart.train)) == (10, 144)
    with pytest.raises(UserError, match="0 pairs are left to train"):
        prepare(TranslationData(longest_source=2), files, [])


def test_what_was_prepared_is_kept_by_content(tmp_path, cache, monkeypatch):
    files = write_parallel(tmp_path, parallel_pairs())
    settings = TranslationData(least_count=2, held_out=10)
    found = prepare(settings, files, [])
    (kept,) = cache.iterdir()
    monkeypatch.setattr(preparation, "read_pairs", lambda paths: pytest.fail("the text was read again"))
    again = prepare(TranslationData(train=["elsewhere"], least_count=2, held_out=10), files, [])
    assert again[1:] == found[1:]
    assert [side.symbols for side in again.vocabularies] == [side.symbols for side in found.vocabularies]
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    kept.write_bytes(kept.read_bytes()[:1000])
    assert prepare(settings, files, []).train == found.train, "a damaged one is made anew"
    write_parallel(tmp_path, parallel_pairs()[:100])
    assert len(prepare(settings, files, []).train) == 90, "other content is another preparation"
    assert len(list(cache.iterdir())) == 2


def model_of(attention="structured", **settings):
    torch.manual_seed(5)
    chosen = {"size": 6, "layers": 2, "dropout": 0.0, **settings}
    model = TranslationModel(TranslationModelSettings(attention=attention, **chosen), 9, 11).double()
    for weights in model.parameters():
        torch.nn.init.normal_(weights, std=0.6)
    return model


def random_batch(sizes):
    generator = torch.Generator().manual_seed(2)
    source = torch.zeros(len(sizes), max(n for n, _ in sizes), dtype=torch.int64)
    target = torch.zeros(len(sizes), max(m for _, m in sizes) + 2, dtype=torch.int64)
    for row, (n, m) in enumerate(sizes):
        source[row, :n] = torch.randint(1, 9, (n,), generator=generator)
        symbols = [2, *torch.randint(4, 11, (m,), generator=generator).tolist(), 3]
        target[row, : len(symbols)] = torch.tensor(symbols)
    return source, torch.tensor([n for n, _ in sizes]), target


def cell(lstm, layer, x, h, c):
    """One layer's step by the LSTM's equations."""
    w_ih, w_hh, b_ih, b_hh = (
        getattr(lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    )
    i, f, g, o = (w_ih @ x + b_ih + w_hh @ h + b_hh).chunk(4)
    c = f.sigmoid() * c + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def step(lstm, x, states):
    new = []
    for layer, (h, c) in enumerate(states):
        x, c = cell(lstm, layer, x, h, c)
        new.append((x, c))
    return x, new


def naive_weights(model, theta, temperature=1.0):
    kind, n, theta = model.settings.attention, len(theta), theta / temperature
    if kind == "simple":
        return theta.exp() / theta.exp().sum()
    if kind == "sigmoid":
        return 1 / (1 + (-theta).exp())
    b = model.attention.pairwise / temperature
    states = list(itertools.product((0, 1), repeat=n))
    scores = [
        sum(theta[i] * z[i] for i in range(n)) + sum(b[z[i], z[i + 1]] for i in range(n - 1)) for z in states
    ]
    marginals = torch.stack(scores).softmax(0) @ torch.tensor(states, dtype=torch.double)
    return marginals * 2 / marginals.sum()


def naive_loss(model, source, target):
    size, layers = model.settings.size, model.settings.layers
    zeros = [(torch.zeros(size).double(), torch.zeros(size).double()) for _ in range(layers)]
    states, h = zeros, []
    for symbol in source:
        top, states = step(model.encoder, model.source_embedding.weight[symbol], states)
        h.append(top)
    h = torch.stack(h)
    states = zeros if model.settings.decoder_start == "zeros" else states
    combined, loss = torch.zeros(size).double(), 0.0
    for symbol, wanted in itertools.pairwise(target):
        x = model.target_embedding.weight[symbol]
        x = torch.cat([x, combined]) if model.settings.input_feeding else x
        top, states = step(model.decoder, x, states)
        theta = h @ model.attention.weight @ top
        context = naive_weights(model, theta) @ h
        combined = torch.tanh(model.combine.weight @ torch.cat([context, top]))
        logits = model.output.weight @ combined + model.output.bias
        loss -= logits.log_softmax(0)[wanted]
    return loss


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("settings", [{}, {"input_feeding": True}, {"decoder_start": "zeros", "layers": 1}])
def test_a_batch_has_the_loss_of_its_sentences_step_by_step(attention, settings):
    model = model_of(attention, **settings).eval()
    sizes = [(5, 3), (2, 6), (5, 1), (1, 4), (3, 2)]
    source, lengths, target = random_batch(sizes)
    expected = sum(
        naive_loss(model, source[row, :n].tolist(), target[row, : m + 2].tolist())
        for row, (n, m) in enumerate(sizes)
    )
    assert_close(model(source, lengths, target), expected, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_everything_is_trained_and_the_penalty_is_on_b(attention):
    model = model_of(attention, pairwise_penalty=0.005)
    batch = random_batch([(4, 3), (2, 5)])
    losses = model(*batch), model.eval()(*batch)
    added = 2 * 0.005 * model.attention.pairwise.square().sum() if attention == "structured" else 0
    assert_close(losses[0], losses[1] + added)
    losses[0].backward()
    for name, weights in model.named_parameters():
        assert weights.grad.isfinite().all(), name
        assert weights.grad.any(), name


def test_sentences_pass_through_the_encoder_without_their_padding():
    model = model_of()
    inputs, lengths = torch.randn(6, 7, 6).double(), torch.tensor([3, 7, 1, 3, 6, 7])
    outputs, last = _through(model.encoder, inputs, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, states = model.encoder(inputs[row : row + 1, :length])
        assert_close(outputs[row, :length], alone[0])
        assert not outputs[row, length:].any()
        for mine, right in zip(last, states, strict=True):
            assert_close(mine[:, row], right[:, 0])


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("input_feeding", [False, True])
def test_a_score_is_the_log_probability_whatever_the_batch(attention, input_feeding):
    model = model_of(attention, input_feeding=input_feeding).eval()
    model.output.bias[3] += 1.5  # so that some hypotheses end
    source, lengths, _ = random_batch([(5, 1), (2, 1), (4, 1), (1, 1), (5, 1), (3, 1)])
    settings = DecodingSettings(beam=4, longest_factor=1, longest_extra=6)
    together = model.search(source, lengths, settings, n_best=3)
    ended = 0
    for row, found in enumerate(together):
        one = source[row : row + 1, : lengths[row]], lengths[row : row + 1]
        (alone,) = model.search(*one, settings, n_best=3)
        assert [best.symbols for best in alone] == [best.symbols for best in found]
        assert [best.score for best in alone] == pytest.approx([best.score for best in found], abs=1e-10)
        assert len({tuple(best.symbols) for best in found}) == 3
        assert found == sorted(found, key=lambda best: -best.score)
        for best in found:
            assert not {0, 2} & set(best.symbols), "neither padding nor start"
            if len(best.symbols) < lengths[row] + 5:
                ended += 1
                target = torch.tensor([[2, *best.symbols, 3]])
                assert best.score == pytest.approx(-float(model(*one, target)), abs=1e-9)
    assert ended >= 6


def multi_bleu(translations, references):
    """BLEU by its definition: no smoothing, brevity penalty, 1- to 4-grams."""
    matches, totals = [0] * 4, [0] * 4
    lengths = [0, 0]
    for pair in zip(translations, references, strict=True):
        words = [text.split() for text in pair]
        lengths = [length + len(one) for length, one in zip(lengths, words, strict=True)]
        for n in range(4):
            ours, right = (Counter(tuple(one[i : i + n + 1]) for i in range(len(one) - n)) for one in words)
            matches[n] += sum((ours & right).values())
            totals[n] += sum(ours.values())
    precision = math.fsum(math.log(match / total) for match, total in zip(matches, totals, strict=True)) / 4
    return 100 * math.exp(precision + min(0, 1 - lengths[1] / lengths[0]))


def test_bleu_is_that_of_multi_bleu_and_the_bootstrap_tells_chance_from_more():
    references = [target for _, target in parallel_pairs()]
    worse = [text.replace("a ", "the ", 1) if row % 2 else text[:-4] for row, text in enumerate(references)]
    much_worse = [text.rsplit(" ", 3)[0] for text in worse]
    found = bleu(worse, references)
    assert found["bleu"] == pytest.approx(multi_bleu(worse, references), abs=1e-6)
    assert "tok:none" in found["signature"]
    assert "tok:13a" in found["sacrebleu_signature"]
    apart = paired_bootstrap(worse, much_worse, references, samples=200)
    assert apart["bleu"] == pytest.approx(multi_bleu(much_worse, references), abs=1e-6)
    assert apart["p"] < 0.01
    nearly = [*worse[:-1], references[-1]]
    assert paired_bootstrap(worse, nearly, references, samples=200)["p"] > 0.05


@torch.no_grad()
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_what_is_looked_at_is_what_the_model_computes(attention):
    model = model_of(attention).eval()
    source, lengths, target = random_batch([(5, 3), (3, 4)])
    memory = model.encode(source, lengths)
    reading = model.read(memory, target[:, :-1])
    weights, selected = model.selection(memory, reading)
    assert_close(weights, reading.weights)
    assert not selected[1, :, 3:].any()
    cold, _ = model.selection(memory, reading, temperature=0.5)
    theta = reading.hidden[0] @ model.attention.weight.T @ memory.states[0].T
    assert_close(cold[0], torch.stack([naive_weights(model, row, 0.5) for row in theta]))
    if attention == "simple":
        assert (selected[0].sum(1) == 1).all()
        assert_close(weights[0][selected[0]], weights[0].amax(1))
    if attention == "sigmoid":
        assert torch.equal(selected[0], theta > 0)
    if attention != "structured":
        return
    chains = model.attention.distribution(reading.hidden, memory.states, lengths)
    for z in itertools.product((0, 1), repeat=5):
        others = torch.tensor(z).expand(len(reading.hidden), reading.hidden.shape[1], 5)
        assert (chains.score(selected.long())[0] >= chains.score(others)[0] - 1e-9).all()


def test_segments_end_where_another_target_symbol_matters_most():
    weights = torch.tensor([[0.9, 0.8, 0.1, 0.3], [0.1, 0.2, 0.9, 0.1]])
    assert Alignment(list("猫犬本車"), ["a", "b"], weights, weights > 0.5).segments() == [
        ["猫", "犬"],
        ["本"],
        ["車"],
    ]
