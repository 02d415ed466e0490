// Between a batch's arrays [B, n, n] and the charts of one group of sentences.
#pragma once
#include <algorithm>
#include <cmath>

#include "projective.h"
#include "projective_transpose.h"

namespace structattn::STRUCTATTN_LEVEL {

// The sentences of one group. Lanes from `count` on repeat the first sentence with length 0.
template <int width>
struct Sentences {
    int64_t n, words, count;  // words: the greatest length
    int64_t sentence[width];
    int64_t length[width];

    Real<width> lengths() const {
        Real<width> result{};
        for (int lane = 0; lane < width; ++lane) result[lane] = static_cast<double>(length[lane]);
        return result;
    }
    template <class Score>
    Matrices<width, Score> matrices(Score* all) const {
        return {all, sentence, count, n};
    }
};

// Reads one tile of a matrix into charts: right[i, j] = matrix(i, j), left[i, j] = matrix(j, i) for i < j <
// length, `absent` elsewhere and for left[0, j].
template <bool diagonal, int width, class Score>
STRUCTATTN_INLINE void read_tile(const Matrices<width, const Score>& matrix, int64_t n, int64_t row,
                                 int64_t column, Real<width> lengths, Real<width> absent, Real<width>* right,
                                 Real<width>* left) {
    using V = Real<width>;
    const int64_t top = row * side, start = column * side;
    V cells[side]{};
    repeat<side>([&](auto step) STRUCTATTN_INLINED {
        constexpr int i = step;
        if (top + i < n) matrix.read(top + i, start, cells);
        repeat<side>([&](auto inner) STRUCTATTN_INLINED {
            constexpr int j = inner;
            const auto used = all_lanes<V>(static_cast<double>(start + j)) < lengths;
            right[side * i + j] = diagonal && j <= i ? absent : used ? cells[j] : absent;
        });
    });
    repeat<side>([&](auto step) STRUCTATTN_INLINED {
        constexpr int j = step;
        if (start + j < n) matrix.read(start + j, top, cells);
        const auto used = all_lanes<V>(static_cast<double>(start + j)) < lengths;
        repeat<side>([&](auto inner) STRUCTATTN_INLINED {
            constexpr int i = inner;
            const bool never = (diagonal && j <= i) || (i == 0 && top == 0);
            left[side * i + j] = never ? absent : used ? cells[i] : absent;
        });
    });
}

// Reads all tiles; f(row, column, tile) after each.
template <int width, class Score, class F>
STRUCTATTN_INLINE void read_charts(const Sentences<width>& sentences, const Score* all, const Tiling& tiling,
                                   double absent, Real<width>* right, Real<width>* left, F&& f) {
    using V = Real<width>;
    const auto matrix = sentences.matrices(all);
    const V lengths = sentences.lengths(), none = all_lanes<V>(absent);
    for (int64_t row = 0; row < tiling.tiles; ++row) {
        const int64_t diagonal = tiling.tile(row, row);
        read_tile<true>(matrix, sentences.n, row, row, lengths, none, right + diagonal, left + diagonal);
        f(row, row, diagonal);
        for (int64_t column = row + 1; column < tiling.tiles; ++column) {
            const int64_t tile = tiling.tile(row, column);
            read_tile<false>(matrix, sentences.n, row, column, lengths, none, right + tile, left + tile);
            f(row, column, tile);
        }
    }
}

// Reads the arcs within the lengths (-infinity elsewhere), and each column's maximum into `top` (0 for a
// wholly forbidden column). Returns the lanes that hold NaN or +infinity.
template <int width, class Score>
Bits<width> read_scores(const Sentences<width>& sentences, const Score* arcs, const Tiling& tiling,
                        Real<width>* right, Real<width>* left, Real<width>* top) {
    using V = Real<width>;
    const V forbidden = all_lanes<V>(-infinity), refusal = all_lanes<V>(1.0);
    V refused{};
    std::fill(top, top + tiling.tiles * side, forbidden);
    read_charts(sentences, arcs, tiling, -infinity, right, left,
                [&](int64_t row, int64_t column, int64_t tile) {
                    V *const right_top = top + column * side, *const left_top = top + row * side;
                    repeat<side>([&](auto line) STRUCTATTN_INLINED {
                        V to_right = right_top[line];
                        repeat<side>([&](auto i) STRUCTATTN_INLINED {
                            const V score = right[tile + side * i + line];
                            refused = score < all_lanes<V>(infinity) ? refused : refusal;
                            to_right = larger(score, to_right);
                        });
                        right_top[line] = to_right;
                        V to_left = left_top[line];
                        repeat<side>([&](auto j) STRUCTATTN_INLINED {
                            const V score = left[tile + side * line + j];
                            refused = score < all_lanes<V>(infinity) ? refused : refusal;
                            to_left = larger(score, to_left);
                        });
                        left_top[line] = to_left;
                    });
                });
    for (int64_t word = 0; word < tiling.tiles * side; ++word)
        top[word] = top[word] > forbidden ? top[word] : V{};
    return bits_of(refused);
}

// Reads the direction g of the derivative (0 outside the lengths), scaled for each sentence by a power of two
// so that its largest entry is about 1: then no change is smaller or larger than its value by much. Returns
// the inverse scale.
template <int width, class Score>
Real<width> read_direction(const Sentences<width>& sentences, const Score* direction, const Tiling& tiling,
                           Real<width>* right, Real<width>* left) {
    using V = Real<width>;
    V largest{}, factor{}, inverse{};
    read_charts(sentences, direction, tiling, 0.0, right, left, [&](int64_t, int64_t, int64_t tile) {
        repeat<tile_cells>([&](auto cell) STRUCTATTN_INLINED {
            const V to_right = right[tile + cell], to_left = left[tile + cell];
            largest = larger(larger(to_right, -to_right), largest);
            largest = larger(larger(to_left, -to_left), largest);
        });
    });
    for (int lane = 0; lane < width; ++lane) {
        const double most = largest[lane];
        const int exponent = most > 1e-300 && most < 1e300 ? std::ilogb(most) : 0;
        factor[lane] = std::ldexp(1.0, -exponent);
        inverse[lane] = std::ldexp(1.0, exponent);
    }
    for (int64_t cell = 0; cell < tiling.cells(); ++cell) {
        right[cell] *= factor;
        left[cell] *= factor;
    }
    return inverse;
}

// Writes the whole matrices of a group: f(cell, to_right, to_left) gives the entries (i, j) and (j, i) of a
// chart's cell; they must be 0 outside the lengths and where i >= j.
template <int width, class Score, class F>
STRUCTATTN_INLINE void write_charts(const Sentences<width>& sentences, Score* all, const Tiling& tiling,
                                    F&& f) {
    using V = Real<width>;
    const auto matrix = sentences.matrices(all);
    const int64_t n = sentences.n;
    V right[tile_cells], left[tile_cells], cells[side];
    for (int64_t row = 0; row < tiling.tiles; ++row)
        for (int64_t column = row; column < tiling.tiles; ++column) {
            const int64_t tile = tiling.tile(row, column);
            repeat<tile_cells>([&](auto cell)
                                   STRUCTATTN_INLINED { f(tile + cell, right[cell], left[cell]); });
            repeat<side>([&](auto line) STRUCTATTN_INLINED {
                const int64_t i = row * side + line, j = column * side + line;
                if (row == column) {
                    repeat<side>([&](auto k) STRUCTATTN_INLINED {
                        cells[k] = right[side * line + k] + left[side * k + line];
                    });
                    if (i < n) matrix.write(i, column * side, cells);
                } else {
                    repeat<side>([&](auto k) STRUCTATTN_INLINED { cells[k] = right[side * line + k]; });
                    matrix.write(i, column * side, cells);
                    repeat<side>([&](auto k) STRUCTATTN_INLINED { cells[k] = left[side * k + line]; });
                    if (j < n) matrix.write(j, row * side, cells);
                }
            });
        }
    matrix.clear_from(std::min(n, tiling.tiles * side));
}

}  // namespace structattn::STRUCTATTN_LEVEL
