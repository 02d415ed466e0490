// The C interface of the native kernels: what kernels/native.py binds with ctypes.
//
// Conventions, for every function:
//   * arrays are contiguous, row-major, owned by the caller; inputs are never written to;
//   * `wide` is 1 for double potentials and results, 0 for float. log Z, its gradient and `saved` are always
//   double;
//   * lengths[b] in 0..n says how many positions of sentence b count; a null pointer means all n;
//   * every output cell is written, including the zeros beyond a sentence's length;
//   * `check` asks for a refusal of NaN and +inf potentials (within the lengths) on the way;
//   * `threads` is the number of OpenMP threads; results are the same bits for any number of them;
//   * the returned Status says what went wrong, if anything. Outputs are unspecified when it is not OK.
#pragma once
#include <cstdint>

enum Status : int {
    STATUS_OK = 0,
    STATUS_OUT_OF_MEMORY = 1,
    STATUS_TOO_LARGE = 2,            // a size does not fit the index arithmetic
    STATUS_BAD_FIRST_ARGUMENT = 3,   // NaN or +inf in unary / arcs
    STATUS_BAD_SECOND_ARGUMENT = 4,  // NaN or +inf in transitions
};

extern "C" {

// Linear chain. unary [B, n, C]; transitions: the block [C, C] that scores positions (i, i + 1) of chain b
// starts at transitions + b * batch_stride + i * step_stride (either may be 0: shared).

// Number of doubles that forward writes into `saved` for backward; -1 if the sizes do not fit the index
// arithmetic.
int64_t structattn_chain_saved_size(int64_t batch, int64_t n, int64_t states);

// log_partition [B]; marginals [B, n, C] and edge_marginals [B, n - 1, C, C] may be null: not asked for.
int structattn_chain_forward(int wide, int64_t batch, int64_t n, int64_t states, const void* unary,
                             const void* transitions, int64_t batch_stride, int64_t step_stride,
                             const int64_t* lengths, int check, int threads, double* saved,
                             double* log_partition, void* marginals, void* edge_marginals);

// Any of the upstream gradients may be null (zero). grad_unary [B, n, C]; grad_transitions has the layout of
// transitions: the sum over whatever they share; either may be null: not asked for.
int structattn_chain_backward(int wide, int64_t batch, int64_t n, int64_t states, const void* unary,
                              const void* transitions, int64_t batch_stride, int64_t step_stride,
                              const int64_t* lengths, int threads, const double* saved,
                              const double* grad_log_partition, const void* grad_marginals,
                              const void* grad_edge_marginals, void* grad_unary, void* grad_transitions);

// states_out [B, n] int64: the best sequence, 0 beyond the length and where no sequence is possible.
int structattn_chain_viterbi(int wide, int64_t batch, int64_t n, int64_t states, const void* unary,
                             const void* transitions, int64_t batch_stride, int64_t step_stride,
                             const int64_t* lengths, int check, int threads, int64_t* states_out);

// Projective trees. arcs [B, n, n]: arcs[b, h, m] scores h as the parent of m; word 0 is the root symbol.
int64_t structattn_projective_saved_size(int64_t batch, int64_t n);

int structattn_projective_forward(int wide, int64_t batch, int64_t n, const void* arcs,
                                  const int64_t* lengths, int single_root, int check, int threads,
                                  double* saved, double* log_partition, void* marginals);

int structattn_projective_backward(int wide, int64_t batch, int64_t n, const void* arcs,
                                   const int64_t* lengths, int single_root, int threads, const double* saved,
                                   const double* grad_log_partition, const void* grad_marginals,
                                   void* grad_arcs);

// heads [B, n] int64; heads[b, 0] = 0, 0 beyond the length and where no tree is possible.
int structattn_projective_viterbi(int wide, int64_t batch, int64_t n, const void* arcs,
                                  const int64_t* lengths, int single_root, int check, int threads,
                                  int64_t* heads);

// "v2", "v3", "v4" or "baseline": the instruction set chosen when the library was loaded.
const char* structattn_level();
}
