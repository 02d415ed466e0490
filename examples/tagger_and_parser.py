"""A CRF tagger and a dependency parser, trained on a CoNLL-U file: tagger_and_parser.py [FILE.conllu]."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.nn.utils.rnn import pad_sequence

import structattn as sa

HELD_OUT = 5


def read(path):
    """Words, tags and heads (count, n), zero where padded or new in what is held out, and lengths (count)."""
    blocks = Path(path).read_text(encoding="utf-8").lower().strip().split("\n\n")
    rows = [[line.split("\t") for line in block.splitlines() if line[:1].isdigit()] for block in blocks]
    rows = [[row for row in block if row[0].isdigit()] for block in rows]

    def numbers(column):
        known = ["", *sorted({row[column] for block in rows[:-HELD_OUT] for row in block})]
        ids = [[known.index(row[column]) if row[column] in known else 0 for row in block] for block in rows]
        return pad_sequence([torch.tensor(sentence) for sentence in ids], batch_first=True)

    heads = [torch.tensor([0] + [int(row[6]) for row in block]) for block in rows]
    heads = pad_sequence(heads, batch_first=True)
    return numbers(1), numbers(3), heads, torch.tensor([len(block) for block in rows])


class TaggerAndParser(nn.Module):
    def __init__(self, words, tags):
        super().__init__()
        self.embed, self.lstm = nn.Embedding(words, 32), nn.LSTM(32, 32, batch_first=True, bidirectional=True)
        self.states, self.transitions = nn.Linear(64, tags), nn.Parameter(torch.zeros(tags, tags))
        self.arcs = sa.SyntacticAttention(32, 32, 64, scorer="biaffine", root="learned", single_root=True)

    def forward(self, words, lengths):
        """The distribution over tags of the words, and over trees of the root symbol and the words."""
        vectors = self.embed(words)
        tags = sa.LinearChain(self.states(self.lstm(vectors)[0]), self.transitions, lengths)
        return tags, self.arcs.distribution(vectors, lengths)


if __name__ == "__main__":
    torch.manual_seed(0)
    words, tags, heads, lengths = read(*sys.argv[1:] or [Path(__file__).with_name("sentences.conllu")])
    model, new = TaggerAndParser(int(words.max()) + 1, int(tags.max()) + 1), slice(-HELD_OUT, None)
    optimizer, old = torch.optim.Adam(model.parameters(), 0.01), slice(-HELD_OUT)
    for _ in range(80):
        chains, trees = model(words[old], lengths[old])
        loss = -(chains.log_prob(tags[old]) + trees.log_prob(heads[old])).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    chains, trees = model(words[new], lengths[new])
    counted = torch.arange(words.shape[1]) < lengths[new, None]
    results = (chains.mode == tags[new], (trees.mode == heads[new])[:, 1:])
    print("{:.0%} of tags, {:.0%} of heads right".format(*(r[counted].float().mean() for r in results)))
