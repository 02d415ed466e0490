// Linear chains with any number of states: which kernel serves which chain, and where its rows are kept.
//
// Transitions that all chains share become one table (chain_blocks.h) that four chains at a time are
// multiplied with; otherwise each chain computes its own blocks, in float for short chains of float
// potentials (a rounding error a step is then within float's own), else in double. A chain that the linear
// filter cannot certify moves on to the next, more robust form; log-space is the last and takes everything.
// The form of every chain is saved for backward.
//
// Results are the same for any number of threads: a chain's arithmetic does not depend on where it runs, and
// gradients of shared transitions are summed over fixed blocks of chains first and over the blocks in order
// afterwards.
#include <optional>

#include "chain_plan.h"

namespace structattn::STRUCTATTN_LEVEL {

namespace {

class Forward {
  public:
    Forward(const Problem& problem, const ForwardOutputs& outputs)
        : problem_(problem),
          outputs_(outputs),
          layout_(problem.batch, problem.n, problem.states),
          needs_nodes_(outputs.marginals || outputs.edge_marginals),
          steps_(table_steps(problem)),
          grouping_(problem, steps_ > 0) {}

    void run() {
        const bool rows_in_worker = !outputs_.saved;
        const Memory table_memory(SharedTable::size(problem_, steps_));
        const SharedTable table(problem_, steps_, table_memory.data());
        const MemoryPerThread memory(problem_.threads, Worker::size(problem_, nullptr, rows_in_worker));
        if (outputs_.saved) outputs_.saved[0] = needs_nodes_;
        const auto start = [&](int thread) {
            return Worker(problem_, nullptr, rows_in_worker, memory.of(thread));
        };
        for_each_piece(problem_.threads, grouping_.groups(), start, [&](int64_t group, Worker& worker) {
            const int64_t first = grouping_.first_chain(group);
            if (grouping_.is_quad(group)) {
                SharedProducts<QUAD> products(table);
                run_linear(products, worker, first, FORM_LINEAR);
            } else if (steps_ > 0) {
                SharedProducts<1> products(table);
                run_linear(products, worker, first, FORM_LINEAR);
            } else {
                run_own(worker, first);
            }
        });
    }

  private:
    void run_own(Worker& worker, int64_t chain) {
        if (!problem_.wide() && problem_.n <= SHORT_CHAIN) {
            worker.own_floats.start(chain);
            if (run_linear(worker.own_floats, worker, chain, FORM_LINEAR_FLOAT, false)) return;
        }
        worker.own_doubles.start(chain);
        run_linear(worker.own_doubles, worker, chain, FORM_LINEAR);
    }

    // Returns false, with nothing written, if a chain was not certified and is not to go on to log-space.
    template <typename Products>
    bool run_linear(Products& products, Worker& worker, int64_t first, Form form,
                    bool log_space_next = true) {
        constexpr int CHAINS = Products::CHAINS;
        Chain chains[CHAINS], failed[CHAINS];
        int failures = 0;
        for (int chain = 0; chain < CHAINS; ++chain) chains[chain] = place(worker, first + chain, chain);
        filter(problem_, products, chains, worker.sweep);
        for (Chain& chain : chains) {
            if (chain.certified) {
                conclude(chain, form);
            } else {
                failed[failures++] = chain;
                chain.length = 0;
            }
        }
        if (failures > 0 && !log_space_next) return false;
        if (needs_nodes_)
            smooth(problem_, products, chains, outputs_.marginals, outputs_.edge_marginals, worker.sweep);
        for (int chain = 0; chain < failures; ++chain) run_in_log_space(worker, failed[chain]);
        return true;
    }

    void run_in_log_space(Worker& worker, Chain chain) {
        chain.inverse.step = chain.alpha.step = padded(problem_.states);
        filter_in_log_space(problem_, chain, worker.sweep);
        conclude(chain, FORM_LOG);
        if (!needs_nodes_) return;
        use_conditionals(worker, chain);
        smooth(problem_, worker.own_doubles, &chain, outputs_.marginals, outputs_.edge_marginals,
               worker.sweep);
    }

