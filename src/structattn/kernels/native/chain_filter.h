// The forward half of inference on chains: filter (left to right) and smooth (right to left).
//
//   alpha_t(j) = exp(u_t(j)) s_t(j),  s_t(j) = sum_i alpha_{t-1}(i) T_ij        (T = exp of the transitions)
//   P(z_t = i | z_{t+1} = j) = alpha_t(i) T_ij / s_{t+1}(j)
//   p_t(i) = alpha_t(i) sum_j T_ij q_j,  q_j = p_{t+1}(j) / s_{t+1}(j)
//
// so smoothing needs neither a second recursion in log-space nor an exp. The scores' maxima are subtracted
// before the exp and alpha is rescaled by a power of two each step (exactly); log Z collects both. The linear
// filter certifies itself: if no score is further than WIDEST_RANGE from its maximum and no alpha but exact
// zeros is below a limit, then no product has lost anything. Otherwise filter_in_log_space redoes the chain
// with alpha and log s in log-space; from there on T is the conditional probability itself and alpha and s
// are 1.
#pragma once
#include "chain_blocks.h"

namespace structattn::STRUCTATTN_LEVEL {

// Rows of padded(states) doubles, one for each position; a step of 0 means that all positions share one row.
struct Rows {
    double* first;
    int64_t step;
    double* at(int64_t position) const { return first + position * step; }
};

// How a chain's saved rows are to be understood.
enum Form : int { FORM_EMPTY = 0, FORM_LINEAR_FLOAT = 1, FORM_LINEAR = 2, FORM_LOG = 3 };

// One chain: where its rows are, and what the filter found.
struct Chain {
    int64_t index = 0, length = 0;
    Rows alpha{}, inverse{}, node{};  // alpha_t, 1 / s_t, p_t
    double log_partition = 0;
    bool certified = true;
};

// What the linear filter carries from one position of a chain to the next.
struct FilterState {
    Vector<double> smallest_alpha = broadcast(1.0);
    Mask<double> refused{}, too_wide{};
    int64_t exponent = 0;
    double shift = 0;
};

inline Vector<double> inverse_where(Vector<double> values, Vector<double> positive) {
    return positive > 0.0 ? 1.0 / values : Vector<double>{};
}

// weights <- exp(u_t - max u_t) of one position; `weights` must hold -inf in its padding before and again
// after.
inline void read_weights(const Problem& problem, int64_t chain, int64_t position, double* scores,
                         FilterState& state, double* weights) {
    const int64_t width = padded(problem.states);
    problem.unary.read((chain * problem.n + position) * problem.states, problem.states, scores);
    Vector<double> largest = broadcast(-INFINITE<double>);
    for (int64_t column = 0; column < width; column += LANES<double>) {
        const Vector<double> score = load(scores + column);
        largest = larger(largest, score);
        state.refused |= ~(score < INFINITE<double>);
    }
    double top = largest_of<double>(largest);
    if (!(top > -INFINITE<double>)) top = 0;
    state.shift += top;
    for (int64_t column = 0; column < width; column += LANES<double>) {
        const Vector<double> score = load(scores + column) - top;
        state.too_wide |= (score < -WIDEST_RANGE<double>)&(score > -INFINITE<double>);
        store(weights + column, exponential(score));
    }
}

// Multiplies the row by a power of two that brings its largest number into [1, 2).
inline void rescale(double* row, int64_t width, Vector<double> largest, FilterState& state) {
    const double top = largest_of<double>(largest);
    int64_t bits;
    std::memcpy(&bits, &top, sizeof bits);
    const int64_t exponent = top > 0 ? (bits >> 52) - 1023 : 0;
    const int64_t scale_bits = (1023 - std::min<int64_t>(exponent, 1022)) << 52;
    double scale;
    std::memcpy(&scale, &scale_bits, sizeof scale);
    state.exponent += exponent;
    for (int64_t column = 0; column < width; column += LANES<double>) {
        const Vector<double> value = load(row + column) * scale;
        store(row + column, value);
        state.smallest_alpha = smaller(state.smallest_alpha, value > 0.0 ? value : broadcast(1.0));
    }
}

// alpha_t of one chain from s_t (null at the first position); weights is scratch.
inline void advance(const Problem& problem, const Chain& chain, int64_t position, const double* sums,
                    double* scores, double* weights, FilterState& state) {
    const int64_t width = padded(problem.states);
    read_weights(problem, chain.index, position, scores, state, weights);
    double* alpha = chain.alpha.at(position);
    Vector<double> largest{};
    for (int64_t column = 0; column < width; column += LANES<double>) {
        Vector<double> value = load(weights + column);
        if (sums) value *= load(sums + column);
        largest = larger(largest, value);
        store(alpha + column, value);
        if (sums && chain.inverse.first)
            store(chain.inverse.at(position) + column, inverse_where(load(sums + column), value));
    }
    rescale(alpha, width, largest, state);
}

// log Z and p at the last position; a chain without any structure becomes empty.
inline void finish(const Problem& problem, Chain& chain, const FilterState& state, double smallest_allowed) {
    const int64_t width = padded(problem.states);
    if (any(state.refused)) problem.bad_unary = true;
    chain.certified &= !any(state.too_wide) && smallest_of<double>(state.smallest_alpha) >= smallest_allowed;
    const double* alpha = chain.alpha.at(chain.length - 1);
    Vector<double> sums{};
    for (int64_t column = 0; column < width; column += LANES<double>) sums += load(alpha + column);
    const double total = sum_of<double>(sums);
    chain.log_partition =
        total > 0 ? std::log(total) + state.exponent * LOG_2 + state.shift : -INFINITE<double>;
    if (chain.node.first)
        for (int64_t column = 0; column < width; column += LANES<double>)
            store(chain.node.at(chain.length - 1) + column, load(alpha + column) / total);
    if (chain.certified && !(total > 0)) chain.length = 0;
}

inline int64_t longest_of(const Chain* chains, int count) {
    int64_t longest = 0;
    for (int chain = 0; chain < count; ++chain) longest = std::max(longest, chains[chain].length);
    return longest;
}

inline int64_t filter_scratch(const Problem& problem, int chains) {
    return (chains + 3) * (padded(problem.states) + 8);
}

// Fills alpha, inverse (if asked for), p of the last position (if asked for) and log_partition of chains of
// length > 0; results of a chain that ends up not certified are to be thrown away.
template <typename Products>
void filter(const Problem& problem, Products& products, Chain* chains, double* scratch) {
    constexpr int CHAINS = Products::CHAINS;
    const int64_t width = padded(problem.states);
    Carver carver(scratch);
    double *sums = carver.take(CHAINS * width), *weights = carver.take(width),
           *zeros = carver.take_zeros(width);
    double* scores = carver.take(width);
    std::fill(scores, scores + width, -INFINITE<double>);
    FilterState states[CHAINS];
    const int64_t longest = longest_of(chains, CHAINS);
    double shift = 0;
    for (int64_t position = 0; position < longest; ++position) {
        if (position > 0) {
            const double* in[CHAINS];
            for (int chain = 0; chain < CHAINS; ++chain)
                in[chain] = position < chains[chain].length ? chains[chain].alpha.at(position - 1) : zeros;
            products.forward(position - 1, in, sums);
            shift = products.shift(position - 1);
        }
        for (int chain = 0; chain < CHAINS; ++chain) {
            if (position >= chains[chain].length) continue;
            states[chain].shift += shift;
            advance(problem, chains[chain], position, position > 0 ? sums + chain * width : nullptr, scores,
                    weights, states[chain]);
        }
    }
    for (int chain = 0; chain < CHAINS; ++chain) {
        if (chains[chain].length == 0) continue;
        chains[chain].certified = products.certified();
        finish(problem, chains[chain], states[chain], products.smallest_alpha());
    }
}

// log_sums_j <- logsumexp_i(alpha_i + x_ij), 0 where nothing arrives; `scores` holds -inf in its padding.
inline void log_sums_of_step(const Problem& problem, int64_t offset, const double* alpha, double* scores,
                             double* tops, double* log_sums) {
    const int64_t states = problem.states, width = padded(states);
    std::fill(tops, tops + width, -INFINITE<double>);
    for (int64_t row = 0; row < states; ++row) {
        problem.transitions.read(offset + row * states, states, scores);
        for (int64_t column = 0; column < width; column += LANES<double>)
            store(tops + column, larger(load(tops + column), load(scores + column) + alpha[row]));
    }
    std::fill(log_sums, log_sums + width, 0.0);
    for (int64_t column = 0; column < width; ++column)
        if (!(tops[column] > -INFINITE<double>)) tops[column] = 0;
    for (int64_t row = 0; row < states; ++row) {
        problem.transitions.read(offset + row * states, states, scores);
        for (int64_t column = 0; column < width; column += LANES<double>)
            store(log_sums + column, load(log_sums + column) + exponential(load(scores + column) +
                                                                           alpha[row] - load(tops + column)));
    }
    for (int64_t column = 0; column < width; ++column)
        log_sums[column] =
            log_sums[column] > 0 ? tops[column] + std::log(log_sums[column]) : -INFINITE<double>;
}

// The same as filter() for one chain, with log alpha_t (largest 0) in chain.alpha and log s_t in
// chain.inverse.
inline void filter_in_log_space(const Problem& problem, Chain& chain, double* scratch) {
    const int64_t states = problem.states, width = padded(states);
    Carver carver(scratch);
    double *tops = carver.take(width), *scores = carver.take(width);
    std::fill(scores, scores + width, -INFINITE<double>);
    chain.certified = true;
    chain.log_partition = 0;
    double* alpha = nullptr;
    for (int64_t position = 0; position < chain.length; ++position) {
        double* log_sums = chain.inverse.at(position);
        if (position == 0)
            std::fill(log_sums, log_sums + width, 0.0);
        else
            log_sums_of_step(problem, problem.block(chain.index, position - 1), alpha, scores, tops,
                             log_sums);
        alpha = chain.alpha.at(position);
        problem.unary.read((chain.index * problem.n + position) * states, states, scores);
        double top = -INFINITE<double>;
        for (int64_t column = 0; column < width; ++column) {
            alpha[column] = scores[column] + log_sums[column];
            top = std::max(top, alpha[column]);
            if (!(log_sums[column] > -INFINITE<double>)) log_sums[column] = 0;
        }
        chain.log_partition += top;
        if (!(top > -INFINITE<double>)) {
            chain.length = 0;
            return;
        }
        for (int64_t column = 0; column < width; ++column) alpha[column] -= top;
    }
    double total = 0;
    double* node = chain.node.at(chain.length - 1);
    for (int64_t column = 0; column < width; ++column) total += node[column] = std::exp(alpha[column]);
    for (int64_t column = 0; column < width; ++column) node[column] /= total;
    chain.log_partition += std::log(total);
}

// P_ij = alpha_i T_ij (factor_i q_j + extra_j + direction_ij q_j), row by row: edge marginals (factor 1,
// nothing else) and the gradients of transitions. `direction` is a block of the caller's edge gradients or
// null.
template <typename Real>
struct EdgeRows {
    const Real* block;
    int64_t row_step, states;
    const double *alpha, *factor;
    const Real *q, *extra, *direction;

