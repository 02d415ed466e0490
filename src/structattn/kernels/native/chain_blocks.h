// Transition blocks as multipliers T[i][j], and the products of rows with them that every sweep over a chain
// is made of: forward out_j = sum_i in_i T_ij and backward out_i = sum_j T_ij in_j.
//
// SharedTable: one table exp(x - max x) for all chains, computed once a call; four chains share every load of
// it. OwnBlocks: one chain's blocks, computed when they are needed (cheaper than writing them out and reading
// them back), either as exp(x - max x) or, where that could under- or overflow, as the conditional
// probabilities P(z_t = i | z_{t+1} = j) = exp(alpha_i + x_ij - logsumexp_i(alpha_i + x_ij)), which no range
// of scores can hurt.
#pragma once
#include <type_traits>

#include "chain.h"

namespace structattn::STRUCTATTN_LEVEL {

// Finite scores of one block or position may span this much, so that products of a few multipliers stay far
// from the ends of the type's range; wider ones go to a wider type or to log-space.
template <typename Real>
constexpr Real WIDEST_RANGE = sizeof(Real) == sizeof(double) ? 150 : 30;

// What is seen of the scores of a block before they are exponentiated.
template <typename Real>
struct ScoreSurvey {
    Vector<Real> largest = broadcast(-INFINITE<Real>), smallest = broadcast(INFINITE<Real>);
    Mask<Real> refused{};

    void see(Vector<Real> scores) {
        largest = larger(largest, scores);
        smallest = smaller(smallest, scores > -INFINITE<Real> ? scores : broadcast(INFINITE<Real>));
        refused |= ~(scores < INFINITE<Real>);
    }
    // The largest score, or 0 where everything is forbidden.
    Real top() const {
        const Real top = largest_of<Real>(largest);
        return top > -INFINITE<Real> ? top : 0;
    }
    bool too_wide() const { return top() - smallest_of<Real>(smallest) > WIDEST_RANGE<Real>; }
};

// out[chain][j] = sum_i in[chain][i] matrix[i][j] for VECTORS registers of columns.
template <int CHAINS, int VECTORS>
inline void product_tile(const double* matrix, int64_t rows, int64_t width, const double* const* in,
                         double* out) {
    Vector<double> sum[CHAINS][VECTORS] = {};
    for (int64_t row = 0; row < rows; ++row, matrix += width) {
#pragma GCC unroll 4
        for (int chain = 0; chain < CHAINS; ++chain) {
            const double scale = in[chain][row];
#pragma GCC unroll 4
            for (int vector = 0; vector < VECTORS; ++vector)
                sum[chain][vector] += scale * load(matrix + vector * LANES<double>);
        }
    }
    for (int chain = 0; chain < CHAINS; ++chain)
        for (int vector = 0; vector < VECTORS; ++vector)
            store(out + chain * width + vector * LANES<double>, sum[chain][vector]);
}

template <int CHAINS>
inline void product(const double* matrix, int64_t rows, int64_t width, const double* const* in, double* out) {
    constexpr int TILE = VECTOR_BYTES == 64 ? 4 : 2;
    int64_t column = 0;
    for (; column + TILE * LANES<double> <= width; column += TILE * LANES<double>)
        product_tile<CHAINS, TILE>(matrix + column, rows, width, in, out + column);
    if (TILE == 4 && column + 2 * LANES<double> <= width) {
        product_tile<CHAINS, 2>(matrix + column, rows, width, in, out + column);
        column += 2 * LANES<double>;
    }
    if (column < width) product_tile<CHAINS, 1>(matrix + column, rows, width, in, out + column);
}

// exp(x - max x) of every block that all chains share, and its transpose.
class SharedTable {
  public:
    static int64_t size(const Problem& problem, int64_t steps) {
        return steps * (2 * padded(problem.states) * problem.states + 8) + 8;
    }

    // `memory` holds size(problem, steps) doubles.
    SharedTable(const Problem& problem, int64_t steps, double* memory)
        : states_(problem.states), width_(padded(problem.states)), steps_(steps) {
        Carver carver(memory);
        shifts_ = carver.take(steps);
        blocks_ = carver.take(steps * states_ * width_);
        transposed_ = carver.take(steps * states_ * width_);
        for_each_piece(problem.threads, steps, [&](int64_t step, int) { fill(problem, step); });
    }

    int64_t states() const { return states_; }
    int64_t width() const { return width_; }
    bool certified() const { return !too_wide_; }
    double shift(int64_t step) const { return shifts_[slot(step)]; }
    const double* block(int64_t step) const { return blocks_ + slot(step) * states_ * width_; }
    const double* transposed(int64_t step) const { return transposed_ + slot(step) * states_ * width_; }

  private:
    int64_t slot(int64_t step) const { return steps_ == 1 ? 0 : step; }

