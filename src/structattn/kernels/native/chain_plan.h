// How a batch of chains becomes work: groups that are computed together, where a chain's rows are inside
// `saved`, and what memory one thread needs.
#pragma once
#include "chain_gradient.h"

namespace structattn::STRUCTATTN_LEVEL {

constexpr int QUAD = 4;                        // chains that share the loads of a table
constexpr int64_t SHORT_CHAIN = 8;             // positions up to which float multipliers are accurate enough
constexpr int64_t LARGEST_TABLE = 1 << 23;     // doubles
constexpr int64_t LARGEST_TOTALS = 1 << 23;    // doubles
constexpr int64_t MOST_BLOCKS_OF_CHAINS = 64;  // pieces of work that sum gradients of shared transitions

// How the batch is cut into groups that are computed together.
struct Grouping {
    int64_t quads, singles;

    explicit Grouping(const Problem& problem, bool table) {
        quads = table && problem.batch >= 2 * QUAD ? problem.batch / QUAD : 0;
        singles = problem.batch - QUAD * quads;
    }
    int64_t groups() const { return quads + singles; }
    bool is_quad(int64_t group) const { return group < quads; }
    int64_t first_chain(int64_t group) const {
        return is_quad(group) ? group * QUAD : quads * QUAD + (group - quads);
    }
};

inline int64_t longest_length(const Problem& problem) {
    if (!problem.lengths) return problem.n;
    return problem.batch ? *std::max_element(problem.lengths, problem.lengths + problem.batch) : 0;
}

// Blocks of transitions in one table for all chains, or 0: every chain its own.
inline int64_t table_steps(const Problem& problem) {
    if (problem.batch_stride != 0) return 0;
    const int64_t steps = longest_length(problem) - 1;
    if (steps <= 0) return 0;
    if (problem.step_stride == 0) return 1;
    return problem.batch >= QUAD && SharedTable::size(problem, steps) <= LARGEST_TABLE ? steps : 0;
}

inline int64_t rows_size(const Problem& problem) { return problem.n * padded(problem.states); }

// Rows of one chain inside `saved`: alpha, 1 / s and p of the whole batch one after the other, behind every
// chain's form and, first of all, whether there are any p.
struct SavedLayout {
    int64_t forms = 8, alpha, inverse, node, end;

    SavedLayout(int64_t batch, int64_t n, int64_t states) {
        alpha = forms + (batch + 7) / 8 * 8;
        inverse = alpha + batch * n * padded(states);
        node = inverse + batch * n * padded(states);
        end = node + batch * n * padded(states);
    }
};

// One thread's memory for forward and backward.
class Worker {
  public:
    // With `with_rows` the rows of a quad live here and not in `saved`.
    static int64_t size(const Problem& problem, const BackwardArguments* arguments, bool with_rows) {
        const int64_t sweeps = std::max(filter_scratch(problem, QUAD), smooth_scratch(problem, QUAD));
        return sweeps + (arguments ? gradient_scratch(problem, *arguments, QUAD) : 0) +
               (with_rows ? 3 * QUAD * (rows_size(problem) + 8) : 0) + OwnBlocks<float>::size(problem) +
               OwnBlocks<double>::size(problem) + padded(problem.states) +
               OuterProducts::size(problem.states) + problem.states * problem.states + 96;
    }

    Worker(const Problem& problem, const BackwardArguments* arguments, bool with_rows, double* memory)
        : carver_(memory),
          own_floats(problem, carver_.take(OwnBlocks<float>::size(problem))),
          own_doubles(problem, carver_.take(OwnBlocks<double>::size(problem))) {
        ones = carver_.take_zeros(padded(problem.states));
        std::fill(ones, ones + problem.states, 1.0);
        outer = carver_.take(OuterProducts::size(problem.states));
        total = carver_.take(problem.states * problem.states);
        sweep = carver_.take(std::max(filter_scratch(problem, QUAD), smooth_scratch(problem, QUAD)));
        if (with_rows) rows = carver_.take(3 * QUAD * rows_size(problem));
        if (arguments) gradient = carver_.take(gradient_scratch(problem, *arguments, QUAD));
    }

  private:
    Carver carver_;

  public:
    OwnBlocks<float> own_floats;
    OwnBlocks<double> own_doubles;
    double *ones, *outer, *total, *sweep, *rows = nullptr, *gradient = nullptr;
};

// Rows of log-space alpha become T itself; alpha and s are then 1.
inline void use_conditionals(Worker& worker, Chain& chain) {
    worker.own_doubles.start_conditional(chain.index, chain.alpha.first, chain.inverse.first);
    chain.alpha = chain.inverse = {worker.ones, 0};
}

}  // namespace structattn::STRUCTATTN_LEVEL
