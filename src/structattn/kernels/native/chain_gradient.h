// The backward half: the derivative of the marginals in the direction of the upstream gradients, which is
// what backpropagation asks for, because the Hessian of log Z is symmetric.
//
// Let G be the sum of the upstream gradients g_t(z_t) and g_t(z_t, z_{t+1}) along a structure z. Then
//   d p_t(i)  = p_t(i)  (E[G | z_t = i] - E[G])
//   d P_t(ij) = P_t(ij) (E[G | z_t = i, z_{t+1} = j] - E[G])
// and the chain splits E into what is left and right of t. With g centred under the marginals, and K_ij = P(i
// | j):
//   past    F_{t+1}(j) = sum_i K_ij (F_t(i) + g_ij) + g_{t+1}(j)
//   future  B_t(i) = sum_j K_ij (B_{t+1}(j) + p_{t+1}(j) g_ij) + p_t(i) g_t(i)       (already multiplied by
//   p_t) d p_t(i)  = p_t(i) F_t(i) + B_t(i) - p_t(i) g_t(i) d P_t(ij) = K_ij (p_{t+1}(j) (F_t(i) + g_ij) +
//   B_{t+1}(j))
// No step divides by a marginal, so vanishing marginals are harmless. K_ij = alpha_i T_ij / s_j is never
// built. The gradient of log Z itself adds g_z p and g_z P.
#pragma once
#include "chain_filter.h"

namespace structattn::STRUCTATTN_LEVEL {

// Collects sum_k left_k(i) right_k(j), a few pairs at a time so that the sums stay in registers.
class OuterProducts {
  public:
    static constexpr int64_t PAIRS = 64;

    static int64_t rows(int64_t states) { return (states + 3) / 4 * 4; }
    static int64_t stride(int64_t states) { return std::max(padded(states), rows(states)); }
    static int64_t size(int64_t states) { return (2 * PAIRS + rows(states)) * stride(states) + 64; }

    OuterProducts(int64_t states, double* memory)
        : states_(states), width_(padded(states)), stride_(stride(states)) {
        Carver carver(memory);
        left_ = carver.take_zeros(PAIRS * stride_);
        right_ = carver.take_zeros(PAIRS * stride_);
        sums_ = carver.take_zeros(rows(states) * stride_);
    }

    // The next pair of rows, to be filled before the next call.
    std::pair<double*, double*> next() {
        if (count_ == PAIRS) flush();
        const int64_t offset = count_++ * stride_;
        return {left_ + offset, right_ + offset};
    }

    // total_ij += multiplier_ij * sum_ij; multiplier has rows of padded(states).
    void add_to(double* total, const double* multiplier) {
        flush();
        for (int64_t i = 0; i < states_; ++i)
            for (int64_t j = 0; j < states_; ++j)
                total[i * states_ + j] += multiplier[i * width_ + j] * sums_[i * stride_ + j];
    }

  private:
    void flush() {
        constexpr int TILE = VECTOR_BYTES == 64 ? 4 : 2;
        for (int64_t row = 0; row < states_; row += 4) {
            int64_t column = 0;
            for (; column + TILE * LANES<double> <= width_; column += TILE * LANES<double>)
                tile<TILE>(row, column);
            for (; column < width_; column += LANES<double>) tile<1>(row, column);
        }
        count_ = 0;
    }

    template <int VECTORS>
    void tile(int64_t row, int64_t column) {
        Vector<double> sum[4][VECTORS];
        for (int i = 0; i < 4; ++i)
            for (int vector = 0; vector < VECTORS; ++vector)
                sum[i][vector] = load(sums_ + (row + i) * stride_ + column + vector * LANES<double>);
        const double *left = left_ + row, *right = right_ + column;
        for (int64_t pair = 0; pair < count_; ++pair, left += stride_, right += stride_) {
#pragma GCC unroll 4
            for (int i = 0; i < 4; ++i) {
#pragma GCC unroll 4
                for (int vector = 0; vector < VECTORS; ++vector)
                    sum[i][vector] += left[i] * load(right + vector * LANES<double>);
            }
        }
        for (int i = 0; i < 4; ++i)
            for (int vector = 0; vector < VECTORS; ++vector)
                store(sums_ + (row + i) * stride_ + column + vector * LANES<double>, sum[i][vector]);
    }