    Chain place(const Worker& worker, int64_t index, int slot) const {
        const int64_t width = padded(problem_.states), size = rows_size(problem_);
        Chain chain;
        chain.index = index;
        chain.length = problem_.length(index);
        if (outputs_.saved) {
            chain.alpha = {outputs_.saved + layout_.alpha + index * size, width};
            chain.inverse = {outputs_.saved + layout_.inverse + index * size, width};
            chain.node = {outputs_.saved + layout_.node + index * size, width};
        } else {
            double* rows = worker.rows + 3 * slot * size;
            chain.alpha = {rows, width};
            chain.inverse = {rows + size, width};
            chain.node = {rows + 2 * size, width};
        }
        return chain;
    }

    // log Z, the saved form, and zeros wherever the sweeps write nothing.
    void conclude(const Chain& chain, Form form) const {
        const int64_t states = problem_.states, n = problem_.n, length = chain.length, index = chain.index;
        if (outputs_.saved) outputs_.saved[layout_.forms + index] = length > 0 ? form : FORM_EMPTY;
        if (outputs_.log_partition) outputs_.log_partition.write(index, 1, &chain.log_partition);
        if (outputs_.marginals) outputs_.marginals.zero((index * n + length) * states, (n - length) * states);
        if (outputs_.edge_marginals) {
            const int64_t edges = std::max<int64_t>(length - 1, 0);
            outputs_.edge_marginals.zero((index * (n - 1) + edges) * states * states,
                                         (n - 1 - edges) * states * states);
        }
    }

    const Problem& problem_;
    const ForwardOutputs& outputs_;
    const SavedLayout layout_;
    const bool needs_nodes_;
    const int64_t steps_;
    const Grouping grouping_;
};

class Backward {
  public:
    Backward(const Problem& problem, const BackwardArguments& arguments)
        : problem_(problem),
          arguments_(arguments),
          layout_(problem.batch, problem.n, problem.states),
          lacks_nodes_(arguments.saved[0] == 0),
          steps_(table_steps(problem)),
          grouping_(problem, steps_ > 0),
          total_size_(shares_over_batch() ? blocks_of_transitions() * problem.states * problem.states : 0),
          pieces_(count_pieces()) {}

    void run() {
        const Memory table_memory(SharedTable::size(problem_, steps_));
        const SharedTable table(problem_, steps_, table_memory.data());
        const MemoryPerThread memory(problem_.threads, Worker::size(problem_, &arguments_, lacks_nodes_));
        const Memory totals(std::max<int64_t>(pieces_ * total_size_, 1));
        const auto start = [&](int thread) {
            return Worker(problem_, &arguments_, lacks_nodes_, memory.of(thread));
        };
        for_each_piece(problem_.threads, pieces_, start, [&](int64_t piece, Worker& worker) {
            run_piece(table, worker, piece, totals.data() + piece * total_size_);
        });
        if (total_size_ > 0) write_totals(totals.data());
    }

  private:
    bool shares_over_batch() const { return arguments_.grad_transitions && problem_.batch_stride == 0; }
    bool shares_over_steps() const { return problem_.step_stride == 0; }
    int64_t blocks_of_transitions() const {
        return shares_over_steps() ? 1 : std::max<int64_t>(problem_.n - 1, 0);
    }

    int64_t count_pieces() const {
        const int64_t groups = grouping_.groups();
        if (total_size_ == 0) return groups;
        return std::min({groups, MOST_BLOCKS_OF_CHAINS, std::max<int64_t>(LARGEST_TOTALS / total_size_, 1)});
    }

    // A fixed share of the groups, with the sum of their gradients of shared transitions.
    void run_piece(const SharedTable& table, Worker& worker, int64_t piece, double* total) {
        TransitionSink shared, outer;
        shared.total = outer.total = shares_over_batch() ? total : nullptr;
        if (shares_over_batch()) std::fill(total, total + total_size_, 0.0);
        std::optional<OuterProducts> outer_products;
        if (shares_over_batch() && steps_ > 0 && shares_over_steps() && !arguments_.grad_edge_marginals)
            outer.outer = &outer_products.emplace(problem_.states, worker.outer);
        const int64_t groups = grouping_.groups();
        for (int64_t group = piece * groups / pieces_; group < (piece + 1) * groups / pieces_; ++group) {
            const int64_t first = grouping_.first_chain(group);
            if (grouping_.is_quad(group)) {
                SharedProducts<QUAD> products(table);
                run_shared(products, worker, first, outer, shared);
            } else if (steps_ > 0) {
                SharedProducts<1> products(table);
                run_shared(products, worker, first, outer, shared);
            } else {
                run_own(worker, first, shared);
            }
        }
        if (outer_products) outer_products->add_to(total, table.block(0));
    }

