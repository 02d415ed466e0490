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

#include <array>
#include <type_traits>

#include "chain.h"

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

// A block of chains: PACKS registers with a chain in each lane; lanes without a chain have length 0.
template <typename Real>
struct Lanes {
    static constexpr int PACKS = 4;
    static constexpr int WIDTH = PACKS * LANES<Real>;  // numbers in a row: one position of all chains

    int64_t first, count, longest = 0;
    bool ragged;
    typename IntegerOf<Real>::type length[WIDTH] = {};

    Lanes(const Problem& problem, int64_t block)
        : first(block * WIDTH),
          count(std::min<int64_t>(WIDTH, problem.batch - first)),
          ragged(count < WIDTH) {
        for (int64_t lane = 0; lane < count; ++lane) {
            const int64_t chain_length = problem.length(first + lane);
            length[lane] = chain_length;
            longest = std::max(longest, chain_length);
        }
        for (int64_t lane = 0; lane < count; ++lane) ragged |= length[lane] != problem.n;
    }

    int packs() const { return static_cast<int>((count + LANES<Real> - 1) / LANES<Real>); }
    int lanes_of(int pack) const {
        return static_cast<int>(std::min<int64_t>(LANES<Real>, count - pack * LANES<Real>));
    }
    // Lanes of the pack whose chain is longer than `position`.
    Mask<Real> reaches(int pack, int64_t position) const {
        Mask<Real> lengths;
        std::memcpy(&lengths, length + pack * LANES<Real>, sizeof lengths);
        return lengths > static_cast<typename IntegerOf<Real>::type>(position);
    }
};

template <typename Real, int... lane>
inline Vector<Real> every_second(Vector<Real> x, Vector<Real> y, std::integral_constant<int, 0>,
                                 std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(x, y, (2 * lane)...);
}
template <typename Real, int... lane>
inline Vector<Real> every_second(Vector<Real> x, Vector<Real> y, std::integral_constant<int, 1>,
                                 std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(x, y, (2 * lane + 1)...);
}
template <typename Real, int half, int... lane>
inline Vector<Real> interleave_half(Vector<Real> x, Vector<Real> y, std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(x, y, (lane / 2 + half * LANES<Real> / 2 + lane % 2 * LANES<Real>)...);
}

// Pairs [chain][position][2] of the caller's Elements against rows [position][lane] of one number a pair.
// Squares of LANES chains and positions are turned in registers; the last square may overlap the one before,
// or few positions are moved singly.
template <typename Real, typename Element>
class Pairs {
    static constexpr int SIDE = LANES<Real>;
    static constexpr int WIDTH = Lanes<Real>::WIDTH;
    using Register = Vector<Real>;
    using Indices = std::make_integer_sequence<int, SIDE>;

  public:
    Pairs(const Lanes<Real>& lanes, int64_t n) : lanes_(lanes), n_(n) {}

    // rows[position][lane] <- pair(1) - pair(0), up to the longest chain.
    void read_differences(const Element* pairs, Real* rows) const {
        for_each_square(
            [&](int pack, int64_t position) {
                Register square[SIDE];
                const int count = lanes_.lanes_of(pack);
                const Element* source = pairs + pair_index(pack, 0, position);
#pragma GCC unroll 16
                for (int lane = 0; lane < SIDE; ++lane) {
                    if (lane > 0 && lane < count) source += 2 * n_;
                    const Register low = load_as<Real>(source), high = load_as<Real>(source + SIDE);
                    square[lane] =
                        every_second<Real>(low, high, std::integral_constant<int, 1>(), Indices()) -
                        every_second<Real>(low, high, std::integral_constant<int, 0>(), Indices());
                }
                transpose<Real>(square);
#pragma GCC unroll 16
                for (int step = 0; step < SIDE; ++step)
                    store(rows + (position + step) * WIDTH + pack * SIDE, square[step]);
            },
            [&](int pack, int lane, int64_t position) {
                const Element* source = pairs + pair_index(pack, lane, position);
                rows[position * WIDTH + pack * SIDE + lane] = Real{source[1]} - Real{source[0]};
            });
    }

    // pairs <- split(numbers of the rows), which gives both of a pair; 0 beyond the lengths.
    template <size_t ROWS, typename Split>
    void write(const std::array<const Real*, ROWS>& rows, Element* pairs, const Split& split) const {
        for_each_square(
            [&](int pack, int64_t position) {
                Register squares[ROWS][SIDE];
                for (size_t row = 0; row < ROWS; ++row) {
#pragma GCC unroll 16
                    for (int step = 0; step < SIDE; ++step)
                        squares[row][step] = load(rows[row] + (position + step) * WIDTH + pack * SIDE);
                    transpose<Real>(squares[row]);
                }
                const int count = lanes_.lanes_of(pack);
                Element* target = pairs + pair_index(pack, 0, position);
#pragma GCC unroll 16
                for (int lane = 0; lane < SIDE; ++lane, target += 2 * n_) {
                    if (lane >= count) break;
                    std::array<Register, ROWS> numbers;
                    for (size_t row = 0; row < ROWS; ++row) numbers[row] = squares[row][lane];
                    const auto [first, second] = split(numbers);
                    store_as<Real>(target, interleave_half<Real, 0>(first, second, Indices()));
                    store_as<Real>(target + SIDE, interleave_half<Real, 1>(first, second, Indices()));
                }
            },
            [&](int pack, int lane, int64_t position) {
                std::array<Register, ROWS> numbers;
                for (size_t row = 0; row < ROWS; ++row)
                    numbers[row] = broadcast(rows[row][position * WIDTH + pack * SIDE + lane]);
                const auto [first, second] = split(numbers);
                Element* target = pairs + pair_index(pack, lane, position);
                target[0] = static_cast<Element>(first[0]);
                target[1] = static_cast<Element>(second[0]);
            });
        if (!lanes_.ragged) return;
        for (int64_t lane = 0; lane < lanes_.count; ++lane) {
            const int64_t start = 2 * (lane * n_ + lanes_.length[lane]), end = 2 * (lane + 1) * n_;
            std::fill(pairs + start, pairs + end, Element{0});
        }
    }

  private:
    int64_t pair_index(int pack, int lane, int64_t position) const {
        return 2 * ((pack * SIDE + lane) * n_ + position);
    }

    template <typename Square, typename Single>
    void for_each_square(const Square& square, const Single& single) const {
        const int64_t longest = lanes_.longest;
        for (int pack = 0; pack < lanes_.packs(); ++pack) {
            int64_t position = 0;
            for (; position + SIDE <= longest; position += SIDE) square(pack, position);
            if (longest >= SIDE && longest - position > 3) {
                square(pack, longest - SIDE);
                position = longest;
            }
            for (; position < longest; ++position)
                for (int lane = 0; lane < lanes_.lanes_of(pack); ++lane) single(pack, lane, position);
        }
    }

    const Lanes<Real>& lanes_;
    const int64_t n_;
};

}  // namespace structattn::STRUCTATTN_LEVEL
