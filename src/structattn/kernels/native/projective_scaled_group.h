// The fallback for some sentences of a batch: forward and backward on scaled numbers. Nothing of it is saved.
#pragma once
#include "projective_plan.h"
#include "projective_scaled.h"

namespace structattn::STRUCTATTN_LEVEL {

// Forward (direction null) and backward of a group on scaled numbers. Writes out = value_factor * p + change
// of p in the direction.
template <bool dual, int width, class Score>
void scaled_group(const Problem<Score>& problem, const Sentences<width>& sentences, double* scratch,
                  const Score* direction, Real<width> value_factor, double* log_partition, Score* out) {
    using V = Real<width>;
    using Cell = Scaled<V, dual>;
    const Tiling tiling(sentences.words);
    V* const right_score = take<V>(scratch, tiling.cells());
    V* const left_score = take<V>(scratch, tiling.cells());
    V* const right_direction = take<V>(scratch, tiling.cells());
    V* const left_direction = take<V>(scratch, tiling.cells());
    V* const top = take<V>(scratch, tiling.tiles * side);
    const ScaledCharts<V, dual> charts(reinterpret_cast<V*>(scratch), sentences.words, problem.single_root);

    read_scores(sentences, problem.arcs, tiling, right_score, left_score, top);
    V change_factor{};
    if constexpr (dual)
        change_factor = read_direction(sentences, direction, tiling, right_direction, left_direction);
    const auto weight = [&](V score, V maximum, const V* direction_cell) {
        const auto power = exponential<true>(larger(score - maximum, all_lanes<V>(least_log_weight)));
        const V mantissa = score > all_lanes<V>(-infinity) ? power.mantissa : V{};
        V change{};
        if constexpr (dual) change = mantissa * *direction_cell;
        return normalised<dual>(mantissa, power.exponent, change);
    };
    for (int64_t i = 0; i < sentences.words; ++i)
        for (int64_t j = i + 1; j < sentences.words; ++j) {
            const int64_t cell = tiling.cell(i, j);
            charts.right_weight[charts.at(i, j)] = weight(right_score[cell], top[j], right_direction + cell);
            charts.left_weight[charts.at(i, j)] = weight(left_score[cell], top[i], left_direction + cell);
        }
    inside(charts);

    Cell* const seed = charts.seed;
    for (int64_t word = 0; word < sentences.words; ++word) seed[word] = normalised<dual>(V{}, V{}, V{});
    for (int lane = 0; lane < sentences.count; ++lane) {
        const int64_t length = sentences.length[lane];
        Cell &total = charts.total[length - 1], &its_seed = seed[length - 1];
        const double z = lane_of(&total.mantissa, lane), exponent = lane_of(&total.exponent, lane);
        double log_z = z > 0 ? std::log(z) + exponent * 0.693147180559945309417 : -infinity;
        for (int64_t word = 1; word < length; ++word) log_z += lane_of(top + word, lane);
        if (log_partition) log_partition[sentences.sentence[lane]] = log_z;
        if (!(z > 0)) continue;
        lane_of(&its_seed.mantissa, lane) = 1 / z;
        lane_of(&its_seed.exponent, lane) = -exponent;
        if constexpr (dual) lane_of(&its_seed.change, lane) = -lane_of(&total.change, lane) / (z * z);
    }
    if (!out) return;
    V *const right_result = right_score, *const left_result = left_score;
    std::fill(right_result, right_result + tiling.cells(), V{});
    std::fill(left_result, left_result + tiling.cells(), V{});
    const auto result = [&](const Cell& p) {
        const V size = power_of_two(smaller(p.exponent, all_lanes<V>(1.0)));
        const V value = smaller(p.mantissa * size, all_lanes<V>(1.0));
        if constexpr (dual)
            return two_products(value, value_factor, p.change * size, change_factor);
        else
            return value * value_factor;
    };
    outside(charts, [&](int64_t i, int64_t j, const Cell& to_right, const Cell& to_left) {
        right_result[tiling.cell(i, j)] = result(to_right);
        left_result[tiling.cell(i, j)] = result(to_left);
    });
    write_charts(sentences, out, tiling, [&](int64_t cell, V& to_right, V& to_left) STRUCTATTN_INLINED {
        to_right = right_result[cell];
        to_left = left_result[cell];
    });
}

template <bool dual, class Score>
void scaled_sentences(const Problem<Score>& problem, std::vector<int64_t> sentences, const Score* direction,
                      const double* value_factors, double* log_partition, Score* out) {
    if (sentences.empty()) return;
    const Plan plan = make_plan(std::move(sentences), problem.lengths, problem.n, problem.threads);
    int64_t doubles = 0;
    for (const Group& group : plan.groups) {
        const Tiling tiling(group.words);
        const int64_t charts = ScaledCharts<double, dual>::doubles(group.words);
        doubles = std::max(doubles, (charts + 4 * tiling.cells() + tiling.tiles * side) * group.width);
    }
    const Workspace workspace(team_of(plan, problem.threads), doubles);
    for_groups(plan, problem.threads, [&](int64_t index) {
        const Group& group = plan.groups[index];
        with_width(group.width, [&](auto constant) {
            constexpr int width = decltype(constant)::value;
            const auto members = sentences_of_group<width>(plan, group, problem.lengths, problem.n);
            Real<width> value_factor = Real<width>{} + 1.0;
            for (int lane = 0; value_factors && lane < width; ++lane)
                lane_of(&value_factor, lane) = value_factors[members.sentence[lane]];
            scaled_group<dual, width>(problem, members, workspace.of_thread(), direction, value_factor,
                                      log_partition, out);
        });
    });
}

}  // namespace structattn::STRUCTATTN_LEVEL