    int64_t states_, width_, stride_, count_ = 0;
    double *left_, *right_, *sums_;
};

// Where the gradient of the transitions goes: straight to the caller (nothing is shared), into totals of
// doubles with the layout of the shared transitions, or into outer products (one block shared by all, no edge
// gradients).
struct TransitionSink {
    Results direct{};
    double* total = nullptr;
    OuterProducts* outer = nullptr;

    explicit operator bool() const { return direct || total || outer; }
};

inline int64_t gradient_scratch(const Problem& problem, const BackwardArguments& arguments, int chains) {
    const int64_t width = padded(problem.states) + 8;
    const int64_t rows_of_positions = arguments.grad_edge_marginals ? 2 : 1;
    const int64_t block =
        arguments.grad_edge_marginals ? problem.states * problem.states + 4 * LANES<float> : 0;
    return chains * problem.n * (rows_of_positions * width + 2) +
           (3 * chains + 8) * (width + LANES<float>)+block + 64;
}

// The two sweeps over CHAINS chains whose rows are all there.
template <typename Products>
class GradientSweep {
    using Real = typename Products::Real;
    static constexpr int CHAINS = Products::CHAINS;
    using Register = Vector<double>;

  public:
    GradientSweep(const Problem& problem, const BackwardArguments& arguments, Products& products,
                  const Chain* chains, const TransitionSink& sink, double* scratch)
        : problem_(problem),
          arguments_(arguments),
          products_(products),
          chains_(chains),
          sink_(sink),
          states_(problem.states),
          width_(padded(problem.states)),
          longest_(longest_of(chains, CHAINS)),
          has_direction_(arguments.grad_marginals || arguments.grad_edge_marginals) {
        Carver carver(scratch);
        sums_ = carver.take(CHAINS * width_);
        in_ = carver.take_zeros(CHAINS * width_);
        q_ = carver.take_zeros(CHAINS * width_);
        direction_ = carver.take_zeros(width_);
        result_ = carver.take(width_);
        left_ = carver.take(width_);
        narrow_q_ = reinterpret_cast<Real*>(carver.take_zeros(width_ + LANES<float>));
        narrow_extra_ = reinterpret_cast<Real*>(carver.take_zeros(width_ + LANES<float>));
        buffer_ = reinterpret_cast<Real*>(carver.take_zeros(width_ + LANES<float>));
        means_ = carver.take_zeros(CHAINS * problem.n);
        edge_means_ = carver.take_zeros(CHAINS * problem.n);
        past_ = carver.take(CHAINS * problem.n * width_);
        if (arguments.grad_edge_marginals) {
            edge_rows_ = carver.take(CHAINS * problem.n * width_);
            edge_direction_ =
                reinterpret_cast<Real*>(carver.take_zeros(states_ * states_ + 3 * LANES<float>));
        }
    }

    void run() {
        if (has_direction_) sweep_past();
        sweep_future();
    }

  private:
    double* past(int chain, int64_t position) { return past_ + (chain * problem_.n + position) * width_; }
    double* edge_row(int chain, int64_t position) {
        return edge_rows_ ? edge_rows_ + (chain * problem_.n + position) * width_ : nullptr;
    }

    // F_t for all positions.
    void sweep_past() {
        const double* in[CHAINS];
        for (int chain = 0; chain < CHAINS; ++chain) in[chain] = in_ + chain * width_;
        for (int64_t position = 0; position < longest_; ++position) {
            if (position > 0) {
                for (int chain = 0; chain < CHAINS; ++chain) multiply_alpha(chain, position - 1);
                products_.forward(position - 1, in, sums_);
            }
            for (int chain = 0; chain < CHAINS; ++chain)
                if (position < chains_[chain].length) past_of(chain, position);
        }
        std::fill(in_, in_ + CHAINS * width_, 0.0);
    }

