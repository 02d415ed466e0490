"""The printed algorithms of *Structured Attention Networks* (Kim, Denton, Hoang, Rush; ICLR 2017).

Table 1 is `SignedLog`. Figure 2 is `forward_backward` and `backprop_forward_backward`, Figure 5
`inside_outside`, Figure 6 `backprop_inside_outside`. They keep the paper's letters and loops; only the
innermost loops (over u, y, c) and the batch are vectorised. `chain` and `projective` put them behind the
project's calling convention.

The batch is the last dimension of every table, so that `alpha[s, t, R, 0]` reads as it is printed. Positions
count from 0 where the trees of the paper count from 1: the printed test `s > 1` is `s > 0` here.

Where a printed line is wrong, the code does the right thing and a comment quotes the line. The printed
backward procedures read alpha and beta without being given them: the forward ones return them beside p.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

# The side of a span on which its head stands: the third index of the tables alpha and beta.
# Their fourth index is 1 when the span is complete and 0 when it is not.
L, R = 0, 1


@dataclass(frozen=True, eq=False)
class SignedLog:
    """Real numbers a = sign * exp(log), element by element; zero is (-inf, +1).

    `log` and `sign` are tensors of one shape and dtype, `sign` holds +1 and -1. Indexing gives a view.
    """

    log: Tensor
    sign: Tensor

    @classmethod
    def from_real(cls, real: Tensor) -> SignedLog:
        return cls(real.abs().log(), torch.where(real < 0, -1.0, 1.0).to(real.dtype))

    @classmethod
    def zeros_like(cls, table: Tensor) -> SignedLog:
        return cls(torch.full_like(table, -math.inf), torch.ones_like(table))

    def signexp(self) -> Tensor:
        return self.sign * self.log.exp()

    def __getitem__(self, index: Any) -> SignedLog:
        return SignedLog(self.log[index], self.sign[index])

    def __neg__(self) -> SignedLog:
        return SignedLog(self.log, -self.sign)

    def otimes(self, other: SignedLog | Tensor) -> SignedLog:
        """The product; a plain tensor stands for the logarithms of positive numbers."""
        if isinstance(other, Tensor):
            log = self.log + other
            return SignedLog(log, self.sign.expand_as(log))
        return SignedLog(self.log + other.log, self.sign * other.sign)

    def oplus(self, other: SignedLog) -> SignedLog:
        """The sum: Table 1 with l_a the larger and l_b the smaller of the two logarithms."""
        l_a, l_b = torch.maximum(self.log, other.log), torch.minimum(self.log, other.log)
        # The clamp keeps 0 + 0 from being -inf - -inf.
        d = torch.exp(l_b - _finite_below(l_a))
        log = l_a + torch.log1p(self.sign * other.sign * d)
        sign = torch.where(self.log >= other.log, self.sign, other.sign)
        return SignedLog(log, sign.masked_fill(log == -math.inf, 1.0))

    def oplus_over(self, dim: int | tuple[int, ...]) -> SignedLog:
        """The sum over one or several dimensions, none of them empty."""
        largest = _finite_below(self.log.amax(dim, keepdim=True))
        total = SignedLog.from_real((self.sign * torch.exp(self.log - largest)).sum(dim))
        return total.otimes(largest.reshape(total.log.shape))


def _finite_below(log: Tensor) -> Tensor:
    return log.clamp(min=torch.finfo(log.dtype).min)


def _oplus_gets(targets: tuple[SignedLog, ...], term: SignedLog) -> None:
    """The printed `a, b <-(+) c`: adds the term into views of tables."""
    for target in targets:
        total = target.oplus(term)
        target.log.copy_(total.log)
        target.sign.copy_(total.sign)


def _logadd_gets(target: Tensor, term: Tensor) -> None:
    """The printed `a <-(+) b` among positive numbers: adds the term into a view of a table."""
    target.copy_(torch.logaddexp(target, term))


def _inverse(log: Tensor) -> Tensor:
    """The printed `(x) -A`: the logarithm of 1 / exp(log). One over zero gives zero.

    Whatever is divided by an impossible event is itself impossible, and so are its marginals and gradients.
    """
    return torch.where(log == -math.inf, log, -log)


def forward_backward(theta: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Figure 2, left: theta (n+1, C+1, C+1, B) -> p (n, C, B), A (B,), alpha and beta (n+2, C+1, B).

    theta[i, y, c] scores z_i = y, z_{i+1} = c (the printed theta_{i,i+1}). The last state is <t>: positions 0
    and n+1 take it, another position only where theta is above -inf.
    """
    edges, states, _, batch = theta.shape
    t = states - 1
    alpha = theta.new_full((edges + 1, states, batch), -math.inf)
    beta = alpha.clone()
    alpha[0, t] = 0
    beta[edges, t] = 0
    # Figure 2: "for i = 1, ..., n" would leave alpha[n+1, <t>], which is read as A, unset: i goes to n+1.
    for i in range(1, edges + 1):
        alpha[i] = torch.logsumexp(alpha[i - 1, :, None] + theta[i - 1], dim=0)
    for i in range(edges - 1, 0, -1):
        beta[i] = torch.logsumexp(beta[i + 1] + theta[i], dim=1)
    A = alpha[edges, t]
    p = torch.exp(alpha[1:-1, :t] + beta[1:-1, :t] + _inverse(A))
    return p, A, alpha, beta


