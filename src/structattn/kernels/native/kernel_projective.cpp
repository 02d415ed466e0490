// Projective trees: log Z, marginals and their gradient. The maths is in projective.h.
//
// Every group of sentences runs on plain products; sentences without a certificate (see Extremes) run again
// on scaled numbers. Only the former save charts: `saved` holds a header and, from the next multiple of 64
// bytes, a block a group.
#include "api.h"
#include "projective_group.h"
#include "projective_scaled_group.h"

namespace structattn::STRUCTATTN_LEVEL {
namespace {

constexpr int64_t header_fields = 2;

// What forward leaves for backward.
struct Header {
    double* fields;

    double& threads() const { return fields[0]; }
    double& has_outside() const { return fields[1]; }
    double& is_scaled(int64_t sentence) const { return fields[header_fields + sentence]; }
};

double* first_block(double* saved, int64_t batch) {
    const auto address = reinterpret_cast<uintptr_t>(saved + header_fields + batch);
    return reinterpret_cast<double*>((address + 63) / 64 * 64);
}

template <class Score>
std::vector<int64_t> sentences_with_arcs(const Problem<Score>& problem) {
    std::vector<int64_t> sentences;
    for (int64_t sentence = 0; sentence < problem.batch; ++sentence)
        if (problem.length(sentence) > 1) sentences.push_back(sentence);
    return sentences;
}

// Where each group's block starts, and behind the last.
std::vector<int64_t> block_offsets(const Plan& plan) {
    std::vector<int64_t> offsets{0};
    for (const Group& group : plan.groups) offsets.push_back(offsets.back() + block_doubles(group));
    return offsets;
}

template <class Score>
int forward(const Problem<Score>& problem, double* saved, double* log_partition, Score* marginals) {
    const int64_t matrix = problem.n * problem.n;
    for (int64_t sentence = 0; sentence < problem.batch; ++sentence) {
        if (problem.length(sentence) > 1) continue;
        log_partition[sentence] = 0;
        if (marginals) std::fill_n(marginals + sentence * matrix, matrix, Score(0));
    }
    const Plan plan = make_plan(sentences_with_arcs(problem), problem.lengths, problem.n, problem.threads);
    const std::vector<int64_t> offsets = block_offsets(plan);
    int64_t doubles = 0;
    for (const Group& group : plan.groups)
        doubles = std::max(doubles, forward_scratch(group) + (saved ? 0 : block_doubles(group)));
    const Workspace workspace(team_of(plan, problem.threads), doubles);
    const int team = threads_of_group(plan, problem.threads);
    std::vector<char> is_scaled(problem.batch, 0), refused(plan.groups.size(), 0);
    double* const blocks = saved ? first_block(saved, problem.batch) : nullptr;

    for_groups(plan, problem.threads, [&](int64_t index) {
        const Group& group = plan.groups[index];
        double* scratch = workspace.of_thread();
        double* block = saved ? blocks + offsets[index] : scratch;
        if (!saved) scratch += block_doubles(group);
        with_width(group.width, [&](auto constant) {
            constexpr int width = decltype(constant)::value;
            const auto sentences = sentences_of_group<width>(plan, group, problem.lengths, problem.n);
            refused[index] = !forward_group(problem, sentences, group, team, block, scratch,
                                            marginals != nullptr, is_scaled.data(), log_partition, marginals);
        });
    });
    if (std::count(refused.begin(), refused.end(), 1)) return STATUS_BAD_FIRST_ARGUMENT;

    std::vector<int64_t> scaled;
    for (int64_t sentence = 0; sentence < problem.batch; ++sentence)
        if (is_scaled[sentence]) scaled.push_back(sentence);
    scaled_sentences<false, Score>(problem, std::move(scaled), nullptr, nullptr, log_partition, marginals);
    if (saved) {
        const Header header{saved};
        header.threads() = problem.threads;
        header.has_outside() = marginals != nullptr;
        for (int64_t sentence = 0; sentence < problem.batch; ++sentence)
            header.is_scaled(sentence) = is_scaled[sentence];
    }
    return STATUS_OK;
}

template <class Score>
int backward(const Problem<Score>& problem, double* saved, const double* grad_log_partition,
             const Score* grad_marginals, Score* grad_arcs) {
    const Header header{saved};
    const int64_t matrix = problem.n * problem.n;
    for (int64_t sentence = 0; sentence < problem.batch; ++sentence)
        if (problem.length(sentence) <= 1) std::fill_n(grad_arcs + sentence * matrix, matrix, Score(0));
    if (problem.batch == 0) return STATUS_OK;

    const bool has_outside = header.has_outside() != 0;
    const int planned_threads = static_cast<int>(header.threads());
    const Plan plan = make_plan(sentences_with_arcs(problem), problem.lengths, problem.n, planned_threads);
    const std::vector<int64_t> offsets = block_offsets(plan);
    std::vector<char> is_scaled(problem.batch);
    for (int64_t sentence = 0; sentence < problem.batch; ++sentence)
        is_scaled[sentence] = header.is_scaled(sentence) != 0;
    int64_t doubles = 0;
    for (const Group& group : plan.groups) doubles = std::max(doubles, backward_scratch(group, has_outside));
    const Workspace workspace(team_of(plan, problem.threads), doubles);
    const int team = threads_of_group(plan, problem.threads);
    double* const blocks = first_block(saved, problem.batch);

    for_groups(plan, problem.threads, [&](int64_t index) {
        const Group& group = plan.groups[index];
        const auto first = plan.order.begin() + group.first;
        if (std::all_of(first, first + group.count,
                        [&](int64_t sentence) { return is_scaled[sentence] != 0; }))
            return;
        with_width(group.width, [&](auto constant) {
            constexpr int width = decltype(constant)::value;
            backward_group(problem, sentences_of_group<width>(plan, group, problem.lengths, problem.n), group,
                           team, blocks + offsets[index], workspace.of_thread(), has_outside,
                           is_scaled.data(), grad_log_partition, grad_marginals, grad_arcs);
        });
    });
    std::vector<int64_t> scaled;
    for (int64_t sentence = 0; sentence < problem.batch; ++sentence)
        if (is_scaled[sentence]) scaled.push_back(sentence);
    if (scaled.empty()) return STATUS_OK;
    const std::vector<double> zeros(grad_log_partition ? 0 : problem.batch, 0.0);
    const double* const value_factors = grad_log_partition ? grad_log_partition : zeros.data();
    if (grad_marginals)
        scaled_sentences<true, Score>(problem, std::move(scaled), grad_marginals, value_factors, nullptr,
                                      grad_arcs);
    else
        scaled_sentences<false, Score>(problem, std::move(scaled), nullptr, value_factors, nullptr,
                                       grad_arcs);
    return STATUS_OK;
}

// Whether all sizes that are computed for the batch fit the index arithmetic.
bool fits(int64_t batch, int64_t n) {
    constexpr int64_t most = int64_t(1) << 56;
    if (n > (int64_t(1) << 24) || batch > (int64_t(1) << 40)) return false;
    const int64_t doubles_of_lane = (inside_charts + outside_charts) * Tiling(n).cells() + 4 * cache_line;
    return (batch + widest + 1) < most / doubles_of_lane;
}

}  // namespace

// -1 if the sizes are beyond the index arithmetic.
int64_t projective_saved_size(int64_t batch, int64_t n) {
    if (!fits(batch, n)) return -1;
    const int64_t lanes = most_lanes(batch), charts = (inside_charts + outside_charts) * Tiling(n).cells();
    return header_fields + batch + cache_line + lanes * (charts + cache_line);
}

int projective_forward(int wide, int64_t batch, int64_t n, const void* arcs, const int64_t* lengths,
                       int single_root, int check, int threads, double* saved, double* log_partition,
                       void* marginals) {
    if (!fits(batch, n)) return STATUS_TOO_LARGE;
    const auto run = [&](auto zero) {
        using Score = decltype(zero);
        const Problem<Score> problem{batch,
                                     n,
                                     static_cast<const Score*>(arcs),
                                     lengths,
                                     single_root != 0,
                                     check != 0,
                                     std::max(threads, 1)};
        return forward(problem, saved, log_partition, static_cast<Score*>(marginals));
    };
    return wide ? run(0.0) : run(0.0f);
}

int projective_backward(int wide, int64_t batch, int64_t n, const void* arcs, const int64_t* lengths,
                        int single_root, int threads, const double* saved, const double* grad_log_partition,
                        const void* grad_marginals, void* grad_arcs) {
    if (!fits(batch, n)) return STATUS_TOO_LARGE;
    const auto run = [&](auto zero) {
        using Score = decltype(zero);
        const Problem<Score> problem{batch,
                                     n,
                                     static_cast<const Score*>(arcs),
                                     lengths,
                                     single_root != 0,
                                     false,
                                     std::max(threads, 1)};
        // Charts are read through the type that forward writes through; nothing of `saved` is changed.
        return backward(problem, const_cast<double*>(saved), grad_log_partition,
                        static_cast<const Score*>(grad_marginals), static_cast<Score*>(grad_arcs));
    };
    return wide ? run(0.0) : run(0.0f);
}

}  // namespace structattn::STRUCTATTN_LEVEL
