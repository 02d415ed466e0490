// Two states: blocks of chains go through the recursions of segmentation.h; blocks it does not certify, and
// problems it is not made for (transitions of their own, edge marginals), are handed on to the general
// kernel. Those keep nothing for backward, which infers them once more: the buffer of the general kernel
// would be twelve times as large, and would have to be there even when nobody writes to it.
#include "segmentation.h"

namespace structattn::STRUCTATTN_LEVEL {

namespace {

// Roundings of a float that may add up in the odds.
constexpr double MOST_ROUNDINGS = 12;

constexpr int64_t LARGEST_GENERAL_BUFFER = 1 << 23;  // doubles

// Longer ones could overflow the exponents that float lanes count.
constexpr int64_t LONGEST_CHAIN = 1 << 22;

// The kernel that forward chose is the first number it saves.
enum Kernel : int { GENERAL = 0, IN_FLOAT = 1, IN_DOUBLE = 2 };

// log Z asked for alone is wanted precisely (entropies are differences of such numbers), so float is for
// marginals.
Kernel kernel_for(const Problem& problem, const ForwardOutputs& outputs) {
    if (outputs.edge_marginals || !problem.shares_all_transitions() || problem.n > LONGEST_CHAIN)
        return GENERAL;
    const TwoStateWeights weights(problem);
    if (!(weights.range <= WIDEST_TRANSITIONS<double>)) return GENERAL;
    if (problem.wide() || !outputs.marginals || weights.range > WIDEST_TRANSITIONS<float>) return IN_DOUBLE;
    const double mixing = 1 - std::tanh(weights.interaction / 4);
    return std::min(1 / mixing, static_cast<double>(problem.n)) <= MOST_ROUNDINGS ? IN_FLOAT : IN_DOUBLE;
}

template <typename Real>
int64_t blocks_of(int64_t batch) {
    return (batch + Lanes<Real>::WIDTH - 1) / Lanes<Real>::WIDTH;
}

// `saved`: the kernel, one flag a block (1: done by it), then o and lambda of every block.
constexpr int64_t FLAGS = 1;
int64_t header_size(int64_t batch) { return (FLAGS + blocks_of<double>(batch) + 7) / 8 * 8; }

template <typename Real>
Real* saved_block(double* saved, const Problem& problem, int64_t block) {
    return reinterpret_cast<Real*>(saved + header_size(problem.batch)) +
           block * 2 * problem.n * Lanes<Real>::WIDTH;
}

// Chains of the blocks that are not done, `work(first, count)` at a time.
template <typename Work>
void for_each_stretch(const Problem& problem, const double* done, int64_t block_size, const Work& work) {
    const int64_t size_of_chain = general_saved_size(8, problem.n, 2) / 8;
    const int64_t most =
        std::max<int64_t>(LARGEST_GENERAL_BUFFER / size_of_chain / block_size, 1) * block_size;
    int64_t chain = 0;
    while (chain < problem.batch) {
        if (done && done[chain / block_size] != 0) {
            chain += block_size;
            continue;
        }
        int64_t end = chain;
        while (end < problem.batch && end - chain < most && !(done && done[end / block_size] != 0))
            end += block_size;
        end = std::min(end, problem.batch);
        work(chain, end - chain);
        chain = end;
    }
}

void forward_the_rest(const Problem& problem, const ForwardOutputs& outputs, const double* done,
                      int64_t block_size) {
    for_each_stretch(problem, done, block_size, [&](int64_t first, int64_t count) {
        const Problem part(problem, first, count);
        const ForwardOutputs part_outputs{nullptr, outputs.log_partition.from(first),
                                          outputs.marginals.from(first * problem.n * 2),
                                          outputs.edge_marginals.from(first * (problem.n - 1) * 4)};
        general_forward(part, part_outputs);
        if (part.bad_unary) problem.bad_unary = true;
        if (part.bad_transitions) problem.bad_transitions = true;
    });
}

// Gradients of shared transitions are added to `total`.
void backward_the_rest(const Problem& problem, const BackwardArguments& arguments, const double* done,
                       int64_t block_size, double* total, int64_t total_size) {
    const Memory part_total(std::max<int64_t>(total_size, 1));
    for_each_stretch(problem, done, block_size, [&](int64_t first, int64_t count) {
        const Problem part(problem, first, count);
        const Memory saved(general_saved_size(count, problem.n, 2));
        general_forward(part, {saved.data(), {}, {}, {}});
        const bool shared = total_size > 0;
        general_backward(part, {saved.data(), arguments.grad_log_partition.from(first),
                                arguments.grad_marginals.from(first * problem.n * 2),
                                arguments.grad_edge_marginals.from(first * (problem.n - 1) * 4),
                                arguments.grad_unary.from(first * problem.n * 2),
                                shared ? Results{part_total.data(), true}
                                       : arguments.grad_transitions.from(first * problem.batch_stride)});
        for (int64_t cell = 0; cell < total_size; ++cell) total[cell] += part_total.data()[cell];
    });
}

template <typename Real, typename Element>
void forward_in(const Problem& problem, const ForwardOutputs& outputs) {
    const int64_t blocks = blocks_of<Real>(problem.batch), rows = problem.n * Lanes<Real>::WIDTH;
    const int64_t scratch_size = (Block<Real, Element>::ROWS + (outputs.saved ? 0 : 2)) * rows;
    const MemoryPerThread memory(problem.threads, scratch_size);
    const Memory own_flags(blocks);
    double* done = outputs.saved ? outputs.saved + FLAGS : own_flags.data();
    const TwoStateWeights weights(problem);
    for_each_piece(problem.threads, blocks, [&](int64_t block, int thread) {
        Real* scratch = reinterpret_cast<Real*>(memory.of(thread));
        Real* saved = outputs.saved ? saved_block<Real>(outputs.saved, problem, block)
                                    : scratch + Block<Real, Element>::ROWS * rows;
        done[block] = Block<Real, Element>(problem, weights, block, saved, scratch)
                          .infer(outputs.log_partition, outputs.marginals);
    });
    forward_the_rest(problem, outputs, done, Lanes<Real>::WIDTH);
}

template <typename Real, typename Element>
void backward_in(const Problem& problem, const BackwardArguments& arguments, double* total) {
    const int64_t blocks = blocks_of<Real>(problem.batch);
    const MemoryPerThread memory(problem.threads,
                                 Block<Real, Element>::ROWS * problem.n * Lanes<Real>::WIDTH);
    const Memory totals(blocks * 8);
    const TwoStateWeights weights(problem);
    double* saved = const_cast<double*>(arguments.saved);  // only infer() writes to it
    for_each_piece(problem.threads, blocks, [&](int64_t block, int thread) {
        double* block_total = totals.data() + block * 8;
        std::fill(block_total, block_total + 4, 0.0);
        if (saved[FLAGS + block] == 0) return;
        Real* scratch = reinterpret_cast<Real*>(memory.of(thread));
        Block<Real, Element>(problem, weights, block, saved_block<Real>(saved, problem, block), scratch)
            .differentiate(arguments, block_total);
    });
    for (int64_t block = 0; block < blocks; ++block)
        for (int cell = 0; cell < 4; ++cell) total[cell] += totals.data()[block * 8 + cell];
}

}  // namespace

int64_t two_state_saved_size(int64_t batch, int64_t n) {
    return header_size(batch) + blocks_of<double>(batch) * Lanes<double>::WIDTH * 2 * n;
}

void two_state_forward(const Problem& problem, const ForwardOutputs& outputs) {
    const Kernel kernel = kernel_for(problem, outputs);
    if (outputs.saved) outputs.saved[0] = kernel;
    if (kernel == IN_FLOAT) {
        forward_in<float, float>(problem, outputs);
    } else if (kernel == IN_DOUBLE) {
        const auto forward = problem.wide() ? forward_in<double, double> : forward_in<double, float>;
        forward(problem, outputs);
    } else {
        forward_the_rest(problem, outputs, nullptr, problem.batch);
    }
}

void two_state_backward(const Problem& problem, const BackwardArguments& arguments) {
    const int kernel = arguments.grad_edge_marginals ? GENERAL : static_cast<int>(arguments.saved[0]);
    const bool shared = arguments.grad_transitions && problem.batch_stride == 0;
    const int64_t shared_size = problem.step_stride == 0 ? 4 : 4 * (problem.n - 1);
    const Memory total(shared_size + 4);
    std::fill(total.data(), total.data() + shared_size + 4, 0.0);
    int64_t block_size = problem.batch;
    if (kernel == IN_FLOAT) {
        backward_in<float, float>(problem, arguments, total.data());
        block_size = Lanes<float>::WIDTH;
    } else if (kernel == IN_DOUBLE) {
        const auto backward = problem.wide() ? backward_in<double, double> : backward_in<double, float>;
        backward(problem, arguments, total.data());
        block_size = Lanes<double>::WIDTH;
    }
    const double* done = kernel == GENERAL ? nullptr : arguments.saved + FLAGS;
    backward_the_rest(problem, arguments, done, block_size, total.data(), shared ? shared_size : 0);
    if (shared) arguments.grad_transitions.write(0, shared_size, total.data());
}

}  // namespace structattn::STRUCTATTN_LEVEL
