// Lanes: one register holds the same cell of several sentences, one sentence a lane.
//
// `Real<width>` is a GCC vector of doubles, `Bits<width>` its integer counterpart. Lanes never mix, so a
// sentence's result does not depend on the sentences that share its registers, and is the same for every
// width. The least width is 2: it costs what a plain double costs, and the compiler fuses multiplications and
// additions in vectors of any width alike, but rearranges plain doubles into vectors of its own.
#pragma once
#include <cstdint>
#include <limits>
#include <utility>

#define STRUCTATTN_INLINE inline __attribute__((always_inline))
#define STRUCTATTN_INLINED __attribute__((always_inline))  // for lambdas

namespace structattn::STRUCTATTN_LEVEL {

constexpr int narrowest = 2;

// The widest vector that the level holds in one register, and how many of them a 4x4 tile may occupy at once.
#if defined(__AVX512F__)
constexpr int widest = 8;
constexpr int columns_at_once = 4;
#elif defined(__AVX__)
constexpr int widest = 4;
constexpr int columns_at_once = 2;
#else
constexpr int widest = 2;
constexpr int columns_at_once = 2;
#endif

template <int width>
struct LaneTypes {
    typedef double Real __attribute__((vector_size(sizeof(double) * width)));
    typedef int64_t Bits __attribute__((vector_size(sizeof(int64_t) * width)));
};

template <int width>
using Real = typename LaneTypes<width>::Real;
template <int width>
using Bits = typename LaneTypes<width>::Bits;

template <class V>
constexpr int width_of = sizeof(V) / sizeof(double);

constexpr double infinity = std::numeric_limits<double>::infinity();

template <class V>
STRUCTATTN_INLINE V all_lanes(double x) {
    return V{} + x;
}

template <class V>
STRUCTATTN_INLINE Bits<width_of<V>> bits_of(V x) {
    return __builtin_bit_cast(Bits<width_of<V>>, x);
}

template <class V>
STRUCTATTN_INLINE V from_bits(Bits<width_of<V>> bits) {
    return __builtin_bit_cast(V, bits);
}

template <class V>
STRUCTATTN_INLINE V larger(V a, V b) {
    return a > b ? a : b;
}

template <class V>
STRUCTATTN_INLINE V smaller(V a, V b) {
    return a < b ? a : b;
}

// a b + c d. Left to itself the compiler may fuse either product with the addition, a different one for each
// width; the zero leaves it one way.
template <class V>
STRUCTATTN_INLINE V two_products(V a, V b, V c, V d) {
    V sum{};
    sum += a * b;
    sum += c * d;
    return sum;
}

// f(0), f(1), ... with compile-time constants: straight-line code whose local arrays live in registers.
template <class F, int... index>
STRUCTATTN_INLINE void repeat_each(F&& f, std::integer_sequence<int, index...>) {
    (f(std::integral_constant<int, index>{}), ...);
}

template <int count, class F>
STRUCTATTN_INLINE void repeat(F&& f) {
    repeat_each(static_cast<F&&>(f), std::make_integer_sequence<int, count>{});
}

// f(from), ..., f(to - 1).
template <int from, int to, class F>
STRUCTATTN_INLINE void repeat_range(F&& f) {
    if constexpr (from < to)
        repeat<to - from>([&](auto step) STRUCTATTN_INLINED {
            f(std::integral_constant<int, from + decltype(step)::value>{});
        });
}

// Adding it to an integer |k| < 2^51 puts k into the low bits of the sum.
constexpr double integer_shift = 6755399441055744.0;  // 1.5 * 2^52

// 2^k for integers k <= 1023; exactly 0 for k <= -1023.
template <class V>
STRUCTATTN_INLINE V power_of_two(V k) {
    const V bounded = larger(k, all_lanes<V>(-1023.0));
    return from_bits<V>((bits_of<V>(bounded + integer_shift) + 1023) << 52);
}

// exp(x) = mantissa * 2^exponent with |log2 mantissa| <= 1/2, for -2^50 <= x <= 0, or (any_size) any finite x
// <= 0.
template <class V>
struct Exponential {
    V mantissa, exponent;
};

template <bool any_size, class V>
STRUCTATTN_INLINE Exponential<V> exponential(V x) {
    // The first part of log 2 has so many trailing zeros that its multiples by |k| < 2^20 are exact.
    constexpr double log_two = 6.93147180369123816490e-01, log_two_rest = 1.90821492927058770002e-10;
    const V scaled = x * 1.44269504088896338700;
    V exponent = (scaled + integer_shift) - integer_shift;
    V rest = x - exponent * log_two;
    rest = rest - exponent * log_two_rest;
    if constexpr (any_size) {
        // Beyond 2^50 every double is as good as an integer: what is left of x is below its own rounding.
        const auto huge = scaled < all_lanes<V>(-0x1p50);
        exponent = huge ? scaled : exponent;
        rest = huge ? V{} : rest;
    }
    // The Taylor sum to the 13th power, even and odd powers apart: two short chains instead of a long one.
    constexpr double even[] = {
        1.0 / 479001600.0, 1.0 / 3628800.0, 1.0 / 40320.0, 1.0 / 720.0, 1.0 / 24.0, 0.5, 1.0};
    constexpr double odd[] = {
        1.0 / 6227020800.0, 1.0 / 39916800.0, 1.0 / 362880.0, 1.0 / 5040.0, 1.0 / 120.0, 1.0 / 6.0, 1.0};
    const V square = rest * rest;
    V even_sum = all_lanes<V>(even[0]), odd_sum = all_lanes<V>(odd[0]);
    repeat<6>([&](auto term) STRUCTATTN_INLINED {
        even_sum = even_sum * square + even[term + 1];
        odd_sum = odd_sum * square + odd[term + 1];
    });
    return {odd_sum * rest + even_sum, exponent};
}

}  // namespace structattn::STRUCTATTN_LEVEL