def backprop_forward_backward(
    theta: Tensor, p: Tensor, grad_p: Tensor, grad_A: Tensor, alpha: Tensor, beta: Tensor
) -> Tensor:
    """Figure 2, right: the gradient (n+1, C+1, C+1, B) of the loss with respect to theta.

    theta, p, alpha and beta are those of `forward_backward`; the loss gives grad_p (n, C, B) and grad_A (B,).
    """
    edges, t = theta.shape[0], theta.shape[1] - 1
    A = alpha[edges, t]
    log_grad_p = SignedLog.from_real(grad_p)
    # Figure 2: "nabla_alpha <- log p (x) log nabla_p (x) beta (x) -A", and the same for nabla_beta. As
    # p = alpha * beta / Z, the derivative of p by alpha is beta / Z: there is no factor p.
    nabla_alpha, nabla_beta = SignedLog.zeros_like(alpha), SignedLog.zeros_like(beta)
    inner = (slice(1, -1), slice(0, t))
    _oplus_gets((nabla_alpha[inner],), log_grad_p.otimes(beta[inner] + _inverse(A)))
    _oplus_gets((nabla_beta[inner],), log_grad_p.otimes(alpha[inner] + _inverse(A)))

    # Figure 2: "alpha_hat[0, <t>] <- 0" and "beta_hat[n+1, <t>] <- 0". In log-space 0 is the number one, but
    # no marginal is read at <t>: both start from zero, -inf. What the loss asks of A is the third term below.
    alpha_hat, beta_hat = nabla_beta, nabla_alpha
    for i in range(edges - 1, 0, -1):
        _oplus_gets((beta_hat[i],), beta_hat[i + 1].otimes(theta[i]).oplus_over(1))
    for i in range(1, edges):
        _oplus_gets((alpha_hat[i],), alpha_hat[i - 1][:, None].otimes(theta[i - 1]).oplus_over(0))

    # Figure 2: the third term, "(+) alpha (x) beta (x) -A", has weight one. It is the gradient that flows
    # through A, and the derivative of the loss by A is nabla_A minus the sum of p * nabla_p.
    grad_through_A = SignedLog.from_real(grad_A).oplus(-log_grad_p.otimes(p.log()).oplus_over((0, 1)))
    # Figure 2: "nabla_theta_{i-1,i}(y, c) <- ... [i, y] ... [i+1, c]", for i = 1, ..., n, is one position
    # late: the edge from i-1 to i lies between alpha[i-1, y] and beta[i, c], and i goes to n+1.
    into_beta = alpha_hat[:-1, :, None].otimes(beta[1:, None])
    into_alpha = beta_hat[1:, None].otimes(alpha[:-1, :, None])
    into_A = grad_through_A.otimes(alpha[:-1, :, None] + beta[1:, None] + _inverse(A))
    # Figure 2 gives the derivative by exp(theta); the one by theta has the factor exp(theta).
    return into_beta.oplus(into_alpha).oplus(into_A).otimes(theta).signexp()


