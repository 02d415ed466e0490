"""bAbI: stories, questions and answers, read from the original text files and turned into numbers.

A line of a file is `ID text` or `ID question<TAB>answer<TAB>supporting IDs`; an ID of 1 starts a new story. A question
is asked of the facts that stand before it in its story. Supporting facts are listed in the order in which one needs
them, which is not always the order of the text. An answer of several words, joined by commas, counts as one word.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from structattn.recipes.errors import UserError
from structattn.recipes.text import read_lines

PADDING = ""
"""The word that fills up; its number is 0."""


class Question(NamedTuple):
    """A question, the facts before it, and which of them (positions in `facts`) lead to the answer."""

    facts: tuple[str, ...]
    text: str
    answer: str = ""
    supporting: tuple[int, ...] = ()
    origin: str = ""
    """File and line."""


def words_of(text: str) -> list[str]:
    """Lowercase words, without punctuation."""
    return re.findall(r"\w+", text.lower())


def task_file(folder: Path, task: int, part: str) -> Path:
    """The file of a task, such as qa2_two-supporting-facts_train.txt."""
    if not folder.is_dir():
        raise UserError(f"there is no folder {folder}")
    found = sorted(folder.glob(f"qa{task}_*_{part}.txt"))
    if not found:
        raise UserError(f"{folder} holds no qa{task}_*_{part}.txt")
    return found[0]


def read_questions(path: Path) -> list[Question]:
    """All questions of a file; what is wrong with a line is said with its number."""
    questions = parse_questions(read_lines(path), str(path))
    if not questions:
        raise UserError(f"{path} holds no questions")
    return questions


def parse_questions(lines: Iterable[str], origin: str) -> list[Question]:
    """The questions of a file in bAbI's format."""
    reader, questions, previous = StoryReader(), [], 0
    for number, line in enumerate(lines, 1):
        where = f"{origin}, line {number}"
        identifier, text = numbered(line)
        if not identifier or not text:
            raise UserError(f"{where}: expected a number, a space and a sentence, found {line[:60]!r}")
        if int(identifier) not in (1, previous + 1):
            raise UserError(f"{where}: number {identifier} follows {previous}; expected {previous + 1} or 1")
        previous = int(identifier)
        if text.endswith("?") and "\t" not in text:
            raise UserError(f"{where}: a question needs a tab and its answer behind it")
        question = reader.read(line, where)
        if question is not None:
            if not question.answer:
                raise UserError(f"{where}: the question has no answer")
            questions.append(question)
    return questions


def numbered(line: str) -> tuple[str, str]:
    """The number of a line and its text; a line without a number has an empty one."""
    identifier, _, text = line.strip().partition(" ")
    if identifier.isascii() and identifier.isdigit() and len(identifier) < 10:
        return identifier, text.strip()
    return "", line.strip()


class StoryReader:
    """Collects the facts of a story, line by line, and gives its questions. Line number 1 starts a new story."""

    def __init__(self) -> None:
        self.facts: list[str] = []
        self.numbers: list[str] = []
        """What the facts' lines are called."""

    def read(self, line: str, where: str) -> Question | None:
        """The question of this line; None if it is a fact, or nothing: an empty line starts a new story, too."""
        identifier, text = numbered(line)
        if identifier == "1" or not text:
            self.facts, self.numbers = [], []
        asked, *rest = text.split("\t")
        if not rest and not text.endswith("?"):
            if text:
                self.facts.append(text)
                self.numbers.append(identifier or str(len(self.facts)))
            return None
        if not self.facts:
            raise UserError(f"{where}: a question without a fact before it")
        answer = rest[0].strip().lower() if rest else ""
        return Question(tuple(self.facts), asked.strip(), answer, self._positions(rest[1:], where), where)

    def _positions(self, fields: list[str], where: str) -> tuple[int, ...]:
        names = " ".join(fields).split()
        for name in names:
            if name not in self.numbers:
                raise UserError(f"{where}: supporting fact {name} is no fact before the question")
        return tuple(self.numbers.index(name) for name in names)


