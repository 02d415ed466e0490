// Projective dependency trees: chart items, conventions, tiles. (Eisner's inside-outside on plain products.)
//
// Words are 0..n-1, word 0 is the root symbol. weight(h, m) = exp(arcs[h, m] - shift[m]); a word has exactly
// one parent, so a shift of a whole column changes log Z by the shift and the marginals not at all. For i <
// j:
//
//     right(i, j)      words i..j are i and descendants of i               right(i, i) = 1
//     left(i, j)       words i+1..j are j and descendants of j             left(j-1, j) = 1
//     span(i, j)       = sum_{i <= k < j} right(i, k) left(k, j)           ready for an arc between i and j
//     right_arc(i, j)  = span(i, j) weight(i, j)
//     left_arc(i, j)   = span(i, j) weight(j, i)
//     right(i, j)      = sum_{i < k <= j} right_arc(i, k) right(k, j)
//     left(i, j)       = sum_{i < k < j}  left(i, k) left_arc(k, j)        (j > i + 1)
//
// and Z = right(0, length - 1). `left` leaves out its first word, so that all three sums are products of
// upper triangular matrices. The outside value of an item is d log Z / d item:
//
//     outside right(i, j)     = [i = 0, j = length - 1] / Z
//                               + sum_{k > j} outside span(i, k) left(j, k)
//                               + sum_{k < i} right_arc(k, i) outside right(k, j)
//     outside right_arc(i, j) = sum_{k >= j} outside right(i, k) right(j, k)
//     outside left_arc(i, j)  = sum_{k < i} left(k, i) outside left(k, j)
//     outside span(i, j)      = outside right_arc(i, j) weight(i, j) + outside left_arc(i, j) weight(j, i)
//     outside left(i, j)      = sum_{k <= i} right(k, i) outside span(k, j)
//                               + sum_{k > j} outside left(i, k) left_arc(j, k)
//
// and p(i -> j) = right_arc(i, j) * outside right_arc(i, j), p(j -> i) likewise. With single_root, right(0,
// j) for j > 0 counts as a result only: it enters no span, and its outside value is the seed alone.
//
// The gradient of sum(g * p) is the derivative of p in direction g (the Hessian of log Z is symmetric), so
// the backward pass runs the same recurrences on dual numbers: `value` from the forward pass, `change`
// computed.
//
// A chart is a triangle of tiles of 4x4 cells; the sums over whole tiles run in registers.
#pragma once
#include <cstddef>
#include <cstdint>

#include "projective_lanes.h"

namespace structattn::STRUCTATTN_LEVEL {

constexpr int side = 4;
constexpr int tile_cells = side * side;

// Where the tile (row, column), row <= column, of a chart starts, in cells.
struct Tiling {
    int64_t tiles;

    explicit Tiling(int64_t words) : tiles((words + side - 1) / side) {}
    int64_t cells() const { return tiles * (tiles + 1) / 2 * tile_cells; }
    STRUCTATTN_INLINE int64_t tile(int64_t row, int64_t column) const {
        return (row * (2 * tiles - 1 - row) / 2 + column) * tile_cells;
    }
    STRUCTATTN_INLINE int64_t cell(int64_t row, int64_t column) const {
        return tile(row / side, column / side) + row % side * side + column % side;
    }
};

template <class V>
struct Chart {
    V* value = nullptr;
    V* change = nullptr;  // in the backward pass only

    STRUCTATTN_INLINE Chart operator+(int64_t cell) const {
        return {value + cell, change ? change + cell : nullptr};
    }
    // What this pass computes.
    template <bool dual>
    STRUCTATTN_INLINE V* result() const {
        return dual ? change : value;
    }
};

// Everything that is known of one group of sentences, a lane each.
template <class V>
struct Charts {
    Tiling tiling;
    bool single_root;
    // weight(i, j) and weight(j, i) for i < j; 0 outside the length.
    V *right_weight = nullptr, *left_weight = nullptr;
    // The direction of the derivative in the same places; the backward pass puts the gradient there.
    V *right_direction = nullptr, *left_direction = nullptr;
    Chart<V> right = {}, left = {}, right_arc = {}, left_arc = {};
    Chart<V> outside_right = {}, outside_left = {}, outside_span = {};
    Chart<V> outside_right_arc = {}, outside_left_arc = {};
    // right(0, j) for every j: with single_root the chart itself holds 0 there.
    V* total = nullptr;
    // The derivative of log Z with respect to right(0, j).
    V* seed = nullptr;
};

// sum += a * b; of dual numbers, the change.
template <bool dual, class V>
STRUCTATTN_INLINE void add_product(V& sum, Chart<V> a, int at_a, Chart<V> b, int at_b) {
    if constexpr (dual) {
        sum += a.change[at_a] * b.value[at_b];
        sum += a.value[at_a] * b.change[at_b];
    } else {
        sum += a.value[at_a] * b.value[at_b];
    }
}

// The smallest non-zero and the largest number met.
template <class V>
struct Extremes {
    V smallest = all_lanes<V>(infinity);
    V largest = V{};

    STRUCTATTN_INLINE void note(V x) {
        const V positive = x > V{} ? x : all_lanes<V>(infinity);
        smallest = smaller(positive, smallest);
        largest = larger(x, largest);
    }
    void join(const Extremes& other) {
        smallest = smaller(other.smallest, smallest);
        largest = larger(other.largest, largest);
    }
    // The certificate. If it holds for all weights and cells, then the product of any two that are not 0 lies
    // within [1e-300, 1e300]: nothing overflowed, and by induction a cell is 0 only where every term has a
    // forbidden arc.
    bool certifies(int lane) const { return smallest[lane] >= 1e-150 && largest[lane] <= 1e150; }
};

}  // namespace structattn::STRUCTATTN_LEVEL
