"""The C++ source of vectors of 32-bit words, with AVX-512 or AVX2: loads that widen, products, and rounded stores."""

from __future__ import annotations

NUMBERS = r"""
struct BFloat16 { uint16_t bits; };
struct Half { uint16_t bits; };

inline float number(float value) { return value; }
inline float number(int8_t value) { return value; }
inline float number(uint8_t value) { return value; }
inline float number(Half value) { return _cvtsh_ss(value.bits); }
inline float number(BFloat16 value) {
    const uint32_t bits = (uint32_t)value.bits << 16;
    float result;
    std::memcpy(&result, &bits, 4);
    return result;
}

inline void put(float* to, float value) { *to = value; }
inline void put(int32_t* to, int32_t value) { *to = value; }
inline void put(Half* to, float value) { to->bits = _cvtss_sh(value, _MM_FROUND_TO_NEAREST_INT); }
inline void put(BFloat16* to, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
    to->bits = is_nan ? 0x7fc0 : (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

// Four words of a weight: four floats, or four pairs of 16-bit integers.
inline __m128 four(const float* from) { return _mm_loadu_ps(from); }
inline __m128 four(const Half* from) { return _mm_cvtph_ps(_mm_loadl_epi64((const __m128i*)from)); }
inline __m128 four(const BFloat16* from) {
    const __m128i words = _mm_cvtepu16_epi32(_mm_loadl_epi64((const __m128i*)from));
    return _mm_castsi128_ps(_mm_slli_epi32(words, 16));
}
inline __m128 four(const int8_t* from) {
    int32_t bytes;
    std::memcpy(&bytes, from, 4);
    return _mm_cvtepi32_ps(_mm_cvtepi8_epi32(_mm_cvtsi32_si128(bytes)));
}
inline __m128 four_pairs(const int8_t* from) {
    return _mm_castsi128_ps(_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i*)from)));
}
"""