def inside_outside(
    theta: Tensor, lengths: Tensor, single_root: bool = False
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Figure 5: theta (n, n, B), lengths (B,) -> p (n, n, B), A (B,), alpha and beta (n, n, 2, 2, B).

    theta[s, t] scores s as the parent of t; column 0 must be -inf, for nothing is the root symbol's parent.
    Each sentence ends at its own length, where the paper has one n. `single_root` lets one word only attach
    to the root.
    """
    n, _, batch = theta.shape
    whole = _whole_sentence(lengths)
    alpha = _inside(theta, single_root)
    beta = torch.full_like(alpha, -math.inf)
    beta[whole] = 0
    _outside(theta, alpha, beta, single_root)
    A = alpha[whole]
    p = theta.new_zeros(n, n, batch)
    log_p = alpha[..., 0, :] + beta[..., 0, :] + _inverse(A)
    for s in range(n - 1):
        p[s, s + 1 :] = log_p[s, s + 1 :, R].exp()
        if s > 0:
            p[s + 1 :, s] = log_p[s, s + 1 :, L].exp()
    return p, A, alpha, beta


def _whole_sentence(lengths: Tensor) -> tuple[int, Tensor, int, int, Tensor]:
    """The index of the printed [1, n, R, 1], the complete span under the root, at each sentence's length."""
    return 0, (lengths - 1).clamp(min=0), R, 1, torch.arange(len(lengths), device=lengths.device)


def _end_of_splits(s: int, t: int, single_root: bool) -> int:
    """The end (not included) of the printed u in [s, t-1], where an arc of s and t joins [s, u] and [u+1, t].

    A second word under the root would join a span [root, u] that already holds the first: a single root
    allows u = root only.
    """
    return s + 1 if single_root and s == 0 else t


def _inside(theta: Tensor, single_root: bool) -> Tensor:
    n, _, batch = theta.shape
    alpha = theta.new_full((n, n, 2, 2, batch), -math.inf)
    for i in range(n):
        alpha[i, i, L, 1] = 0
        alpha[i, i, R, 1] = 0
    for k in range(1, n):
        for s in range(n - k):
            t = s + k
            end = _end_of_splits(s, t, single_root)
            joined = torch.logsumexp(alpha[s, s:end, R, 1] + alpha[s + 1 : end + 1, t, L, 1], dim=0)
            alpha[s, t, R, 0] = joined + theta[s, t]
            alpha[s, t, L, 0] = joined + theta[t, s]
            after = slice(s + 1, t + 1)
            alpha[s, t, R, 1] = torch.logsumexp(alpha[s, after, R, 0] + alpha[after, t, R, 1], dim=0)
            alpha[s, t, L, 1] = torch.logsumexp(alpha[s, s:t, L, 1] + alpha[s:t, t, L, 0], dim=0)
    return alpha


def _outside(theta: Tensor, alpha: Tensor, beta: Tensor, single_root: bool) -> None:
    """The outside step: fills beta, which holds the whole sentence already."""
    n = theta.shape[0]
    for k in range(n - 1, 0, -1):
        for s in range(n - k):
            t = s + k
            after = slice(s + 1, t + 1)
            _logadd_gets(beta[s, after, R, 0], beta[s, t, R, 1] + alpha[after, t, R, 1])
            _logadd_gets(beta[after, t, R, 1], beta[s, t, R, 1] + alpha[s, after, R, 0])
            if s > 0:
                _logadd_gets(beta[s, s:t, L, 1], beta[s, t, L, 1] + alpha[s:t, t, L, 0])
                _logadd_gets(beta[s:t, t, L, 0], beta[s, t, L, 1] + alpha[s, s:t, L, 1])
            end = _end_of_splits(s, t, single_root)
            left, right = slice(s, end), slice(s + 1, end + 1)
            _logadd_gets(beta[s, left, R, 1], beta[s, t, R, 0] + alpha[right, t, L, 1] + theta[s, t])
            _logadd_gets(beta[right, t, L, 1], beta[s, t, R, 0] + alpha[s, left, R, 1] + theta[s, t])
            if s > 0:
                _logadd_gets(beta[s, left, R, 1], beta[s, t, L, 0] + alpha[right, t, L, 1] + theta[t, s])
                _logadd_gets(beta[right, t, L, 1], beta[s, t, L, 0] + alpha[s, left, R, 1] + theta[t, s])


def backprop_inside_outside(
    theta: Tensor,
    p: Tensor,
    grad_p: Tensor,
    grad_A: Tensor,
    alpha: Tensor,
    beta: Tensor,
    lengths: Tensor,
    single_root: bool = False,
) -> Tensor:
    """Figure 6: the gradient (n, n, B) of the loss with respect to theta.

    theta, p, alpha and beta are those of `inside_outside`; grad_p (n, n, B) and grad_A (B,) come from the
    loss. nabla_alpha and nabla_beta are the gradients by the logarithms alpha and beta themselves.
    """
    delta = SignedLog.from_real(grad_p).otimes(p.log())
    nabla_alpha, nabla_beta = SignedLog.zeros_like(alpha), SignedLog.zeros_like(beta)
    nabla_theta = SignedLog.zeros_like(theta)
    for s in range(theta.shape[0] - 1):
        t = slice(s + 1, None)
        _oplus_gets((nabla_alpha[s, t, R, 0], nabla_beta[s, t, R, 0]), delta[s, t])
        if s > 0:
            _oplus_gets((nabla_alpha[s, t, L, 0], nabla_beta[s, t, L, 0]), delta[t, s])
    # Figure 6: the second "nabla_alpha[1,n,R,1] <-(+) -delta[s,t]", under "if s > 1", must read -delta[t,s],
    # so that every arc's delta is taken off once. In both, "-delta" flips the sign of the number, not of its
    # logarithm. The paper's loss reads the marginals only; ours may read A too, which adds nabla_A.
    grad_through_A = SignedLog.from_real(grad_A).oplus(-delta.oplus_over((0, 1)))
    whole = _whole_sentence(lengths)
    nabla_alpha.log[whole], nabla_alpha.sign[whole] = grad_through_A.log, grad_through_A.sign

    _backprop_outside(theta, alpha, beta, nabla_alpha, nabla_beta, nabla_theta, single_root)
    _backprop_inside(theta, alpha, nabla_alpha, nabla_theta, single_root)
    return nabla_theta.signexp()


def _over(nabla: SignedLog, table: Tensor) -> SignedLog:
    """The printed nu.

    Figure 6: "nu <- nabla_beta[s,t,R,0] (x) beta[s,t,R,0]", and so in all eight places, must divide where it
    multiplies. With beta the log-sum of terms, each term's gradient is nabla_beta * exp(term - beta).
    """
    return nabla.otimes(_inverse(table))


def _backprop_outside(
    theta: Tensor,
    alpha: Tensor,
    beta: Tensor,
    nabla_alpha: SignedLog,
    nabla_beta: SignedLog,
    nabla_theta: SignedLog,
    single_root: bool,
) -> None:
    n = theta.shape[0]
    for k in range(1, n):
        for s in range(n - k):
            t = s + k
            nu = _over(nabla_beta[s, t, R, 0], beta[s, t, R, 0])
            gamma = beta[s, t:, R, 1] + alpha[t, t:, R, 1]
            _oplus_gets((nabla_beta[s, t:, R, 1], nabla_alpha[t, t:, R, 1]), nu.otimes(gamma))
            if s > 0:
                nu = _over(nabla_beta[s, t, L, 0], beta[s, t, L, 0])
                gamma = beta[: s + 1, t, L, 1] + alpha[: s + 1, s, L, 1]
                _oplus_gets((nabla_beta[: s + 1, t, L, 1], nabla_alpha[: s + 1, s, L, 1]), nu.otimes(gamma))
                nu = _over(nabla_beta[s, t, L, 1], beta[s, t, L, 1])
                # Figure 6: "... (x) beta[s,u,L,1] (x) alpha[t,u,L,1]" must read alpha[t,u,L,0], as in the
                # outside step and in the target. "for u = t" then adds nothing: alpha[t,t,L,0] is zero.
                gamma = beta[s, t:, L, 1] + alpha[t, t:, L, 0]
                _oplus_gets((nabla_beta[s, t:, L, 1], nabla_alpha[t, t:, L, 0]), nu.otimes(gamma))
                # The root stands left of such a split only when the split is just after it.
                u = slice(1 if single_root and s > 1 else 0, s)
                nabla_left = nabla_alpha[u, s - 1, R, 1]
                term = nu.otimes(beta[u, t, R, 0] + alpha[u, s - 1, R, 1] + theta[u, t])
                _oplus_gets((nabla_beta[u, t, R, 0], nabla_left, nabla_theta[u, t]), term)
                term = nu.otimes(beta[u, t, L, 0] + alpha[u, s - 1, R, 1] + theta[t, u])
                _oplus_gets((nabla_beta[u, t, L, 0], nabla_left, nabla_theta[t, u]), term)
            nu = _over(nabla_beta[s, t, R, 1], beta[s, t, R, 1])
            gamma = beta[: s + 1, t, R, 1] + alpha[: s + 1, s, R, 0]
            _oplus_gets((nabla_beta[: s + 1, t, R, 1], nabla_alpha[: s + 1, s, R, 0]), nu.otimes(gamma))
            # Nothing to restrict under a single root: nu is zero for [root, t], which no further arc joins.
            if t + 1 < n:
                u = slice(t + 1, n)
                nabla_right = nabla_alpha[t + 1, u, L, 1]
                term = nu.otimes(beta[s, u, R, 0] + alpha[t + 1, u, L, 1] + theta[s, u])
                _oplus_gets((nabla_beta[s, u, R, 0], nabla_right, nabla_theta[s, u]), term)
                term = nu.otimes(beta[s, u, L, 0] + alpha[t + 1, u, L, 1] + theta[u, s])
                _oplus_gets((nabla_beta[s, u, L, 0], nabla_right, nabla_theta[u, s]), term)


def _backprop_inside(
    theta: Tensor, alpha: Tensor, nabla_alpha: SignedLog, nabla_theta: SignedLog, single_root: bool
) -> None:
    n = theta.shape[0]
    for k in range(n - 1, 0, -1):
        for s in range(n - k):
            t = s + k
            nu = _over(nabla_alpha[s, t, R, 1], alpha[s, t, R, 1])
            u = slice(s + 1, t + 1)
            # Figure 6: "nabla_alpha[u,t,R,0], nabla_alpha[u,t,R,1] <-(+) ..." must begin with
            # nabla_alpha[s,u,R,0]: the term is the product of alpha[s,u,R,0] and alpha[u,t,R,1].
            term = nu.otimes(alpha[s, u, R, 0] + alpha[u, t, R, 1])
            _oplus_gets((nabla_alpha[s, u, R, 0], nabla_alpha[u, t, R, 1]), term)
            end = _end_of_splits(s, t, single_root)
            left, right = slice(s, end), slice(s + 1, end + 1)
            nabla_joined = (nabla_alpha[s, left, R, 1], nabla_alpha[right, t, L, 1])
            if s > 0:
                nu = _over(nabla_alpha[s, t, L, 1], alpha[s, t, L, 1])
                term = nu.otimes(alpha[s, s:t, L, 1] + alpha[s:t, t, L, 0])
                _oplus_gets((nabla_alpha[s, s:t, L, 1], nabla_alpha[s:t, t, L, 0]), term)
                nu = _over(nabla_alpha[s, t, L, 0], alpha[s, t, L, 0])
                term = nu.otimes(alpha[s, left, R, 1] + alpha[right, t, L, 1] + theta[t, s])
                _oplus_gets(nabla_joined, term)
                _oplus_gets((nabla_theta[t, s],), term.oplus_over(0))
            nu = _over(nabla_alpha[s, t, R, 0], alpha[s, t, R, 0])
            term = nu.otimes(alpha[s, left, R, 1] + alpha[right, t, L, 1] + theta[s, t])
            _oplus_gets(nabla_joined, term)
            _oplus_gets((nabla_theta[s, t],), term.oplus_over(0))


class _Chain(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor) -> tuple[Tensor, Tensor]:
        p, A, alpha, beta = forward_backward(theta)
        ctx.save_for_backward(theta, p, alpha, beta)
        return A, p

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_A: Tensor, grad_p: Tensor) -> Tensor:
        theta, p, alpha, beta = ctx.saved_tensors
        return backprop_forward_backward(theta, p, grad_p, grad_A, alpha, beta)


