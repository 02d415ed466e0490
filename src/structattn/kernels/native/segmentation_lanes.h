// Two-state chains in registers: one chain a lane, several registers at a time, and the caller's
// [chain][position][2] turned into rows [position][lane] and back. What is computed on the rows is in
// segmentation.h.
#pragma once
#include <array>
#include <type_traits>

#include "chain.h"

namespace structattn::STRUCTATTN_LEVEL {

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
