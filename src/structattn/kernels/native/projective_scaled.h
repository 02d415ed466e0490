// The fallback: inside-outside on numbers with an exponent of their own, for sentences whose plain products
// could leave the range of a double (long sentences of peaked scores; anything scaled by hundreds).
//
// A cell is (mantissa, change) * 2^exponent with mantissa in [1, 2) or 0; exponents are integers in doubles,
// so that they hold whatever exp() of a score needs. A sum first finds the largest exponent of its terms,
// then adds. Charts are plain triangles, row by row; the recurrences are those of projective.h, term by term.
#pragma once
#include <cmath>

#include "projective_sentences.h"

namespace structattn::STRUCTATTN_LEVEL {

constexpr double exponent_of_zero = -1e280;
constexpr double least_log_weight = -1e250;

template <class V, bool dual>
struct Scaled {
    V mantissa, exponent, change;
};

template <class V>
struct Scaled<V, false> {
    V mantissa, exponent;
};

// mantissa * 2^exponent, brought into the normal form.
template <bool dual, class V>
STRUCTATTN_INLINE Scaled<V, dual> normalised(V mantissa, V exponent, V change) {
    const auto bits = bits_of(mantissa);
    const auto shift_bits = bits_of(all_lanes<V>(integer_shift));
    const V own = from_bits<V>((bits >> 52) - 1023 + shift_bits) - integer_shift;
    const auto positive = mantissa > V{};
    Scaled<V, dual> result;
    result.mantissa = positive ? from_bits<V>((bits & 0xfffffffffffff) | 0x3ff0000000000000) : V{};
    result.exponent = positive ? exponent + own : all_lanes<V>(exponent_of_zero);
    if constexpr (dual) result.change = positive ? change * power_of_two(-own) : V{};
    return result;
}

// The sum of the products of the pairs that `visit` enumerates; it is called twice.
template <bool dual, class V, class Visit>
STRUCTATTN_INLINE Scaled<V, dual> sum_of_products(Visit&& visit) {
    using Cell = Scaled<V, dual>;
    V exponent = all_lanes<V>(4 * exponent_of_zero), mantissa{}, change{};
    visit([&](const Cell& a, const Cell& b) { exponent = larger(a.exponent + b.exponent, exponent); });
    visit([&](const Cell& a, const Cell& b) {
        const V scale = power_of_two(a.exponent + b.exponent - exponent);
        mantissa += a.mantissa * b.mantissa * scale;
        if constexpr (dual) change += two_products(a.change, b.mantissa, a.mantissa, b.change) * scale;
    });
    return normalised<dual>(mantissa, exponent, change);
}

template <bool dual, class V>
STRUCTATTN_INLINE Scaled<V, dual> product(const Scaled<V, dual>& a, const Scaled<V, dual>& b) {
    V change{};
    if constexpr (dual) change = two_products(a.change, b.mantissa, a.mantissa, b.change);
    return normalised<dual>(a.mantissa * b.mantissa, a.exponent + b.exponent, change);
}

template <class V, bool dual>
struct ScaledCharts {
    using Cell = Scaled<V, dual>;
    int64_t words;
    bool single_root;
    Cell *right_weight, *left_weight, *right, *left, *right_arc, *left_arc;
    Cell *outside_right, *outside_left, *outside_span;
    Cell *total, *seed;  // a cell for every word

