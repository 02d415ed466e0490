// The two-state chain with transitions that everything shares: one chain a lane, several registers at a time.
//
// With odds instead of probabilities, theta_t = u_t(1) - u_t(0) and m_ij = exp(x_ij - max x):
//   r_t = exp(theta_t) (m01 + m11 r_{t-1}) / (m00 + m10 r_{t-1})      what the left says about z_t
//   s_t = N / D,  N = m10 + m11 y,  D = m00 + m01 y,  y = exp(theta_{t+1}) s_{t+1}      what the right says
//   odds of z_t = 1:  o_t = r_t s_t
//   lambda_t = P(z_{t+1} = 1 | z_t = 1) - P(z_{t+1} = 1 | z_t = 0) = y (m00 m11 - m01 m10) / (N D)
// The derivative in direction g = g(1) - g(0) needs o and lambda only, no exp (v = p (1 - p)):
//   A_t = v_t g_t + lambda_{t-1} A_{t-1}     H_t = lambda_t (g_{t+1} + H_{t+1})     d p_t = A_t + v_t H_t
//   d P_t(11) = P(1 | 1) (A_t + p_t (1 - p_{t+1}) (g_{t+1} + H_{t+1})),  P(1 | 1) = p_{t+1} + lambda_t (1 -
//   p_t)
// Each step multiplies an error in log r by at most k = tanh(|x00 + x11 - x01 - x10| / 4), so float's
// rounding errors add up to 1 / (1 - k) of them at most; slower mixing takes doubles, and scores whose odds
// could leave the range of the type take the general kernel (kernel_segmentation.cpp decides).
#pragma once
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

#include "segmentation_lanes.h"

namespace structattn::STRUCTATTN_LEVEL {

// 1 / x to about one unit in the last place; where there is a fast estimate, with one step of Newton's.
template <typename Register>
inline Register reciprocal(Register x) {
#if defined(__AVX512F__)
    if constexpr (std::is_same_v<Register, Vector<float>>) {
        const Vector<float> estimate = (Vector<float>)_mm512_maskz_rcp14_ps(0xffff, (__m512)x);
        return estimate + estimate * (1.0f - x * estimate);
    }
#endif
    return 1 / x;
}

// exp(x - max x) of the four shared transitions.
struct TwoStateWeights {
    double m00, m01, m10, m11, determinant, top, range, interaction;

    explicit TwoStateWeights(const Problem& problem) {
        double x00 = 0, x01 = 0, x10 = 0, x11 = 0;
        if (problem.n > 1) {
            const Numbers& x = problem.transitions;
            x00 = x.at(0), x01 = x.at(1), x10 = x.at(2), x11 = x.at(3);
        }
        top = std::max({x00, x01, x10, x11});
        range = top - std::min({x00, x01, x10, x11});
        interaction = std::fabs((x00 + x11) - (x01 + x10));
        m00 = std::exp(x00 - top), m01 = std::exp(x01 - top), m10 = std::exp(x10 - top),
        m11 = std::exp(x11 - top);
        determinant = m00 * m11 - m01 * m10;
    }
};

// Limits within which N D, o and every product of them stay inside the type's range.
template <typename Real>
constexpr double WIDEST_TRANSITIONS = sizeof(Real) == sizeof(float) ? 12 : 60;
template <typename Real>
constexpr Real LARGEST_THETA = sizeof(Real) == sizeof(float) ? 25 : 150;

// One block of chains, forward and backward: computed in Real, for the caller's Elements.
template <typename Real, typename Element>
class Block {
    static constexpr int PACKS = Lanes<Real>::PACKS, WIDTH = Lanes<Real>::WIDTH, SIDE = LANES<Real>;
    static constexpr int64_t SUMMED_IN_REAL =
        16;  // positions whose gradients are added before a double takes over
    using Register = Vector<Real>;

  public:
    static constexpr int64_t ROWS = 4;

    // `scratch` holds ROWS numbers for each position and lane.
    Block(const Problem& problem, const TwoStateWeights& weights, int64_t block, Real* saved, Real* scratch)
        : problem_(problem),
          weights_(weights),
          lanes_(problem, block),
          pairs_(lanes_, problem.n),
          odds_(saved),
          lambda_(saved + problem.n * WIDTH) {
        for (int64_t row = 0; row < ROWS; ++row) rows_[row] = scratch + row * problem.n * WIDTH;
    }

