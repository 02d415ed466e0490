"""CoNLL-U: what is read, what is refused, what is written back; trees, and trees without crossing arcs."""

import gzip
import itertools
from pathlib import Path

import pytest
from oracle import trees

from structattn.recipes.errors import UserError
from structattn.recipes.treebank import (
    Sentence,
    conllu,
    is_projective,
    lifted,
    read_treebank,
    write_treebank,
    wrong_head,
)

TEXT = """# text = It can't fly.
1\tIt\tit\tPRON\t_\t_\t4\tnsubj\t_\t_
2-3\tcan't\t_\t_\t_\t_\t_\t_\t_\t_
2\tca\tcan\tAUX\t_\t_\t4\taux\t_\t_
3\tn't\tnot\tPART\t_\t_\t4\tadvmod\t_\t_
3.1\tto\tto\tPART\t_\t_\t_\t_\t_\t_
4\tfly\tfly\tVERB\t_\t_\t0\troot\t0:root\tSpaceAfter=No
5\t.\t.\tPUNCT\t_\t_\t4\tpunct\t_\t_

# a comment alone

1\tGo\tgo\tVERB\t_\t_\t0\troot\t_\t_

"""

REAL = Path(__file__).parents[2] / "shared" / "data" / "ud_ewt"
EXAMPLES = Path(__file__).parents[1] / "examples" / "sentences.conllu"


def written(path, text=TEXT):
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


@pytest.mark.parametrize("name", ["a.conllu", "a.conllu.gz"])
def test_words_are_read_and_nothing_else(tmp_path, name):
    first, second = read_treebank(written(tmp_path / name))
    assert first.words == ["It", "ca", "n't", "fly", "."]
    assert first.heads == [4, 4, 4, 0, 4]
    assert first.tags == ["PRON", "AUX", "PART", "VERB", "PUNCT"]
    assert (second.words, second.heads) == (["Go"], [0])
    assert second.origin.endswith(f"{name}, line 12")


def test_line_ends_marks_and_the_end_of_the_file_do_not_matter(tmp_path):
    plain = read_treebank(written(tmp_path / "a.conllu"))
    for text in (TEXT.replace("\n", "\r\n"), "\ufeff" + TEXT, TEXT.strip("\n")):
        assert [one[:3] for one in read_treebank(written(tmp_path / "b.conllu", text))] == [
            one[:3] for one in plain
        ]


@pytest.mark.parametrize("name", ["a.conllu", "a.conllu.gz"])
def test_what_was_read_is_written_back(tmp_path, name):
    sentences = read_treebank(written(tmp_path / "given.conllu"))
    write_treebank(sentences, tmp_path / name)
    again = read_treebank(tmp_path / name)
    assert [one[:4] for one in again] == [one[:4] for one in sentences]
    assert "".join(f"{conllu(one)}\n\n" for one in sentences) == TEXT.replace("# a comment alone\n\n", "")


def test_a_new_head_loses_its_old_relation(tmp_path):
    sentence = read_treebank(written(tmp_path / "a.conllu"))[0]
    lines = conllu(sentence, [4, 4, 2, 0, 4]).split("\n")
    assert lines[4] == "3\tn't\tnot\tPART\t_\t_\t2\tdep\t_\t_"
    assert [line for line in lines if line not in sentence.lines] == [lines[4]]
    alone = Sentence(["Go", "!"], [0, 1], ["_", "PUNCT"], [])
    assert conllu(alone) == "1\tGo\t_\t_\t_\t_\t0\troot\t_\t_\n2\t!\t_\tPUNCT\t_\t_\t1\tdep\t_\t_"


def lines_of(*heads):
    rows = (f"{word}\tw\t_\t_\t_\t_\t{head}\t_\t_\t_" for word, head in enumerate(heads, 1))
    return "\n".join(["# text", *rows, ""])


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("1\tGo\t_\n", "line 1: expected 10 fields with tabs between, found 3"),
        (lines_of(0).replace("1\tw", "2\tw"), "line 2: expected word 1, found ID '2'"),
        (lines_of(0, "_"), "line 3: HEAD must be the number of a word, or 0, not '_'"),
        (lines_of(0, -1), "line 3: HEAD must be"),
        (lines_of(0, "1" * 5000), "line 3: HEAD must be"),
        (lines_of(0, 3), "line 3: the head of word 2 is 3, but there are 2 words"),
        (lines_of(0, 2), "line 3: the heads of word 2 lead back to it"),
        (lines_of(0, 3, 4, 2), "line 3: the heads of word 2 lead back to it"),
        (lines_of(0).replace("\tw", "\t"), "line 2: the word is empty"),
        ("# nothing\n", "holds no sentences"),
    ],
)
def test_malformed_files_are_refused_with_file_line_and_reason(tmp_path, text, what):
    path = written(tmp_path / "bad.conllu", text)
    with pytest.raises(UserError) as caught:
        read_treebank(path)
    assert what in str(caught.value)
    assert str(path) in str(caught.value)


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(UserError, match="cannot read"):
        read_treebank(tmp_path / "nothing.conllu")
    bad = tmp_path / "bad.conllu"
    bad.write_bytes(TEXT.encode() + b"1\t\xff\n")
    with pytest.raises(UserError, match=r"bad\.conllu, line 14: not UTF-8"):
        read_treebank(bad)
    torn = tmp_path / "torn.conllu.gz"
    torn.write_bytes(gzip.compress(TEXT.encode())[:-20])
    with pytest.raises(UserError, match=r"torn\.conllu\.gz is damaged"):
        read_treebank(torn)


@pytest.mark.parametrize("count", range(1, 5))
def test_trees_are_what_enumeration_says(count):
    possible = {heads[1:] for heads in trees(count + 1, False, False)}
    projective = {heads[1:] for heads in trees(count + 1, True, False)}
    for heads in itertools.product(range(count + 1), repeat=count):
        assert (wrong_head(heads) is None) == (heads in possible)
        if heads in possible:
            assert is_projective(heads) == (heads in projective)


def test_lifting_moves_heads_until_no_arcs_cross_and_keeps_a_single_root():
    for heads in trees(6, False, False):
        heads = list(heads[1:])
        found = lifted(heads)
        assert is_projective(found)
        assert wrong_head(found) is None
        assert found == heads or not is_projective(heads)
        if heads.count(0) == 1:
            assert [head == 0 for head in found] == [head == 0 for head in heads]
    assert lifted([2, 0, 5, 3, 2, 3]) == [2, 0, 5, 3, 2, 5], "word 6 moves from 3 to the head of 3"


def test_the_example_treebank_is_read():
    sentences = read_treebank(EXAMPLES)
    assert all(is_projective(one.heads) for one in sentences)


@pytest.mark.skipif(not REAL.is_dir(), reason="the real treebank is not beside the checkout")
def test_the_real_treebank_is_read_and_written_back():
    path = REAL / "dev.conllu.gz"
    sentences = read_treebank(path)
    assert len(sentences) == 2001
    assert "".join(f"{conllu(one)}\n\n" for one in sentences) == gzip.decompress(path.read_bytes()).decode()
