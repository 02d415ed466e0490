// Two states: blocks of chains go through the recursions of segmentation.h; blocks it does not certify, and
// problems it is not made for (transitions of their own, edge marginals), are handed on to the general
// kernel. Those keep nothing for backward, which infers them once more: the buffer of the general kernel
// would be twelve times as large, and would have to be there even when nobody writes to it.
#include "segmentation.h"

namespace structattn::STRUCTATTN_LEVEL {

namespace {

constexpr int64_t LARGEST_GENERAL_BUFFER = 1 << 23;  // doubles

enum class Kernel { IN_FLOAT, IN_DOUBLE, GENERAL };

// Which kernel may try; backward comes to the same answer.
Kernel kernel_for(const Problem& problem) {
    if (!problem.shares_all_transitions() || problem.n > INT32_MAX) return Kernel::GENERAL;
    const TwoStateWeights weights(problem);
    if (!(weights.range <= WIDEST_TRANSITIONS<double>)) return Kernel::GENERAL;
    if (problem.wide()) return Kernel::IN_DOUBLE;
    const double mixing = 1 - std::tanh(weights.interaction / 4);
    const bool forgets = std::min(static_cast<double>(problem.n) * mixing, 1.0) <= 12 * mixing;
    return forgets && weights.range <= WIDEST_TRANSITIONS<float> ? Kernel::IN_FLOAT : Kernel::IN_DOUBLE;
}

template <typename Real>
int64_t blocks_of(int64_t batch) {
    return (batch + Lanes<Real>::WIDTH - 1) / Lanes<Real>::WIDTH;
}

// `saved`: one flag a block (1: done here), then o and lambda of every block.
int64_t flags_size(int64_t batch) { return (blocks_of<double>(batch) + 7) / 8 * 8; }

template <typename Real>
Real* saved_block(double* saved, const Problem& problem, int64_t block) {
    return reinterpret_cast<Real*>(saved + flags_size(problem.batch)) +
           block * 2 * problem.n * Lanes<Real>::WIDTH;
}

// One block of chains, forward and backward: computed in Real, for the caller's Elements.
template <typename Real, typename Element>
class Block {
    static constexpr int PACKS = Lanes<Real>::PACKS, WIDTH = Lanes<Real>::WIDTH, SIDE = LANES<Real>;
    static constexpr int64_t SUMMED_IN_REAL =
        16;  // positions whose gradients are added before a double takes over
    using Register = Vector<Real>;

  public:
    static constexpr int64_t ROWS = 4;

    // `scratch` holds ROWS numbers for each position and lane.
    Block(const Problem& problem, const TwoStateWeights& weights, int64_t block, Real* saved, Real* scratch)
        : problem_(problem),
          weights_(weights),
          lanes_(problem, block),
          pairs_(lanes_, problem.n),
          odds_(saved),
          lambda_(saved + problem.n * WIDTH) {
        for (int64_t row = 0; row < ROWS; ++row) rows_[row] = scratch + row * problem.n * WIDTH;
    }

    // False, with nothing to be relied on, if a score is out of the range of the recursion.
    bool infer(const Results& log_partition, const Results& marginals) {
        Real *y = rows_[0], *left = rows_[1], *right = rows_[2];
        pairs_.read_differences(pairs_of(problem_.unary), y);
        if (lanes_.ragged) clear_beyond_lengths(y);
        if (!exponentiate(y)) return false;
        if (lanes_.ragged)
            recur<true>(y, left, right);
        else
            recur<false>(y, left, right);
        for (int64_t cell = 0; cell < lanes_.longest * WIDTH; cell += SIDE)
            store(odds_ + cell, load(left + cell) * load(right + cell));
        if (log_partition) write_log_partition(log_partition, left);
        if (marginals)
            pairs_.write(std::array<const Real*, 1>{odds_}, pairs_of(marginals),
                         [](const std::array<Register, 1>& odds) {
                             const Register zero = reciprocal(odds[0] + 1);
                             return std::pair(zero, odds[0] * zero);
                         });
        return true;
    }

    // Adds the gradient of the four transitions to `total`.
    void differentiate(const BackwardArguments& arguments, double* total) {
        Real *direction = rows_[0], *future = rows_[1];
        const int64_t cells = lanes_.longest * WIDTH;
        if (arguments.grad_marginals)
            pairs_.read_differences(pairs_of(arguments.grad_marginals), direction);
        else
            std::fill(direction, direction + cells, Real{0});
        if (lanes_.ragged) clear_beyond_lengths(direction);
        look_ahead(direction, future);
        const bool uniform = bool(arguments.grad_log_partition);
        if (uniform) arguments.grad_log_partition.read(lanes_.first, lanes_.count, uniform_);
        if (uniform)
            derive<true, true>(direction, future, total);
        else if (lanes_.ragged)
            derive<true, false>(direction, future, total);
        else
            derive<false, false>(direction, future, total);
        if (!arguments.grad_unary) return;
        Element* gradient = pairs_of(arguments.grad_unary);
        if (uniform)
            pairs_.write(std::array<const Real*, 2>{rows_[3], rows_[2]}, gradient,
                         [](const std::array<Register, 2>& both) { return std::pair(both[0], both[1]); });
        else
            pairs_.write(
                std::array<const Real*, 1>{rows_[2]}, gradient,
                [](const std::array<Register, 1>& change) { return std::pair(-change[0], change[0]); });
    }