    void fill(const Problem& problem, int64_t step) {
        double* block = blocks_ + step * states_ * width_;
        double* transposed = transposed_ + step * states_ * width_;
        ScoreSurvey<double> survey;
        for (int64_t row = 0; row < states_; ++row) {
            double* scores = block + row * width_;
            problem.transitions.read(problem.block(0, step) + row * states_, states_, scores);
            std::fill(scores + states_, scores + width_, -INFINITE<double>);
            for (int64_t column = 0; column < width_; column += LANES<double>)
                survey.see(load(scores + column));
        }
        if (any(survey.refused)) problem.bad_transitions = true;
        if (survey.too_wide()) too_wide_ = true;
        const double top = shifts_[step] = survey.top();
        for (int64_t cell = 0; cell < states_ * width_; cell += LANES<double>)
            store(block + cell, exponential(load(block + cell) - top));
        for (int64_t row = 0; row < states_; ++row)
            for (int64_t column = 0; column < width_; ++column)
                transposed[row * width_ + column] = column < states_ ? block[column * width_ + row] : 0.0;
    }

    int64_t states_, width_, steps_;
    double *shifts_, *blocks_, *transposed_;
    std::atomic<bool> too_wide_{false};
};

// The table as CHAINS chains at a time see it.
template <int CHAINS_>
class SharedProducts {
  public:
    using Real = double;
    static constexpr int CHAINS = CHAINS_;

    explicit SharedProducts(const SharedTable& table) : table_(table) {}

    double shift(int64_t step) { return table_.shift(step); }
    bool certified() const { return table_.certified(); }
    double smallest_alpha() const { return 1e-140; }
    const double* block(int64_t step) { return table_.block(step); }
    int64_t row_step() const { return table_.width(); }

    void forward(int64_t step, const double* const* in, double* out) {
        product<CHAINS>(table_.block(step), table_.states(), table_.width(), in, out);
    }
    void backward(int64_t step, const double* const* in, double* out) {
        product<CHAINS>(table_.transposed(step), table_.states(), table_.width(), in, out);
    }

  private:
    const SharedTable& table_;
};

// The blocks of one chain, in rows of exactly `states` numbers: a register that reaches over a row's end sees
// the next row (or the zeros behind the last), which the padding zeros of the other factor cancel.
template <typename Real_>
class OwnBlocks {
  public:
    using Real = Real_;
    static constexpr int CHAINS = 1;

    static int64_t size(const Problem& problem) {
        return 3 * capacity(problem) + 16 + capacity(problem) * block_size(problem.states) +
               4 * (padded(problem.states) + LANES<float>);
    }

    // `memory` holds size(problem) doubles.
    OwnBlocks(const Problem& problem, double* memory)
        : problem_(problem), states_(problem.states), capacity_(capacity(problem)) {
        Carver carver(memory);
        shifts_ = carver.take(capacity_);
        filled_with_ = carver.take(capacity_);
        in_ = reinterpret_cast<Real*>(carver.take_zeros(padded(states_) + LANES<float>));
        out_ = reinterpret_cast<Real*>(carver.take_zeros(padded(states_) + LANES<float>));
        blocks_ = reinterpret_cast<Real*>(carver.take_zeros(capacity_ * block_size(states_)));
    }

    // Blocks of `chain` as exp(x - max x).
    void start(int64_t chain) {
        chain_ = chain;
        alpha_ = nullptr;
        too_wide_ = false;
        std::fill(filled_with_, filled_with_ + capacity_, -1.0);
    }
    // Blocks as P(z_t = i | z_{t+1} = j), from the rows alpha_t (log-space) and the log-sums of t + 1.
    void start_conditional(int64_t chain, const double* alpha, const double* log_sums) {
        start(chain);
        alpha_ = alpha;
        log_sums_ = log_sums;
    }

    double shift(int64_t step) { return block(step), shifts_[slot(step)]; }
    bool certified() const { return !too_wide_; }
    double smallest_alpha() const { return sizeof(Real) == sizeof(double) ? 1e-140 : 1e-8; }
    int64_t row_step() const { return states_; }

    const Real* block(int64_t step) {
        const int64_t kept = slot(step);
        Real* block = blocks_ + kept * (block_size(states_) * (sizeof(double) / sizeof(Real)));
        const double content = same_for_all_steps() ? 0.0 : static_cast<double>(step);
        if (filled_with_[kept] != content) {
            filled_with_[kept] = content;
            if (!alpha_) {
                shifts_[kept] = fill(step, block);
            } else if constexpr (std::is_same_v<Real, double>) {
                fill_conditional(step, block);
            }
        }
        return block;
    }

    void forward(int64_t step, const double* const* in, double* out) {
        const Real* matrix = block(step);
        int64_t column = 0;
        for (; column + LANES<Real> < states_; column += 2 * LANES<Real>)
            columns<2>(matrix + column, in[0], column);
        if (column < states_) columns<1>(matrix + column, in[0], column);
        Numbers::copy(out_, padded(states_), out);
    }

