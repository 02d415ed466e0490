"""The best spanning trees of one sentence: Chu-Liu/Edmonds, and the k best by branching (Camerini, Lawler).

Scores are pairs (minus the number of arcs from the root symbol, score), compared lexicographically when the tree has to
have a single root: the best tree with as few root arcs as possible, without any large number that would eat digits.
"""

from __future__ import annotations

import heapq

NEG_INF = float("-inf")
Weight = tuple[float, float]
Heads = list[int]
Scores = list[list[float]]
FORBIDDEN: Weight = (NEG_INF, NEG_INF)


def best_heads(scores: Scores, single_root: bool) -> Heads | None:
    """The heads of the best tree of a sentence, scores[h][m]; None if there is no tree."""
    n = len(scores)
    if n <= 1:
        return [0] * n
    root_arc = -1.0 if single_root else 0.0
    weights = [
        [FORBIDDEN if s == NEG_INF else (root_arc if h == 0 else 0.0, s) for s in row]
        for h, row in enumerate(scores)
    ]
    chosen = _chu_liu_edmonds(weights)
    if chosen is None or (single_root and chosen[1:].count(0) != 1):
        return None
    return chosen


def k_best_heads(scores: Scores, single_root: bool, k: int) -> list[Heads]:
    """Up to k trees, best first. The rest of a set of trees, once its best is taken, is split into disjoint sets:

    those that share the best tree's heads up to some word, and have another head there.
    """
    best = best_heads(scores, single_root)
    if best is None:
        return []
    queue = [(-_score(scores, best), best, scores, 1)]
    ranked: list[Heads] = []
    while queue and len(ranked) < k:
        _, heads, allowed, first_free = heapq.heappop(queue)
        ranked.append(heads)
        fixed = [list(row) for row in allowed]
        for m in range(first_free, len(heads)):
            without = [list(row) for row in fixed]
            without[heads[m]][m] = NEG_INF
            runner_up = best_heads(without, single_root)
            if runner_up is not None:
                heapq.heappush(queue, (-_score(scores, runner_up), runner_up, without, m))
            for h, row in enumerate(fixed):
                if h != heads[m]:
                    row[m] = NEG_INF
    return ranked


def _score(scores: Scores, heads: Heads) -> float:
    return sum(scores[heads[m]][m] for m in range(1, len(heads)))


def _chu_liu_edmonds(weights: list[list[Weight]]) -> Heads | None:
    """Every word takes its best head; a cycle that arises becomes one word, and the smaller problem is solved."""
    n = len(weights)
    heads = [0] * n
    for m in range(1, n):
        heads[m] = max((h for h in range(n) if h != m), key=lambda h: weights[h][m])
        if weights[heads[m]][m] == FORBIDDEN:
            return None
    cycle = _find_cycle(heads)
    if cycle is None:
        return heads
    return _solve_contracted(weights, heads, cycle)


def _find_cycle(heads: Heads) -> list[int] | None:
    seen_from = [0] * len(heads)
    for start in range(1, len(heads)):
        m = start
        while m != 0 and seen_from[m] == 0:
            seen_from[m] = start
            m = heads[m]
        if m != 0 and seen_from[m] == start:
            cycle = [m]
            while heads[cycle[-1]] != m:
                cycle.append(heads[cycle[-1]])
            return cycle
    return None


def _solve_contracted(weights: list[list[Weight]], heads: Heads, cycle: list[int]) -> Heads | None:
    inside = set(cycle)
    outer = [m for m in range(len(heads)) if m not in inside]
    merged = len(outer)  # the number of the word that stands for the cycle
    smaller = [[weights[h][m] for m in outer] + [FORBIDDEN] for h in outer] + [[FORBIDDEN] * (merged + 1)]
    enters_at, leaves_from = [0] * merged, [0] * merged
    for i, word in enumerate(outer):
        # Entering the cycle at m costs the arc of the cycle that m gives up.
        gains = {m: _minus(weights[word][m], weights[heads[m]][m]) for m in cycle}
        enters_at[i] = max(cycle, key=lambda m: gains[m])
        smaller[i][merged] = gains[enters_at[i]]
        leaves_from[i] = max(cycle, key=lambda h: weights[h][word])
        smaller[merged][i] = weights[leaves_from[i]][word]
    solved = _chu_liu_edmonds(smaller)
    if solved is None:
        return None
    result = list(heads)
    for i, word in enumerate(outer):
        if word != 0:
            result[word] = leaves_from[i] if solved[i] == merged else outer[solved[i]]
    entry = solved[merged]
    result[enters_at[entry]] = outer[entry]
    return result


def _minus(a: Weight, b: Weight) -> Weight:
    return FORBIDDEN if a == FORBIDDEN else (a[0] - b[0], a[1] - b[1])
