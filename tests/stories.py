"""Small stories in bAbI's format, written here, for tests that train."""

import random

STORY = """1 Ann went to the shed.
2 Ann took the ball there.
3 Ben went to the attic.
4 Where is the ball? \tshed\t2 1
5 Ann went to the attic.
6 Where is the ball? \tattic\t2 5
1 Ben took the ball.
2 What has Ben got? \tball,nothing\t1
"""


def write_task(folder, task=2, count=30, seed=0):
    """Files of stories written here: who took the thing, and where that one went."""
    generator = random.Random(seed)
    people, places, things = ["ann", "ben", "cleo"], ["attic", "shed", "hall", "well"], ["ball", "cup"]
    for part in ("train", "test"):
        lines = []
        for _ in range(count):
            taker, thing = generator.choice(people), generator.choice(things)
            facts = [f"{taker} took the {thing}"]
            where = {}
            for _ in range(generator.randint(1, 3)):
                person, place = generator.choice(people), generator.choice(places)
                facts.append(f"{person} went to the {place}")
                where[person] = (len(facts), place)
            facts.append(f"{taker} went to the {generator.choice(places)}")
            place = facts[-1].rpartition(" ")[2]
            lines += [f"{number} {fact.capitalize()}." for number, fact in enumerate(facts, 1)]
            lines.append(f"{len(facts) + 1} Where is the {thing}? \t{place}\t1 {len(facts)}")
        path = folder / f"qa{task}_where-is-it_{part}.txt"
        path.write_text("\n".join(lines) + "\n", encoding="utf-8")