VECTORS = r"""
#ifdef __AVX512F__
typedef __m512 Vector;
constexpr int WIDTH = 16, TILE_ROWS = 14, DOT_ROWS = 6, DOT_COLUMNS = 4;
// `lower` and `upper` read the halves of words as numbers in bfloat16, and `codes_of` reads four bits of each byte.
inline __m512i bits(Vector values) { return _mm512_castps_si512(values); }
inline Vector zero() { return _mm512_setzero_ps(); }
inline Vector constant(float value) { return _mm512_set1_ps(value); }
inline Vector broadcast(const float* from) { return _mm512_set1_ps(*from); }
inline Vector add(Vector a, Vector b) { return _mm512_add_ps(a, b); }
inline Vector subtract(Vector a, Vector b) { return _mm512_sub_ps(a, b); }
inline Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
inline Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
inline Vector minimum(Vector a, Vector b) { return _mm512_min_ps(a, b); }
inline Vector maximum(Vector a, Vector b) { return _mm512_max_ps(a, b); }
inline Vector fma(Vector a, Vector b, Vector sum) { return _mm512_fmadd_ps(a, b, sum); }
inline Vector fma_in_place(Vector a, Vector b, Vector sum) { return fma(a, b, sum); }
inline Vector round_to_nearest(Vector value) { return _mm512_roundscale_ps(value, _MM_FROUND_TO_NEAREST_INT); }
inline Vector power_of_two(Vector exponent) {
    const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(exponent), _mm512_set1_epi32(127));
    return _mm512_castsi512_ps(_mm512_slli_epi32(biased, 23));
}
inline float sum_of(Vector values) { return _mm512_reduce_add_ps(values); }
inline Vector add_integers(Vector a, Vector b) {
    return _mm512_castsi512_ps(_mm512_add_epi32(bits(a), bits(b)));
}
inline Vector fma_pairs(Vector a, Vector b, Vector sum) {
    const Vector products = _mm512_castsi512_ps(_mm512_madd_epi16(bits(a), bits(b)));
    asm("vpaddd %1, %0, %0" : "+v"(sum) : "v"(products));  // with the intrinsic, g++ would spill the sums to memory
    return sum;
}
inline int32_t integer_sum_of(Vector values) { return _mm512_reduce_add_epi32(bits(values)); }
inline Vector load(const float* from) { return _mm512_loadu_ps(from); }
inline Vector load(const Half* from) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i*)from)); }
inline Vector load(const BFloat16* from) {
    const __m512i words = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i*)from));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}
inline Vector load(const int8_t* from) {
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i*)from)));
}
inline Vector load_pairs(const int8_t* from) {
    return _mm512_castsi512_ps(_mm512_cvtepi8_epi16(_mm256_loadu_si256((const __m256i*)from)));
}
inline Vector lower(const uint32_t* from) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(from), 16));
}
inline Vector upper(const uint32_t* from) {
    return _mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(from), _mm512_set1_epi32(0xffff0000)));
}
inline Vector codes_of(const uint8_t* from, int shift) {
    const __m512i words = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i*)from));
    const __m512i shifted = _mm512_srl_epi32(words, _mm_cvtsi32_si128(shift));
    return _mm512_cvtepi32_ps(_mm512_and_si512(shifted, _mm512_set1_epi32(15)));
}
inline Vector join(const __m128 (&quarters)[4]) {
    Vector whole = _mm512_castps128_ps512(quarters[0]);
    whole = _mm512_insertf32x4(whole, quarters[1], 1);
    whole = _mm512_insertf32x4(whole, quarters[2], 2);
    return _mm512_insertf32x4(whole, quarters[3], 3);
}
// Within each 128 bits of two vectors: interleave the lower or upper halves, or join the lower or upper halves.
inline Vector lower_pairs(Vector a, Vector b) { return _mm512_unpacklo_ps(a, b); }
inline Vector upper_pairs(Vector a, Vector b) { return _mm512_unpackhi_ps(a, b); }
inline Vector lower_halves(Vector a, Vector b) { return _mm512_shuffle_ps(a, b, 0x44); }
inline Vector upper_halves(Vector a, Vector b) { return _mm512_shuffle_ps(a, b, 0xee); }
inline Vector swap_halves(Vector value) { return _mm512_shuffle_f32x4(value, value, 0x4e); }
inline Vector swap_quarters(Vector value) { return _mm512_shuffle_f32x4(value, value, 0xb1); }
inline __m128 first_128_bits(Vector value) { return _mm512_castps512_ps128(value); }
inline void store(float* to, Vector value) { _mm512_storeu_ps(to, value); }
inline void store(int32_t* to, Vector value) { _mm512_storeu_ps(to, value); }
inline void store(Half* to, Vector value) {
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store(BFloat16* to, Vector value) {
    const __m512i words = bits(value), odd = _mm512_and_si512(_mm512_srli_epi32(words, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(words, _mm512_set1_epi32(0x7fff)), odd);
    rounded = _mm512_srli_epi32(rounded, 16);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    rounded = _mm512_mask_mov_epi32(rounded, is_nan, _mm512_set1_epi32(0x7fc0));
    _mm256_storeu_si256((__m256i*)to, _mm512_cvtepi32_epi16(rounded));
}
#else
typedef __m256 Vector;
constexpr int WIDTH = 8, TILE_ROWS = 6, DOT_ROWS = 4, DOT_COLUMNS = 3;
inline __m256i bits(Vector values) { return _mm256_castps_si256(values); }
inline Vector zero() { return _mm256_setzero_ps(); }
inline Vector constant(float value) { return _mm256_set1_ps(value); }
inline Vector broadcast(const float* from) { return _mm256_broadcast_ss(from); }
inline Vector add(Vector a, Vector b) { return _mm256_add_ps(a, b); }
inline Vector subtract(Vector a, Vector b) { return _mm256_sub_ps(a, b); }
inline Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
inline Vector divide(Vector a, Vector b) { return _mm256_div_ps(a, b); }
inline Vector minimum(Vector a, Vector b) { return _mm256_min_ps(a, b); }
inline Vector maximum(Vector a, Vector b) { return _mm256_max_ps(a, b); }
inline Vector fma(Vector a, Vector b, Vector sum) { return _mm256_fmadd_ps(a, b, sum); }
inline Vector fma_in_place(Vector a, Vector b, Vector sum) {
    asm("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));  // with the intrinsic, g++ would spill a sum to memory
    return sum;
}
inline Vector round_to_nearest(Vector value) {
    return _mm256_round_ps(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
}
inline Vector power_of_two(Vector exponent) {
    const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(exponent), _mm256_set1_epi32(127));
    return _mm256_castsi256_ps(_mm256_slli_epi32(biased, 23));
}
inline float sum_of(Vector values) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
inline Vector add_integers(Vector a, Vector b) {
    return _mm256_castsi256_ps(_mm256_add_epi32(bits(a), bits(b)));
}
inline Vector fma_pairs(Vector a, Vector b, Vector sum) {
    const Vector products = _mm256_castsi256_ps(_mm256_madd_epi16(bits(a), bits(b)));
    asm("vpaddd %1, %0, %0" : "+x"(sum) : "x"(products));  // with the intrinsic, g++ would spill the sums to memory
    return sum;
}
inline int32_t integer_sum_of(Vector values) {
    __m128i sum = _mm_add_epi32(_mm256_castsi256_si128(bits(values)), _mm256_extracti128_si256(bits(values), 1));
    sum = _mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(sum, _mm_shuffle_epi32(sum, 0xb1)));
}
inline Vector load(const float* from) { return _mm256_loadu_ps(from); }
inline Vector load(const Half* from) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i*)from)); }
inline Vector load(const BFloat16* from) {
    const __m256i words = _mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i*)from));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}
inline Vector load(const int8_t* from) {
    return _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i*)from)));
}
inline Vector load_pairs(const int8_t* from) {
    return _mm256_castsi256_ps(_mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i*)from)));
}
inline Vector lower(const uint32_t* from) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_loadu_si256((const __m256i*)from), 16));
}
inline Vector upper(const uint32_t* from) {
    const __m256i words = _mm256_loadu_si256((const __m256i*)from);
    return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(0xffff0000)));
}
inline Vector codes_of(const uint8_t* from, int shift) {
    const __m256i words = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i*)from));
    const __m256i shifted = _mm256_srl_epi32(words, _mm_cvtsi32_si128(shift));
    return _mm256_cvtepi32_ps(_mm256_and_si256(shifted, _mm256_set1_epi32(15)));
}
inline Vector join(const __m128 (&halves)[2]) {
    return _mm256_insertf128_ps(_mm256_castps128_ps256(halves[0]), halves[1], 1);
}
inline Vector lower_pairs(Vector a, Vector b) { return _mm256_unpacklo_ps(a, b); }
inline Vector upper_pairs(Vector a, Vector b) { return _mm256_unpackhi_ps(a, b); }
inline Vector lower_halves(Vector a, Vector b) { return _mm256_shuffle_ps(a, b, 0x44); }
inline Vector upper_halves(Vector a, Vector b) { return _mm256_shuffle_ps(a, b, 0xee); }
inline Vector swap_halves(Vector value) { return _mm256_permute2f128_ps(value, value, 1); }
inline Vector swap_quarters(Vector value) { return value; }  // two halves of 128 bits have nothing to swap
inline __m128 first_128_bits(Vector value) { return _mm256_castps256_ps128(value); }
inline void store(float* to, Vector value) { _mm256_storeu_ps(to, value); }
inline void store(int32_t* to, Vector value) { _mm256_storeu_si256((__m256i*)to, bits(value)); }
inline void store(Half* to, Vector value) {
    _mm_storeu_si128((__m128i*)to, _mm256_cvtps_ph(value, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
}
inline void store(BFloat16* to, Vector value) {
    const __m256i words = bits(value), odd = _mm256_and_si256(_mm256_srli_epi32(words, 16), _mm256_set1_epi32(1));
    __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(words, _mm256_set1_epi32(0x7fff)), odd);
    rounded = _mm256_srli_epi32(rounded, 16);
    const __m256i is_nan = bits(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    rounded = _mm256_blendv_epi8(rounded, _mm256_set1_epi32(0x7fc0), is_nan);
    const __m256i narrow = _mm256_permute4x64_epi64(_mm256_packus_epi32(rounded, rounded), 0x08);
    _mm_storeu_si128((__m128i*)to, _mm256_castsi256_si128(narrow));
}
#endif
"""