  private:
    const Element* pairs_of(const Numbers& numbers) const {
        return numbers.as<Element>() + lanes_.first * problem_.n * 2;
    }
    Element* pairs_of(const Results& results) const {
        return results.as<Element>() + lanes_.first * problem_.n * 2;
    }

    static int64_t cell(int64_t position, int pack) { return position * WIDTH + pack * SIDE; }

    void clear_beyond_lengths(Real* row) const {
        for (int64_t position = 0; position < lanes_.longest; ++position)
            for (int pack = 0; pack < PACKS; ++pack) {
                Real* numbers = row + cell(position, pack);
                store(numbers, lanes_.reaches(pack, position) ? load(numbers) : Register{});
            }
    }

    bool exponentiate(Real* theta) const {
        Mask<Real> outside{};
        for (int64_t cell = 0; cell < lanes_.longest * WIDTH; cell += SIDE) {
            const Register value = load(theta + cell);
            outside |= ~((value <= LARGEST_THETA<Real>)&(value >= -LARGEST_THETA<Real>));
            store(theta + cell, exponential(value));
        }
        return !any(outside);
    }

    // r into `left`, s into `right`, lambda; both directions in one loop, so that one's latency hides the
    // other's.
    template <bool RAGGED>
    void recur(const Real* y, Real* left, Real* right) {
        const Real m00 = weights_.m00, m01 = weights_.m01, m10 = weights_.m10, m11 = weights_.m11;
        const Real determinant = weights_.determinant;
        const int64_t last = lanes_.longest - 1;
        if (last < 0) return;
        Register r[PACKS], s[PACKS];
        for (int pack = 0; pack < PACKS; ++pack) {
            store(left + cell(0, pack), r[pack] = load(y + cell(0, pack)));
            store(right + cell(last, pack), s[pack] = broadcast(Real{1}));
            store(lambda_ + cell(last, pack), Register{});
        }
        for (int64_t position = 1; position <= last; ++position) {
            const int64_t mirrored = last - position;
#pragma GCC unroll 4
            for (int pack = 0; pack < PACKS; ++pack) {
                r[pack] =
                    load(y + cell(position, pack)) * (m01 + m11 * r[pack]) * reciprocal(m00 + m10 * r[pack]);
                store(left + cell(position, pack), r[pack]);
                const Register ahead = load(y + cell(mirrored + 1, pack)) * s[pack];
                const Register one = m10 + m11 * ahead, zero = m00 + m01 * ahead,
                               inverse = reciprocal(one * zero);
                s[pack] = one * one * inverse;
                Register lambda = ahead * determinant * inverse;
                if (RAGGED) {
                    const Mask<Real> inside = lanes_.reaches(pack, mirrored + 1);
                    s[pack] = inside ? s[pack] : broadcast(Real{1});
                    lambda = inside ? lambda : Register{};
                }
                store(right + cell(mirrored, pack), s[pack]);
                store(lambda_ + cell(mirrored, pack), lambda);
            }
        }
    }

    // log Z = sum_t u_t(0) + sum_t log(m00 + m10 r_t) + log(1 + r_last) and what was taken from the
    // transitions; the logarithms as one of a product, whose exponent is counted apart. Four products at a
    // time hide their latency.
    void write_log_partition(const Results& log_partition, const Real* left) const {
        constexpr int64_t FACTORS = sizeof(Real) == sizeof(float) ? 8 : 2;  // of at most e^38 or e^211
        constexpr int PRODUCTS = 4;
        for (int64_t first = 0; first < lanes_.count; first += PRODUCTS * LANES<double>) {
            Vector<double> product[PRODUCTS];
            Mask<double> exponent[PRODUCTS] = {};
            for (int part = 0; part < PRODUCTS; ++part) product[part] = broadcast(1.0);
            for (int64_t position = 0; position < lanes_.longest; ++position) {
                const bool some_end = lanes_.ragged || position == lanes_.longest - 1;
#pragma GCC unroll 4
                for (int part = 0; part < PRODUCTS; ++part) {
                    const int64_t lane = first + part * LANES<double>;
                    const Vector<double> r = load_as<double>(left + position * WIDTH + lane);
                    Vector<double> factor = weights_.m00 + weights_.m10 * r;
                    if (some_end) factor = end_factor(lane, position, factor, r);
                    product[part] *= factor;
                    if (position % FACTORS == FACTORS - 1) exponent[part] += take_exponent(product[part]);
                }
            }
            for (int part = 0; part < PRODUCTS; ++part) {
                const int64_t lane = first + part * LANES<double>;
                if (lane >= lanes_.count) break;
                exponent[part] += take_exponent(product[part]);
                const Vector<double> steps = larger(lengths_of(lane) - 1, Vector<double>{});
                double values[LANES<double>];
                store(values, logarithm(product[part]) +
                                  __builtin_convertvector(exponent[part], Vector<double>) * LOG_2 +
                                  steps * weights_.top + sums_of_first_scores(lane));
                log_partition.write(lanes_.first + lane,
                                    std::min<int64_t>(LANES<double>, lanes_.count - lane), values);
            }
        }
    }

