"""Small natural language inference, made up: a corpus with parses, and vectors of its words."""

import gzip
import itertools
import json

import torch

from structattn.recipes.entailment.data import statement

SETTINGS = ["vectors=vectors.txt", "vector_size=6", "size=8", "hidden=12", "lstm=5", "arc_size=7"]
SETTINGS += ["initialisation=default"]
PEOPLE, DEEDS, PLACES = ("man", "woman", "dog"), ("sleeps", "sings", "waits"), ("park", "house")


def noun(word):
    return f"(NP (DT the) (NN {word}))"


def parse(person, deed, place):
    return f"(ROOT (S {noun(person)} (VP (VBZ {deed}) (PP (IN in) {noun(place)})) (. .)))"


def rows():
    """Pairs whose label is decided by what the hypothesis repeats."""
    for person, deed, place in itertools.product(PEOPLE, DEEDS, PLACES):
        other = DEEDS[(DEEDS.index(deed) + 1) % 3]
        for label, hypothesis in (
            ("entailment", f"(ROOT (S {noun(person)} (VP (VBZ {deed})) (. .)))"),
            ("contradiction", f"(ROOT (S {noun(person)} (VP (VBZ {other})) (. .)))"),
            ("neutral", f"(ROOT (S {noun(person)} (VP (VBZ {deed}) (ADVP (RB happily))) (. .)))"),
            ("-", f"(ROOT (S {noun(person)} (VP (VBZ {deed})) (. .)))"),
        ):
            premise = parse(person, deed, place)
            yield {
                "gold_label": label,
                "sentence1": plain(premise),
                "sentence2": plain(hypothesis),
                "sentence1_parse": premise,
                "sentence2_parse": hypothesis,
            }


def plain(bracketing):
    return " ".join(statement("", bracketing).words).replace(" .", ".")


def write_rows(path, found):
    found = list(found)
    if ".jsonl" in path.name:
        text = "".join(json.dumps(row) + "\n" for row in found)
    else:
        text = "\n".join("\t".join(row) for row in [list(found[0]), *(row.values() for row in found)]) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_entailment(data):
    """A data folder: SNLI, and vectors of all words but one."""
    (data / "snli").mkdir(parents=True)
    (data / "vectors").mkdir()
    write_rows(data / "snli" / "snli_1.0_train.jsonl", rows())
    write_rows(data / "snli" / "snli_1.0_dev.txt", list(rows())[::3])
    words = ["the", "in", ".", *PEOPLE, *DEEDS, *PLACES]
    numbers = torch.randn(len(words), 6, generator=torch.Generator().manual_seed(1)).tolist()
    lines = [" ".join([word, *map(str, row)]) for word, row in zip(words, numbers, strict=True)]
    (data / "vectors" / "vectors.txt").write_text("\n".join(lines) + "\n")
    return data
