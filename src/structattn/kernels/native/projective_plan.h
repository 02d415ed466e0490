// How a batch is cut into groups of sentences that share registers.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <new>
#include <vector>

#include "projective_sentences.h"

namespace structattn::STRUCTATTN_LEVEL {

constexpr int64_t cache_line = 8;  // in doubles

struct Group {
    int64_t first, count;  // sentences order[first] .. order[first + count - 1], by falling length
    int64_t words;         // the greatest length
    int width;             // lanes: 2, 4 or 8
};

struct Plan {
    std::vector<int64_t> order;
    std::vector<Group> groups;
};

inline int64_t length_of(const int64_t* lengths, int64_t n, int64_t sentence) {
    return lengths ? lengths[sentence] : n;
}

// What a call asks for.
template <class Score>
struct Problem {
    int64_t batch, n;
    const Score* arcs;
    const int64_t* lengths;
    bool single_root, check;
    int threads;

    int64_t length(int64_t sentence) const { return length_of(lengths, n, sentence); }
};

// Sentences of similar length together: the longest in full groups, as many as keep all threads busy, the
// remainder in equal narrower groups, one a thread. The order of the groups, longest first, suits a dynamic
// schedule.
inline Plan make_plan(std::vector<int64_t> sentences, const int64_t* lengths, int64_t n, int threads) {
    Plan plan{std::move(sentences), {}};
    const auto length = [&](int64_t sentence) { return length_of(lengths, n, sentence); };
    std::stable_sort(plan.order.begin(), plan.order.end(),
                     [&](int64_t a, int64_t b) { return length(a) > length(b); });
    const auto total = static_cast<int64_t>(plan.order.size());
    const int64_t in_full_groups = total / (widest * threads) * (widest * threads);
    const int64_t share = (total - in_full_groups + threads - 1) / threads;
    int narrow = narrowest;
    while (narrow < share) narrow *= 2;
    for (int64_t first = 0; first < total;) {
        const int width = first < in_full_groups ? widest : narrow;
        const int64_t count = std::min<int64_t>(width, total - first);
        plan.groups.push_back({first, count, length(plan.order[first]), width});
        first += count;
    }
    return plan;
}

// No plan has more lanes than that: only the last group may have idle ones.
inline int64_t most_lanes(int64_t batch) {
    int64_t lanes = narrowest;
    while (lanes < batch && lanes < widest) lanes *= 2;
    return batch < widest ? lanes : batch + widest - 1;
}

template <int width>
Sentences<width> sentences_of_group(const Plan& plan, const Group& group, const int64_t* lengths, int64_t n) {
    Sentences<width> sentences{n, group.words, group.count, {}, {}};
    for (int lane = 0; lane < width; ++lane) {
        const bool occupied = lane < group.count;
        sentences.sentence[lane] = plan.order[group.first + (occupied ? lane : 0)];
        sentences.length[lane] = occupied ? length_of(lengths, n, sentences.sentence[lane]) : 0;
    }
    return sentences;
}

// f(integral_constant width) for the width of a group.
template <class F>
void with_width(int width, F&& f) {
    if (width == 2) return f(std::integral_constant<int, 2>{});
    if constexpr (widest >= 4)
        if (width == 4) return f(std::integral_constant<int, 4>{});
    if constexpr (widest >= 8)
        if (width == 8) return f(std::integral_constant<int, 8>{});
}

inline int team_of(const Plan& plan, int threads) {
    return static_cast<int>(std::clamp<int64_t>(static_cast<int64_t>(plan.groups.size()), 1, threads));
}

// How many threads work on one group: all of them when it is alone (see share_blocks).
inline int threads_of_group(const Plan& plan, int threads) { return plan.groups.size() == 1 ? threads : 1; }

template <class F>
void for_groups(const Plan& plan, int threads, F&& f) {
    const auto groups = static_cast<int64_t>(plan.groups.size());
    if (groups <= 1 || threads <= 1) {  // outside of any parallel region: a group may have one of its own
        for (int64_t group = 0; group < groups; ++group) f(group);
        return;
    }
#pragma omp parallel for schedule(dynamic, 1) num_threads(team_of(plan, threads))
    for (int64_t group = 0; group < groups; ++group) f(group);
}

// Doubles for every thread, aligned for any register.
class Workspace {
  public:
    Workspace(int threads, int64_t doubles)
        : doubles_((doubles + cache_line - 1) / cache_line * cache_line),
          memory_(static_cast<double*>(
              ::operator new(sizeof(double) * doubles_ * threads, std::align_val_t(64)))) {}
    double* of_thread() const { return memory_.get() + doubles_ * omp_get_thread_num(); }

  private:
    struct Free {
        void operator()(double* memory) const { ::operator delete(memory, std::align_val_t(64)); }
    };
    int64_t doubles_;
    std::unique_ptr<double, Free> memory_;
};

template <class V>
STRUCTATTN_INLINE V* take(double*& memory, int64_t count) {
    V* const taken = reinterpret_cast<V*>(memory);
    memory += count * width_of<V>;
    return taken;
}

inline double& lane_of(void* vector, int lane) { return static_cast<double*>(vector)[lane]; }

}  // namespace structattn::STRUCTATTN_LEVEL