    void multiply_alpha(int chain, int64_t position) {
        if (position >= chains_[chain].length) return;
        const double *alpha = chains_[chain].alpha.at(position), *past = this->past(chain, position);
        for (int64_t column = 0; column < width_; column += LANES<double>)
            store(in_ + chain * width_ + column, load(alpha + column) * load(past + column));
    }

    void past_of(int chain, int64_t position) {
        const double* node = chains_[chain].node.at(position);
        double *past = this->past(chain, position), *sums = sums_ + chain * width_;
        double edge_mean = 0;
        if (position > 0 && arguments_.grad_edge_marginals)
            edge_mean = add_edge_direction(chain, position - 1, sums);
        const double mean = means_[chain * problem_.n + position] = read_direction(chain, position, node);
        const double* inverse = chains_[chain].inverse.at(position);
        for (int64_t column = 0; column < width_; column += LANES<double>) {
            Register value = load(direction_ + column) - mean;
            if (position > 0) value += load(sums + column) * load(inverse + column) - edge_mean;
            store(past + column, value);
        }
    }

    // Reads g_t into direction_; returns its mean under p_t.
    double read_direction(int chain, int64_t position, const double* node) {
        if (!arguments_.grad_marginals) return 0;
        arguments_.grad_marginals.read((chains_[chain].index * problem_.n + position) * states_, states_,
                                       direction_);
        Register sum{};
        for (int64_t column = 0; column < width_; column += LANES<double>)
            sum += load(direction_ + column) * load(node + column);
        return sum_of<double>(sum);
    }

    // With the edge gradients g_ij between position and position + 1: sums_j += sum_i alpha_i T_ij g_ij, and
    // keeps sum_j P_ij g_ij for the other sweep. Returns the mean of g_ij under P.
    double add_edge_direction(int chain, int64_t position, double* sums) {
        const Chain& here = chains_[chain];
        read_edge_direction(chain, position);
        const Real* block = products_.block(position);
        const double *alpha = here.alpha.at(position), *node = here.node.at(position + 1),
                     *inverse = here.inverse.at(position + 1);
        for (int64_t column = 0; column < states_; ++column) {
            narrow_q_[column] = static_cast<Real>(node[column] * inverse[column]);
            narrow_extra_[column] = 0;
        }
        double* row_sums = edge_row(chain, position);
        std::fill(row_sums, row_sums + width_, 0.0);
        double mean = 0;
        for (int64_t row = 0; row < states_; ++row) {
            const Real scale = static_cast<Real>(alpha[row]);
            Vector<Real> sum{};
            for (int64_t column = 0; column < states_; column += LANES<Real>) {
                const Vector<Real> value = load(block + row * products_.row_step() + column) *
                                           load(edge_direction_ + row * states_ + column) * scale;
                store(narrow_extra_ + column, load(narrow_extra_ + column) + value);
                sum += value * load(narrow_q_ + column);
            }
            mean += row_sums[row] = sum_of<Real>(sum);
        }
        for (int64_t column = 0; column < states_; ++column) sums[column] += narrow_extra_[column];
        return edge_means_[chain * problem_.n + position] = mean;
    }

    void read_edge_direction(int chain, int64_t position) {
        const int64_t block = chains_[chain].index * (problem_.n - 1) + position;
        arguments_.grad_edge_marginals.read(block * states_ * states_, states_ * states_, edge_direction_);
    }

    // B_t from the last position to the first, and everything that is written to the caller on the way.
    void sweep_future() {
        const double* in[CHAINS];
        for (int chain = 0; chain < CHAINS; ++chain) in[chain] = in_ + chain * width_;
        for (int64_t position = longest_ - 1; position >= 0; --position) {
            if (has_direction_ && position + 1 < longest_) products_.backward(position, in, sums_);
            for (int chain = 0; chain < CHAINS; ++chain)
                if (position < chains_[chain].length) future_of(chain, position);
        }
    }