    // False, with nothing to be relied on, if a score is out of the range of the recursion.
    bool infer(const Results& log_partition, const Results& marginals) {
        Real *y = rows_[0], *left = rows_[1], *right = rows_[2];
        pairs_.read_differences(pairs_of(problem_.unary), y);
        if (lanes_.ragged) clear_beyond_lengths(y);
        if (!exponentiate(y)) return false;
        if (lanes_.ragged)
            log_partition ? recur<true, true>(y, left, right) : recur<true, false>(y, left, right);
        else
            log_partition ? recur<false, true>(y, left, right) : recur<false, false>(y, left, right);
        for (int64_t cell = 0; cell < lanes_.longest * WIDTH; cell += SIDE)
            store(odds_ + cell, load(left + cell) * load(right + cell));
        if (log_partition) write_log_partition(log_partition, left);
        if (marginals)
            pairs_.write(std::array<const Real*, 1>{odds_}, pairs_of(marginals),
                         [](const std::array<Register, 1>& odds) {
                             const Register zero = reciprocal(odds[0] + 1);
                             return std::pair(zero, odds[0] * zero);
                         });
        return true;
    }

    // Adds the gradient of the four transitions to `total`.
    void differentiate(const BackwardArguments& arguments, double* total) {
        Real *direction = rows_[0], *future = rows_[1];
        const int64_t cells = lanes_.longest * WIDTH;
        if (arguments.grad_marginals)
            pairs_.read_differences(pairs_of(arguments.grad_marginals), direction);
        else
            std::fill(direction, direction + cells, Real{0});
        if (lanes_.ragged) clear_beyond_lengths(direction);
        look_ahead(direction, future);
        const bool uniform = bool(arguments.grad_log_partition);
        if (uniform) arguments.grad_log_partition.read(lanes_.first, lanes_.count, uniform_);
        if (uniform)
            derive<true, true>(direction, future, total);
        else if (lanes_.ragged)
            derive<true, false>(direction, future, total);
        else
            derive<false, false>(direction, future, total);
        if (!arguments.grad_unary) return;
        Element* gradient = pairs_of(arguments.grad_unary);
        if (uniform)
            pairs_.write(std::array<const Real*, 2>{rows_[3], rows_[2]}, gradient,
                         [](const std::array<Register, 2>& both) { return std::pair(both[0], both[1]); });
        else
            pairs_.write(
                std::array<const Real*, 1>{rows_[2]}, gradient,
                [](const std::array<Register, 1>& change) { return std::pair(-change[0], change[0]); });
    }

  private:
    const Element* pairs_of(const Numbers& numbers) const {
        return numbers.as<Element>() + lanes_.first * problem_.n * 2;
    }
    Element* pairs_of(const Results& results) const {
        return results.as<Element>() + lanes_.first * problem_.n * 2;
    }

    static int64_t cell(int64_t position, int pack) { return position * WIDTH + pack * SIDE; }

    void clear_beyond_lengths(Real* row) const {
        for (int64_t position = 0; position < lanes_.longest; ++position)
            for (int pack = 0; pack < PACKS; ++pack) {
                Real* numbers = row + cell(position, pack);
                store(numbers, within(pack, position, load(numbers)));
            }
    }

    bool exponentiate(Real* theta) const {
        Mask<Real> outside{};
        for (int64_t cell = 0; cell < lanes_.longest * WIDTH; cell += SIDE) {
            const Register value = load(theta + cell);
            outside |= ~((value <= LARGEST_THETA<Real>)&(value >= -LARGEST_THETA<Real>));
            store(theta + cell, exponential(value));
        }
        return !any(outside);
    }

