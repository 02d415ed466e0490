// The outside pass over tiles: from the whole sentence inwards. See projective.h for the recurrences.
#pragma once
#include "projective_products.h"

namespace structattn::STRUCTATTN_LEVEL {

template <class V>
struct OutsideSums {
    V right[tile_cells], left[tile_cells], right_arc[tile_cells], left_arc[tile_cells];
};

// Keeps the outside values of the two arcs of a cell; returns that of its span. The dual pass has no use for
// the changes of the former, but for the gradient: it takes the place of the direction.
template <bool dual, class V>
STRUCTATTN_INLINE V finish_arcs(const Charts<V>& charts, int64_t at, V right_arc, V left_arc) {
    const V right_weight = charts.right_weight[at], left_weight = charts.left_weight[at];
    if constexpr (dual) {
        const V outside_right = charts.outside_right_arc.value[at],
                outside_left = charts.outside_left_arc.value[at];
        V span = two_products(right_arc, right_weight, left_arc, left_weight);
        span += outside_right * right_weight * charts.right_direction[at];
        span += outside_left * left_weight * charts.left_direction[at];
        charts.right_direction[at] =
            two_products(right_arc, charts.right_arc.value[at], outside_right, charts.right_arc.change[at]);
        charts.left_direction[at] =
            two_products(left_arc, charts.left_arc.value[at], outside_left, charts.left_arc.change[at]);
        return span;
    } else {
        charts.outside_right_arc.value[at] = right_arc;
        charts.outside_left_arc.value[at] = left_arc;
        return two_products(right_arc, right_weight, left_arc, left_weight);
    }
}

template <bool dual, class V>
STRUCTATTN_INLINE void finish_unused_arc(const Charts<V>& charts, int64_t at) {
    if constexpr (dual)
        charts.right_direction[at] = charts.left_direction[at] = V{};
    else
        charts.outside_right_arc.value[at] = charts.outside_left_arc.value[at] = V{};
}

// Completes the tile (row, column) whose sums over the other tiles are given: what is left are products with
// one factor in the tile itself and the other in a diagonal tile. Cells go from the top row down, right to
// left.
template <bool diagonal, bool dual, class V>
STRUCTATTN_INLINE void finish_outside_tile(const Charts<V>& charts, const OutsideSums<V>& sums, int64_t row,
                                           int64_t column, Extremes<V>& extremes) {
    const Tiling& tiling = charts.tiling;
    const int64_t here = tiling.tile(row, column);
    const int64_t rows = tiling.tile(row, row), columns = tiling.tile(column, column);
    const auto outside_right = charts.outside_right + here, outside_left = charts.outside_left + here;
    const auto outside_span = charts.outside_span + here;
    const auto row_right = charts.right + rows, row_left = charts.left + rows,
               row_arc = charts.right_arc + rows;
    const auto column_right = charts.right + columns, column_left = charts.left + columns;
    const auto column_arc = charts.left_arc + columns;

    Extremes<V> met = extremes;  // in registers: stores to the charts could change the original
    repeat<tile_cells>([&](auto step) STRUCTATTN_INLINED {
        constexpr int i = step / side, j = side - 1 - step % side, at = side * i + j;
        if constexpr (diagonal && j <= i) {
            charts.outside_right.template result<dual>()[here + at] = V{};
            charts.outside_left.template result<dual>()[here + at] = V{};
            charts.outside_span.template result<dual>()[here + at] = V{};
            finish_unused_arc<dual>(charts, here + at);
            return;
        }
        V right = sums.right[at], left = sums.left[at];
        V right_arc = sums.right_arc[at], left_arc = sums.left_arc[at];
        repeat<i>([&](auto inner) STRUCTATTN_INLINED {
            constexpr int k = decltype(inner)::value;
            add_product<dual>(right, row_arc, side * k + i, outside_right, side * k + j);
            add_product<dual>(left, row_right, side * k + i, outside_span, side * k + j);
            add_product<dual>(left_arc, row_left, side * k + i, outside_left, side * k + j);
        });
        repeat_range<j + 1, side>([&](auto inner) STRUCTATTN_INLINED {
            constexpr int k = decltype(inner)::value;
            add_product<dual>(right, outside_span, side * i + k, column_left, side * j + k);
            add_product<dual>(right_arc, outside_right, side * i + k, column_right, side * j + k);
            add_product<dual>(left, outside_left, side * i + k, column_arc, side * j + k);
        });
        if constexpr (i == 0)
            if (row == 0) right = charts.seed[column * side + j] + (charts.single_root ? V{} : right);
        right_arc += right;
        const V span = finish_arcs<dual>(charts, here + at, right_arc, left_arc);
        left += span;
        if constexpr (!dual) {
            met.note(right);
            met.note(left);
            met.note(right_arc);
            met.note(left_arc);
            met.note(span);
        }
        outside_right.template result<dual>()[at] = right;
        outside_left.template result<dual>()[at] = left;
        outside_span.template result<dual>()[at] = span;
    });
    extremes = met;
}

// Adds to one tile the products over the columns after it from .. to - 1.
template <bool dual, class V>
STRUCTATTN_INLINE void add_columns(const Charts<V>& charts, OutsideSums<V>& sums, int64_t row, int64_t column,
                                   int64_t from, int64_t to) {
    constexpr Form form = Form::right_transposed;
    const Tiling& tiling = charts.tiling;
    if (from >= to) return;
    add_tiles<form, dual>(sums.right, tiling, charts.outside_span, charts.left, row, column, from, to);
    add_tiles<form, dual>(sums.right_arc, tiling, charts.outside_right, charts.right, row, column, from, to);
    add_tiles<form, dual>(sums.left, tiling, charts.outside_left, charts.left_arc, row, column, from, to);
}

// Adds to one tile the products over the rows before it from .. to - 1.
template <bool dual, class V>
STRUCTATTN_INLINE void add_rows(const Charts<V>& charts, OutsideSums<V>& sums, int64_t row, int64_t column,
                                int64_t from, int64_t to) {
    constexpr Form form = Form::left_transposed;
    const Tiling& tiling = charts.tiling;
    if (from >= to) return;
    add_tiles<form, dual>(sums.right, tiling, charts.right_arc, charts.outside_right, row, column, from, to);
    add_tiles<form, dual>(sums.left, tiling, charts.right, charts.outside_span, row, column, from, to);
    add_tiles<form, dual>(sums.left_arc, tiling, charts.left, charts.outside_left, row, column, from, to);
}

// Adds to all tiles of a block the far products, in the order of add_columns and add_rows.
template <bool dual, class V>
void add_far_products(const Charts<V>& charts, const Block& block, OutsideSums<V>* far) {
    using Sums = OutsideSums<V>;
    constexpr Form over_columns = Form::right_transposed, over_rows = Form::left_transposed;
    const Tiling& tiling = charts.tiling;
    const auto &right = charts.outside_right, &left = charts.outside_left, &span = charts.outside_span;
    const int64_t from = block.end_column, to = tiling.tiles, before = block.first_row;
    for_tiles(block, [&](int64_t row, int64_t column) { far[block.index(row, column)] = Sums{}; });
    add_far_tiles<over_columns, dual>(far, &Sums::right, tiling, span, charts.left, block, from, to);
    add_far_tiles<over_columns, dual>(far, &Sums::right_arc, tiling, right, charts.right, block, from, to);
    add_far_tiles<over_columns, dual>(far, &Sums::left, tiling, left, charts.left_arc, block, from, to);
    add_far_tiles<over_rows, dual>(far, &Sums::right, tiling, charts.right_arc, right, block, 0, before);
    add_far_tiles<over_rows, dual>(far, &Sums::left, tiling, charts.right, span, block, 0, before);
    add_far_tiles<over_rows, dual>(far, &Sums::left_arc, tiling, charts.left, left, block, 0, before);
}

// `far`: the sums of the far products, or null if the tile is to make them.
template <bool diagonal, bool dual, class V>
void outside_tile(const Charts<V>& charts, const Block& block, int64_t row, int64_t column,
                  const OutsideSums<V>* far, Extremes<V>& extremes) {
    OutsideSums<V> sums{};
    if (far) {
        sums = *far;
    } else {
        add_columns<dual>(charts, sums, row, column, block.end_column, charts.tiling.tiles);
        add_rows<dual>(charts, sums, row, column, 0, block.first_row);
    }
    add_columns<dual>(charts, sums, row, column, column + 1, block.end_column);
    add_rows<dual>(charts, sums, row, column, block.first_row, row);
    finish_outside_tile<diagonal, dual>(charts, sums, row, column, extremes);
}

template <bool dual, class V>
void outside_block(const Charts<V>& charts, const Block& block, Extremes<V>& extremes) {
    const bool together = charts.tiling.tiles > tiles_of_short;
    OutsideSums<V> far[block_side * block_side];
    if (together) add_far_products<dual>(charts, block, far);
    const auto far_of = [&](int64_t row, int64_t column) {
        return together ? &far[block.index(row, column)] : nullptr;
    };
    for (int64_t row = block.first_row; row < block.end_row; ++row) {
        const int64_t first = block.diagonal() ? row + 1 : block.first_column;
        for (int64_t column = block.end_column - 1; column >= first; --column)
            outside_tile<false, dual>(charts, block, row, column, far_of(row, column), extremes);
        if (block.diagonal()) outside_tile<true, dual>(charts, block, row, row, far_of(row, row), extremes);
    }
}

template <bool dual, class V>
void outside(const Charts<V>& charts, int threads, Extremes<V>& extremes) {
    const int64_t tiles = charts.tiling.tiles, last = (tiles - 1) / block_side * block_side;
    if (threads > 1 && tiles > tiles_of_short)
        return share_blocks(
            charts.tiling, false, threads, extremes,
            [&](const Block& block, Extremes<V>& met) { outside_block<dual>(charts, block, met); });
    for (int64_t row = 0; row < tiles; row += block_side)
        for (int64_t column = last; column >= row; column -= block_side)
            outside_block<dual>(charts, Block(charts.tiling, row, column), extremes);
}

}  // namespace structattn::STRUCTATTN_LEVEL
