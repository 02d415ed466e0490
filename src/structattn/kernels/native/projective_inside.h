// The inside pass over tiles: from the diagonal outwards. See projective.h for the recurrences.
#pragma once
#include "projective_products.h"

namespace structattn::STRUCTATTN_LEVEL {

template <class V>
struct InsideSums {
    V right[tile_cells], left[tile_cells], span[tile_cells];
};

// Completes the tile (row, column) whose sums over the tiles strictly between are given: what is left are
// products with one factor in the tile itself and the other in a diagonal tile. Cells go from the bottom row
// up, left to right.
template <bool diagonal, bool dual, class V>
STRUCTATTN_INLINE void finish_inside_tile(const Charts<V>& charts, const InsideSums<V>& sums, int64_t row,
                                          int64_t column, Extremes<V>& extremes) {
    const Tiling& tiling = charts.tiling;
    const int64_t here = tiling.tile(row, column);
    const int64_t rows = tiling.tile(row, row), columns = tiling.tile(column, column);
    const auto right = charts.right + here, left = charts.left + here;
    const auto right_arc = charts.right_arc + here, left_arc = charts.left_arc + here;
    const auto row_right = charts.right + rows, row_left = charts.left + rows,
               row_arc = charts.right_arc + rows;
    const auto column_right = charts.right + columns, column_left = charts.left + columns;
    const auto column_arc = charts.left_arc + columns;
    const V *right_weight = charts.right_weight + here, *left_weight = charts.left_weight + here;

    Extremes<V> met = extremes;  // in registers: stores to the charts could change the original
    repeat<tile_cells>([&](auto step) STRUCTATTN_INLINED {
        constexpr int i = side - 1 - step / side, j = step % side, at = side * i + j;
        constexpr int first = diagonal ? i + 1 : 0;  // a diagonal tile must not count its own products twice
        V* const right_cell = right.template result<dual>() + at;
        V* const left_cell = left.template result<dual>() + at;
        V* const right_arc_cell = right_arc.template result<dual>() + at;
        V* const left_arc_cell = left_arc.template result<dual>() + at;
        if constexpr (diagonal && j <= i) {
            *right_cell = all_lanes<V>(i == j && !dual ? 1.0 : 0.0);
            *left_cell = *right_arc_cell = *left_arc_cell = V{};
            return;
        }
        V left_sum = sums.left[at], span_sum = sums.span[at], right_sum = sums.right[at];
        if constexpr (!diagonal)
            repeat_range<i + 1, side>([&](auto inner) STRUCTATTN_INLINED {
                constexpr int k = decltype(inner)::value;
                add_product<dual>(left_sum, row_left, side * i + k, left_arc, side * k + j);
                add_product<dual>(span_sum, row_right, side * i + k, left, side * k + j);
                add_product<dual>(right_sum, row_arc, side * i + k, right, side * k + j);
            });
        repeat_range<first, j>([&](auto inner) STRUCTATTN_INLINED {
            constexpr int k = decltype(inner)::value;
            add_product<dual>(left_sum, left, side * i + k, column_arc, side * k + j);
            add_product<dual>(span_sum, right, side * i + k, column_left, side * k + j);
            add_product<dual>(right_sum, right_arc, side * i + k, column_right, side * k + j);
        });
        span_sum += left_sum;
        V to_right, to_left;
        if constexpr (dual) {
            to_right = two_products(span_sum, right_weight[at], right_arc.value[at],
                                    charts.right_direction[here + at]);
            to_left =
                two_products(span_sum, left_weight[at], left_arc.value[at], charts.left_direction[here + at]);
        } else {
            to_right = span_sum * right_weight[at];
            to_left = span_sum * left_weight[at];
        }
        right_sum += to_right;
        if constexpr (!dual) {
            met.note(left_sum);
            met.note(span_sum);
            met.note(to_right);
            met.note(to_left);
            met.note(right_sum);
        }
        if constexpr (i == 0)
            if (row == 0) {
                charts.total[column * side + j] = right_sum;
                if (charts.single_root) right_sum = V{};
            }
        *right_cell = right_sum;
        *left_cell = left_sum;
        *right_arc_cell = to_right;
        *left_arc_cell = to_left;
    });
    extremes = met;
}

template <bool dual, class V>
void inside_diagonal_tile(const Charts<V>& charts, int64_t row, Extremes<V>& extremes) {
    InsideSums<V> sums{};
    if constexpr (!dual)
        repeat<side - 1>([&](auto i) STRUCTATTN_INLINED {
            sums.left[side * i + i + 1] = all_lanes<V>(1.0);
        });  // left(j-1, j) = 1
    finish_inside_tile<true, dual>(charts, sums, row, row, extremes);
}

// `far`: the sums of the far products, or null if the tile is to make them.
template <bool dual, class V>
void inside_tile(const Charts<V>& charts, const Block& block, int64_t row, int64_t column,
                 const InsideSums<V>* far, Extremes<V>& extremes) {
    const Tiling& tiling = charts.tiling;
    InsideSums<V> sums{};
    const auto add = [&](int64_t from, int64_t to) STRUCTATTN_INLINED {
        add_tiles<Form::plain, dual>(sums.left, tiling, charts.left, charts.left_arc, row, column, from, to);
        add_tiles<Form::plain, dual>(sums.span, tiling, charts.right, charts.left, row, column, from, to);
        add_tiles<Form::plain, dual>(sums.right, tiling, charts.right_arc, charts.right, row, column, from,
                                     to);
    };
    const std::pair<int64_t, int64_t> ranges[] = {
        {block.end_row, block.first_column},
        {row + 1, std::min(block.end_row, column)},
        {std::max(block.first_column, block.end_row), column},
    };
    if (far) sums = *far;
    for (const auto& range : ranges)
        if (range.first < range.second && !(far && &range == ranges)) add(range.first, range.second);
    if (!dual && column == row + 1) sums.left[side * (side - 1)] += 1.0;  // left(j-1, j) = 1
    finish_inside_tile<false, dual>(charts, sums, row, column, extremes);
}

template <bool dual, class V>
void inside_block(const Charts<V>& charts, const Block& block, Extremes<V>& extremes) {
    using Sums = InsideSums<V>;
    const Tiling& tiling = charts.tiling;
    const int64_t from = block.end_row, to = block.first_column;
    const bool together = tiling.tiles > tiles_of_short && from < to;
    Sums far[block_side * block_side];
    if (together) {
        for_tiles(block, [&](int64_t row, int64_t column) { far[block.index(row, column)] = Sums{}; });
        add_far_tiles<Form::plain, dual>(far, &Sums::left, tiling, charts.left, charts.left_arc, block, from,
                                         to);
        add_far_tiles<Form::plain, dual>(far, &Sums::span, tiling, charts.right, charts.left, block, from,
                                         to);
        add_far_tiles<Form::plain, dual>(far, &Sums::right, tiling, charts.right_arc, charts.right, block,
                                         from, to);
    }
    for (int64_t row = block.end_row - 1; row >= block.first_row; --row) {
        if (block.diagonal()) inside_diagonal_tile<dual>(charts, row, extremes);
        for (int64_t column = block.diagonal() ? row + 1 : block.first_column; column < block.end_column;
             ++column)
            inside_tile<dual>(charts, block, row, column, together ? &far[block.index(row, column)] : nullptr,
                              extremes);
    }
}

template <bool dual, class V>
void inside(const Charts<V>& charts, int threads, Extremes<V>& extremes) {
    const int64_t tiles = charts.tiling.tiles;
    if (threads > 1 && tiles > tiles_of_short)
        return share_blocks(
            charts.tiling, true, threads, extremes,
            [&](const Block& block, Extremes<V>& met) { inside_block<dual>(charts, block, met); });
    for (int64_t row = (tiles - 1) / block_side * block_side; row >= 0; row -= block_side)
        for (int64_t column = row; column < tiles; column += block_side)
            inside_block<dual>(charts, Block(charts.tiling, row, column), extremes);
}

}  // namespace structattn::STRUCTATTN_LEVEL
