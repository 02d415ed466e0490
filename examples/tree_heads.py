"""A Transformer encoder in which two of four heads attend by trees: which bracket does this one close?

Texts are nested brackets of four kinds, but a closing bracket does not show its kind: "[ < > ( ) ]" reads
"[ < | ( | |". The model has to say it. One line swaps tree heads into torch's own encoder.
"""

import torch
import torch.nn.functional as F
from torch import nn

from structattn.attention import replace

KINDS, PAIRS = 4, 8  # tokens 0-3 open a bracket, 4 closes any


def brackets(count):
    """Tokens (count, 2 * PAIRS), and the kind (count, 2 * PAIRS) of the bracket that is opened or closed."""
    tokens, kinds = torch.full((2, count, 2 * PAIRS), KINDS)
    for text, answer in zip(tokens, kinds, strict=True):
        stack, left = [], PAIRS
        for place, coin in enumerate(torch.rand(2 * PAIRS).tolist()):
            if left and (coin < 0.5 or not stack):
                stack.append(int(torch.randint(KINDS, ())))
                text[place], answer[place], left = stack[-1], stack[-1], left - 1
            else:
                answer[place] = stack.pop()
    return tokens, kinds


class Model(nn.Module):
    def __init__(self, structure):
        super().__init__()
        self.tokens, self.places = nn.Embedding(KINDS + 1, 64), nn.Embedding(2 * PAIRS, 64)
        self.out = nn.Linear(64, KINDS)
        layer = nn.TransformerEncoderLayer(64, 4, 128, dropout=0.0, batch_first=True)
        self.encoder = replace(nn.TransformerEncoder(layer, 2), structure)

    def forward(self, tokens):
        return self.out(self.encoder(self.tokens(tokens) + self.places.weight))


def accuracy(structure):
    torch.manual_seed(0)
    (tokens, kinds), (test_tokens, test_kinds) = brackets(2000), brackets(500)
    model = Model(structure)
    optimizer = torch.optim.Adam(model.parameters(), 3e-3)
    for step in range(300):
        part = torch.arange(step * 50, step * 50 + 50) % 2000
        loss = F.cross_entropy(model(tokens[part]).flatten(0, 1), kinds[part].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    right = model(test_tokens).argmax(-1) == test_kinds
    return right[test_tokens == KINDS].float().mean().item()


if __name__ == "__main__":
    for structure in ("softmax", ["projective", "projective", "softmax", "softmax"]):
        print(f"{structure}: {accuracy(structure):.0%} of closing brackets right")
