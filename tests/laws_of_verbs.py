"""Laws of the verbs: mode, score, log_prob, entropy, divergences, samples, topk, expand."""

import math

import torch
from cases import CHAINS, TREES
from laws import LENGTHS, close, forbid, law

import structattn as sa


@law()
def the_mode_is_the_best_structure(case):
    potentials = case.potentials((2, 3), scale=3.0)
    for lengths in (None, LENGTHS):
        d = case.distribution(potentials, lengths)
        assert d.mode.equal(case.stacked(potentials, "mode", lengths))
        best = d.score(d.mode)
        close(best, case.stacked(potentials, "mode_score", lengths))
        assert (best <= d.log_partition + 1e-12).all()
        close(d.log_prob(d.mode), best - d.log_partition)


@law()
def the_mode_avoids_what_is_forbidden(case):
    potentials = forbid(case.potentials((12,), scale=3.0), 0.35)
    d = case.distribution(potentials)
    possible = case.stacked(potentials, "log_partition").isfinite()
    assert possible.any()
    assert d.mode.equal(case.stacked(potentials, "mode"))
    close(d.score(d.mode)[possible], case.stacked(potentials, "mode_score")[possible])
    assert (d.log_prob(d.mode)[~possible] == -math.inf).all()


@law()
def log_prob_of_all_structures_equals_enumeration_and_sums_to_one(case):
    for potentials in (case.potentials(), forbid(case.potentials(), 0.15)):
        for length in (4, 3, 1, 0):
            d = case.distribution(potentials, torch.tensor(length))
            every = case.enumerate_one(potentials, length)
            log_probs = d.log_prob(every.structures)
            close(log_probs, every.log_probs)
            close(log_probs.exp().sum(), every.probabilities.sum())
            close(d.score(every.structures), every.scores)
            close(d.log_prob(every.structures[-1]), every.log_probs[-1])


@law(TREES)
def what_is_no_tree_has_no_probability(case):
    d = case.distribution(case.potentials(n=5))
    cycle, itself, crossing, two_roots = [0, 0, 3, 4, 2], [0, 0, 2, 1, 1], [0, 0, 4, 1, 1], [0, 0, 1, 0, 3]
    impossible = [cycle, itself, *[crossing] * case.projective, *[two_roots] * case.single_root]
    assert (d.log_prob(torch.tensor(impossible)) == -math.inf).all()
    short = case.distribution(case.potentials(n=5), torch.tensor(3))
    assert short.log_prob(torch.tensor([0, 0, 4, 0, 0])) == -math.inf, "a head beyond the length"
    possible = [[0, 0, 1, 1, 1], *[crossing] * (not case.projective), *[two_roots] * (not case.single_root)]
    assert d.log_prob(torch.tensor(possible)).isfinite().all()


@law()
def entropy_is_the_mean_surprise(case):
    potentials = case.potentials((2, 3))
    for lengths in (None, LENGTHS):
        entropy = case.distribution(potentials, lengths).entropy()
        close(entropy, case.stacked(potentials, "entropy", lengths))
    uniform = case.distribution(tuple(torch.zeros_like(p) for p in potentials))
    close(uniform.entropy(), uniform.log_partition)
    certain = case.distribution(tuple(1e4 * p for p in potentials))
    close(certain.entropy(), torch.zeros(2, 3, dtype=torch.float64))


@law()
def cross_entropy_and_kl_equal_enumeration(case):
    ours, theirs = case.potentials((2, 3)), case.potentials((2, 3))
    for lengths in (None, LENGTHS):
        p, q = case.distribution(ours, lengths), case.distribution(theirs, lengths)
        pairs = list(zip(case.enumerate(ours, lengths), case.enumerate(theirs, lengths), strict=True))
        close(p.cross_entropy(q).flatten(), torch.stack([a.cross_entropy(b) for a, b in pairs]))
        kl = torch.distributions.kl_divergence(p, q)
        close(kl.flatten(), torch.stack([a.kl(b) for a, b in pairs]))
        assert (kl >= 0).all()
        close(p.cross_entropy(p), p.entropy())
        same = torch.distributions.kl_divergence(p, case.distribution(ours, lengths))
        close(same, torch.zeros(2, 3, dtype=torch.float64))


@law()
def kl_is_infinite_where_q_forbids_what_p_allows_and_finite_the_other_way_round(case):
    free, narrow = case.potentials((4,)), forbid(case.potentials((4,)), 0.15)
    case.block(narrow, row=3)
    p, q = case.distribution(free), case.distribution(narrow)
    pairs = list(zip(case.enumerate(free), case.enumerate(narrow), strict=True))
    forwards = torch.stack([a.kl(b) for a, b in pairs])
    assert forwards.isinf().any()
    close(torch.distributions.kl_divergence(p, q), forwards)
    assert p.cross_entropy(q).isinf().equal(forwards.isinf())
    assert q.log_partition.isfinite().any()
    close(torch.distributions.kl_divergence(q, p), torch.stack([b.kl(a) for a, b in pairs]))