    template <typename Products>
    void run_shared(Products& products, Worker& worker, int64_t first, const TransitionSink& linear_sink,
                    const TransitionSink& log_sink) {
        constexpr int CHAINS = Products::CHAINS;
        Chain chains[CHAINS];
        for (int chain = 0; chain < CHAINS; ++chain) {
            chains[chain] = place(first + chain);
            if (form(first + chain) == FORM_LOG) chains[chain].length = 0;
        }
        sweep(products, worker, chains, linear_sink);
        for (int chain = 0; chain < CHAINS; ++chain)
            if (form(first + chain) == FORM_LOG) run_own(worker, first + chain, log_sink);
    }

    void run_own(Worker& worker, int64_t index, const TransitionSink& shared) {
        const int64_t size = problem_.states * problem_.states;
        TransitionSink sink = shared;
        if (arguments_.grad_transitions && problem_.batch_stride != 0) {
            if (shares_over_steps()) {
                sink.total = worker.total;
                std::fill(sink.total, sink.total + size, 0.0);
            } else {
                sink.direct = arguments_.grad_transitions;
            }
        }
        Chain chain = place(index);
        if (form(index) == FORM_LINEAR_FLOAT) {
            worker.own_floats.start(index);
            sweep(worker.own_floats, worker, &chain, sink);
        } else {
            if (form(index) == FORM_LOG)
                use_conditionals(worker, chain);
            else
                worker.own_doubles.start(index);
            sweep(worker.own_doubles, worker, &chain, sink);
        }
        if (sink.direct) {
            for (int64_t step = std::max<int64_t>(chain.length - 1, 0); step < problem_.n - 1; ++step)
                sink.direct.zero(problem_.block(index, step), size);
        } else if (arguments_.grad_transitions && problem_.batch_stride != 0) {
            arguments_.grad_transitions.write(problem_.block(index, 0), size, sink.total);
        }
    }

    template <typename Products>
    void sweep(Products& products, Worker& worker, Chain* chains, const TransitionSink& sink) {
        constexpr int CHAINS = Products::CHAINS;
        if (lacks_nodes_) {
            for (int chain = 0; chain < CHAINS; ++chain)
                if (chains[chain].length > 0) give_nodes(worker, chains[chain], chain);
            smooth(problem_, products, chains, Results{}, Results{}, worker.sweep);
        }
        GradientSweep<Products>(problem_, arguments_, products, chains, sink, worker.gradient).run();
        if (!arguments_.grad_unary) return;
        for (int chain = 0; chain < CHAINS; ++chain) {
            const int64_t index = chains[chain].index, length = chains[chain].length;
            arguments_.grad_unary.zero((index * problem_.n + length) * problem_.states,
                                       (problem_.n - length) * problem_.states);
        }
    }

    // Rows for p in the worker, with the last position's copied from where the filter left it.
    void give_nodes(Worker& worker, Chain& chain, int slot) const {
        const int64_t width = padded(problem_.states);
        const double* last = chain.node.at(chain.length - 1);
        chain.node = {worker.rows + slot * rows_size(problem_), width};
        std::copy(last, last + width, chain.node.at(chain.length - 1));
    }

    Form form(int64_t chain) const {
        return static_cast<Form>(static_cast<int>(arguments_.saved[layout_.forms + chain]));
    }

    Chain place(int64_t index) const {
        double* saved = const_cast<double*>(arguments_.saved);  // Rows are written by forward only
        const int64_t width = padded(problem_.states), size = rows_size(problem_);
        Chain chain;
        chain.index = index;
        chain.length = form(index) == FORM_EMPTY ? 0 : problem_.length(index);
        chain.alpha = {saved + layout_.alpha + index * size, width};
        chain.inverse = {saved + layout_.inverse + index * size, width};
        chain.node = {saved + layout_.node + index * size, width};
        return chain;
    }

