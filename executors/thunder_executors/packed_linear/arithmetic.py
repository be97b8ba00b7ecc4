"""The C++ source of the kinds of products: how each kind reads and multiplies numbers, and finishes the sums."""

from __future__ import annotations

KINDS = r"""
// The kinds of products. All kinds multiply words of 32 bits: narrower weights are widened when they are read.

// Stores the sum of the elements of each of four vectors.
template <typename K>
inline void store_totals(const Vector* sums, typename K::Sum* to) {
    const Vector a = K::plus(lower_pairs(sums[0], sums[1]), upper_pairs(sums[0], sums[1]));
    const Vector b = K::plus(lower_pairs(sums[2], sums[3]), upper_pairs(sums[2], sums[3]));
    Vector four = K::plus(lower_halves(a, b), upper_halves(a, b));
    four = K::plus(four, swap_halves(four));
    if constexpr (WIDTH == 16) four = K::plus(four, swap_quarters(four));
    _mm_storeu_ps((float*)to, first_128_bits(four));
}

// Numbers that are multiplied in float32, with a bias that is added to the sums.
template <typename Number, typename Weights = Number>
struct Floats {
    typedef Number Input, Extra, Result;
    typedef Weights Weight;
    typedef float Sum;
    static constexpr bool IN_GROUPS = false, PACKED = false;
    static constexpr int NUMBERS = 1;  // in a word
    static __m128 four_words(const Weight* from) { return four(from); }
    static Vector words(const Weight* from) { return load(from); }
    static void put_word(float* to, const Weight* from, int64_t) { *to = number(*from); }
    static void put_input(float* to, const Input* from, int64_t) { *to = number(*from); }
    static Vector multiply_add(Vector a, Vector b, Vector sum) { return fma(a, b, sum); }
    static Vector accumulate(Vector a, Vector b, Vector sum) { return fma_in_place(a, b, sum); }
    static Vector plus(Vector a, Vector b) { return add(a, b); }
    static float total(Vector values) { return sum_of(values); }
    static void totals_of_four(const Vector* sums, float* to) { store_totals<Floats>(sums, to); }
    static float product(const float* input, const Weight* weight, int64_t) { return *input * number(*weight); }
    static constexpr float NEUTRAL = 0.0f;
    static Vector finish(Vector sum, Vector bias) { return add(sum, bias); }
    static float finish(float sum, float bias) { return sum + bias; }
};

// Weights in float32 whose panels were packed before the call.
struct Packed : Floats<float> {
    static constexpr bool PACKED = true;
};

// 8-bit weights with a scale for each column. The sums are multiplied by the scales.
struct Scaled : Floats<BFloat16, int8_t> {
    static constexpr float NEUTRAL = 1.0f;
    static Vector finish(Vector sum, Vector scale) { return multiply(sum, scale); }
    static float finish(float sum, float scale) { return sum * scale; }
};

// 4-bit weights in blocks of 64 columns [in][32]: the byte [k][c] has the codes of columns c and c + 32. Each group of
// weights in a column has a scale and a zero, which are adjacent: a weight is (code - 8) * scale + zero.
struct Groups : Floats<BFloat16, uint8_t> {
    static constexpr bool IN_GROUPS = true;
};

// 8-bit integers on both sides, which are multiplied as pairs of 16 bits; 32-bit sums are exact.
struct Integers {
    typedef int8_t Input, Weight;
    typedef float Extra;
    typedef int32_t Result, Sum;
    static constexpr bool IN_GROUPS = false, PACKED = false;
    static constexpr int NUMBERS = 2;
    static constexpr float NEUTRAL = 0.0f;
    static __m128 four_words(const Weight* from) { return four_pairs(from); }
    static Vector words(const Weight* from) { return load_pairs(from); }
    static void put_word(float* to, const int8_t* from, int64_t count) {
        const int16_t pair[2] = {from[0], count > 1 ? from[1] : int8_t(0)};
        std::memcpy(to, pair, 4);
    }
    static void put_input(float* to, const int8_t* from, int64_t count) { put_word(to, from, count); }
    static Vector multiply_add(Vector a, Vector b, Vector sum) { return fma_pairs(a, b, sum); }
    static Vector accumulate(Vector a, Vector b, Vector sum) { return fma_pairs(a, b, sum); }
    static Vector plus(Vector a, Vector b) { return add_integers(a, b); }
    static int32_t total(Vector values) { return integer_sum_of(values); }
    static void totals_of_four(const Vector* sums, int32_t* to) { store_totals<Integers>(sums, to); }
    static int32_t product(const float* input, const int8_t* weight, int64_t count) {
        int16_t pair[2];
        std::memcpy(pair, input, 4);
        return pair[0] * weight[0] + (count > 1 ? pair[1] * weight[1] : 0);
    }
    static Vector finish(Vector sum, Vector) { return sum; }
    static int32_t finish(int32_t sum, float) { return sum; }
};
"""
