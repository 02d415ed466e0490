"""Chain and tree inference in the terminal: marginals as shades, the best structure beside them."""

import torch

import structattn as sa

SHADES = " ░▒▓█"


def shade(probability: float) -> str:
    return SHADES[min(int(probability * len(SHADES)), len(SHADES) - 1)] * 2


def show_chain() -> None:
    words = ["the", "old", "man", "the", "boats", "by", "the", "sea"]
    # Evidence for "noun" is weak and scattered; neighbouring words like to be alike.
    evidence = torch.tensor([-2.0, 0.3, 1.5, -0.2, 2.0, -1.5, -0.5, 2.5])
    unary = torch.stack([torch.zeros(len(words)), evidence], -1)
    agreement = torch.tensor([[0.8, 0.0], [0.0, 0.8]])
    chain = sa.LinearChain(unary, agreement)
    print("A chain: p(word is selected), alone and with neighbours that agree\n")
    for word, alone, together, state in zip(
        words, evidence.sigmoid().tolist(), chain.marginals[:, 1].tolist(), chain.mode.tolist(), strict=True
    ):
        print(
            f"  {word:>6}  {alone:.2f} {shade(alone)}   {together:.2f} {shade(together)}   {'selected' * state}"
        )
    print(f"\n  log Z {chain.log_partition:.3f}, entropy {chain.entropy():.3f} nats\n")


def show_tree() -> None:
    symbols = ["$", "(", "1", "+", "(", "2", "*", "3", ")", ")"]
    n = len(symbols)
    position = torch.arange(n)
    # Symbols like brackets as parents, and near ones more than far ones; projectivity does the rest.
    is_bracket = torch.tensor([symbol in "$(" for symbol in symbols]).float()
    arcs = 2 * is_bracket.unsqueeze(1) - 0.3 * (position.unsqueeze(1) - position).abs()
    tree = sa.ProjectiveTree(arcs.requires_grad_())
    tree.marginals.pow(2).sum().backward()
    print("A projective tree: p(row is the parent of column), and the best tree\n")
    print("        " + " ".join(f"{symbol:>2}" for symbol in symbols))
    for symbol, row in zip(symbols, tree.marginals.tolist(), strict=True):
        print(f"    {symbol:>2}  " + " ".join(shade(probability) for probability in row))
    print("  head  " + " ".join(f"{symbols[head]:>2}" for head in tree.mode.tolist()))
    print(f"\n  log Z {tree.log_partition:.3f}, entropy {tree.entropy():.3f} nats")
    print(f"  gradient of the sum of squared marginals: finite, largest entry {arcs.grad.abs().max():.3f}")


if __name__ == "__main__":
    show_chain()
    show_tree()