class _Projective(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, theta: Tensor, lengths: Tensor, single_root: bool) -> tuple[Tensor, Tensor]:
        p, A, alpha, beta = inside_outside(theta, lengths, single_root)
        ctx.save_for_backward(theta, p, alpha, beta, lengths)
        ctx.single_root = single_root
        return A, p

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_A: Tensor, grad_p: Tensor) -> tuple[Tensor, None, None]:
        theta, p, alpha, beta, lengths = ctx.saved_tensors
        grad = backprop_inside_outside(theta, p, grad_p, grad_A, alpha, beta, lengths, ctx.single_root)
        return grad, None, None


def chain(unary: Tensor, transitions: Tensor, lengths: Tensor | None) -> tuple[Tensor, Tensor]:
    """The log-partition (B,) and the marginals (B, n, C) of a linear chain; differentiable once.

    unary (B, n, C); transitions (B or 1, n-1 or 1, C, C), transitions[b, i, a, c] scoring z_i = a and
    z_{i+1} = c; lengths (B,) or None. Computed in float64, returned in the dtype of unary.
    """
    theta = _chain_potentials(unary.double(), transitions.double(), lengths)
    log_partition, marginals = _Chain.apply(theta)
    return log_partition.to(unary.dtype), marginals.permute(2, 0, 1).contiguous().to(unary.dtype)