    void write_totals(double* totals) const {
        for (int64_t piece = 1; piece < pieces_; ++piece)
            for (int64_t cell = 0; cell < total_size_; ++cell)
                totals[cell] += totals[piece * total_size_ + cell];
        arguments_.grad_transitions.write(0, total_size_, totals);
    }

    const Problem& problem_;
    const BackwardArguments& arguments_;
    const SavedLayout layout_;
    const bool lacks_nodes_;
    const int64_t steps_;
    const Grouping grouping_;
    const int64_t total_size_, pieces_;
};

// No states or no positions: exactly one empty structure where the length is 0, none otherwise.
void forward_of_nothing(const Problem& problem, const ForwardOutputs& outputs) {
    for (int64_t chain = 0; chain < problem.batch; ++chain) {
        const double log_partition = problem.length(chain) > 0 ? -INFINITE<double> : 0.0;
        if (outputs.log_partition) outputs.log_partition.write(chain, 1, &log_partition);
    }
}

}  // namespace

bool sizes_fit(int64_t batch, int64_t n, int64_t states) {
    if (batch < 0 || n < 0 || states < 0) return false;
    // In floating point, where products cannot wrap around; 2^58 doubles are 2^61 bytes.
    const double rows = (static_cast<double>(batch) + 8) * (static_cast<double>(n) + 1);
    const double width = static_cast<double>(states) + LANES<float>;
    return rows * width * width < 0x1p58;
}

int64_t general_saved_size(int64_t batch, int64_t n, int64_t states) {
    return SavedLayout(batch, n, states).end;
}

void general_forward(const Problem& problem, const ForwardOutputs& outputs) {
    Forward(problem, outputs).run();
}

void general_backward(const Problem& problem, const BackwardArguments& arguments) {
    Backward(problem, arguments).run();
}

// -1 if the sizes are beyond the index arithmetic.
int64_t chain_saved_size(int64_t batch, int64_t n, int64_t states) {
    if (!sizes_fit(batch, n, states)) return -1;
    return states == 2 ? two_state_saved_size(batch, n) : general_saved_size(batch, n, states);
}

int chain_forward(int wide, int64_t batch, int64_t n, int64_t states, const void* unary,
                  const void* transitions, int64_t batch_stride, int64_t step_stride, const int64_t* lengths,
                  int check, int threads, double* saved, double* log_partition, void* marginals,
                  void* edge_marginals) {
    if (!sizes_fit(batch, n, states)) return STATUS_TOO_LARGE;
    const Problem problem(wide, batch, n, states, unary, transitions, batch_stride, step_stride, lengths,
                          check, threads);
    const bool is_wide = problem.wide();
    const ForwardOutputs outputs{
        saved, {log_partition, true}, {marginals, is_wide}, {edge_marginals, is_wide}};
    if (problem.empty())
        forward_of_nothing(problem, outputs);
    else if (states == 2)
        two_state_forward(problem, outputs);
    else
        general_forward(problem, outputs);
    return problem.status();
}

int chain_backward(int wide, int64_t batch, int64_t n, int64_t states, const void* unary,
                   const void* transitions, int64_t batch_stride, int64_t step_stride, const int64_t* lengths,
                   int threads, const double* saved, const double* grad_log_partition,
                   const void* grad_marginals, const void* grad_edge_marginals, void* grad_unary,
                   void* grad_transitions) {
    if (!sizes_fit(batch, n, states)) return STATUS_TOO_LARGE;
    const Problem problem(wide, batch, n, states, unary, transitions, batch_stride, step_stride, lengths, 0,
                          threads);
    const bool is_wide = problem.wide();
    const BackwardArguments arguments{saved,
                                      {grad_log_partition, true},
                                      {grad_marginals, is_wide},
                                      {grad_edge_marginals, is_wide},
                                      {grad_unary, is_wide},
                                      {grad_transitions, is_wide}};
    if (problem.empty()) {
        if (arguments.grad_transitions && batch_stride == 0)
            arguments.grad_transitions.zero(
                0, (step_stride == 0 ? 1 : std::max<int64_t>(n - 1, 0)) * states * states);
    } else if (states == 2) {
        two_state_backward(problem, arguments);
    } else {
        general_backward(problem, arguments);
    }
    return STATUS_OK;
}

}  // namespace structattn::STRUCTATTN_LEVEL
