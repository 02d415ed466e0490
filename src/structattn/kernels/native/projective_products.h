// Products of tiles and of blocks of tiles: where the time of long sentences goes.
#pragma once
#include <algorithm>
#include <cstring>
#include <utility>

#include "projective.h"

namespace structattn::STRUCTATTN_LEVEL {

// What a tile product multiplies: A B, A B^T or A^T B.
enum class Form { plain, right_transposed, left_transposed };

// The factor of tile A that the inner index k contributes to row i.
template <Form form>
constexpr int factor_cell(int i, int k) {
    return form == Form::left_transposed ? side * k + i : side * i + k;
}

// A cell fills a register: the sums of `columns_at_once` columns stay in registers over all tiles.
template <class V>
struct FullRegisters {
    V sum[tile_cells];

    STRUCTATTN_INLINE void load(const V* tile) {
        repeat<tile_cells>([&](auto cell) STRUCTATTN_INLINED { sum[cell] = tile[cell]; });
    }
    template <int first>
    STRUCTATTN_INLINE void store(V* tile) const {
        repeat<side * columns_at_once>([&](auto step) STRUCTATTN_INLINED {
            constexpr int cell = step / columns_at_once * side + first + step % columns_at_once;
            tile[cell] = sum[cell];
        });
    }
    template <Form form, int first>
    STRUCTATTN_INLINE void add_product(const V* a, const V* b) {
        repeat<side * side>([&](auto step) STRUCTATTN_INLINED {
            constexpr int k = step / side, i = step % side;
            const V factor = a[factor_cell<form>(i, k)];
            repeat<columns_at_once>([&](auto column) STRUCTATTN_INLINED {
                constexpr int j = first + column;
                sum[side * i + j] += factor * b[form == Form::right_transposed ? side * j + k : side * k + j];
            });
        });
    }
};

// Narrow groups: a register holds several neighbouring cells of a row, and every cell still sums in the same
// order.
template <class V>
struct SharedRegisters {
    using Register = Real<widest>;
    static constexpr int cells = widest / width_of<V>, registers = side / cells;
    Register sum[side * registers];

    STRUCTATTN_INLINE static Register row_of(const V* tile, int row, int part) {
        Register result;
        std::memcpy(&result, tile + side * row + cells * part, sizeof(Register));
        return result;
    }
    // The cells (row, column), (row + 1, column), ...
    STRUCTATTN_INLINE static Register column_of(const V* tile, int row, int column) {
        const V* const cell = tile + side * row + column;
        if constexpr (cells == 2)
            return join(cell[0], cell[side]);
        else
            return join(join(cell[0], cell[side]), join(cell[2 * side], cell[3 * side]));
    }
    template <class Half, int... lane>
    STRUCTATTN_INLINE static auto join(Half a, Half b, std::integer_sequence<int, lane...>) {
        return __builtin_shufflevector(a, b, lane...);
    }
    template <class Half>
    STRUCTATTN_INLINE static auto join(Half a, Half b) {
        return join(a, b, std::make_integer_sequence<int, 2 * width_of<Half>>{});
    }
    // The cell in every part of a register, by doubling: compilers make a poor job of it in one step.
    template <class Part>
    STRUCTATTN_INLINE static Register everywhere(Part a) {
        if constexpr (width_of<Part> == widest)
            return a;
        else
            return everywhere(join(a, a));
    }