def _chain_potentials(unary: Tensor, transitions: Tensor, lengths: Tensor | None) -> Tensor:
    """Folds the unaries into the printed theta (n+1, C+1, C+1, B), whose last state is <t>.

    A sentence shorter than n goes to <t> right after its last position and stays there: theta then scores
    nothing beyond the length, and no state but <t> can be reached.
    """
    batch, n, t = unary.shape
    theta = unary.new_full((n + 1, t + 1, t + 1, batch), -math.inf)
    theta[0, t, :t] = unary[:, 0].mT
    theta[1:n, :t, :t] = (transitions + unary[:, 1:, None, :]).permute(1, 2, 3, 0)
    to_stop = torch.full_like(theta[0], -math.inf)
    to_stop[:, t] = 0
    if lengths is None:
        lengths = torch.full((batch,), n, device=unary.device)
    beyond = torch.arange(n + 1, device=unary.device)[:, None] >= lengths
    return torch.where(beyond[:, None, None, :], to_stop, theta)


def projective(arcs: Tensor, lengths: Tensor | None, single_root: bool) -> tuple[Tensor, Tensor]:
    """The log-partition (B,) and the marginals (B, n, n) of a projective tree; differentiable once.

    arcs (B, n, n), arcs[b, h, m] scoring h as the parent of m, word 0 being the root symbol; column 0 and the
    diagonal are ignored. lengths (B,) count the root, or None. `single_root` lets one word only attach to the
    root. Computed in float64, returned in the dtype of arcs.
    """
    batch, n, _ = arcs.shape
    if lengths is None:
        lengths = torch.full((batch,), n, device=arcs.device)
    word = torch.arange(n, device=arcs.device)
    h, m = word[:, None, None], word[:, None]
    is_arc = (m != 0) & (h != m) & (h < lengths) & (m < lengths)
    theta = torch.where(is_arc, arcs.double().permute(1, 2, 0), -math.inf)
    log_partition, marginals = _Projective.apply(theta, lengths, single_root)
    return log_partition.to(arcs.dtype), marginals.permute(2, 0, 1).contiguous().to(arcs.dtype)
