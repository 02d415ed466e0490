// The best sequence of a linear chain: best_{t+1}(j) = u_{t+1}(j) + max_i (best_t(i) + x_ij), in double, with
// the lowest state among equals. Scores are only added and compared, so -inf needs no care, and nothing is
// rescaled: sums of float potentials are exact in double.
#include "chain.h"

namespace structattn::STRUCTATTN_LEVEL {

namespace {

// One thread's memory: the scores of two positions, a row of transitions, and for each position who came
// before.
struct Memories {
    double *best, *candidate, *arrival, *row;
    int64_t* before;

    static int64_t size(const Problem& problem) { return (4 + problem.n) * (padded(problem.states) + 8); }

    Memories(const Problem& problem, double* memory) {
        Carver carver(memory);
        const int64_t width = padded(problem.states);
        best = carver.take(width);
        candidate = carver.take(width);
        arrival = carver.take(width);
        row = carver.take(width);
        before = reinterpret_cast<int64_t*>(carver.take(problem.n * width));
    }
};

class Viterbi {
  public:
    Viterbi(const Problem& problem, const double* table, int64_t* states_out)
        : problem_(problem), table_(table), states_out_(states_out), width_(padded(problem.states)) {}

    void run(int64_t chain, double* memory) const {
        Memories memories(problem_, memory);
        const int64_t length = problem_.length(chain);
        int64_t* out = states_out_ + chain * problem_.n;
        std::fill(out, out + problem_.n, int64_t{0});
        if (length == 0) return;
        std::fill(memories.best, memories.best + width_, 0.0);
        add_unary(chain, 0, memories.best, memories);
        for (int64_t position = 1; position < length; ++position) {
            advance(chain, position, memories);
            add_unary(chain, position, memories.candidate, memories);
            std::swap(memories.best, memories.candidate);
        }
        follow_back(length, memories, out);
    }

  private:
    void add_unary(int64_t chain, int64_t position, double* scores, Memories& memories) const {
        std::fill(memories.row, memories.row + width_, -INFINITE<double>);
        problem_.unary.read((chain * problem_.n + position) * problem_.states, problem_.states, memories.row);
        Mask<double> refused{};
        for (int64_t column = 0; column < width_; column += LANES<double>) {
            const Vector<double> score = load(memories.row + column);
            refused |= ~(score < INFINITE<double>);
            store(scores + column, load(scores + column) + score);
        }
        if (any(refused)) problem_.bad_unary = true;
    }

    // candidate_j <- max_i best_i + x_ij and who attains it, the lowest first.
    void advance(int64_t chain, int64_t position, Memories& memories) const {
        int64_t* before = memories.before + position * width_;
        std::fill(memories.candidate, memories.candidate + width_, -INFINITE<double>);
        std::fill(before, before + width_, int64_t{0});
        Mask<double> refused{};
        for (int64_t from = 0; from < problem_.states; ++from) {
            const double* scores =
                table_ ? table_ + from * width_ : read_row(chain, position - 1, from, memories);
            for (int64_t column = 0; column < width_; column += LANES<double>) {
                const Vector<double> score = load(scores + column);
                refused |= ~(score < INFINITE<double>);
                const Vector<double> sum = score + memories.best[from],
                                     old = load(memories.candidate + column);
                const Mask<double> better = sum > old;
                store(memories.candidate + column, better ? sum : old);
                store(before + column, better ? broadcast(from) : load(before + column));
            }
        }
        if (any(refused)) problem_.bad_transitions = true;
    }

    const double* read_row(int64_t chain, int64_t step, int64_t from, Memories& memories) const {
        std::fill(memories.row + problem_.states, memories.row + width_, -INFINITE<double>);
        problem_.transitions.read(problem_.block(chain, step) + from * problem_.states, problem_.states,
                                  memories.row);
        return memories.row;
    }

    void follow_back(int64_t length, const Memories& memories, int64_t* out) const {
        const double* last = memories.best;
        int64_t state = std::max_element(last, last + problem_.states) - last;
        if (!(last[state] > -INFINITE<double>)) return;
        for (int64_t position = length - 1; position >= 0; --position) {
            out[position] = state;
            if (position > 0) state = memories.before[position * width_ + state];
        }
    }

    const Problem& problem_;
    const double* table_;
    int64_t* states_out_;
    const int64_t width_;
};

}  // namespace

int chain_viterbi(int wide, int64_t batch, int64_t n, int64_t states, const void* unary,
                  const void* transitions, int64_t batch_stride, int64_t step_stride, const int64_t* lengths,
                  int check, int threads, int64_t* states_out) {
    if (!sizes_fit(batch, n, states)) return STATUS_TOO_LARGE;
    const Problem problem(wide, batch, n, states, unary, transitions, batch_stride, step_stride, lengths,
                          check, threads);
    if (problem.empty()) {
        std::fill(states_out, states_out + batch * n, int64_t{0});
        return STATUS_OK;
    }
    const int64_t width = padded(states);
    const bool shared = problem.shares_all_transitions() && n > 1;
    const Memory table(shared ? states * width : 1);
    if (shared) {
        std::fill(table.data(), table.data() + states * width, -INFINITE<double>);
        for (int64_t row = 0; row < states; ++row)
            problem.transitions.read(row * states, states, table.data() + row * width);
    }
    const MemoryPerThread memory(threads, Memories::size(problem));
    const Viterbi viterbi(problem, shared ? table.data() : nullptr, states_out);
    for_each_piece(threads, batch, [&](int64_t chain, int thread) { viterbi.run(chain, memory.of(thread)); });
    return problem.status();
}

}  // namespace structattn::STRUCTATTN_LEVEL