    // r into `left`, s into `right`, lambda; both directions in one loop, so that one's latency hides the
    // other's. For log Z also the product of the denominators of r, with its exponent apart.
    template <bool RAGGED, bool PARTITION>
    void recur(const Real* y, Real* left, Real* right) {
        const Real m00 = weights_.m00, m01 = weights_.m01, m10 = weights_.m10, m11 = weights_.m11;
        const Real determinant = weights_.determinant;
        const int64_t last = lanes_.longest - 1;
        Register r[PACKS] = {}, s[PACKS], product[PACKS];
        Mask<Real> exponent[PACKS] = {};
        for (int pack = 0; pack < PACKS; ++pack) {
            s[pack] = product[pack] = broadcast(Real{1});
            if (last < 0) continue;
            store(left + cell(0, pack), r[pack] = load(y + cell(0, pack)));
            store(right + cell(last, pack), s[pack]);
            store(lambda_ + cell(last, pack), Register{});
        }
        for (int64_t position = 1; position <= last; ++position) {
            const int64_t mirrored = last - position;
#pragma GCC unroll 4
            for (int pack = 0; pack < PACKS; ++pack) {
                const Register denominator = m00 + m10 * r[pack];
                r[pack] = load(y + cell(position, pack)) * (m01 + m11 * r[pack]) * reciprocal(denominator);
                store(left + cell(position, pack), r[pack]);
                if (PARTITION) {
                    product[pack] *= RAGGED ? within(pack, position, denominator, 1) : denominator;
                    exponent[pack] += take_exponent<Real>(product[pack]);
                }
                const Register ahead = load(y + cell(mirrored + 1, pack)) * s[pack];
                const Register one = m10 + m11 * ahead, zero = m00 + m01 * ahead,
                               inverse = reciprocal(one * zero);
                s[pack] = one * one * inverse;
                Register lambda = ahead * determinant * inverse;
                if (RAGGED) {
                    s[pack] = within(pack, mirrored + 1, s[pack], 1);
                    lambda = within(pack, mirrored + 1, lambda);
                }
                store(right + cell(mirrored, pack), s[pack]);
                store(lambda_ + cell(mirrored, pack), lambda);
            }
        }
        for (int pack = 0; pack < PACKS && PARTITION; ++pack) {
            store(product_ + pack * SIDE, product[pack]);
            std::memcpy(exponent_ + pack * SIDE, &exponent[pack], sizeof exponent[pack]);
        }
    }

    // log Z = sum_t u_t(0) + sum_t log(m00 + m10 r_t) + log(1 + r_last) and what was taken from the
    // transitions; the logarithms as one of a product.
    void write_log_partition(const Results& log_partition, const Real* left) const {
        for (int64_t lane = 0; lane < lanes_.count; lane += LANES<double>) {
            const int64_t count = std::min<int64_t>(LANES<double>, lanes_.count - lane);
            double ends[LANES<double>], values[LANES<double>];
            for (int64_t part = 0; part < LANES<double>; ++part) {
                const int64_t length = part < count ? lanes_.length[lane + part] : 0;
                ends[part] = length > 0 ? 1.0 + left[(length - 1) * WIDTH + lane + part] : 1.0;
            }
            const Vector<double> steps = larger(load_as<double>(lanes_.length + lane) - 1, Vector<double>{});
            store(values, logarithm(load_as<double>(product_ + lane) * load(ends)) +
                              load_as<double>(exponent_ + lane) * LOG_2 + steps * weights_.top +
                              sums_of_first_scores(lane));
            log_partition.write(lanes_.first + lane, count, values);
        }
    }

    // sum_t u_t(0) of as many chains as a register holds doubles.
    Vector<double> sums_of_first_scores(int64_t lane) const {
        constexpr int64_t STEP = LANES<double>;
        const Mask<double> indices = lane_indices();
        Vector<double> sums[STEP] = {};
        for (int64_t part = 0; part < std::min<int64_t>(STEP, lanes_.count - lane); ++part) {
            const int64_t count = 2 * lanes_.length[lane + part];
            const Element* scores = pairs_of(problem_.unary) + 2 * (lane + part) * problem_.n;
            Vector<double> sum{};
            int64_t i = 0;
            for (; i + STEP <= count; i += STEP) sum += load_as<double>(scores + i);
            if (i < count && count >= STEP) {
                const Vector<double> end = load_as<double>(scores + count - STEP);
                sum += indices >= STEP - (count - i) ? end : Vector<double>{};
            } else {
                for (; i < count; i += 2) sum[0] += scores[i];
            }
            sums[part] = (indices & 1) == 0 ? sum : Vector<double>{};
        }
        return sum_of_each<double>(sums);
    }

