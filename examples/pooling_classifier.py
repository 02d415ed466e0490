"""Segmentation attention as a pooling layer: runs of words tell the class, stray words mislead.

Every text holds one run of five words of its class, five stray words of the other class, and noise. Softmax
attention weighs each word by itself; segmentation attention learns, in its four pairwise potentials, that
what matters comes in runs.
"""

import torch
import torch.nn.functional as F
from torch import nn

import structattn as sa

WORDS, LENGTH, RUN = 20, 40, 5  # words 0-3 belong to class 0, 4-7 to class 1, the others to none


def texts(count):
    """Words (count, LENGTH) and classes (count)."""
    classes = torch.randint(2, (count,))
    words = torch.randint(8, WORDS, (count, LENGTH))
    for text, own in zip(words, classes.tolist(), strict=True):
        start = 10 * int(torch.randint(LENGTH // 10, ()))
        text[start : start + RUN] = 4 * own + torch.randint(4, (RUN,))
        stray = [place for place in range(0, LENGTH, 5) if not start <= place < start + 10]
        text[stray[:RUN]] = 4 * (1 - own) + torch.randint(4, (RUN,))
    return words, classes


class Classifier(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.embed, self.attention, self.out = nn.Embedding(WORDS, 16), attention(16), nn.Linear(16, 2)
        self.query = nn.Parameter(torch.randn(16))

    def forward(self, words):
        vectors = self.embed(words)
        context, _ = self.attention(self.query.expand(len(words), -1), vectors)
        return self.out(context)


def accuracy(attention):
    torch.manual_seed(0)
    (words, classes), (test_words, test_classes) = texts(2000), texts(1000)
    model = Classifier(attention)
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for step in range(300):
        part = slice(step * 100 % 2000, step * 100 % 2000 + 100)
        loss = F.cross_entropy(model(words[part]), classes[part])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return (model(test_words).argmax(1) == test_classes).float().mean().item()


if __name__ == "__main__":
    for attention in (sa.SoftmaxAttention, sa.SegmentationAttention):
        print(f"{attention.__name__}: {accuracy(attention):.0%} of 1000 new texts right")
