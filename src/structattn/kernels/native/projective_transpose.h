// Between matrices [n, n], one a sentence, and vectors that hold the same cell of every sentence: four
// neighbouring cells of a row at a time, as 4x4 transpositions in registers.
#pragma once
#include <cstring>

#include "projective_lanes.h"

namespace structattn::STRUCTATTN_LEVEL {

constexpr int quad = 4;

template <class Score>
struct QuadType {
    typedef Score Vector __attribute__((vector_size(sizeof(Score) * quad)));
};

template <class Q>
STRUCTATTN_INLINE void transpose(Q (&rows)[quad]) {
    const Q low = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
    const Q high = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
    const Q low_next = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
    const Q high_next = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    rows[0] = __builtin_shufflevector(low, low_next, 0, 1, 4, 5);
    rows[1] = __builtin_shufflevector(low, low_next, 2, 3, 6, 7);
    rows[2] = __builtin_shufflevector(high, high_next, 0, 1, 4, 5);
    rows[3] = __builtin_shufflevector(high, high_next, 2, 3, 6, 7);
}

// The matrices of a group's lanes.
template <int width, class Score>
class Matrices {
  public:
    using V = Real<width>;

    // Lane l holds the matrix `sentence[l]` of `all`; nothing is written for the lanes from `count` on.
    Matrices(Score* all, const int64_t* sentence, int64_t count, int64_t n) : n_(n), count_(count) {
        for (int lane = 0; lane < width; ++lane) of_lane_[lane] = all + sentence[lane] * n * n;
    }

    // The cells (row, column) .. (row, column + 3), both indices less than n; anything where column + k >= n.
    STRUCTATTN_INLINE void read(int64_t row, int64_t column, V (&cells)[quad]) const {
        const int64_t at = row * n_ + column, inside = n_ - column;
        Q parts[lane_quads][quad];
        repeat<lane_quads * quad>([&](auto index) STRUCTATTN_INLINED {
            constexpr int part = index / quad, lane = index < width ? index : width - 1;
            Q& values = parts[part][index % quad];
            if (inside >= quad) {
                std::memcpy(&values, of_lane_[lane] + at, sizeof(Q));
            } else {
                values = Q{};
                for (int64_t k = 0; k < inside; ++k) values[k] = of_lane_[lane][at + k];
            }
        });
        repeat<lane_quads>([&](auto part) STRUCTATTN_INLINED { transpose(parts[part]); });
        repeat<quad>([&](auto k) STRUCTATTN_INLINED {
            if constexpr (width == 8)
                cells[k] = __builtin_convertvector(
                    __builtin_shufflevector(parts[0][k], parts[lane_quads - 1][k], 0, 1, 2, 3, 4, 5, 6, 7),
                    V);
            else if constexpr (width == 4)
                cells[k] = __builtin_convertvector(parts[0][k], V);
            else
                cells[k] =
                    __builtin_convertvector(__builtin_shufflevector(parts[0][k], parts[0][k], 0, 1), V);
        });
    }

    STRUCTATTN_INLINE void write(int64_t row, int64_t column, const V (&cells)[quad]) const {
        const int64_t at = row * n_ + column, inside = n_ - column;
        typedef Score Narrow __attribute__((vector_size(sizeof(Score) * width)));
        Q parts[lane_quads][quad];
        repeat<quad>([&](auto k) STRUCTATTN_INLINED {
            const Narrow narrow = __builtin_convertvector(cells[k], Narrow);
            if constexpr (width == 8) {
                parts[0][k] = __builtin_shufflevector(narrow, narrow, 0, 1, 2, 3);
                parts[lane_quads - 1][k] = __builtin_shufflevector(narrow, narrow, 4, 5, 6, 7);
            } else if constexpr (width == 4) {
                parts[0][k] = narrow;
            } else {
                parts[0][k] = __builtin_shufflevector(narrow, narrow, 0, 1, 0, 1);
            }
        });
        repeat<lane_quads>([&](auto part) STRUCTATTN_INLINED { transpose(parts[part]); });
        repeat<width>([&](auto lane) STRUCTATTN_INLINED {
            if (lane >= count_) return;
            const Q& values = parts[lane / quad][lane % quad];
            if (inside >= quad) {
                std::memcpy(of_lane_[lane] + at, &values, sizeof(Q));
            } else {
                for (int64_t k = 0; k < inside; ++k) of_lane_[lane][at + k] = values[k];
            }
        });
    }

    // Zeros in all rows and columns from `first` on.
    void clear_from(int64_t first) const {
        for (int64_t lane = 0; lane < count_; ++lane)
            for (int64_t row = 0; row < n_; ++row)
                for (int64_t column = row < first ? first : 0; column < n_; ++column)
                    of_lane_[lane][row * n_ + column] = 0;
    }

  private:
    using Q = typename QuadType<std::remove_const_t<Score>>::Vector;
    static constexpr int lane_quads = (width + quad - 1) / quad;

    Score* of_lane_[width];
    int64_t n_, count_;
};

}  // namespace structattn::STRUCTATTN_LEVEL