    // H.
    void look_ahead(const Real* direction, Real* future) const {
        Register h[PACKS] = {};
        for (int64_t position = lanes_.longest - 1; position >= 0; --position)
            for (int pack = 0; pack < PACKS; ++pack) {
                store(future + cell(position, pack),
                      h[pack] = h[pack] * load(lambda_ + cell(position, pack)));
                h[pack] += load(direction + cell(position, pack));
            }
    }

    // d p into rows_[2], and with an upstream gradient of log Z that of u(1) there and that of u(0) into
    // rows_[3].
    template <bool RAGGED, bool UNIFORM>
    void derive(const Real* direction, const Real* future, double* total) {
        const int64_t last = lanes_.longest - 1;
        Sum joint, before, after;
        Register past[PACKS] = {}, lambda[PACKS] = {}, zero[PACKS] = {}, one[PACKS] = {};
        for (int pack = 0; pack < PACKS && last >= 0; ++pack)
            probabilities(cell(0, pack), zero[pack], one[pack]);
        for (int64_t position = 0; position <= last; ++position) {
            Register joint_here{}, before_here{}, after_here{};
#pragma GCC unroll 4
            for (int pack = 0; pack < PACKS; ++pack) {
                const int64_t here = cell(position, pack);
                const Register variance = one[pack] * zero[pack];
                past[pack] = variance * load(direction + here) + lambda[pack] * past[pack];
                lambda[pack] = load(lambda_ + here);
                Register change = past[pack] + variance * load(future + here), uniform{};
                if (UNIFORM) {
                    uniform = load(uniform_ + pack * SIDE);
                    store(rows_[3] + here, uniform * zero[pack] - change);
                    change += uniform * one[pack];
                }
                store(rows_[2] + here, change);
                if (position > 0) after_here += RAGGED ? within(pack, position, change) : change;
                if (position == last) continue;
                before_here += RAGGED ? within(pack, position + 1, change) : change;
                const int64_t next = cell(position + 1, pack);
                Register next_zero, next_one;
                probabilities(next, next_zero, next_one);
                const Register stays = next_one + lambda[pack] * zero[pack];  // P(1 | 1)
                const Register ahead = next_zero * (load(direction + next) + load(future + next)) + uniform;
                const Register change_of_both = stays * (past[pack] + one[pack] * ahead);
                joint_here += RAGGED ? within(pack, position + 1, change_of_both) : change_of_both;
                zero[pack] = next_zero, one[pack] = next_one;
            }
            joint.latest += joint_here, before.latest += before_here, after.latest += after_here;
            if (position % SUMMED_IN_REAL == SUMMED_IN_REAL - 1)
                joint.settle(), before.settle(), after.settle();
        }
        double uniform_edges = 0;
        for (int64_t lane = 0; lane < lanes_.count; ++lane)
            uniform_edges +=
                std::max<int64_t>(lanes_.length[lane] - 1, 0) * static_cast<double>(uniform_[lane]);
        const double both = joint.total(), one_zero = before.total() - both, zero_one = after.total() - both;
        total[3] += both;
        total[2] += one_zero;
        total[1] += zero_one;
        total[0] += uniform_edges - both - one_zero - zero_one;
    }

    // The values where the chain reaches the position, elsewhere the other value.
    Register within(int pack, int64_t position, Register values, Real otherwise = 0) const {
        return lanes_.reaches(pack, position) ? values : broadcast(otherwise);
    }

    void probabilities(int64_t cell, Register& zero, Register& one) const {
        const Register odds = load(odds_ + cell);
        zero = reciprocal(odds + 1);
        one = odds * zero;
    }

    // A sum whose terms are first added in Real.
    struct Sum {
        Register latest{};
        Vector<double> settled{};

        void settle() {
            Real numbers[SIDE];
            store(numbers, latest);
            for (int lane = 0; lane < SIDE; lane += LANES<double>) settled += load_as<double>(numbers + lane);
            latest = Register{};
        }
        double total() {
            settle();
            return sum_of<double>(settled);
        }
    };

    const Problem& problem_;
    const TwoStateWeights& weights_;
    const Lanes<Real> lanes_;
    const Pairs<Real, Element> pairs_;
    Real *odds_, *lambda_, *rows_[ROWS];
    Real uniform_[WIDTH] = {}, product_[WIDTH];
    typename IntegerOf<Real>::type exponent_[WIDTH];
};

}  // namespace structattn::STRUCTATTN_LEVEL
