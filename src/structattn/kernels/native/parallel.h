// Loops over independent pieces of work, and memory for them that is got before the loop starts: nothing may
// be thrown inside an OpenMP region. Which thread takes a piece is not fixed, so a piece may only write what
// is its own.
#pragma once
#include <omp.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>

namespace structattn::STRUCTATTN_LEVEL {

// Calls work(piece, worker) for every piece in 0..pieces; each thread makes its worker once, by
// start(thread).
template <typename Start, typename Work>
void for_each_piece(int threads, int64_t pieces, const Start& start, const Work& work) {
    if (threads <= 1 || pieces <= 1) {
        auto worker = start(0);
        for (int64_t piece = 0; piece < pieces; ++piece) work(piece, worker);
        return;
    }
#pragma omp parallel num_threads(threads)
    {
        auto worker = start(omp_get_thread_num());
#pragma omp for schedule(dynamic, 1)
        for (int64_t piece = 0; piece < pieces; ++piece) work(piece, worker);
    }
}

// Calls work(piece, thread) for every piece in 0..pieces.
template <typename Work>
void for_each_piece(int threads, int64_t pieces, const Work& work) {
    for_each_piece(threads, pieces, [](int thread) { return thread; }, work);
}

// Memory without initial values, aligned to a cache line; std::bad_alloc when there is none.
class Memory {
  public:
    explicit Memory(int64_t doubles)
        : data_(static_cast<double*>(
              ::operator new(sizeof(double) * static_cast<size_t>(doubles), std::align_val_t(64)))) {}
    ~Memory() { ::operator delete(data_, std::align_val_t(64)); }
    Memory(const Memory&) = delete;
    Memory& operator=(const Memory&) = delete;

    double* data() const { return data_; }

  private:
    double* data_;
};

// As much for each thread, on cache lines of its own.
class MemoryPerThread {
  public:
    MemoryPerThread(int threads, int64_t doubles)
        : step_((doubles + 15) / 8 * 8), memory_(step_ * std::max(threads, 1)) {}

    double* of(int thread) const { return memory_.data() + thread * step_; }

  private:
    int64_t step_;
    Memory memory_;
};

// Hands out pieces of one stretch of memory, each on a cache line of its own.
class Carver {
  public:
    explicit Carver(double* memory) : next_(memory) {}

    double* take(int64_t doubles) {
        double* piece = next_;
        next_ += (doubles + 7) / 8 * 8;
        return piece;
    }
    double* take_zeros(int64_t doubles) {
        double* piece = take(doubles);
        std::fill(piece, piece + doubles, 0.0);
        return piece;
    }

  private:
    double* next_;
};

}  // namespace structattn::STRUCTATTN_LEVEL