# The exponential function splits its argument into a multiple of ln(2) and a rest of at most ln(2) / 2, and evaluates
# the polynomial of Cephes (`expf`) at the rest. Its result is infinity from 88.4 on.
ACTIVATIONS = r"""
inline Vector exponential(Vector x) {
    const Vector bounded = maximum(constant(-80.0f), minimum(constant(88.8f), x));
    const Vector exponent = round_to_nearest(multiply(bounded, constant(1.44269504f)));
    Vector rest = fma(exponent, constant(-0.693359375f), bounded);
    rest = fma(exponent, constant(2.12194440e-4f), rest);
    Vector sum = constant(1.9875691500e-4f);
    for (float factor : {1.3981999507e-3f, 8.3334519073e-3f, 4.1665795894e-2f, 1.6666665459e-1f, 5.0000001201e-1f})
        sum = fma(sum, rest, constant(factor));
    sum = add(fma(sum, multiply(rest, rest), rest), constant(1.0f));
    return multiply(sum, power_of_two(exponent));
}

// x / (1 + exp(-exponent))
inline Vector gated(Vector x, Vector exponent) {
    return divide(x, add(constant(1.0f), exponential(multiply(exponent, constant(-1.0f)))));
}

struct Relu {
    static Vector of(Vector x) { return maximum(zero(), x); }
};
struct Silu {
    static Vector of(Vector x) { return gated(x, x); }
};
struct Hardswish {
    static Vector of(Vector x) {
        const Vector gate = minimum(constant(6.0f), maximum(zero(), add(x, constant(3.0f))));
        return multiply(x, multiply(gate, constant(1.0f / 6.0f)));
    }
};
struct GeluByTanh {
    static Vector of(Vector x) {
        const Vector cubic = fma(multiply(x, x), constant(0.044715f), constant(1.0f));
        return gated(x, multiply(multiply(x, cubic), constant(1.5957691216f)));
    }
};
// The error function of x / sqrt(2): x times a polynomial in x * x, with an error of at most 8.4e-8, for x between
// -5.5155 and 5.5155; beyond, the function is constant.
inline Vector error_function(Vector x) {
    const Vector bounded = minimum(constant(5.5155f), maximum(constant(-5.5155f), x));
    const Vector scaled_square = fma(multiply(bounded, bounded), constant(0.0657446161f), constant(-1.0f));
    Vector sum = constant(0.00112882932f);
    for (float factor : {-0.00285914843f, 0.00209390977f, -0.00246037543f, 0.00866167992f, -0.0156651121f,
                         0.0211882237f, -0.0295476634f, 0.0407612324f, -0.0523244403f, 0.0641408637f, -0.0774387494f,
                         0.0952384323f, -0.127992928f, 0.256382495f})
        sum = fma(sum, scaled_square, constant(factor));
    return minimum(constant(1.0f), maximum(constant(-1.0f), multiply(bounded, sum)));
}

struct Gelu {
    static Vector of(Vector x) { return multiply(multiply(x, constant(0.5f)), add(constant(1.0f), error_function(x))); }
};

template <typename Activation>
void apply_to_all(float* values, int64_t count) {
    for (int64_t i = 0; i < count; i += WIDTH) store(values + i, Activation::of(load(values + i)));
}

// Applies an activation, by its number in `activations.py` or in the `region.py` of convolutions, to values whose count
// is a multiple of a vector's width.
inline void activate(int64_t activation, float* values, int64_t count) {
    switch (activation) {
        case 1: apply_to_all<Relu>(values, count); break;
        case 2: apply_to_all<Silu>(values, count); break;
        case 3: apply_to_all<Gelu>(values, count); break;
        case 4: apply_to_all<GeluByTanh>(values, count); break;
        case 6: apply_to_all<Hardswish>(values, count); break;
    }
}
"""
