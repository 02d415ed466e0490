// Chooses, when the library is loaded, the instruction set whose kernels serve every call.
//
// CMake compiles the kernel_*.cpp files once a level, each into its own namespace structattn::<level>. The
// oldest level is linked first: of a weak symbol that several levels emit (standard library templates) the
// linker keeps the first.
#include <new>

#include "api.h"

// The level's functions have exactly the types of the exported ones.
#define DECLARE_LEVEL(level)                                          \
    namespace structattn::level {                                     \
    decltype(structattn_chain_saved_size) chain_saved_size;           \
    decltype(structattn_chain_forward) chain_forward;                 \
    decltype(structattn_chain_backward) chain_backward;               \
    decltype(structattn_chain_viterbi) chain_viterbi;                 \
    decltype(structattn_projective_saved_size) projective_saved_size; \
    decltype(structattn_projective_forward) projective_forward;       \
    decltype(structattn_projective_backward) projective_backward;     \
    decltype(structattn_projective_viterbi) projective_viterbi;       \
    }

#define TABLE_OF_LEVEL(level)                                                                     \
    Table {                                                                                       \
        structattn::level::chain_saved_size, structattn::level::chain_forward,                    \
            structattn::level::chain_backward, structattn::level::chain_viterbi,                  \
            structattn::level::projective_saved_size, structattn::level::projective_forward,      \
            structattn::level::projective_backward, structattn::level::projective_viterbi, #level \
    }

DECLARE_LEVEL(baseline)
DECLARE_LEVEL(v2)
DECLARE_LEVEL(v3)
DECLARE_LEVEL(v4)

namespace {

struct Table {
    decltype(&structattn_chain_saved_size) chain_saved_size;
    decltype(&structattn_chain_forward) chain_forward;
    decltype(&structattn_chain_backward) chain_backward;
    decltype(&structattn_chain_viterbi) chain_viterbi;
    decltype(&structattn_projective_saved_size) projective_saved_size;
    decltype(&structattn_projective_forward) projective_forward;
    decltype(&structattn_projective_backward) projective_backward;
    decltype(&structattn_projective_viterbi) projective_viterbi;
    const char* level;
};

#define TABLE_OF(level) TABLE_OF_LEVEL(level)  // of a macro, what it stands for

// The newest built level that this processor has; below the oldest one there is nothing to fall back on.
Table choose_level() {
#ifdef STRUCTATTN_HAS_v4
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v4")) return TABLE_OF_LEVEL(v4);
#endif
#ifdef STRUCTATTN_HAS_v3
    __builtin_cpu_init();
    if (__builtin_cpu_supports("x86-64-v3")) return TABLE_OF_LEVEL(v3);
#endif
    return TABLE_OF(STRUCTATTN_OLDEST);
}

const Table table = choose_level();

// Nothing may be thrown across the C interface.
template <typename Function, typename... Arguments>
int guarded(Function function, Arguments... arguments) {
    try {
        return function(arguments...);
    } catch (const std::bad_alloc&) {
        return STATUS_OUT_OF_MEMORY;
    }
}

}  // namespace

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT const char* structattn_level() { return table.level; }

EXPORT int64_t structattn_chain_saved_size(int64_t batch, int64_t n, int64_t states) {
    return table.chain_saved_size(batch, n, states);
}

EXPORT int structattn_chain_forward(int wide, int64_t batch, int64_t n, int64_t states, const void* unary,
                                    const void* transitions, int64_t batch_stride, int64_t step_stride,
                                    const int64_t* lengths, int check, int threads, double* saved,
                                    double* log_partition, void* marginals, void* edge_marginals) {
    return guarded(table.chain_forward, wide, batch, n, states, unary, transitions, batch_stride, step_stride,
                   lengths, check, threads, saved, log_partition, marginals, edge_marginals);
}

EXPORT int structattn_chain_backward(int wide, int64_t batch, int64_t n, int64_t states, const void* unary,
                                     const void* transitions, int64_t batch_stride, int64_t step_stride,
                                     const int64_t* lengths, int threads, const double* saved,
                                     const double* grad_log_partition, const void* grad_marginals,
                                     const void* grad_edge_marginals, void* grad_unary,
                                     void* grad_transitions) {
    return guarded(table.chain_backward, wide, batch, n, states, unary, transitions, batch_stride,
                   step_stride, lengths, threads, saved, grad_log_partition, grad_marginals,
                   grad_edge_marginals, grad_unary, grad_transitions);
}

EXPORT int structattn_chain_viterbi(int wide, int64_t batch, int64_t n, int64_t states, const void* unary,
                                    const void* transitions, int64_t batch_stride, int64_t step_stride,
                                    const int64_t* lengths, int check, int threads, int64_t* states_out) {
    return guarded(table.chain_viterbi, wide, batch, n, states, unary, transitions, batch_stride, step_stride,
                   lengths, check, threads, states_out);
}

EXPORT int64_t structattn_projective_saved_size(int64_t batch, int64_t n) {
    return table.projective_saved_size(batch, n);
}

EXPORT int structattn_projective_forward(int wide, int64_t batch, int64_t n, const void* arcs,
                                         const int64_t* lengths, int single_root, int check, int threads,
                                         double* saved, double* log_partition, void* marginals) {
    return guarded(table.projective_forward, wide, batch, n, arcs, lengths, single_root, check, threads,
                   saved, log_partition, marginals);
}

EXPORT int structattn_projective_backward(int wide, int64_t batch, int64_t n, const void* arcs,
                                          const int64_t* lengths, int single_root, int threads,
                                          const double* saved, const double* grad_log_partition,
                                          const void* grad_marginals, void* grad_arcs) {
    return guarded(table.projective_backward, wide, batch, n, arcs, lengths, single_root, threads, saved,
                   grad_log_partition, grad_marginals, grad_arcs);
}

EXPORT int structattn_projective_viterbi(int wide, int64_t batch, int64_t n, const void* arcs,
                                         const int64_t* lengths, int single_root, int check, int threads,
                                         int64_t* heads) {
    return guarded(table.projective_viterbi, wide, batch, n, arcs, lengths, single_root, check, threads,
                   heads);
}
