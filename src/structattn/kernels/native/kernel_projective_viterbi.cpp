// The best projective tree: Eisner's recurrences of projective.h in the (max, +) semiring, a sentence a lane.
//
// No back-pointers: a cell's best split is found again, when it is needed, as the one whose score equals the
// cell's. That is exact (the same two numbers are added) and costs O(n^2) a sentence.
#include "api.h"
#include "projective_plan.h"
#include "projective_sentences.h"

namespace structattn::STRUCTATTN_LEVEL {
namespace {

// Scores of the best right(i, j), left(i, j) and span(i, j), and of the arcs; rows of a full square.
template <class V>
struct BestScores {
    int64_t words;
    bool single_root;
    V *right, *left, *span, *right_arc, *left_arc;  // the arcs' charts hold their bare scores at first
    V* total;                                       // right(0, j), also with single_root

    static int64_t cells(int64_t words) { return 5 * words * words + words; }
    BestScores(double* memory, int64_t words_, bool single_root_) : words(words_), single_root(single_root_) {
        V* next = reinterpret_cast<V*>(memory);
        for (V** chart : {&right, &left, &span, &right_arc, &left_arc, &total}) {
            *chart = next;
            next += words * words;  // `total` comes last and takes one row only
        }
    }
    STRUCTATTN_INLINE int64_t at(int64_t i, int64_t j) const { return i * words + j; }
};

template <class V>
void find_best_scores(const BestScores<V>& best) {
    const V forbidden = all_lanes<V>(-infinity);
    for (int64_t i = best.words - 1; i >= 0; --i) {
        best.right[best.at(i, i)] = V{};
        for (int64_t j = i + 1; j < best.words; ++j) {
            const int64_t here = best.at(i, j);
            V left = j == i + 1 ? V{} : forbidden, span = forbidden;
            for (int64_t k = i + 1; k < j; ++k) {
                left = larger(best.left[best.at(i, k)] + best.left_arc[best.at(k, j)], left);
                span = larger(best.right[best.at(i, k)] + best.left[best.at(k, j)], span);
            }
            span = larger(left, span);
            best.left[here] = left;
            best.span[here] = span;
            best.right_arc[here] += span;
            best.left_arc[here] += span;
            V right = best.right_arc[here];
            for (int64_t k = i + 1; k < j; ++k)
                right = larger(best.right_arc[best.at(i, k)] + best.right[best.at(k, j)], right);
            if (i == 0) best.total[j] = right;
            best.right[here] = i == 0 && best.single_root ? forbidden : right;
        }
    }
}

enum class Item { right, left, span };

struct Task {
    Item item;
    int64_t i, j;
};

// The first k of from .. to - 1 for which first(k) + second(k) is the whole's score; else the last (scores of
// NaN).
template <class First, class Second>
int64_t find_split(int64_t from, int64_t to, double whole, First&& first, Second&& second) {
    int64_t k = from;
    while (k < to - 1 && first(k) + second(k) != whole) ++k;
    return k;
}

template <class V>
void read_heads(const BestScores<V>& best, int lane, int64_t length, std::vector<Task>& open,
                int64_t* heads) {
    const auto score = [&](const V* chart, int64_t i, int64_t j) {
        return reinterpret_cast<const double*>(chart + best.at(i, j))[lane];
    };
    const auto total = [&](int64_t j) { return reinterpret_cast<const double*>(best.total + j)[lane]; };
    if (!(total(length - 1) > -infinity)) return;
    open.assign(1, {Item::right, 0, length - 1});
    while (!open.empty()) {
        const Task task = open.back();
        const int64_t i = task.i, j = task.j;
        open.pop_back();
        if (task.item == Item::right && i < j) {
            const int64_t k = find_split(
                i + 1, j + 1, i == 0 ? total(j) : score(best.right, i, j),
                [&](int64_t k) { return score(best.right_arc, i, k); },
                [&](int64_t k) { return score(best.right, k, j); });
            heads[k] = i;
            open.push_back({Item::right, k, j});
            open.push_back({Item::span, i, k});
        } else if (task.item == Item::left && i + 1 < j) {
            const int64_t k = find_split(
                i + 1, j, score(best.left, i, j), [&](int64_t k) { return score(best.left, i, k); },
                [&](int64_t k) { return score(best.left_arc, k, j); });
            heads[k] = j;
            open.push_back({Item::left, i, k});
            open.push_back({Item::span, k, j});
        } else if (task.item == Item::span) {
            const int64_t k = find_split(
                i, j, score(best.span, i, j), [&](int64_t k) { return score(best.right, i, k); },
                [&](int64_t k) { return score(best.left, k, j); });
            open.push_back({Item::right, i, k});
            open.push_back({Item::left, k, j});
        }
    }
}

// Brings the scores of a group from tiles into rows. Returns false if a score is refused.
template <int width, class Score>
bool fill_scores(const Sentences<width>& sentences, const Score* arcs, bool check, double* scratch,
                 const BestScores<Real<width>>& best) {
    using V = Real<width>;
    const Tiling tiling(sentences.words);
    V* const right = reinterpret_cast<V*>(scratch);
    V* const left = right + tiling.cells();
    const auto refused = read_scores(sentences, arcs, tiling, right, left, left + tiling.cells());
    for (int lane = 0; lane < width; ++lane)
        if (check && refused[lane]) return false;
    for (int64_t i = 0; i < sentences.words; ++i)
        for (int64_t j = i + 1; j < sentences.words; ++j) {
            best.right_arc[best.at(i, j)] = right[tiling.cell(i, j)];
            best.left_arc[best.at(i, j)] = left[tiling.cell(i, j)];
        }
    return true;
}

int64_t doubles_of_lane(int64_t words) {
    const Tiling tiling(words);
    return BestScores<double>::cells(words) + 2 * tiling.cells() + tiling.tiles * side;
}

template <class Score>
int viterbi(int64_t batch, int64_t n, const Score* arcs, const int64_t* lengths, bool single_root, bool check,
            int threads, int64_t* heads) {
    std::fill_n(heads, batch * n, int64_t(0));
    std::vector<int64_t> sentences;
    for (int64_t sentence = 0; sentence < batch; ++sentence)
        if (length_of(lengths, n, sentence) > 1) sentences.push_back(sentence);
    const Plan plan = make_plan(std::move(sentences), lengths, n, threads);
    int64_t doubles = 0;
    for (const Group& group : plan.groups)
        doubles = std::max(doubles, doubles_of_lane(group.words) * group.width);
    const Workspace workspace(team_of(plan, threads), doubles);
    std::vector<std::vector<Task>> open(team_of(plan, threads));
    for (auto& tasks : open) tasks.reserve(2 * n + 2);
    std::vector<char> refused(plan.groups.size(), 0);

    for_groups(plan, threads, [&](int64_t index) {
        const Group& group = plan.groups[index];
        with_width(group.width, [&](auto constant) {
            constexpr int width = decltype(constant)::value;
            const auto members = sentences_of_group<width>(plan, group, lengths, n);
            double* const memory = workspace.of_thread();
            const BestScores<Real<width>> best(memory, group.words, single_root);
            double* const scratch = memory + BestScores<double>::cells(group.words) * width;
            refused[index] = !fill_scores(members, arcs, check, scratch, best);
            if (refused[index]) return;
            find_best_scores(best);
            for (int lane = 0; lane < group.count; ++lane)
                read_heads(best, lane, members.length[lane], open[omp_get_thread_num()],
                           heads + members.sentence[lane] * n);
        });
    });
    return std::count(refused.begin(), refused.end(), 1) ? STATUS_BAD_FIRST_ARGUMENT : STATUS_OK;
}

}  // namespace

int projective_viterbi(int wide, int64_t batch, int64_t n, const void* arcs, const int64_t* lengths,
                       int single_root, int check, int threads, int64_t* heads) {
    if (n > (int64_t(1) << 24) || batch > (int64_t(1) << 40) / (n + 1) / (n + 1) * 8) return STATUS_TOO_LARGE;
    const int team = threads > 1 ? threads : 1;
    if (wide)
        return viterbi(batch, n, static_cast<const double*>(arcs), lengths, single_root != 0, check != 0,
                       team, heads);
    return viterbi(batch, n, static_cast<const float*>(arcs), lengths, single_root != 0, check != 0, team,
                   heads);
}

}  // namespace structattn::STRUCTATTN_LEVEL
