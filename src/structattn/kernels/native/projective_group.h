// Forward and backward of one group of sentences on plain products, and the block of charts that it saves.
#pragma once
#include <cmath>

#include "projective_inside.h"
#include "projective_outside.h"
#include "projective_plan.h"

namespace structattn::STRUCTATTN_LEVEL {

constexpr int64_t inside_charts = 6, outside_charts = 5, change_charts = 9;

inline int64_t block_doubles(const Group& group) {
    return (inside_charts + outside_charts) * Tiling(group.words).cells() * group.width + cache_line;
}

template <class V>
Charts<V> charts_of_block(double* block, const Group& group, bool single_root) {
    Charts<V> charts{Tiling(group.words), single_root};
    const int64_t cells = charts.tiling.cells();
    for (V** chart : {&charts.right_weight, &charts.left_weight, &charts.right.value, &charts.left.value,
                      &charts.right_arc.value, &charts.left_arc.value, &charts.outside_right.value,
                      &charts.outside_left.value, &charts.outside_span.value, &charts.outside_right_arc.value,
                      &charts.outside_left_arc.value})
        *chart = take<V>(block, cells);
    return charts;
}

// The reciprocals of Z, a lane each, behind the charts of a block.
inline double* reciprocals_of_block(double* block, const Group& group) {
    return block + block_doubles(group) - cache_line;
}

// exp(score - top) in place; minus infinity becomes exactly 0.
template <class V>
void exponentiate(const Charts<V>& charts, const V* top, Extremes<V>& extremes) {
    Extremes<V> met = extremes;  // in registers: stores to the charts could change the original
    const auto weight = [&](V score, V maximum) STRUCTATTN_INLINED {
        const auto power = exponential<false>(larger(score - maximum, all_lanes<V>(-700.0)));
        const V result =
            score > all_lanes<V>(-infinity) ? power.mantissa * power_of_two(power.exponent) : V{};
        met.note(result);
        return result;
    };
    for (int64_t row = 0; row < charts.tiling.tiles; ++row)
        for (int64_t column = row; column < charts.tiling.tiles; ++column) {
            V* const right = charts.right_weight + charts.tiling.tile(row, column);
            V* const left = charts.left_weight + charts.tiling.tile(row, column);
            for (int cell = 0; cell < tile_cells; ++cell) {
                right[cell] = weight(right[cell], top[column * side + cell % side]);
                left[cell] = weight(left[cell], top[row * side + cell / side]);
            }
        }
    extremes = met;
}

// After an inside pass: for sentences without a certificate multiplies all weights by one factor that makes
// the total weight of the longest prefix that is in range about 1, as right(0, j) grows or shrinks by much
// the same factor with every word. Returns whether another pass is worth its time; it gives all other
// sentences the same bits again.
template <int width>
bool rebalance(const Charts<Real<width>>& charts, const Sentences<width>& sentences, Real<width>* top,
               const Extremes<Real<width>>& weights, Extremes<Real<width>>& extremes) {
    using V = Real<width>;
    V factor = all_lanes<V>(1.0), shift{};
    bool changed = false;
    for (int lane = 0; lane < sentences.count; ++lane) {
        if (extremes.certifies(lane) || !weights.certifies(lane)) continue;
        int64_t prefix = sentences.length[lane] - 1;
        const auto in_range = [&](double total) { return total >= 1e-140 && total <= 1e140; };
        while (prefix > 0 && !in_range(lane_of(charts.total + prefix, lane))) --prefix;
        if (prefix == 0) continue;
        const double log_factor =
            -std::log(lane_of(charts.total + prefix, lane)) / static_cast<double>(prefix);
        lane_of(&factor, lane) = std::exp(log_factor);
        lane_of(&shift, lane) = log_factor;
        changed = true;
    }
    if (!changed) return false;
    extremes = {};
    for (int64_t cell = 0; cell < charts.tiling.cells(); ++cell) {
        extremes.note(charts.right_weight[cell] *= factor);
        extremes.note(charts.left_weight[cell] *= factor);
    }
    for (int64_t word = 0; word < charts.tiling.tiles * side; ++word) top[word] -= shift;
    return true;
}

// p(i -> j) and p(j -> i).
template <class V>
STRUCTATTN_INLINE void probabilities(const Charts<V>& charts, int64_t cell, V& to_right, V& to_left) {
    const V one = all_lanes<V>(1.0);
    to_right = smaller(charts.right_arc.value[cell] * charts.outside_right_arc.value[cell], one);
    to_left = smaller(charts.left_arc.value[cell] * charts.outside_left_arc.value[cell], one);
}

template <class V>
void seed_outside(const Charts<V>& charts, const int64_t* length, const double* per_lane) {
    std::fill(charts.seed, charts.seed + charts.tiling.tiles * side, V{});
    for (int lane = 0; lane < width_of<V>; ++lane)
        if (length[lane] > 0) lane_of(charts.seed + length[lane] - 1, lane) = per_lane[lane];
}

inline int64_t forward_scratch(const Group& group) {
    return 3 * Tiling(group.words).tiles * side * group.width;
}

// Marks the sentences that have no certificate as scaled; returns false if a score is refused.
template <int width, class Score>
bool forward_group(const Problem<Score>& problem, const Sentences<width>& sentences, const Group& group,
                   int threads, double* block, double* scratch, bool want_outside, char* is_scaled,
                   double* log_partition, Score* marginals) {
    using V = Real<width>;
    auto charts = charts_of_block<V>(block, group, problem.single_root);
    const int64_t padded = charts.tiling.tiles * side;
    V* const top = take<V>(scratch, padded);
    charts.total = take<V>(scratch, padded);
    charts.seed = take<V>(scratch, padded);

    const auto refused =
        read_scores(sentences, problem.arcs, charts.tiling, charts.right_weight, charts.left_weight, top);
    for (int lane = 0; lane < width; ++lane)
        if (problem.check && refused[lane]) return false;
    Extremes<V> weights;
    exponentiate(charts, top, weights);
    Extremes<V> extremes = weights;
    inside<false>(charts, threads, extremes);
    if (rebalance(charts, sentences, top, weights, extremes)) inside<false>(charts, threads, extremes);

    double* const reciprocals = reciprocals_of_block(block, group);
    for (int lane = 0; lane < width; ++lane) {
        const int64_t length = sentences.length[lane];
        const double z = length > 0 ? lane_of(charts.total + length - 1, lane) : 0.0;
        reciprocals[lane] = z > 0 ? 1 / z : 0.0;
        double log_z = std::log(z);
        for (int64_t word = 1; word < length; ++word) log_z += lane_of(top + word, lane);
        if (lane < group.count) log_partition[sentences.sentence[lane]] = log_z;
    }
    if (want_outside) {
        seed_outside(charts, sentences.length, reciprocals);
        outside<false>(charts, threads, extremes);
    }
    for (int64_t lane = 0; lane < group.count; ++lane)
        is_scaled[sentences.sentence[lane]] = !extremes.certifies(static_cast<int>(lane));
    if (marginals)
        write_charts(sentences, marginals, charts.tiling,
                     [&](int64_t cell, V& to_right, V& to_left)
                         STRUCTATTN_INLINED { probabilities(charts, cell, to_right, to_left); });
    return true;
}

inline int64_t backward_scratch(const Group& group, bool has_outside) {
    const Tiling tiling(group.words);
    return ((has_outside ? 0 : outside_charts) * tiling.cells() + change_charts * tiling.cells() +
            2 * tiling.tiles * side) *
           group.width;
}

// The gradient of a group from its saved charts; without saved outside charts it first makes them and marks
// the sentences that have no certificate as scaled.
template <int width, class Score>
void backward_group(const Problem<Score>& problem, const Sentences<width>& sentences, const Group& group,
                    int threads, double* block, double* scratch, bool has_outside, char* is_scaled,
                    const double* grad_log_partition, const Score* grad_marginals, Score* grad_arcs) {
    using V = Real<width>;
    auto charts = charts_of_block<V>(block, group, problem.single_root);
    const int64_t cells = charts.tiling.cells(), padded = charts.tiling.tiles * side;
    double* const reciprocals = reciprocals_of_block(block, group);
    charts.total = take<V>(scratch, padded);
    charts.seed = take<V>(scratch, padded);
    if (!has_outside) {
        for (V** chart : {&charts.outside_right.value, &charts.outside_left.value, &charts.outside_span.value,
                          &charts.outside_right_arc.value, &charts.outside_left_arc.value})
            *chart = take<V>(scratch, cells);
        Extremes<V> extremes;
        seed_outside(charts, sentences.length, reciprocals);
        outside<false>(charts, threads, extremes);
        for (int64_t lane = 0; lane < group.count; ++lane)
            if (!extremes.certifies(static_cast<int>(lane))) is_scaled[sentences.sentence[lane]] = 1;
    }
    V value_factor{}, change_factor{};
    for (int lane = 0; grad_log_partition && lane < width; ++lane)
        lane_of(&value_factor, lane) = grad_log_partition[sentences.sentence[lane]];
    if (grad_marginals) {
        for (V** chart :
             {&charts.right_direction, &charts.left_direction, &charts.right.change, &charts.left.change,
              &charts.right_arc.change, &charts.left_arc.change, &charts.outside_right.change,
              &charts.outside_left.change, &charts.outside_span.change})
            *chart = take<V>(scratch, cells);
        change_factor = read_direction(sentences, grad_marginals, charts.tiling, charts.right_direction,
                                       charts.left_direction);
        Extremes<V> unused;
        inside<true>(charts, threads, unused);
        double changes[width];
        for (int lane = 0; lane < width; ++lane) {
            const int64_t last = std::max<int64_t>(sentences.length[lane] - 1, 0);
            changes[lane] =
                last > 0 ? -lane_of(charts.total + last, lane) * reciprocals[lane] * reciprocals[lane] : 0;
        }
        seed_outside(charts, sentences.length, changes);
        outside<true>(charts, threads, unused);
    }
    write_charts(
        sentences, grad_arcs, charts.tiling, [&](int64_t cell, V& to_right, V& to_left) STRUCTATTN_INLINED {
            probabilities(charts, cell, to_right, to_left);
            if (grad_marginals) {
                to_right = two_products(to_right, value_factor, charts.right_direction[cell], change_factor);
                to_left = two_products(to_left, value_factor, charts.left_direction[cell], change_factor);
            } else {
                to_right *= value_factor;
                to_left *= value_factor;
            }
        });
}

}  // namespace structattn::STRUCTATTN_LEVEL