def vocabulary(questions: Iterable[Question]) -> list[str]:
    """Padding, and every word of facts, questions and answers, sorted."""
    words: set[str] = set()
    for question in questions:
        words.update(words_of(question.text), [question.answer])
        for fact in question.facts:
            words.update(words_of(fact))
    return [PADDING, *sorted(words - {PADDING})]


def longest_sentence(questions: Iterable[Question]) -> int:
    """How many words the longest of all facts and questions has."""
    sentences = {sentence for question in questions for sentence in (*question.facts, question.text)}
    return max(len(words_of(sentence)) for sentence in sentences)


@dataclass
class Batch:
    """Questions as numbers. N distinct sentences, V words, B questions with the M most recent facts of each.

    Facts stand in the order of their age: the most recent one is first.
    """

    sentences: Tensor
    """(N, 2 V): how a sentence's words add up, see `bag_of_words`"""
    facts: Tensor
    """(B, M) numbers of sentences"""
    lengths: Tensor
    """(B) how many facts there are"""
    questions: Tensor
    """(B) numbers of sentences"""
    answers: Tensor
    """(B) numbers of words; 0: not known"""

    def rows(self, indices: Sequence[int]) -> tuple[Tensor, ...]:
        """The tensors, in order, for these questions only."""
        chosen = torch.as_tensor(indices)
        rest = (self.facts, self.lengths, self.questions, self.answers)
        return self.sentences, *(tensor[chosen] for tensor in rest)


class Encoder:
    """Questions to numbers, with the words of the training data."""

    def __init__(
        self, words: Sequence[str], memory: int, position_encoding: str, position_scale: float, longest: int
    ) -> None:
        self.words, self.memory, self.longest = words, memory, longest
        self.position_encoding, self.position_scale = position_encoding, position_scale
        self.number_of = {word: number for number, word in enumerate(words)}

    def encode(self, questions: Sequence[Question]) -> Batch:
        sentences: dict[str, int] = {}
        facts = torch.zeros(len(questions), self.memory, dtype=torch.int64)
        lengths = torch.zeros(len(questions), dtype=torch.int64)
        asked, answers = torch.zeros_like(lengths), torch.zeros_like(lengths)
        for row, question in enumerate(questions):
            recent = question.facts[::-1][: self.memory]
            numbers = [sentences.setdefault(fact, len(sentences)) for fact in recent]
            facts[row, : len(numbers)] = torch.tensor(numbers)
            lengths[row] = len(numbers)
            asked[row] = sentences.setdefault(question.text, len(sentences))
            answers[row] = self._answer(question)
        table = torch.stack([self.bag_of_words(sentence) for sentence in sentences])
        return Batch(table, facts, lengths, asked, answers)

    def _answer(self, question: Question) -> int:
        if not question.answer:
            return 0
        if question.answer not in self.number_of:
            raise UserError(f"{question.origin}: the answer {question.answer!r} is unknown to the model")
        return self.number_of[question.answer]

    def bag_of_words(self, sentence: str) -> Tensor:
        """(2 V) of the words w_1 ... w_J of a sentence, so that its vector is first @ A + second @ (A * k / d).

        Position encoding multiplies the k-th of d features of w_j by (1 - j / J) - (k / d) (1 - 2 j / J), and all by
        the scale: what does not depend on k is in the first half, the factor of k / d in the second. With J words in
        every sentence, those of the longest one, a first word is the same in short and in long sentences. Unknown
        words count nothing.
        """
        numbers = [self.number_of.get(word, 0) for word in words_of(sentence)]
        bag = torch.zeros(2, len(self.words))
        length = len(numbers) if self.position_encoding == "sentence" else max(self.longest, len(numbers))
        for j, number in enumerate(numbers, 1):
            if self.position_encoding == "none":
                bag[0, number] += 1.0
            else:
                bag[0, number] += self.position_scale * (1 - j / length)
                bag[1, number] -= self.position_scale * (1 - 2 * j / length)
        bag[:, 0] = 0
        return bag.flatten()


def supporting_ages(question: Question) -> list[int]:
    """Which facts, counted from the most recent one, lead to the answer, in the order of the file."""
    return [len(question.facts) - 1 - position for position in question.supporting]