    void row(int64_t i, Real* out) const {
        const Real scale = static_cast<Real>(alpha[i]),
                   factor_i = factor ? static_cast<Real>(factor[i]) : Real{1};
        for (int64_t column = 0; column < states; column += LANES<Real>) {
            const Vector<Real> q_j = load(q + column);
            Vector<Real> value = factor_i * q_j;
            if (extra) value += load(extra + column);
            if (direction) value += load(direction + i * states + column) * q_j;
            store(out + column, value * (load(block + i * row_step + column) * scale));
        }
    }

    // Writes the block at `offset`; `buffer` holds a padded row. Where the types agree a register may run
    // over the end of a row: the next row follows and is written after it.
    void write(const Results& results, int64_t offset, Real* buffer) const {
        Real* direct = results.as<Real>();
        for (int64_t i = 0; i < states; ++i) {
            if (direct && (i + 1) * states + LANES<Real> <= states * states) {
                row(i, direct + offset + i * states);
            } else {
                row(i, buffer);
                results.write(offset + i * states, states, buffer);
            }
        }
    }

    void add_to(double* total, Real* buffer) const {
        for (int64_t i = 0; i < states; ++i) {
            row(i, buffer);
            for (int64_t column = 0; column < states; ++column) total[i * states + column] += buffer[column];
        }
    }
};

inline int64_t smooth_scratch(const Problem& problem, int chains) {
    return (2 * chains + 4) * (padded(problem.states) + LANES<float>)+64;
}

// p_t from the last position, where the filter left it, down to the first. Writes marginals and edge
// marginals if they are asked for (within the lengths).
template <typename Products>
void smooth(const Problem& problem, Products& products, Chain* chains, const Results& marginals,
            const Results& edge_marginals, double* scratch) {
    using Real = typename Products::Real;
    constexpr int CHAINS = Products::CHAINS;
    const int64_t states = problem.states, width = padded(states);
    Carver carver(scratch);
    double *sums = carver.take(CHAINS * width), *q = carver.take_zeros(CHAINS * width);
    Real* narrow_q = reinterpret_cast<Real*>(carver.take_zeros(width + LANES<float>));
    Real* buffer = reinterpret_cast<Real*>(carver.take(width + LANES<float>));
    const double* in[CHAINS];
    for (int chain = 0; chain < CHAINS; ++chain) in[chain] = q + chain * width;
    const int64_t longest = longest_of(chains, CHAINS);
    for (int64_t position = longest - 1; position >= 0; --position) {
        if (position + 1 < longest) products.backward(position, in, sums);
        for (int index = 0; index < CHAINS; ++index) {
            const Chain& chain = chains[index];
            if (position >= chain.length) continue;
            const double* alpha = chain.alpha.at(position);
            double *node = chain.node.at(position), *next = q + index * width;
            if (position + 1 < chain.length) {
                if (edge_marginals) {
                    Numbers::copy(next, width, narrow_q);
                    const EdgeRows<Real> edges{products.block(position),
                                               products.row_step(),
                                               states,
                                               alpha,
                                               nullptr,
                                               narrow_q,
                                               nullptr,
                                               nullptr};
                    edges.write(edge_marginals, (chain.index * (problem.n - 1) + position) * states * states,
                                buffer);
                }
                for (int64_t column = 0; column < width; column += LANES<double>)
                    store(node + column, load(alpha + column) * load(sums + index * width + column));
            }
            if (marginals) marginals.write((chain.index * problem.n + position) * states, states, node);
            if (position == 0) continue;
            const double* inverse = chain.inverse.at(position);
            for (int64_t column = 0; column < width; column += LANES<double>)
                store(next + column, load(node + column) * load(inverse + column));
        }
    }
}

}  // namespace structattn::STRUCTATTN_LEVEL