    void backward(int64_t step, const double* const* in, double* out) {
        const Real* matrix = block(step);
        Numbers::copy(in[0], padded(states_), in_);
        for (int64_t row = 0; row < states_; row += LANES<Real>) {
            Vector<Real> sums[LANES<Real>] = {};
            for (int64_t column = 0; column < states_; column += LANES<Real>) {
                const Vector<Real> factor = load(in_ + column);
#pragma GCC unroll 16
                for (int lane = 0; lane < LANES<Real>; ++lane)
                    sums[lane] += load(matrix + (row + lane) * states_ + column) * factor;
            }
            store(out_ + row, sum_of_each<Real>(sums));
        }
        Numbers::copy(out_, padded(states_), out);
    }

  private:
    // In doubles; with room for whole registers of rows and columns behind the last row.
    static int64_t block_size(int64_t states) {
        const int64_t numbers = (states + LANES<Real>)*states + 2 * LANES<Real>;
        return (numbers * static_cast<int64_t>(sizeof(Real)) + 63) / 64 * 8;
    }
    // A chain's blocks are all kept if they fit a quarter of a megabyte, otherwise one is.
    static int64_t capacity(const Problem& problem) {
        const int64_t steps = std::max<int64_t>(problem.n - 1, 1);
        return steps <= (int64_t{1} << 15) / block_size(problem.states) ? steps : 1;
    }
    bool same_for_all_steps() const { return !alpha_ && problem_.step_stride == 0; }
    int64_t slot(int64_t step) const { return capacity_ == 1 || same_for_all_steps() ? 0 : step; }

    // The multipliers of one block; returns the score that was subtracted from all of them.
    double fill(int64_t step, Real* block) {
        const int64_t count = states_ * states_;
        const int64_t end = (count + LANES<Real> - 1) / LANES<Real> * LANES<Real>;
        problem_.transitions.read(problem_.block(chain_, step), count, block);
        std::fill(block + count, block + end, -INFINITE<Real>);
        ScoreSurvey<Real> survey;
        for (int64_t cell = 0; cell < end; cell += LANES<Real>) survey.see(load(block + cell));
        if (any(survey.refused)) problem_.bad_transitions = true;
        if (survey.too_wide()) too_wide_ = true;
        const Real top = survey.top();
        for (int64_t cell = 0; cell < end; cell += LANES<Real>)
            store(block + cell, exponential(load(block + cell) - top));
        return top;
    }

    // The conditional probabilities; forms that are certified never get here, so this is written for doubles.
    void fill_conditional(int64_t step, double* block) {
        const int64_t width = padded(states_);
        const double *alpha = alpha_ + step * width, *log_sums = log_sums_ + (step + 1) * width;
        for (int64_t row = 0; row < states_; ++row) {
            double* cells = block + row * states_;
            problem_.transitions.read(problem_.block(chain_, step) + row * states_, states_, in_);
            for (int64_t column = 0; column < states_; column += LANES<double>)
                store(cells + column, exponential(load(in_ + column) + alpha[row] - load(log_sums + column)));
        }
        std::fill(block + states_ * states_, block + states_ * states_ + LANES<double>, 0.0);
        std::fill(in_, in_ + width, 0.0);
    }

    // Four partial sums a column register hide the latency of the additions.
    template <int VECTORS>
    void columns(const Real* matrix, const double* in, int64_t column) {
        constexpr int PARTS = 4;
        Vector<Real> sum[PARTS][VECTORS] = {};
        int64_t row = 0;
        for (; row + PARTS <= states_; row += PARTS) {
#pragma GCC unroll 4
            for (int part = 0; part < PARTS; ++part) {
#pragma GCC unroll 2
                for (int vector = 0; vector < VECTORS; ++vector)
                    sum[part][vector] += static_cast<Real>(in[row + part]) *
                                         load(matrix + (row + part) * states_ + vector * LANES<Real>);
            }
        }
        for (; row < states_; ++row)
            for (int vector = 0; vector < VECTORS; ++vector)
                sum[0][vector] +=
                    static_cast<Real>(in[row]) * load(matrix + row * states_ + vector * LANES<Real>);
        for (int vector = 0; vector < VECTORS; ++vector)
            store(out_ + column + vector * LANES<Real>,
                  (sum[0][vector] + sum[1][vector]) + (sum[2][vector] + sum[3][vector]));
    }

    const Problem& problem_;
    int64_t states_, capacity_, chain_ = 0;
    const double *alpha_ = nullptr, *log_sums_ = nullptr;
    double *shifts_, *filled_with_;
    Real *in_, *out_, *blocks_;
    bool too_wide_ = false;
};

}  // namespace structattn::STRUCTATTN_LEVEL
