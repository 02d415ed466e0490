"""A small parallel corpus, made up: Japanese as KyTea would cut it, English of a few regular choices."""

import itertools
import random

TIMES = {"昨日": "yesterday", "今朝": "this morning", "": ""}
SUBJECTS = {"私": "i", "彼": "he", "彼女": "she", "友達": "a friend"}
OBJECTS = {"犬": "a dog", "白 い 猫": "a white cat", "本": "a book", "新し い 車": "a new car"}
VERBS = {"見 た": "saw", "買 っ た": "bought", "描 い た": "drew"}


def parallel_pairs():
    """All sentences with their translations, in an order that does not follow from how they were made."""
    pairs = []
    for time, subject, object_, verb in itertools.product(TIMES, SUBJECTS, OBJECTS, VERBS):
        source = f"{time} {subject} は {object_} を {verb} 。"
        target = f"{SUBJECTS[subject]} {VERBS[verb]} {OBJECTS[object_]} {TIMES[time]} ."
        pairs.append((" ".join(source.split()), " ".join(target.split())))
    random.Random(7).shuffle(pairs)
    return pairs


def write_parallel(folder, pairs, name="train"):
    """Two files, name.ja and name.en."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{name}.ja", folder / f"{name}.en"]
    for path, side in zip(paths, zip(*pairs, strict=True), strict=True):
        path.write_text("".join(f"{line}\n" for line in side), encoding="utf-8")
    return paths