    STRUCTATTN_INLINE void load(const V* tile) {
        repeat<side * registers>(
            [&](auto at) STRUCTATTN_INLINED { sum[at] = row_of(tile, at / registers, at % registers); });
    }
    template <int>
    STRUCTATTN_INLINE void store(V* tile) const {
        repeat<side * registers>(
            [&](auto at) STRUCTATTN_INLINED { std::memcpy(tile + cells * at, &sum[at], sizeof(Register)); });
    }
    template <Form form, int>
    STRUCTATTN_INLINE void add_product(const V* a, const V* b) {
        repeat<side>([&](auto inner) STRUCTATTN_INLINED {
            constexpr int k = inner;
            Register line[registers];
            repeat<registers>([&](auto part) STRUCTATTN_INLINED {
                line[part] =
                    form == Form::right_transposed ? column_of(b, cells * part, k) : row_of(b, k, part);
            });
            repeat<side>([&](auto row) STRUCTATTN_INLINED {
                const Register factor = everywhere(a[factor_cell<form>(row, k)]);
                repeat<registers>([&](auto part) STRUCTATTN_INLINED {
                    sum[registers * row + part] += factor * line[part];
                });
            });
        });
    }
};

// Adds to the tile (row, column) the products over the tiles from .. to - 1 of the summation index.
template <Form form, bool dual, class V>
STRUCTATTN_INLINE void add_tiles(V (&sum)[tile_cells], const Tiling& tiling, Chart<V> a, Chart<V> b,
                                 int64_t row, int64_t column, int64_t from, int64_t to) {
    constexpr bool full = width_of<V> == widest;
    using Registers = std::conditional_t<full, FullRegisters<V>, SharedRegisters<V>>;
    repeat<full ? side / columns_at_once : 1>([&](auto part) STRUCTATTN_INLINED {
        constexpr int first = part * columns_at_once;
        Registers registers;
        registers.load(sum);
        for (int64_t k = from; k < to; ++k) {
            const auto tile_a =
                a + (form == Form::left_transposed ? tiling.tile(k, row) : tiling.tile(row, k));
            const auto tile_b =
                b + (form == Form::right_transposed ? tiling.tile(column, k) : tiling.tile(k, column));
            if constexpr (dual) {
                registers.template add_product<form, first>(tile_a.change, tile_b.value);
                registers.template add_product<form, first>(tile_a.value, tile_b.change);
            } else {
                registers.template add_product<form, first>(tile_a.value, tile_b.value);
            }
        }
        registers.template store<first>(sum);
    });
}

// Tiles are completed in blocks of block_side x block_side tiles. The far products, whose factors both lie in
// other blocks, are summed for a whole block at once, a few tiles of the summation index at a time, so that
// factors and sums stay in the first-level cache. The charts of short sentences fit the second level anyway:
// there every tile sums its far products itself. Far products always come before near ones, so that a
// sentence's sums do not depend on the length of the longest sentence in its group.
constexpr int block_side = 4;
constexpr int64_t inner_tiles = 4, tiles_of_short = 12;

struct Block {
    int64_t first_row, end_row, first_column, end_column;

    Block(const Tiling& tiling, int64_t row, int64_t column)
        : first_row(row),
          end_row(std::min(row + block_side, tiling.tiles)),
          first_column(column),
          end_column(std::min(column + block_side, tiling.tiles)) {}
    bool diagonal() const { return first_row == first_column; }
    int index(int64_t row, int64_t column) const {
        return static_cast<int>((row - first_row) * block_side + column - first_column);
    }
};

// f(row, column) for the tiles of a block that are in the triangle.
template <class F>
STRUCTATTN_INLINE void for_tiles(const Block& block, F&& f) {
    for (int64_t row = block.first_row; row < block.end_row; ++row)
        for (int64_t column = block.diagonal() ? row : block.first_column; column < block.end_column;
             ++column)
            f(row, column);
}

// work(block, extremes) for all blocks, by a team of threads: blocks at one distance from the diagonal do not
// need each other, but, `outwards`, all that are nearer to it, or else all that are farther from it.
template <class V, class Work>
void share_blocks(const Tiling& tiling, bool outwards, int threads, Extremes<V>& extremes, const Work& work) {
    const int64_t blocks = (tiling.tiles + block_side - 1) / block_side;
    // There are half as many blocks at a distance, on average: more threads would mostly wait.
    const int team = static_cast<int>(std::min<int64_t>(threads, (blocks + 1) / 2));
#pragma omp parallel num_threads(team)
    {
        Extremes<V> met;
        for (int64_t step = 0; step < blocks; ++step) {
            const int64_t distance = outwards ? step : blocks - 1 - step;
#pragma omp for schedule(dynamic, 1)
            for (int64_t row = 0; row < blocks - distance; ++row)
                work(Block(tiling, row * block_side, (row + distance) * block_side), met);
        }
#pragma omp critical
        extremes.join(met);
    }
}

// Adds to `part` of the sums of all tiles of the block the products over the tiles from .. to - 1.
template <Form form, bool dual, class V, class Sums>
void add_far_tiles(Sums* sums, V (Sums::*part)[tile_cells], const Tiling& tiling, Chart<V> a, Chart<V> b,
                   const Block& block, int64_t from, int64_t to) {
    for (int64_t inner = from; inner < to; inner += inner_tiles) {
        const int64_t end = std::min(inner + inner_tiles, to);
        for_tiles(block, [&](int64_t row, int64_t column) {
            add_tiles<form, dual>(sums[block.index(row, column)].*part, tiling, a, b, row, column, inner,
                                  end);
        });
    }
}

}  // namespace structattn::STRUCTATTN_LEVEL
