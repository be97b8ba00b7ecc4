"""The C++ source of the matrix product: a register tile over packed panels, and dot products for few rows."""

from __future__ import annotations

from thunder_executors.packed_linear.arithmetic import KINDS
from thunder_executors.packed_linear.vectors import ACTIVATIONS, NUMBERS, VECTORS

NAME = "packed_linear"  # the function in the extension module
# The arguments: input, weight, bias or scales, result, rows, in, out, input row stride, weight row stride or the length
# of a group, whether there is a bias or scales, and the number of an activation or 0.
ARGUMENTS = (*("const void*",) * 3, "void*", *("int64_t",) * 7)

HEADERS = r"""
#include <immintrin.h>
#include <omp.h>
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <new>
#include <type_traits>

#define UNROLLED _Pragma("GCC unroll 32")

namespace products {
"""

CONSTANTS = r"""
constexpr int PANEL = 2 * WIDTH;           // columns of the result whose weights are packed together
constexpr int64_t MOST_DEPTH = 512;        // words of a packed column, which stays in a core's cache; of a partial sum
constexpr int64_t MOST_INPUT = 2 << 20;    // bytes of the input that are multiplied by all panels in turn
constexpr int64_t FEW_ROWS = 16;           // up to which packing costs more than it saves
constexpr int64_t FETCHED_COLUMNS = 16;    // by which dot products prefetch weights
constexpr int64_t PER_THREAD = 1 << 16;    // multiplications that are worth a thread
constexpr int64_t LINE = 64;               // bytes that a prefetch reads
constexpr int64_t BLOCK = 64;              // columns whose 4-bit weights are stored together

"""