@law()
def samples_come_as_often_as_their_probability_says(case):
    """Pearson's statistic against its mean plus six standard deviations; the seed is fixed: no flicker."""
    count, lengths = 4000, torch.tensor([4, 3, 4])
    potentials = case.potentials((3,))
    forbidden = [p.clone() for p in potentials]
    forbidden[0][2, 1, 2] = -math.inf
    samples = case.distribution(forbidden, lengths).sample((count,))
    assert samples.shape == (count, 3, 4)
    for row, every in enumerate(case.enumerate(forbidden, lengths)):
        observed = (samples[:, row, None] == every.structures).all(-1).sum(0)
        assert observed.sum() == count, "a sample is no structure"
        expected = count * every.probabilities
        assert not observed[expected == 0].any()
        often = expected > 5
        rare = torch.stack([observed[~often].sum(), expected[~often].sum()])
        observed, expected = torch.cat([observed[often], rare[:1]]), torch.cat([expected[often], rare[1:]])
        statistic = ((observed - expected).square() / expected.clamp(min=1)).sum()
        freedom = len(expected) - 1
        assert statistic < freedom + 6 * math.sqrt(2 * freedom) + 6


@law()
def samples_of_equal_sentences_are_independent_and_follow_the_seed(case):
    potentials = tuple(torch.zeros_like(p) for p in case.potentials((2,), n=5))
    d = case.distribution(potentials)
    samples = d.sample((50,))
    assert not samples[:, 0].equal(samples[:, 1])
    assert len(samples[:, 0].unique(dim=0)) > 5
    torch.manual_seed(1)
    once = d.sample((2, 3))
    torch.manual_seed(1)
    assert once.equal(d.sample((2, 3)))
    assert once.shape == (2, 3, 2, 5)
    assert d.sample().shape == (2, 5)
    assert d.sample((0,)).shape == (0, 2, 5)


@law()
def topk_is_the_ranking_and_pads_what_does_not_exist(case):
    potentials = forbid(case.potentials((4,), scale=2.0), 0.1)
    lengths = torch.tensor([4, 3, 0, 1])
    d = case.distribution(potentials, lengths)
    for k in (1, 3, 20, 100):
        values, log_probs = d.topk(k)
        assert values.shape == (4, k, 4)
        assert log_probs.shape == (4, k)
        for row, every in enumerate(case.enumerate(potentials, lengths)):
            structures, expected = every.ranked()
            found = min(k, len(structures))
            assert values[row, :found].equal(structures[:found])
            close(log_probs[row, :found], expected[:found])
            assert (log_probs[row, found:] == -math.inf).all()
    assert d.topk(1)[0][:, 0].equal(d.mode)


@law()
def topk_lists_each_structure_once_even_when_all_are_equally_good(case):
    potentials = tuple(torch.zeros_like(p) for p in case.potentials((2,)))
    d = case.distribution(potentials)
    count = len(case.enumerate(potentials)[0].structures)
    values, log_probs = d.topk(count + 3)
    assert len(values[0, :count].unique(dim=0)) == count
    close(log_probs[0, :count], torch.full((count,), -math.log(count), dtype=torch.float64))
    assert (log_probs[:, count:] == -math.inf).all()


@law()
def expand_repeats_the_distribution(case):
    potentials, lengths = case.potentials((2, 1)), torch.tensor([[4], [3]])
    small = case.distribution(potentials, lengths)
    big = small.expand((5, 2, 3))
    assert type(big) is type(small)
    assert big.batch_shape == (5, 2, 3)
    assert big.event_shape == small.event_shape
    close(big.marginals, small.marginals.expand(5, 2, 3, -1, -1))
    close(big.log_partition, small.log_partition.expand(5, 2, 3))
    close(big.entropy(), small.entropy().expand(5, 2, 3))
    assert big.mode.equal(small.mode.expand(5, 2, 3, -1))
    close(big.log_prob(small.mode), small.log_prob(small.mode).expand(5, 2, 3))
    assert big.sample((7,)).shape == (7, 5, 2, 3, 4)


@law()
def it_is_a_torch_distribution(case):
    d = case.distribution(case.potentials((2, 3)))
    assert isinstance(d, torch.distributions.Distribution)
    assert d.batch_shape == (2, 3)
    assert d.event_shape == (4,)
    assert d.mean.equal(d.marginals)
    assert d.marginals.data_ptr() == d.marginals.data_ptr(), "computed twice"
    assert d.mode.dtype == torch.long
    assert type(d).__name__ in repr(d)


@law(CHAINS[:1])
def transitions_broadcast_over_batch_and_positions(case):
    unary = case.potentials((2, 3))[0]
    for shape in ((3, 3), (1, 3, 3), (3, 3, 3), (3, 1, 3, 3), (2, 1, 3, 3, 3), (2, 3, 1, 3, 3)):
        transitions = torch.randn(shape, dtype=torch.float64, requires_grad=True)
        full = transitions.expand(2, 3, 3, 3, 3)
        ours, theirs = (sa.LinearChain(unary, t) for t in (transitions, full.contiguous()))
        close(ours.marginals, theirs.marginals)
        weights = torch.randn_like(ours.marginals)
        gradients = [torch.autograd.grad((d.marginals * weights).sum(), transitions) for d in (ours, theirs)]
        close(*gradients)
