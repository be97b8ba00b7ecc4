"""Vector functions of other processors, so that the kernels are tested with all widths of vectors."""

from __future__ import annotations

from thunder_executors.packed_linear.vector_source import VECTORS

# Vectors of 16 numbers on a processor without AVX-512: the code that the compiler makes of them.
WIDE = """
typedef float Vector __attribute__((vector_size(64)));
typedef int32_t Words __attribute__((vector_size(64)));
typedef int16_t Pairs __attribute__((vector_size(64)));
constexpr int WIDTH = 16, TILE_ROWS = 14, DOT_ROWS = 6, DOT_COLUMNS = 4;
template <typename Choice>
inline Vector chosen(const Choice& choice) {
    Vector v;
    for (int i = 0; i < 16; i++) v[i] = choice(i / 4 * 4, i % 4);
    return v;
}
inline Vector join(const __m128 (&quarters)[4]) {
    return chosen([&](int lane, int i) { return quarters[lane / 4][i]; });
}
inline Vector lower_pairs(Vector a, Vector b) {
    return chosen([&](int lane, int i) { return (i % 2 ? b : a)[lane + i / 2]; });
}
inline Vector upper_pairs(Vector a, Vector b) {
    return chosen([&](int lane, int i) { return (i % 2 ? b : a)[lane + 2 + i / 2]; });
}
inline Vector lower_halves(Vector a, Vector b) {
    return chosen([&](int lane, int i) { return (i / 2 ? b : a)[lane + i % 2]; });
}
inline Vector upper_halves(Vector a, Vector b) {
    return chosen([&](int lane, int i) { return (i / 2 ? b : a)[lane + 2 + i % 2]; });
}
inline Vector swap_halves(Vector v) { return chosen([&](int lane, int i) { return v[(lane + i + 8) % 16]; }); }
inline Vector swap_quarters(Vector v) { return chosen([&](int lane, int i) { return v[(lane ^ 4) + i]; }); }
inline __m128 first_128_bits(Vector v) { return _mm_setr_ps(v[0], v[1], v[2], v[3]); }
inline Vector zero() { return Vector{}; }
inline Vector broadcast(const float* from) {
    Vector v;
    for (int i = 0; i < 16; i++) std::memcpy((float*)&v + i, from, 4);
    return v;
}
inline Vector add(Vector a, Vector b) { return a + b; }
inline Vector subtract(Vector a, Vector b) { return a - b; }
inline Vector multiply(Vector a, Vector b) { return a * b; }
inline Vector fma(Vector a, Vector b, Vector sum) { return a * b + sum; }
inline Vector fma_in_place(Vector a, Vector b, Vector sum) { return fma(a, b, sum); }
inline Vector constant(float value) { return Vector{} + value; }
inline Vector divide(Vector a, Vector b) { return a / b; }
inline Vector minimum(Vector a, Vector b) { return a < b ? a : b; }
inline Vector maximum(Vector a, Vector b) { return a > b ? a : b; }
inline Vector round_to_nearest(Vector v) { for (int i = 0; i < 16; i++) v[i] = __builtin_nearbyintf(v[i]); return v; }
inline Vector power_of_two(Vector exponent) {
    Words words;
    for (int i = 0; i < 16; i++) words[i] = ((int32_t)exponent[i] + 127) << 23;
    return (Vector)words;
}
inline Vector add_integers(Vector a, Vector b) { return (Vector)((Words)a + (Words)b); }
inline Vector fma_pairs(Vector a, Vector b, Vector sum) {
    Words words = (Words)sum;
    for (int i = 0; i < 32; i++) words[i / 2] += ((Pairs)a)[i] * ((Pairs)b)[i];
    return (Vector)words;
}
inline float sum_of(Vector values) { float sum = 0; for (int i = 0; i < 16; i++) sum += values[i]; return sum; }
inline int32_t integer_sum_of(Vector values) {
    int32_t sum = 0;
    for (int i = 0; i < 16; i++) sum += ((Words)values)[i];
    return sum;
}
template <typename Number> Vector load(const Number* from) {
    Vector v;
    for (int i = 0; i < 16; i++) v[i] = number(from[i]);
    return v;
}
inline Vector load(const float* from) { Vector v; std::memcpy(&v, from, 64); return v; }
inline Vector load_pairs(const int8_t* from) {
    Pairs v;
    for (int i = 0; i < 32; i++) v[i] = from[i];
    return (Vector)v;
}
inline Vector lower(const uint32_t* from) {
    Words words;
    for (int i = 0; i < 16; i++) words[i] = from[i] << 16;
    return (Vector)words;
}
inline Vector upper(const uint32_t* from) {
    Words words;
    for (int i = 0; i < 16; i++) words[i] = from[i] & 0xffff0000;
    return (Vector)words;
}
inline Vector codes_of(const uint8_t* from, int shift) {
    Vector v;
    for (int i = 0; i < 16; i++) v[i] = from[i] >> shift & 15;
    return v;
}
template <typename Number> void store(Number* to, Vector value) { for (int i = 0; i < 16; i++) put(to + i, value[i]); }
inline void store(float* to, Vector value) { std::memcpy(to, &value, 64); }
inline void store(int32_t* to, Vector value) { std::memcpy(to, &value, 64); }
"""

AVX2 = VECTORS.replace("#ifdef __AVX512F__", "#if 0")