    void future_of(int chain, int64_t position) {
        const Chain& here = chains_[chain];
        const bool last = position + 1 == here.length;
        const double uniform =
            arguments_.grad_log_partition ? arguments_.grad_log_partition.at(here.index) : 0;
        if (!last && sink_) write_transitions(chain, position, uniform);
        const double *node = here.node.at(position), *alpha = here.alpha.at(position),
                     *inverse = here.inverse.at(position), *past = this->past(chain, position);
        const double *sums = sums_ + chain * width_, *rows = edge_row(chain, position);
        double *in = in_ + chain * width_, *q = q_ + chain * width_;
        const double mean = means_[chain * problem_.n + position];
        const double edge_mean = edge_means_[chain * problem_.n + position];
        if (has_direction_) read_direction(chain, position, node);
        for (int64_t column = 0; column < width_; column += LANES<double>) {
            const Register p = load(node + column);
            Register gradient = p * uniform;
            if (has_direction_) {
                Register future{};
                if (!last) future = load(alpha + column) * load(sums + column);
                if (!last && edge_rows_) future += load(rows + column) - edge_mean * p;
                gradient += p * load(past + column) + future;
                future += p * (load(direction_ + column) - mean);
                if (position > 0) store(in + column, future * load(inverse + column));
            }
            if (position > 0) store(q + column, p * load(inverse + column));
            store(result_ + column, gradient);
        }
        if (arguments_.grad_unary)
            arguments_.grad_unary.write((here.index * problem_.n + position) * states_, states_, result_);
    }

    // d P between position and position + 1; q_ and in_ still are those of position + 1.
    void write_transitions(int chain, int64_t position, double uniform) {
        const Chain& here = chains_[chain];
        const double *alpha = here.alpha.at(position), *past = this->past(chain, position);
        const double *q = q_ + chain * width_, *extra = in_ + chain * width_;
        if (sink_.outer) {
            add_outer_products(alpha, past, q, extra, uniform);
            return;
        }
        const double constant = uniform - edge_means_[chain * problem_.n + position];
        for (int64_t column = 0; column < states_; ++column)
            left_[column] = (has_direction_ ? past[column] : 0.0) + constant;
        Numbers::copy(q, width_, narrow_q_);
        Numbers::copy(extra, width_, narrow_extra_);
        if (arguments_.grad_edge_marginals) read_edge_direction(chain, position);
        const EdgeRows<Real> edges{products_.block(position),
                                   products_.row_step(),
                                   states_,
                                   alpha,
                                   left_,
                                   narrow_q_,
                                   narrow_extra_,
                                   edge_direction_};
        if (sink_.direct)
            edges.write(sink_.direct, problem_.block(here.index, position), buffer_);
        else
            edges.add_to(sink_.total + position * problem_.step_stride, buffer_);
    }

    void add_outer_products(const double* alpha, const double* past, const double* q, const double* extra,
                            double uniform) {
        const auto [left, right] = sink_.outer->next();
        for (int64_t column = 0; column < width_; column += LANES<double>) {
            const Register factor = has_direction_ ? load(past + column) + uniform : broadcast(uniform);
            store(left + column, load(alpha + column) * factor);
            store(right + column, load(q + column));
        }
        if (!has_direction_) return;
        const auto [second_left, second_right] = sink_.outer->next();
        for (int64_t column = 0; column < width_; column += LANES<double>) {
            store(second_left + column, load(alpha + column));
            store(second_right + column, load(extra + column));
        }
    }

    const Problem& problem_;
    const BackwardArguments& arguments_;
    Products& products_;
    const Chain* chains_;
    const TransitionSink& sink_;
    const int64_t states_, width_, longest_;
    const bool has_direction_;
    double *sums_, *in_, *q_, *direction_, *result_, *left_, *means_, *edge_means_, *past_,
        *edge_rows_ = nullptr;
    Real *narrow_q_, *narrow_extra_, *buffer_, *edge_direction_ = nullptr;
};

}  // namespace structattn::STRUCTATTN_LEVEL