    static int64_t cells(int64_t words) { return words * (words + 1) / 2; }
    // The doubles that the charts and vectors take for each lane.
    static int64_t doubles(int64_t words) {
        return (9 * cells(words) + 2 * words) * static_cast<int64_t>(sizeof(Cell) / sizeof(V));
    }
    ScaledCharts(V* memory, int64_t words_, bool single_root_) : words(words_), single_root(single_root_) {
        Cell* next = reinterpret_cast<Cell*>(memory);
        for (Cell** chart : {&right_weight, &left_weight, &right, &left, &right_arc, &left_arc,
                             &outside_right, &outside_left, &outside_span}) {
            *chart = next;
            next += cells(words);
        }
        total = next;
        seed = next + words;
    }
    STRUCTATTN_INLINE int64_t at(int64_t i, int64_t j) const { return i * (2 * words - 1 - i) / 2 + j; }
};

template <class V, bool dual>
STRUCTATTN_INLINE Scaled<V, dual> scaled_one() {
    return normalised<dual>(all_lanes<V>(1.0), V{}, V{});
}

template <class V, bool dual>
void inside(const ScaledCharts<V, dual>& c) {
    for (int64_t i = c.words - 1; i >= 0; --i) {
        c.right[c.at(i, i)] = scaled_one<V, dual>();
        for (int64_t j = i + 1; j < c.words; ++j) {
            const int64_t here = c.at(i, j);
            c.left[here] = j == i + 1 ? scaled_one<V, dual>() : sum_of_products<dual, V>([&](auto&& term) {
                for (int64_t k = i + 1; k < j; ++k) term(c.left[c.at(i, k)], c.left_arc[c.at(k, j)]);
            });
            const auto span = sum_of_products<dual, V>([&](auto&& term) {
                for (int64_t k = i; k < j; ++k) term(c.right[c.at(i, k)], c.left[c.at(k, j)]);
            });
            c.right_arc[here] = product(span, c.right_weight[here]);
            c.left_arc[here] = product(span, c.left_weight[here]);
            c.right[here] = sum_of_products<dual, V>([&](auto&& term) {
                for (int64_t k = i + 1; k <= j; ++k) term(c.right_arc[c.at(i, k)], c.right[c.at(k, j)]);
            });
            if (i > 0) continue;
            c.total[j] = c.right[here];
            if (c.single_root) c.right[here] = normalised<dual>(V{}, V{}, V{});
        }
    }
}

// Hands the pair (p(i -> j), p(j -> i)) to `keep(i, j, ...)`.
template <class V, bool dual, class Keep>
void outside(const ScaledCharts<V, dual>& c, Keep&& keep) {
    for (int64_t i = 0; i < c.words; ++i)
        for (int64_t j = c.words - 1; j > i; --j) {
            const int64_t here = c.at(i, j);
            c.outside_right[here] = sum_of_products<dual, V>([&](auto&& term) {
                if (i == 0) term(c.seed[j], scaled_one<V, dual>());
                if (i == 0 && c.single_root) return;
                for (int64_t k = j + 1; k < c.words; ++k)
                    term(c.outside_span[c.at(i, k)], c.left[c.at(j, k)]);
                for (int64_t k = 0; k < i; ++k) term(c.right_arc[c.at(k, i)], c.outside_right[c.at(k, j)]);
            });
            const auto right_arc = sum_of_products<dual, V>([&](auto&& term) {
                for (int64_t k = j; k < c.words; ++k) term(c.outside_right[c.at(i, k)], c.right[c.at(j, k)]);
            });
            const auto left_arc = sum_of_products<dual, V>([&](auto&& term) {
                for (int64_t k = 0; k < i; ++k) term(c.left[c.at(k, i)], c.outside_left[c.at(k, j)]);
            });
            c.outside_span[here] = sum_of_products<dual, V>([&](auto&& term) {
                term(right_arc, c.right_weight[here]);
                term(left_arc, c.left_weight[here]);
            });
            c.outside_left[here] = sum_of_products<dual, V>([&](auto&& term) {
                for (int64_t k = 0; k <= i; ++k) term(c.right[c.at(k, i)], c.outside_span[c.at(k, j)]);
                for (int64_t k = j + 1; k < c.words; ++k)
                    term(c.outside_left[c.at(i, k)], c.left_arc[c.at(j, k)]);
            });
            keep(i, j, product(right_arc, c.right_arc[here]), product(left_arc, c.left_arc[here]));
        }
}

}  // namespace structattn::STRUCTATTN_LEVEL