    Vector<double> lengths_of(int64_t lane) const { return load_as<double>(lanes_.length + lane); }

    // The factor of log Z where chains may end: at their last position, and beyond it.
    Vector<double> end_factor(int64_t lane, int64_t position, Vector<double> factor, Vector<double> r) const {
        const Vector<double> lengths = lengths_of(lane);
        factor = lengths > position + 1.0 ? factor : 1 + r;
        return lengths > static_cast<double>(position) ? factor : broadcast(1.0);
    }

    // sum_t u_t(0) of as many chains as a register holds doubles.
    Vector<double> sums_of_first_scores(int64_t lane) const {
        constexpr int64_t STEP = LANES<double>;
        const Mask<double> indices = lane_indices();
        Vector<double> sums[STEP] = {};
        for (int64_t part = 0; part < std::min<int64_t>(STEP, lanes_.count - lane); ++part) {
            const int64_t count = 2 * lanes_.length[lane + part];
            const Element* scores = pairs_of(problem_.unary) + 2 * (lane + part) * problem_.n;
            Vector<double> sum{};
            int64_t i = 0;
            for (; i + STEP <= count; i += STEP) sum += load_as<double>(scores + i);
            if (i < count && count >= STEP) {
                const Vector<double> end = load_as<double>(scores + count - STEP);
                sum += indices >= STEP - (count - i) ? end : Vector<double>{};
            } else {
                for (; i < count; i += 2) sum[0] += scores[i];
            }
            sums[part] = (indices & 1) == 0 ? sum : Vector<double>{};
        }
        return sum_of_each<double>(sums);
    }

    // H.
    void look_ahead(const Real* direction, Real* future) const {
        Register h[PACKS] = {};
        for (int64_t position = lanes_.longest - 1; position >= 0; --position)
            for (int pack = 0; pack < PACKS; ++pack) {
                store(future + cell(position, pack),
                      h[pack] = h[pack] * load(lambda_ + cell(position, pack)));
                h[pack] += load(direction + cell(position, pack));
            }
    }

    // d p into rows_[2], and with an upstream gradient of log Z that of u(1) there and that of u(0) into
    // rows_[3].
    template <bool RAGGED, bool UNIFORM>
    void derive(const Real* direction, const Real* future, double* total) {
        const int64_t last = lanes_.longest - 1;
        Sum joint, before, after;
        Register past[PACKS] = {}, lambda[PACKS] = {}, zero[PACKS] = {}, one[PACKS] = {};
        for (int pack = 0; pack < PACKS && last >= 0; ++pack)
            probabilities(cell(0, pack), zero[pack], one[pack]);
        for (int64_t position = 0; position <= last; ++position) {
            Register joint_here{}, before_here{}, after_here{};
#pragma GCC unroll 4
            for (int pack = 0; pack < PACKS; ++pack) {
                const int64_t here = cell(position, pack);
                const Register variance = one[pack] * zero[pack];
                past[pack] = variance * load(direction + here) + lambda[pack] * past[pack];
                lambda[pack] = load(lambda_ + here);
                Register change = past[pack] + variance * load(future + here), uniform{};
                if (UNIFORM) {
                    uniform = load(uniform_ + pack * SIDE);
                    store(rows_[3] + here, uniform * zero[pack] - change);
                    change += uniform * one[pack];
                }
                store(rows_[2] + here, change);
                if (position > 0) after_here += RAGGED ? within(pack, position, change) : change;
                if (position == last) continue;
                before_here += RAGGED ? within(pack, position + 1, change) : change;
                const int64_t next = cell(position + 1, pack);
                Register next_zero, next_one;
                probabilities(next, next_zero, next_one);
                const Register stays = next_one + lambda[pack] * zero[pack];  // P(1 | 1)
                const Register ahead = next_zero * (load(direction + next) + load(future + next)) + uniform;
                const Register change_of_both = stays * (past[pack] + one[pack] * ahead);
                joint_here += RAGGED ? within(pack, position + 1, change_of_both) : change_of_both;
                zero[pack] = next_zero, one[pack] = next_one;
            }
            joint.latest += joint_here, before.latest += before_here, after.latest += after_here;
            if (position % SUMMED_IN_REAL == SUMMED_IN_REAL - 1)
                joint.settle(), before.settle(), after.settle();
        }
        double uniform_edges = 0;
        for (int64_t lane = 0; lane < lanes_.count; ++lane)
            uniform_edges +=
                std::max<int64_t>(lanes_.length[lane] - 1, 0) * static_cast<double>(uniform_[lane]);
        const double both = joint.total(), one_zero = before.total() - both, zero_one = after.total() - both;
        total[3] += both;
        total[2] += one_zero;
        total[1] += zero_one;
        total[0] += uniform_edges - both - one_zero - zero_one;
    }