PRODUCTS = r"""
// result[row, column] = activation(finished(sum over k of input[row, k] * weight[column, k], extra[column]))
template <typename K>
struct Product {
    const float* input;  // as words
    const typename K::Weight* weight;
    const typename K::Extra* extra;
    typename K::Result* result;
    int64_t rows, in, words, out, input_stride;
    int64_t weight_stride;  // of weights in groups, the length of a group
    int64_t activation;

    float extra_of(int64_t column) const { return extra ? number(extra[column]) : K::NEUTRAL; }
};

// Multiplies some rows of the input by a panel, from a depth on; the sums stay in registers.
template <typename K, int ROWS>
void tile(const Product<K>& p, int64_t row, int64_t column, int64_t depth, int64_t count, const float* panel,
          float* partial) {
    Vector sums[ROWS][2];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int half = 0; half < 2; half++)
            sums[r][half] = zero();
    const float* input = p.input + row * p.input_stride + depth;
    for (int64_t k = 0; k < count; k++) {
        const Vector left = load(panel + k * PANEL), right = load(panel + k * PANEL + WIDTH);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Vector value = broadcast(input + r * p.input_stride + k);
            sums[r][0] = K::multiplied(value, left, sums[r][0]);
            sums[r][1] = K::multiplied(value, right, sums[r][1]);
        }
    }
    if (depth > 0)  // each block is summed separately, because errors grow with the length of a sum
        UNROLLED for (int r = 0; r < ROWS; r++)
            UNROLLED for (int half = 0; half < 2; half++)
                sums[r][half] = K::added(load(partial + r * PANEL + half * WIDTH), sums[r][half]);
    if (depth + count < p.words) {
        UNROLLED for (int r = 0; r < ROWS; r++)
            UNROLLED for (int half = 0; half < 2; half++)
                store(partial + r * PANEL + half * WIDTH, sums[r][half]);
        return;
    }
    const int width = std::min<int64_t>(PANEL, p.out - column);
    if (p.extra && !K::IN_GROUPS) {
        alignas(64) float extra[PANEL] = {};
        for (int c = 0; c < width; c++) extra[c] = p.extra_of(column + c);
        UNROLLED for (int r = 0; r < ROWS; r++)
            UNROLLED for (int half = 0; half < 2; half++)
                sums[r][half] = K::finished(sums[r][half], load(extra + half * WIDTH));
    }
    if (std::is_same<typename K::Result, float>::value && p.activation) {
        alignas(64) float values[ROWS * PANEL];
        UNROLLED for (int r = 0; r < ROWS; r++)
            UNROLLED for (int half = 0; half < 2; half++)
                store(values + r * PANEL + half * WIDTH, sums[r][half]);
        activate(p.activation, values, ROWS * PANEL);
        UNROLLED for (int r = 0; r < ROWS; r++)
            UNROLLED for (int half = 0; half < 2; half++)
                sums[r][half] = load(values + r * PANEL + half * WIDTH);
    }
    typename K::Result edge[ROWS * PANEL];
    typename K::Result* result = p.result + row * p.out + column;
    typename K::Result* to = width == PANEL ? result : edge;
    const int64_t stride = width == PANEL ? p.out : PANEL;
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int half = 0; half < 2; half++)
            store(to + r * stride + half * WIDTH, sums[r][half]);
    if (width < PANEL)
        for (int r = 0; r < ROWS; r++) std::copy_n(edge + r * PANEL, width, result + r * p.out);
}

template <typename K>
using Tile = void (*)(const Product<K>&, int64_t, int64_t, int64_t, int64_t, const float*, float*);
template <typename K, int ROWS>
Tile<K> tile_of(int64_t rows) {
    if constexpr (ROWS == 1) return tile<K, 1>;
    else return rows >= ROWS ? tile<K, ROWS> : tile_of<K, ROWS - 1>(rows);
}

// Transposes eight rows of eight words into parts of rows of a panel.
template <typename K>
inline void transpose(const typename K::Weight* from, int64_t stride, float* to) {
    __m256 a[8], b[8];
    UNROLLED for (int i = 0; i < 8; i++) {
        const typename K::Weight* upper = from + i % 4 * stride + i / 4 * 4 * K::NUMBERS;
        const __m128 low = K::four_words(upper), high = K::four_words(upper + 4 * stride);
        a[i] = _mm256_insertf128_ps(_mm256_castps128_ps256(low), high, 1);
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

// Packs `numbers` weights of each of up to PANEL columns as words, in the order in which a tile reads them; missing
// numbers and columns are zeros.
template <typename K>
inline void pack(const typename K::Weight* weight, int64_t stride, int64_t numbers, int width, float* panel) {
    int64_t k = 0;
    if (width == PANEL)
        for (; (k + 8) * K::NUMBERS <= numbers; k += 8)
            UNROLLED for (int c = 0; c < PANEL; c += 8)
                transpose<K>(weight + c * stride + k * K::NUMBERS, stride, panel + k * PANEL + c);
    for (; k * K::NUMBERS < numbers; k++)
        for (int c = 0; c < PANEL; c++) {
            const int64_t n = k * K::NUMBERS;
            if (c < width) K::put_word(panel + k * PANEL + c, weight + c * stride + n, numbers - n);
            else panel[k * PANEL + c] = 0.0f;
        }
}

// Packs some 4-bit weights of each of up to PANEL columns as numbers, from a depth on.
template <typename K>
inline void pack_groups(const Product<K>& p, int64_t column, int64_t depth, int64_t count, int width, float* panel) {
    const int64_t half = column % BLOCK / (BLOCK / 2), length = p.weight_stride;
    const uint8_t* codes = p.weight + (column / BLOCK * p.in + depth) * (BLOCK / 2) + column % (BLOCK / 2);
    for (int64_t k = 0; k < count;) {
        const int64_t group = (depth + k) / length, last = std::min(count, (group + 1) * length - depth);
        alignas(64) uint32_t numbers[PANEL] = {};
        std::memcpy(numbers, p.extra + (group * p.out + column) * 2, 4 * width);
        Vector scales[2], zeros[2];
        UNROLLED for (int part = 0; part < 2; part++) {
            scales[part] = lower(numbers + part * WIDTH);
            zeros[part] = fma(scales[part], constant(-8.0f), upper(numbers + part * WIDTH));
        }
        for (; k < last; k++)
            UNROLLED for (int part = 0; part < 2; part++) {
                const Vector code = codes_of(codes + k * (BLOCK / 2) + part * WIDTH, 4 * half);
                store(panel + k * PANEL + part * WIDTH, fma(code, scales[part], zeros[part]));
            }
    }
}

// Prefetches lines of the next weights while the tiles of a panel are computed.
template <typename Weight>
struct Fetch {
    const Weight* weight;
    int64_t stride, lines, done = 0;
    void until(int64_t line) {
        for (; done < std::min(line, lines); done++)
            _mm_prefetch((const char*)(weight + done % PANEL * stride) + done / PANEL * LINE, _MM_HINT_T1);
    }
};

// Computes one panel of the result, for a block of rows.
template <typename K>
void panel_of(const Product<K>& p, int64_t row, int64_t rows, int64_t column, int64_t depth, float* panel) {
    typedef typename K::Weight Weight;
    const int width = std::min<int64_t>(PANEL, p.out - column);
    const Weight* weight = p.weight + column * p.weight_stride;
    float* partial = panel + depth * PANEL;
    for (int64_t k = 0; k < p.words; k += depth) {
        const int64_t count = std::min(depth, p.words - k), left = p.words - k - count;
        if constexpr (K::IN_GROUPS) pack_groups(p, column, k, count, width, panel);
        else pack<K>(weight + k * K::NUMBERS, p.weight_stride, std::min(count * K::NUMBERS, p.in - k * K::NUMBERS),
                     width, panel);
        const bool deeper = left > 0;
        const bool more = !K::IN_GROUPS && (deeper ? width == PANEL : column + 2 * PANEL <= p.out);
        const Weight* next = deeper ? weight + (k + count) * K::NUMBERS : weight + PANEL * p.weight_stride;
        const int64_t length = std::min(depth, deeper ? left : p.words) * K::NUMBERS * sizeof(Weight);
        Fetch<Weight> fetch{next, p.weight_stride, more ? PANEL * (length / LINE) : 0};
        for (int64_t r = 0; r < rows; r += TILE_ROWS) {
            tile_of<K, TILE_ROWS>(rows - r)(p, row + r, column, k, count, panel, partial + r * PANEL);
            fetch.until(fetch.lines * (r + TILE_ROWS) / rows);
        }
    }
}

// Computes dot products of some rows with some columns, with vectors along the depth, without packing.
template <typename K, int ROWS, int COLUMNS>
void dots(const Product<K>& p, int64_t row, int64_t column) {
    typedef typename K::Weight Weight;
    constexpr int64_t LINE_WORDS = LINE / (sizeof(Weight) * K::NUMBERS);
    const float* input = p.input + row * p.input_stride;
    const Weight* weight = p.weight + column * p.weight_stride;
    const bool fetches = row == 0 && column + COLUMNS + FETCHED_COLUMNS <= p.out;
    Vector sums[ROWS][COLUMNS];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int c = 0; c < COLUMNS; c++) sums[r][c] = zero();
    int64_t k = 0;
    for (; (k + WIDTH) * K::NUMBERS <= p.in; k += WIDTH) {
        Vector columns[COLUMNS];
        UNROLLED for (int c = 0; c < COLUMNS; c++)
            columns[c] = K::words(weight + c * p.weight_stride + k * K::NUMBERS);
        if (fetches && k % LINE_WORDS == 0)
            UNROLLED for (int c = 0; c < COLUMNS; c++)
                _mm_prefetch((const char*)(weight + (c + FETCHED_COLUMNS) * p.weight_stride + k * K::NUMBERS),
                             _MM_HINT_T0);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Vector value = load(input + r * p.input_stride + k);
            UNROLLED for (int c = 0; c < COLUMNS; c++) sums[r][c] = K::multiplied(value, columns[c], sums[r][c]);
        }
    }
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            typename K::Sum sum = 0;
            for (int64_t rest = k; rest < p.words; rest++) {
                const int64_t n = rest * K::NUMBERS;
                sum += K::product(input + r * p.input_stride + rest, weight + c * p.weight_stride + n, p.in - n);
            }
            sum += K::total(sums[r][c]);
            if (p.extra) sum = K::finished(sum, p.extra_of(column + c));
            put(p.result + (row + r) * p.out + column + c, sum);
        }
}

template <typename K, int ROWS, int COLUMNS>
void dots_of(const Product<K>& p, int64_t row, int64_t first, int64_t last) {
    for (; first + COLUMNS <= last; first += COLUMNS) dots<K, ROWS, COLUMNS>(p, row, first);
    for (; first < last; first++) dots<K, ROWS, 1>(p, row, first);
}

// Computes up to FETCHED_COLUMNS columns of the result for a few rows.
template <typename K>
void columns_of(const Product<K>& p, int64_t first, int64_t last) {
    int64_t row = 0;
    for (; row + 4 <= p.rows; row += 4) dots_of<K, 4, 3>(p, row, first, last);
    switch (p.rows - row) {
        case 3: dots_of<K, 3, 4>(p, row, first, last); break;
        case 2: dots_of<K, 2, 4>(p, row, first, last); break;
        case 1: dots_of<K, 1, 8>(p, row, first, last); break;
    }
    if constexpr (std::is_same<typename K::Result, float>::value)
        for (int64_t r = 0; p.activation && r < p.rows; r++) {
            alignas(64) float values[FETCHED_COLUMNS] = {};
            std::copy(p.result + r * p.out + first, p.result + r * p.out + last, values);
            activate(p.activation, values, FETCHED_COLUMNS);
            std::copy_n(values, last - first, p.result + r * p.out + first);
        }
}

inline int64_t divided(int64_t number, int64_t by) { return (number + by - 1) / by; }

struct Free {
    void operator()(float* memory) const { std::free(memory); }
};
typedef std::unique_ptr<float, Free> Memory;

inline Memory allocated(int64_t words) {
    Memory memory((float*)std::aligned_alloc(64, divided(words, 16) * 64));
    if (!memory) throw std::bad_alloc();
    return memory;
}

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

template <typename K>
void multiply_few(const Product<K>& p, int64_t threads) {
    const int64_t blocks = divided(p.out, FETCHED_COLUMNS);
    share(blocks, std::min(threads, blocks), [&](int64_t first, int64_t last, int64_t) {
        for (int64_t block = first; block < last; block++)
            columns_of(p, block * FETCHED_COLUMNS, std::min((block + 1) * FETCHED_COLUMNS, p.out));
    });
}

template <typename K>
void multiply_many(const Product<K>& p, int64_t threads) {
    const int64_t panels = divided(p.out, PANEL);
    const int64_t depth = divided(divided(p.words, divided(p.words, MOST_DEPTH)), 16) * 16;
    const int64_t fitting = std::max<int64_t>(MOST_INPUT / (4 * depth), 16 * TILE_ROWS);
    const int64_t for_threads = std::min(divided(2 * threads, panels), divided(p.rows, 4 * TILE_ROWS));
    const int64_t blocks = std::max({divided(p.rows, fitting), threads > 1 ? for_threads : 1, int64_t(1)});
    const int64_t height = divided(divided(p.rows, blocks), TILE_ROWS) * TILE_ROWS;
    const int64_t tasks = panels * divided(p.rows, height);
    const int64_t partial = depth < p.words ? height : 0;
    threads = std::min(threads, tasks);
    const Memory memory = allocated(threads * (depth + partial) * PANEL);
    share(tasks, threads, [&](int64_t first, int64_t last, int64_t thread) {
        for (int64_t task = first; task < last; task++) {
            const int64_t row = task / panels * height, column = task % panels * PANEL;
            float* own = memory.get() + thread * (depth + partial) * PANEL;
            panel_of(p, row, std::min(height, p.rows - row), column, depth, own);
        }
    });
}

// Writes an input as words, in rows without gaps.
template <typename K>
void widen(const typename K::Input* input, int64_t stride, Product<K>& p, float* to, int64_t threads) {
    share(p.rows, threads, [&](int64_t first, int64_t last, int64_t) {
        for (int64_t row = first; row < last; row++)
            for (int64_t k = 0; k < p.words; k++) {
                const int64_t n = k * K::NUMBERS;
                K::put_input(to + row * p.words + k, input + row * stride + n, p.in - n);
            }
    });
    p.input = to;
    p.input_stride = p.words;
}

template <typename K>
void product_of(const void* input, const void* weight, const void* extra, void* result, int64_t rows, int64_t in,
                int64_t out, int64_t input_stride, int64_t weight_stride, int64_t activation) {
    Product<K> p{(const float*)input,           (const typename K::Weight*)weight, (const typename K::Extra*)extra,
                 (typename K::Result*)result,   rows,                              in,
                 divided(in, K::NUMBERS),       out,                               input_stride,
                 weight_stride,                 activation};
    const int64_t most = omp_in_parallel() ? 1 : omp_get_max_threads();
    const int64_t threads = std::min(most, 1 + rows * in * out / PER_THREAD);
    Memory words;
    if constexpr (!std::is_same<typename K::Input, float>::value) {
        words = allocated(rows * p.words);
        widen<K>((const typename K::Input*)input, input_stride, p, words.get(), rows <= FEW_ROWS ? 1 : threads);
    }
    if constexpr (!K::IN_GROUPS)
        if (rows <= FEW_ROWS) return multiply_few(p, threads);
    multiply_many(p, threads);
}

}  // namespace products
"""

ENTRY = r"""
void kernel(const void* input, const void* weight, const void* extra, void* result, int64_t rows, int64_t in,
            int64_t out, int64_t input_stride, int64_t weight_stride, int64_t has_extra, int64_t activation) {
    using namespace products;
    if (rows == 0) return;
    product_of<KIND>(input, weight, has_extra ? extra : nullptr, result, rows, in, out, input_stride, weight_stride,
                     activation);
}
"""


def source_of(kind: str, vectors: str = VECTORS) -> str:
    """Return the C++ source of a kind of products, with these vectors."""
    return HEADERS + NUMBERS + vectors + ACTIVATIONS + CONSTANTS + KINDS + PRODUCTS + ENTRY.replace("KIND", kind)
