// Registers full of numbers for the chain kernels, written with the compiler's vector extensions.
//
// A Vector<Real> is as wide as the level's registers. exponential() is exact to about one unit in the last
// place: 2^k times a polynomial (interpolation at Chebyshev nodes) in the remainder of x / log 2.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

namespace structattn::STRUCTATTN_LEVEL {

#if defined(__AVX512F__)
constexpr int VECTOR_BYTES = 64;
#elif defined(__AVX2__)
constexpr int VECTOR_BYTES = 32;
#else
constexpr int VECTOR_BYTES = 16;
#endif

template <typename Element>
struct VectorOf {
    typedef Element type __attribute__((vector_size(VECTOR_BYTES)));
};
template <typename Element>
using Vector = typename VectorOf<Element>::type;

template <typename Element>
constexpr int LANES = VECTOR_BYTES / static_cast<int>(sizeof(Element));

// The integer type of a Real's size: what comparisons of vectors give and what holds a Real's bits.
template <typename Real>
struct IntegerOf;
template <>
struct IntegerOf<float> {
    typedef int32_t type;
};
template <>
struct IntegerOf<double> {
    typedef int64_t type;
};
template <typename Real>
using Mask = Vector<typename IntegerOf<Real>::type>;

template <typename Real>
constexpr Real INFINITE = std::numeric_limits<Real>::infinity();

template <typename Real>
inline Vector<Real> load(const Real* address) {
    Vector<Real> vector;
    std::memcpy(&vector, address, sizeof vector);
    return vector;
}

template <typename Real>
inline void store(Real* address, Vector<Real> vector) {
    std::memcpy(address, &vector, sizeof vector);
}

template <typename Real>
inline Vector<Real> broadcast(Real value) {
    return Vector<Real>{} + value;
}

template <typename Register>
inline Register larger(Register a, Register b) {
    return a > b ? a : b;
}

template <typename Register>
inline Register smaller(Register a, Register b) {
    return a < b ? a : b;
}

// Which lane of the pair (first, second) goes where when blocks of `size` lanes are exchanged: even blocks of
// both (odd = 0) or odd blocks of both (odd = 1). Repeated for size 1, 2, 4, ... this transposes a square.
template <int lanes>
constexpr int exchange_source(int lane, int size, int odd) {
    return ((lane / size) & 1) * lanes + (lane & ~(2 * size - 1)) + (lane & (size - 1)) + odd * size;
}

template <typename Real, int size, int odd, int... lane>
inline Vector<Real> exchange_lanes(Vector<Real> first, Vector<Real> second,
                                   std::integer_sequence<int, lane...>) {
    return __builtin_shufflevector(first, second, exchange_source<LANES<Real>>(lane, size, odd)...);
}

template <typename Real, int size, int odd>
inline Vector<Real> exchange(Vector<Real> first, Vector<Real> second) {
    return exchange_lanes<Real, size, odd>(first, second, std::make_integer_sequence<int, LANES<Real>>());
}

// Lane r of the result is the sum of the lanes of rows[r]; rows holds LANES vectors and is used up.
template <typename Real, int size = 1>
inline Vector<Real> sum_of_each(Vector<Real>* rows) {
    if constexpr (size == LANES<Real>) {
        return rows[0];
    } else {
#pragma GCC unroll 16
        for (int pair = 0; pair < LANES<Real> / (2 * size); ++pair) {
            const Vector<Real> first = rows[2 * pair], second = rows[2 * pair + 1];
            rows[pair] = exchange<Real, size, 0>(first, second) + exchange<Real, size, 1>(first, second);
        }
        return sum_of_each<Real, 2 * size>(rows);
    }
}

template <typename Real, int size = 1>
inline void transpose(Vector<Real>* rows) {
    if constexpr (size < LANES<Real>) {
#pragma GCC unroll 16
        for (int row = 0; row < LANES<Real>; ++row) {
            if (row & size) continue;
            const Vector<Real> first = rows[row], second = rows[row + size];
            rows[row] = exchange<Real, size, 0>(first, second);
            rows[row + size] = exchange<Real, size, 1>(first, second);
        }
        transpose<Real, 2 * size>(rows);
    }
}

// Halves the distance each time; `combine` is the associative operation.
template <typename Real, int size, typename Combine>
inline Real fold(Vector<Real> vector, Combine combine) {
    if constexpr (size == LANES<Real>) {
        return vector[0];
    } else {
        return fold<Real, 2 * size>(
            combine(exchange<Real, size, 0>(vector, vector), exchange<Real, size, 1>(vector, vector)),
            combine);
    }
}

template <typename Real>
inline Real sum_of(Vector<Real> vector) {
    return fold<Real, 1>(vector, [](Vector<Real> a, Vector<Real> b) { return a + b; });
}

template <typename Real>
inline Real largest_of(Vector<Real> vector) {
    return fold<Real, 1>(vector, larger<Vector<Real>>);
}

template <typename Real>
inline Real smallest_of(Vector<Real> vector) {
    return fold<Real, 1>(vector, smaller<Vector<Real>>);
}

template <typename Register>
inline bool any(Register mask) {
    bool found = false;
    for (size_t lane = 0; lane < sizeof mask / sizeof mask[0]; ++lane) found |= mask[lane] != 0;
    return found;
}

// exp(x) for x <= 80 (float) or 700 (double); exactly 0 for -inf and below -80 or -700.
inline Vector<float> exponential(Vector<float> x) {
    constexpr float rounder = 0x1.8p23f;
    const Vector<float> shifted = x * 1.44269504f + rounder;
    const Vector<float> power = shifted - rounder;
    const Vector<float> rest = (x - power * 0x1.62e4p-1f) - power * 0x1.7f7d1cp-20f;
    Vector<float> result = rest * 0.00139411607f + 0.00837516829f;
    result = result * rest + 0.0416663523f;
    result = result * rest + 0.166664150f;
    result = result * rest + 0.5f;
    result = result * rest + 1.0f;
    result = result * rest + 1.0f;
    const Vector<uint32_t> scaled = (Vector<uint32_t>)result + ((Vector<uint32_t>)shifted << 23);
    return x > -80.0f ? (Vector<float>)scaled : Vector<float>{};
}

inline Vector<double> exponential(Vector<double> x) {
    constexpr double rounder = 0x1.8p52;
    const Vector<double> shifted = x * 1.4426950408889634 + rounder;
    const Vector<double> power = shifted - rounder;
    const Vector<double> rest = (x - power * 0x1.62e42fefa38p-1) - power * 0x1.ef35793c7673p-45;
    Vector<double> result = rest * 2.51100956118862372e-8 + 2.76327150716322541e-7;
    result = result * rest + 2.75572407617392593e-6;
    result = result * rest + 0.0000248014852783700626;
    result = result * rest + 0.00019841269890193706;
    result = result * rest + 0.00138888889525054065;
    result = result * rest + 0.00833333333331954556;
    result = result * rest + 0.0416666666664873796;
    result = result * rest + 0.166666666666666809;
    result = result * rest + 0.500000000000001848;
    result = result * rest + 1.0;
    result = result * rest + 1.0;
    const Vector<uint64_t> scaled = (Vector<uint64_t>)result + ((Vector<uint64_t>)shifted << 52);
    return x > -700.0 ? (Vector<double>)scaled : Vector<double>{};
}

constexpr double LOG_2 = 0.69314718055994530942;

// Leaves the mantissa, in [1, 2), of positive, finite, normal x and returns the exponent.
template <typename Real>
inline Mask<Real> take_exponent(Vector<Real>& x) {
    constexpr int MANTISSA_BITS = std::numeric_limits<Real>::digits - 1;
    constexpr int BIAS = std::numeric_limits<Real>::max_exponent - 1;
    const Mask<Real> exponent = ((Mask<Real>)x >> MANTISSA_BITS) - BIAS;
    x = (Vector<Real>)((Mask<Real>)x - (exponent << MANTISSA_BITS));
    return exponent;
}

// 0, 1, 2, ...
inline Mask<double> lane_indices() {
    Mask<double> indices;
    for (int lane = 0; lane < LANES<double>; ++lane) indices[lane] = lane;
    return indices;
}

// log(x) for positive, finite, normal x: the exponent, and 2 atanh((m - 1) / (m + 1)) of the mantissa m in
// [0.7, 1.4].
inline Vector<double> logarithm(Vector<double> x) {
    constexpr int64_t least_mantissa_bits = 0x3fe6a09e667f3bcd;  // sqrt(1/2)
    const Mask<double> bits = (Mask<double>)x - least_mantissa_bits;
    const Mask<double> exponent = bits >> 52;
    const Vector<double> mantissa = (Vector<double>)((Mask<double>)x - (exponent << 52));
    const Vector<double> z = (mantissa - 1.0) / (mantissa + 1.0), square = z * z;
    Vector<double> series = square * (1.0 / 21) + 1.0 / 19;
    series = series * square + 1.0 / 17;
    series = series * square + 1.0 / 15;
    series = series * square + 1.0 / 13;
    series = series * square + 1.0 / 11;
    series = series * square + 1.0 / 9;
    series = series * square + 1.0 / 7;
    series = series * square + 1.0 / 5;
    series = series * square + 1.0 / 3;
    return __builtin_convertvector(exponent, Vector<double>) * LOG_2 + (2 * z + 2 * z * square * series);
}

// As many numbers of another type as a register holds Reals, converted.
template <typename Real, typename Element>
struct PartOf {
    typedef Element type __attribute__((vector_size(LANES<Real> * sizeof(Element))));
};

template <typename Real, typename Element>
inline Vector<Real> load_as(const Element* address) {
    typename PartOf<Real, Element>::type part;
    std::memcpy(&part, address, sizeof part);
    return __builtin_convertvector(part, Vector<Real>);
}

template <typename Real, typename Element>
inline void store_as(Element* address, Vector<Real> values) {
    const auto part = __builtin_convertvector(values, typename PartOf<Real, Element>::type);
    std::memcpy(address, &part, sizeof part);
}

}  // namespace structattn::STRUCTATTN_LEVEL
