"""The C++ source of the matrix product: a register tile over packed panels, and dot products for few rows."""

from __future__ import annotations

NAME = "packed_linear"  # the function in the extension module
# The arguments: input, weight, bias, result, rows, in, out, input row stride, weight row stride, whether there is a
# bias.
ARGUMENTS = (*("const float*",) * 3, "float*", *("int64_t",) * 6)

SOURCE = r"""
#include <immintrin.h>
#include <omp.h>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <new>

#define UNROLLED _Pragma("GCC unroll 32")

namespace products {

#ifdef __AVX512F__
typedef __m512 Vector;
constexpr int WIDTH = 16, TILE_ROWS = 14;
inline Vector zero() { return _mm512_setzero_ps(); }
inline Vector load(const float* from) { return _mm512_loadu_ps(from); }
inline void store(float* to, Vector value) { _mm512_storeu_ps(to, value); }
inline Vector broadcast(const float* from) { return _mm512_set1_ps(*from); }
inline Vector add(Vector one, Vector other) { return _mm512_add_ps(one, other); }
inline Vector fma(Vector one, Vector other, Vector sum) { return _mm512_fmadd_ps(one, other, sum); }
inline float sum_of(Vector values) { return _mm512_reduce_add_ps(values); }
#else
typedef __m256 Vector;
constexpr int WIDTH = 8, TILE_ROWS = 6;
inline Vector zero() { return _mm256_setzero_ps(); }
inline Vector load(const float* from) { return _mm256_loadu_ps(from); }
inline void store(float* to, Vector value) { _mm256_storeu_ps(to, value); }
inline Vector broadcast(const float* from) { return _mm256_broadcast_ss(from); }
inline Vector add(Vector one, Vector other) { return _mm256_add_ps(one, other); }
inline Vector fma(Vector one, Vector other, Vector sum) { return _mm256_fmadd_ps(one, other, sum); }
inline float sum_of(Vector values) {
    __m128 sum = _mm_add_ps(_mm256_castps256_ps128(values), _mm256_extractf128_ps(values, 1));
    sum = _mm_add_ps(sum, _mm_movehl_ps(sum, sum));
    return _mm_cvtss_f32(_mm_add_ss(sum, _mm_movehdup_ps(sum)));
}
#endif

constexpr int PANEL = 2 * WIDTH;           // columns of the result whose weights are packed together
constexpr int64_t MOST_DEPTH = 512;        // of a packed panel, which stays in a core's cache, and of a partial sum
constexpr int64_t MOST_INPUT = 2 << 20;    // bytes of the input that are multiplied by all panels in turn
constexpr int64_t FEW_ROWS = 16;           // up to which packing costs more than it saves
constexpr int64_t FETCHED_COLUMNS = 16;    // by which dot products prefetch weights
constexpr int64_t PER_THREAD = 1 << 16;    // multiplications that are worth a thread

// result[row, column] = bias[column] + sum over k of input[row, k] * weight[column, k]
struct Product {
    const float *input, *weight, *bias;
    float* result;
    int64_t rows, in, out, input_stride, weight_stride;
};

// Multiplies some rows of the input by a panel, from a depth on; the sums stay in registers.
template <int ROWS>
void tile(const Product& p, int64_t row, int64_t column, int64_t depth, int64_t count, const float* panel) {
    const int width = std::min<int64_t>(PANEL, p.out - column);
    const bool whole = width == PANEL, first = depth == 0, last = depth + count == p.in;
    alignas(64) float edge[ROWS * PANEL];
    float* result = p.result + row * p.out + column;
    float* to = whole ? result : edge;
    const int64_t stride = whole ? p.out : PANEL;
    if (!whole && !first)
        for (int r = 0; r < ROWS; r++) {
            std::fill_n(edge + r * PANEL, PANEL, 0.0f);
            std::copy_n(result + r * p.out, width, edge + r * PANEL);
        }
    Vector sums[ROWS][2];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int half = 0; half < 2; half++)
            sums[r][half] = zero();
    const float* input = p.input + row * p.input_stride + depth;
    for (int64_t k = 0; k < count; k++) {
        const Vector left = load(panel + k * PANEL), right = load(panel + k * PANEL + WIDTH);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Vector value = broadcast(input + r * p.input_stride + k);
            sums[r][0] = fma(value, left, sums[r][0]);
            sums[r][1] = fma(value, right, sums[r][1]);
        }
    }
    if (!first)  // each block is summed separately, because errors grow with the length of a sum
        UNROLLED for (int r = 0; r < ROWS; r++)
            UNROLLED for (int half = 0; half < 2; half++)
                sums[r][half] = add(load(to + r * stride + half * WIDTH), sums[r][half]);
    if (last && p.bias) {
        alignas(64) float bias[PANEL] = {};
        std::copy_n(p.bias + column, width, bias);
        UNROLLED for (int r = 0; r < ROWS; r++)
            UNROLLED for (int half = 0; half < 2; half++)
                sums[r][half] = add(sums[r][half], load(bias + half * WIDTH));
    }
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int half = 0; half < 2; half++)
            store(to + r * stride + half * WIDTH, sums[r][half]);
    if (!whole)
        for (int r = 0; r < ROWS; r++) std::copy_n(edge + r * PANEL, width, result + r * p.out);
}

typedef void (*Tile)(const Product&, int64_t, int64_t, int64_t, int64_t, const float*);
template <int ROWS> struct Tiles {
    static Tile of(int64_t rows) { return rows >= ROWS ? tile<ROWS> : Tiles<ROWS - 1>::of(rows); }
};
template <> struct Tiles<1> {
    static Tile of(int64_t) { return tile<1>; }
};

// Transposes eight rows of eight numbers into parts of rows of a panel.
inline void transpose(const float* from, int64_t stride, float* to) {
    __m256 a[8], b[8];
    UNROLLED for (int i = 0; i < 8; i++) {
        const float* upper = from + i % 4 * stride + i / 4 * 4;
        a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(upper)), _mm_loadu_ps(upper + 4 * stride), 1);
    }
    UNROLLED for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_ps(a[i], a[i + 1]);
        b[i + 1] = _mm256_unpackhi_ps(a[i], a[i + 1]);
        b[i + 2] = _mm256_unpacklo_ps(a[i + 2], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_ps(a[i + 2], a[i + 3]);
        _mm256_storeu_ps(to + i * PANEL, _mm256_shuffle_ps(b[i], b[i + 2], 0x44));
        _mm256_storeu_ps(to + (i + 1) * PANEL, _mm256_shuffle_ps(b[i], b[i + 2], 0xee));
        _mm256_storeu_ps(to + (i + 2) * PANEL, _mm256_shuffle_ps(b[i + 1], b[i + 3], 0x44));
        _mm256_storeu_ps(to + (i + 3) * PANEL, _mm256_shuffle_ps(b[i + 1], b[i + 3], 0xee));
    }
}

// Packs weights of up to PANEL columns in the order in which a tile reads them; missing columns are zeros.
inline void pack(const float* weight, int64_t stride, int64_t count, int width, float* panel) {
    int64_t k = 0;
    if (width == PANEL)
        for (; k + 8 <= count; k += 8)
            UNROLLED for (int c = 0; c < PANEL; c += 8)
                transpose(weight + c * stride + k, stride, panel + k * PANEL + c);
    for (; k < count; k++)
        for (int c = 0; c < PANEL; c++) panel[k * PANEL + c] = c < width ? weight[c * stride + k] : 0.0f;
}

// Prefetches lines of the next weights while the tiles of a panel are computed.
struct Fetch {
    const float* weight;
    int64_t stride, lines, done = 0;
    void until(int64_t line) {
        for (; done < std::min(line, lines); done++)
            _mm_prefetch((const char*)(weight + done % PANEL * stride + done / PANEL * 16), _MM_HINT_T1);
    }
};

// Computes one panel of the result, for a block of rows.
inline void panel_of(const Product& p, int64_t row, int64_t rows, int64_t column, int64_t depth, float* panel) {
    const int width = std::min<int64_t>(PANEL, p.out - column);
    const float* weight = p.weight + column * p.weight_stride;
    for (int64_t k = 0; k < p.in; k += depth) {
        const int64_t count = std::min(depth, p.in - k), left = p.in - k - count;
        pack(weight + k, p.weight_stride, count, width, panel);
        const bool deeper = left > 0, more = deeper ? width == PANEL : column + 2 * PANEL <= p.out;
        const float* next = deeper ? weight + k + count : weight + PANEL * p.weight_stride;
        const int64_t length = std::min(depth, deeper ? left : p.in);
        Fetch fetch{next, p.weight_stride, more ? PANEL * (length / 16) : 0};
        for (int64_t r = 0; r < rows; r += TILE_ROWS) {
            Tiles<TILE_ROWS>::of(rows - r)(p, row + r, column, k, count, panel);
            fetch.until(fetch.lines * (r + TILE_ROWS) / rows);
        }
    }
}

// Computes dot products of some rows with some columns, with vectors along the depth, without packing.
template <int ROWS, int COLUMNS>
void dots(const Product& p, int64_t row, int64_t column) {
    const float* input = p.input + row * p.input_stride;
    const float* weight = p.weight + column * p.weight_stride;
    const bool fetches = row == 0 && column + COLUMNS + FETCHED_COLUMNS <= p.out;
    Vector sums[ROWS][COLUMNS];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int c = 0; c < COLUMNS; c++) sums[r][c] = zero();
    int64_t k = 0;
    for (; k + WIDTH <= p.in; k += WIDTH) {
        Vector columns[COLUMNS];
        UNROLLED for (int c = 0; c < COLUMNS; c++) columns[c] = load(weight + c * p.weight_stride + k);
        if (fetches && k % 16 == 0)
            UNROLLED for (int c = 0; c < COLUMNS; c++)
                _mm_prefetch((const char*)(weight + (c + FETCHED_COLUMNS) * p.weight_stride + k), _MM_HINT_T0);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Vector value = load(input + r * p.input_stride + k);
            UNROLLED for (int c = 0; c < COLUMNS; c++) sums[r][c] = fma(value, columns[c], sums[r][c]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            float sum = 0.0f;
            for (int64_t rest = k; rest < p.in; rest++)
                sum += input[r * p.input_stride + rest] * weight[c * p.weight_stride + rest];
            sum += sum_of(sums[r][c]);
            p.result[(row + r) * p.out + column + c] = p.bias ? sum + p.bias[column + c] : sum;
        }
}

template <int ROWS, int COLUMNS>
void dots_of(const Product& p, int64_t row, int64_t first, int64_t last) {
    for (; first + COLUMNS <= last; first += COLUMNS) dots<ROWS, COLUMNS>(p, row, first);
    for (; first < last; first++) dots<ROWS, 1>(p, row, first);
}

// Computes some columns of the result for a few rows.
inline void columns_of(const Product& p, int64_t first, int64_t last) {
    int64_t row = 0;
    for (; row + 4 <= p.rows; row += 4) dots_of<4, 3>(p, row, first, last);
    switch (p.rows - row) {
        case 3: dots_of<3, 4>(p, row, first, last); break;
        case 2: dots_of<2, 4>(p, row, first, last); break;
        case 1: dots_of<1, 8>(p, row, first, last); break;
    }
}

inline int64_t divided(int64_t number, int64_t by) { return (number + by - 1) / by; }

struct Free {
    void operator()(float* memory) const { std::free(memory); }
};

// Divides the tasks evenly among threads and calls `work(first, last, thread)`.
template <typename Work>
void share(int64_t tasks, int64_t threads, const Work& work) {
    if (threads <= 1) return work(0, tasks, 0);
#pragma omp parallel num_threads(threads)
    {
        const int64_t count = omp_get_num_threads(), thread = omp_get_thread_num();
        work(tasks * thread / count, tasks * (thread + 1) / count, thread);
    }
}

inline void multiply_few(const Product& p, int64_t threads) {
    const int64_t blocks = divided(p.out, FETCHED_COLUMNS);
    share(blocks, std::min(threads, blocks), [&](int64_t first, int64_t last, int64_t) {
        for (int64_t block = first; block < last; block++)
            columns_of(p, block * FETCHED_COLUMNS, std::min((block + 1) * FETCHED_COLUMNS, p.out));
    });
}

inline void multiply_many(const Product& p, int64_t threads) {
    const int64_t panels = divided(p.out, PANEL);
    const int64_t depth = divided(divided(p.in, divided(p.in, MOST_DEPTH)), 16) * 16;
    const int64_t fitting = std::max<int64_t>(MOST_INPUT / (4 * depth), 16 * TILE_ROWS);
    const int64_t for_threads = std::min(divided(2 * threads, panels), divided(p.rows, 4 * TILE_ROWS));
    const int64_t blocks = std::max({divided(p.rows, fitting), threads > 1 ? for_threads : 1, int64_t(1)});
    const int64_t height = divided(divided(p.rows, blocks), TILE_ROWS) * TILE_ROWS;
    const int64_t tasks = panels * divided(p.rows, height);
    threads = std::min(threads, tasks);
    std::unique_ptr<float, Free> panel((float*)std::aligned_alloc(64, threads * depth * PANEL * sizeof(float)));
    if (!panel) throw std::bad_alloc();
    share(tasks, threads, [&](int64_t first, int64_t last, int64_t thread) {
        for (int64_t task = first; task < last; task++) {
            const int64_t row = task / panels * height, column = task % panels * PANEL;
            float* own = panel.get() + thread * depth * PANEL;
            panel_of(p, row, std::min(height, p.rows - row), column, depth, own);
        }
    });
}

}  // namespace products

void kernel(const float* input, const float* weight, const float* bias, float* result, int64_t rows, int64_t in,
            int64_t out, int64_t input_stride, int64_t weight_stride, int64_t has_bias) {
    products::Product p{input, weight, has_bias ? bias : nullptr, result, rows, in, out, input_stride, weight_stride};
    if (rows == 0) return;
    const int64_t most = omp_in_parallel() ? 1 : omp_get_max_threads();
    const int64_t threads = std::min(most, 1 + rows * in * out / products::PER_THREAD);
    if (rows <= products::FEW_ROWS) products::multiply_few(p, threads);
    else products::multiply_many(p, threads);
}
"""