    Register within(int pack, int64_t position, Register values) const {
        return lanes_.reaches(pack, position) ? values : Register{};
    }

    void probabilities(int64_t cell, Register& zero, Register& one) const {
        const Register odds = load(odds_ + cell);
        zero = reciprocal(odds + 1);
        one = odds * zero;
    }

    // A sum whose terms are first added in Real.
    struct Sum {
        Register latest{};
        Vector<double> settled{};

        void settle() {
            Real numbers[SIDE];
            store(numbers, latest);
            for (int lane = 0; lane < SIDE; lane += LANES<double>) settled += load_as<double>(numbers + lane);
            latest = Register{};
        }
        double total() {
            settle();
            return sum_of<double>(settled);
        }
    };

    const Problem& problem_;
    const TwoStateWeights& weights_;
    const Lanes<Real> lanes_;
    const Pairs<Real, Element> pairs_;
    Real *odds_, *lambda_, *rows_[ROWS];
    Real uniform_[WIDTH] = {};
};

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
    const Memory own_flags(flags_size(problem.batch));
    double* done = outputs.saved ? outputs.saved : own_flags.data();
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
        if (saved[block] == 0) return;
        Real* scratch = reinterpret_cast<Real*>(memory.of(thread));
        Block<Real, Element>(problem, weights, block, saved_block<Real>(saved, problem, block), scratch)
            .differentiate(arguments, block_total);
    });
    for (int64_t block = 0; block < blocks; ++block)
        for (int cell = 0; cell < 4; ++cell) total[cell] += totals.data()[block * 8 + cell];
}

}  // namespace

int64_t two_state_saved_size(int64_t batch, int64_t n) {
    return flags_size(batch) + blocks_of<double>(batch) * Lanes<double>::WIDTH * 2 * n;
}

void two_state_forward(const Problem& problem, const ForwardOutputs& outputs) {
    const Kernel kernel = outputs.edge_marginals ? Kernel::GENERAL : kernel_for(problem);
    if (kernel == Kernel::IN_FLOAT) {
        forward_in<float, float>(problem, outputs);
    } else if (kernel == Kernel::IN_DOUBLE) {
        const auto forward = problem.wide() ? forward_in<double, double> : forward_in<double, float>;
        forward(problem, outputs);
    } else {
        if (outputs.saved) std::fill(outputs.saved, outputs.saved + flags_size(problem.batch), 0.0);
        forward_the_rest(problem, outputs, nullptr, problem.batch);
    }
}

void two_state_backward(const Problem& problem, const BackwardArguments& arguments) {
    const Kernel kernel = arguments.grad_edge_marginals ? Kernel::GENERAL : kernel_for(problem);
    const bool shared = arguments.grad_transitions && problem.batch_stride == 0;
    const int64_t shared_size = problem.step_stride == 0 ? 4 : 4 * (problem.n - 1);
    const Memory total(shared_size + 4);
    std::fill(total.data(), total.data() + shared_size + 4, 0.0);
    int64_t block_size = problem.batch;
    const double* done = nullptr;
    if (kernel == Kernel::IN_FLOAT) {
        backward_in<float, float>(problem, arguments, total.data());
        block_size = Lanes<float>::WIDTH, done = arguments.saved;
    } else if (kernel == Kernel::IN_DOUBLE) {
        const auto backward = problem.wide() ? backward_in<double, double> : backward_in<double, float>;
        backward(problem, arguments, total.data());
        block_size = Lanes<double>::WIDTH, done = arguments.saved;
    }
    backward_the_rest(problem, arguments, done, block_size, total.data(), shared ? shared_size : 0);
    if (shared) arguments.grad_transitions.write(0, shared_size, total.data());
}

}  // namespace structattn::STRUCTATTN_LEVEL
