// What the linear-chain kernels share: the caller's arguments as one Problem, and how its arrays are read and
// written.
#pragma once
#include <atomic>
#include <cmath>

#include "api.h"
#include "chain_vectors.h"
#include "parallel.h"

namespace structattn::STRUCTATTN_LEVEL {

// An array of the caller's, of floats or doubles; read as doubles.
struct Numbers {
    const void* data;
    bool wide;

    explicit operator bool() const { return data != nullptr; }

    template <typename Real>
    const Real* as() const {
        return wide == (sizeof(Real) == sizeof(double)) ? static_cast<const Real*>(data) : nullptr;
    }

    // The same array from the given element on.
    Numbers from(int64_t offset) const {
        const int64_t size = wide ? sizeof(double) : sizeof(float);
        return {data ? static_cast<const char*>(data) + offset * size : nullptr, wide};
    }

    double at(int64_t index) const {
        return wide ? static_cast<const double*>(data)[index] : static_cast<const float*>(data)[index];
    }

    template <typename Real>
    void read(int64_t offset, int64_t count, Real* out) const {
        if (wide)
            copy(static_cast<const double*>(data) + offset, count, out);
        else
            copy(static_cast<const float*>(data) + offset, count, out);
    }

    template <typename From, typename To>
    static void copy(const From* from, int64_t count, To* to) {
        for (int64_t i = 0; i < count; ++i) to[i] = static_cast<To>(from[i]);
    }
};

// An array of the caller's for results.
struct Results {
    void* data;
    bool wide;

    explicit operator bool() const { return data != nullptr; }

    Results from(int64_t offset) const {
        const int64_t size = wide ? sizeof(double) : sizeof(float);
        return {data ? static_cast<char*>(data) + offset * size : nullptr, wide};
    }

    template <typename Real>
    Real* as() const {
        return wide == (sizeof(Real) == sizeof(double)) ? static_cast<Real*>(data) : nullptr;
    }

    template <typename Real>
    void write(int64_t offset, int64_t count, const Real* values) const {
        if (wide)
            Numbers::copy(values, count, static_cast<double*>(data) + offset);
        else
            Numbers::copy(values, count, static_cast<float*>(data) + offset);
    }

    void zero(int64_t offset, int64_t count) const {
        const size_t size = wide ? sizeof(double) : sizeof(float);
        if (count > 0) std::memset(static_cast<char*>(data) + offset * size, 0, count * size);
    }
};

// The caller's arguments. `refused` collects what the kernels find while they read.
struct Problem {
    int64_t batch, n, states;
    Numbers unary, transitions;
    int64_t batch_stride, step_stride;
    const int64_t* lengths;
    bool check;
    int threads;
    mutable std::atomic<bool> bad_unary{false}, bad_transitions{false};

    Problem(int wide, int64_t batch, int64_t n, int64_t states, const void* unary, const void* transitions,
            int64_t batch_stride, int64_t step_stride, const int64_t* lengths, int check, int threads)
        : batch(batch),
          n(n),
          states(states),
          unary{unary, wide != 0},
          transitions{transitions, wide != 0},
          batch_stride(batch_stride),
          step_stride(step_stride),
          lengths(lengths),
          check(check != 0),
          threads(threads) {}

    // `count` chains from `first` on.
    Problem(const Problem& whole, int64_t first, int64_t count)
        : Problem(whole.wide(), count, whole.n, whole.states,
                  whole.unary.from(first * whole.n * whole.states).data,
                  whole.transitions.from(first * whole.batch_stride).data, whole.batch_stride,
                  whole.step_stride, whole.lengths ? whole.lengths + first : nullptr, whole.check,
                  whole.threads) {}

    int64_t length(int64_t chain) const { return lengths ? lengths[chain] : n; }
    int64_t block(int64_t chain, int64_t step) const { return chain * batch_stride + step * step_stride; }
    bool wide() const { return unary.wide; }
    bool shares_all_transitions() const { return batch_stride == 0 && step_stride == 0; }
    bool empty() const { return batch == 0 || n == 0 || states == 0; }

    int status() const {
        if (check && bad_unary) return STATUS_BAD_FIRST_ARGUMENT;
        if (check && bad_transitions) return STATUS_BAD_SECOND_ARGUMENT;
        return STATUS_OK;
    }
};

// log Z and its gradient are doubles, whatever the potentials are.
struct ForwardOutputs {
    double* saved;
    Results log_partition, marginals, edge_marginals;
};

struct BackwardArguments {
    const double* saved;
    Numbers grad_log_partition, grad_marginals, grad_edge_marginals;
    Results grad_unary, grad_transitions;
};

// Rows of doubles are padded to whole registers.
inline int64_t padded(int64_t count) { return (count + LANES<double> - 1) / LANES<double> * LANES<double>; }

// False when a product of sizes leaves the range that the index arithmetic (and an allocation) can hold.
bool sizes_fit(int64_t batch, int64_t n, int64_t states);

// Any number of states (kernel_chain.cpp). general_forward may be given a buffer of general_saved_size
// doubles.
int64_t general_saved_size(int64_t batch, int64_t n, int64_t states);
void general_forward(const Problem& problem, const ForwardOutputs& outputs);
void general_backward(const Problem& problem, const BackwardArguments& arguments);

// Two states (kernel_segmentation.cpp), with a smaller buffer; what is not made for it goes on to the general
// kernel.
int64_t two_state_saved_size(int64_t batch, int64_t n);
void two_state_forward(const Problem& problem, const ForwardOutputs& outputs);
void two_state_backward(const Problem& problem, const BackwardArguments& arguments);

}  // namespace structattn::STRUCTATTN_LEVEL
