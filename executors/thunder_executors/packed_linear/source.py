"""The C++ source of the matrix product.

Many input rows are multiplied by panels: PANEL columns of the weight, packed side by side. A tile, some rows of one
panel, stays in registers. Few input rows use dot products without packing. A column of the weight is an output feature,
which is a row of PyTorch's weight.
"""

from __future__ import annotations

from thunder_executors.packed_linear.arithmetic import KINDS
from thunder_executors.packed_linear.memory_source import MEMORY
from thunder_executors.packed_linear.packing_source import PACKING
from thunder_executors.packed_linear.vector_source import ACTIVATIONS, NUMBERS, VECTORS

NAME = "packed_linear"  # the function in the extension module
PACK = "pack_weight"  # the function that packs a weight for the prepacked kind
# The arguments: input, weight, bias or scales, result, rows, in, out, input row stride, weight column stride or the
# length of a group, whether there is a bias or scales, and the number of the activation, or 0 without an activation.
ARGUMENTS = (*("const void*",) * 3, "void*", *("int64_t",) * 7)

HEADERS = r"""
#include <immintrin.h>
#include <omp.h>
#include <algorithm>
#include <cmath>
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
constexpr int64_t MOST_DEPTH = 512;          // most words of a column that are packed and summed at a time
constexpr int64_t INPUT_BYTES = 2 << 20;     // bytes of input that stay cached while all panels are multiplied
constexpr int64_t INPUT_WORDS = 3 << 16;     // words of input rows that fit in a core's cache
constexpr int64_t PARTIAL_WORDS = 1 << 16;   // words of the partial sums of panels
constexpr int64_t L1_WORDS = 4096;           // words of input rows that fit in the L1 cache
constexpr int64_t FEW_ROWS = 16;             // most rows for which dot products are computed without packing
constexpr int64_t TASK_COLUMNS = 64;         // columns of a task of dot products; one call computes their activations
constexpr int64_t AHEAD = 16;                // distance of the prefetched row of a panel in the L2 cache
constexpr int64_t FAR_AHEAD = 8;             // distance of the prefetched row of a panel in memory
constexpr int64_t PER_THREAD = 1 << 16;      // multiplications for each additional thread
constexpr int64_t BLOCK = 64;                // columns whose 4-bit weights are stored together
"""

PRODUCT = r"""
// result[row, column] = activation(finish(sum over k of input[row, k] * weight[column, k], extra[column])), where
// `finish` adds a bias, or multiplies by a scale. A word has 32 bits: one float, or two 16-bit integers (K::NUMBERS).
template <typename K>
struct Product {
    const float* input;  // words: `copy_input` widens narrow inputs
    const typename K::Weight* weight;
    const typename K::Extra* extra;
    typename K::Result* result;
    int64_t rows, in;
    int64_t words;  // of a row: in / K::NUMBERS, rounded up
    int64_t out, input_stride;
    int64_t weight_stride;  // between weight columns; for grouped weights, the length of a group
    int64_t activation;

    float extra_of(int64_t column) const { return extra ? number(extra[column]) : K::NEUTRAL; }
};

"""

PRODUCTS = r"""
// The next weights, which a tile prefetches into a cache: some consecutive columns of a weight, or a part of a packed
// panel as one column. Each step of a column prefetches the line that is `step` bytes after the previous one.
// Steps are shorter than a line, so that the core waits for few lines at a time. Without columns, the tile waits for
// its own panel, and prefetches later rows of this panel.
struct Fetch {
    const char* from;
    int64_t columns, stride, step;  // stride and step in bytes
};

inline void prefetch_row(const float* row) {
    UNROLLED for (int i = 0; i < PANEL; i += 16) _mm_prefetch((const char*)(row + i), _MM_HINT_T0);
}

// Prefetches the next weights: into the L2 cache with AVX-512, into the L1 cache with AVX2, whose panels are smaller.
inline void prefetch_weights(const char* next) {
    if constexpr (WIDTH == 16) _mm_prefetch(next, _MM_HINT_T1);
    else _mm_prefetch(next, _MM_HINT_T0);
}

// Multiplies some rows of the input by `count` words of each column of a panel, from word `start` on. The sums stay in
// registers.
template <typename K, int ROWS>
void tile(const Product<K>& p, int64_t row, int64_t column, int64_t start, int64_t count, const float* panel,
          float* partial, const Fetch& fetch) {
    Vector sums[ROWS][2];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int half = 0; half < 2; half++)
            sums[r][half] = zero();
    const float* input = p.input + row * p.input_stride + start;
    const auto add_products = [&](int64_t k) __attribute__((always_inline)) {
        const Vector left = load(panel + k * PANEL), right = load(panel + k * PANEL + WIDTH);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Vector value = broadcast(input + r * p.input_stride + k);
            sums[r][0] = K::multiply_add(value, left, sums[r][0]);
            sums[r][1] = K::multiply_add(value, right, sums[r][1]);
        }
    };
    int64_t k = 0;
    for (int64_t fetched = 0; fetched < fetch.columns; fetched++) {
        const char* next = fetch.from + fetched * fetch.stride;
        for (const int64_t end = count * (fetched + 1) / fetch.columns; k < end; k++, next += fetch.step) {
            prefetch_weights(next);
            if constexpr (WIDTH == 16) prefetch_row(panel + (k + AHEAD) * PANEL);  // would slow down AVX2's tiles
            add_products(k);
        }
    }
    for (; k < count; k++) {
        if constexpr (K::PACKED) prefetch_row(panel + (k + FAR_AHEAD) * PANEL);
        add_products(k);
    }
    if (start > 0)  // add the earlier parts; each is summed separately, because errors grow with a sum's length
        UNROLLED for (int r = 0; r < ROWS; r++)
            UNROLLED for (int half = 0; half < 2; half++)
                sums[r][half] = K::plus(load(partial + r * PANEL + half * WIDTH), sums[r][half]);
    if (start + count < p.words) {
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
                sums[r][half] = K::finish(sums[r][half], load(extra + half * WIDTH));
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
using Tile = void (*)(const Product<K>&, int64_t, int64_t, int64_t, int64_t, const float*, float*, const Fetch&);
template <typename K, int ROWS>
Tile<K> tile_of(int64_t rows) {
    if constexpr (ROWS == 1) return tile<K, 1>;
    else return rows >= ROWS ? tile<K, ROWS> : tile_of<K, ROWS - 1>(rows);
}

// Returns what one of `tiles` tiles, each with `count` steps, prefetches of the next panel: `depth` words of each
// column, from word `k` on. There are none for grouped weights, for panels with fewer than PANEL columns that are not
// packed, and for a single tile of a packed panel.
template <typename K>
Fetch fetch_of(const Product<K>& p, int64_t column, int64_t k, int64_t depth, int64_t tile, int64_t tiles,
               int64_t count) {
    const char* weight = (const char*)p.weight;
    const int64_t words = std::min(depth, p.words - k), size = sizeof(typename K::Weight);
    if (K::PACKED) {
        const int64_t step = ceil_div(words * PANEL * size, tiles * count), start = tile * count * step;
        return {weight + (column * p.words + k * PANEL) * size + start, column < p.out && tiles > 1, 0, step};
    }
    if (K::IN_GROUPS || column + PANEL > p.out) return {};
    const int64_t first = PANEL * tile / tiles, columns = PANEL * (tile + 1) / tiles - first;
    const int64_t step = ceil_div(words * K::NUMBERS * size * columns, count), stride = p.weight_stride * size;
    return {weight + (column + first) * stride + k * K::NUMBERS * size, columns, stride, step};
}

// Computes consecutive panels of the result for some rows, in parts of `depth` words. Each part of the input is
// multiplied by all panels while it is in the cache.
template <typename K>
void panels_of(const Product<K>& p, int64_t row, int64_t rows, int64_t first, int64_t last, int64_t depth,
               float* panel) {
    float* partial = K::PACKED ? panel : panel + depth * PANEL;
    for (int64_t k = 0; k < p.words; k += depth) {
        const int64_t count = std::min(depth, p.words - k);
        for (int64_t column = first; column < last; column += PANEL) {
            const int width = std::min<int64_t>(PANEL, p.out - column);
            const float* words = panel;
            if constexpr (K::PACKED) words = p.weight + column * p.words + k * PANEL;
            else if constexpr (K::IN_GROUPS) pack_groups(p, column, k, count, width, panel);
            else pack<K>(p.weight + column * p.weight_stride + k * K::NUMBERS, p.weight_stride,
                         std::min(count * K::NUMBERS, p.in - k * K::NUMBERS), width, panel);
            // prefetch the next panel, which is the first panel of the next part or task after the last of this one
            const bool ends = column + PANEL >= last, ends_all = ends && k + count >= p.words;
            const int64_t next = ends && !ends_all ? first : column + PANEL;
            const int64_t next_k = ends_all ? 0 : ends ? k + count : k, tiles = ceil_div(rows, TILE_ROWS);
            float* sums = partial + (column - first) * rows;
            // the first tile, which waits for memory, is the highest one
            for (int64_t t = 0, r = 0, height = TILE_ROWS; t < tiles; t++, r += height) {
                if (t > 0) height = ceil_div(rows - r, tiles - t);
                const Fetch fetch = fetch_of(p, next, next_k, depth, t, tiles, count);
                tile_of<K, TILE_ROWS>(std::min(rows - r, height))(p, row + r, column, k, count, words, sums + r * PANEL,
                                                                  fetch);
            }
        }
    }
}

// Computes dot products of some rows with some columns, with vectors along the depth, without packing. The columns are
// adjacent, or each is `apart` columns after the previous one. Each dot product has STEPS independent sums, which hide
// the latency of additions. STEPS is larger if fewer dot products are computed together.
template <typename K, int ROWS, int COLUMNS, int STEPS, bool ADJACENT = true>
void dots(const Product<K>& p, int64_t row, int64_t column, int64_t apart = 1) {
    constexpr int DOTS = ROWS * COLUMNS, PADDED = ceil_div(DOTS, 4) * 4;
    const float* input = p.input + row * p.input_stride;
    const typename K::Weight* weight = p.weight + column * p.weight_stride;
    const int64_t stride = apart * p.weight_stride;
    Vector sums[STEPS][PADDED];
    UNROLLED for (int s = 0; s < STEPS; s++)
        UNROLLED for (int dot = 0; dot < PADDED; dot++) sums[s][dot] = zero();
    const auto add_products = [&](int64_t k, Vector* to) {
        Vector columns[COLUMNS];
        UNROLLED for (int c = 0; c < COLUMNS; c++)
            columns[c] = K::words(weight + c * stride + k * K::NUMBERS);
        if constexpr (COLUMNS > 1 && ADJACENT)  // prefetch the group of columns after the next group
            UNROLLED for (int c = 2 * COLUMNS; c < 3 * COLUMNS; c++)
                _mm_prefetch((const char*)(weight + c * stride + k * K::NUMBERS), _MM_HINT_T0);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Vector value = load(input + r * p.input_stride + k);
            UNROLLED for (int c = 0; c < COLUMNS; c++)
                to[r * COLUMNS + c] = K::multiply_add(value, columns[c], to[r * COLUMNS + c]);
        }
    };
    int64_t k = 0;
    for (; (k + STEPS * WIDTH) * K::NUMBERS <= p.in; k += STEPS * WIDTH)
        UNROLLED for (int s = 0; s < STEPS; s++) add_products(k + s * WIDTH, sums[s]);
    for (; (k + WIDTH) * K::NUMBERS <= p.in; k += WIDTH) add_products(k, sums[0]);
    UNROLLED for (int s = 1; s < STEPS; s++)
        UNROLLED for (int dot = 0; dot < DOTS; dot++) sums[0][dot] = K::plus(sums[0][dot], sums[s][dot]);
    typename K::Sum totals[PADDED];
    UNROLLED for (int dot = 0; dot < PADDED; dot += 4) K::totals_of_four(sums[0] + dot, totals + dot);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            typename K::Sum sum = 0;
            for (int64_t rest = k; rest < p.words; rest++) {
                const int64_t n = rest * K::NUMBERS;
                sum += K::product(input + r * p.input_stride + rest, weight + c * stride + n, p.in - n);
            }
            sum += totals[r * COLUMNS + c];
            if (p.extra) sum = K::finish(sum, p.extra_of(column + c * apart));
            put(p.result + (row + r) * p.out + column + c * apart, sum);
        }
}

template <typename K, int ROWS, int COLUMNS>
void dots_of(const Product<K>& p, int64_t row, int64_t first, int64_t last) {
    if constexpr (COLUMNS > 1)
        for (; first + COLUMNS <= last; first += COLUMNS) dots<K, ROWS, COLUMNS, 1>(p, row, first);
    for (; first < last; first++) dots<K, ROWS, 1, ROWS == 1 ? 8 : ROWS == 2 ? 6 : ROWS == 3 ? 4 : 3>(p, row, first);
}

// Computes dot products with columns that lie apart. The core prefetches several streams of memory at the same time
// with a higher bandwidth than one stream, and than adjacent columns.
template <typename K, int ROWS>
void dots_in_streams(const Product<K>& p, int64_t row, int64_t first, int64_t last) {
    constexpr int STREAMS = WIDTH == 16 || ROWS <= 2 ? 4 : 2, STEPS = ROWS == 1 ? 2 : 1;  // as many as registers hold
    const int64_t apart = (last - first) / STREAMS;
    for (int64_t column = first; column < first + apart; column++)
        dots<K, ROWS, STREAMS, STEPS, false>(p, row, column, apart);
    dots_of<K, ROWS, 1>(p, row, first + STREAMS * apart, last);
}

// Computes up to TASK_COLUMNS columns of the result for a few rows. For up to four rows, and for up to eight rows that
// fit in the L1 cache, the columns are read in the order of memory, in a few streams. For more rows, several adjacent
// columns are computed at a time, and share the loads of the input.
template <typename K>
void columns_of(const Product<K>& p, int64_t first, int64_t last) {
    int64_t row = 0;
    if (p.rows <= 4 || (p.rows <= 8 && p.rows * p.words <= L1_WORDS)) {
        for (; row + 4 <= p.rows; row += 4) dots_in_streams<K, 4>(p, row, first, last);
    } else {
        for (; row + DOT_ROWS <= p.rows; row += DOT_ROWS) dots_of<K, DOT_ROWS, DOT_COLUMNS>(p, row, first, last);
        for (; row + 4 <= p.rows; row += 4) dots_of<K, 4, DOT_COLUMNS>(p, row, first, last);
    }
    switch (p.rows - row) {
        case 3: dots_in_streams<K, 3>(p, row, first, last); break;
        case 2: dots_in_streams<K, 2>(p, row, first, last); break;
        case 1: dots_in_streams<K, 1>(p, row, first, last); break;
    }
    if constexpr (std::is_same<typename K::Result, float>::value)
        for (int64_t r = 0; p.activation && r < p.rows; r++) {
            alignas(64) float values[TASK_COLUMNS] = {};
            std::copy(p.result + r * p.out + first, p.result + r * p.out + last, values);
            activate(p.activation, values, TASK_COLUMNS);
            std::copy_n(values, last - first, p.result + r * p.out + first);
        }
}

template <typename K>
void multiply_few(const Product<K>& p, int64_t threads) {
    const int64_t tasks = ceil_div(p.out, TASK_COLUMNS);
    share(tasks, std::min(threads, tasks), [&](int64_t first, int64_t last, int64_t) {
        for (int64_t task = first; task < last; task++)
            columns_of(p, task * TASK_COLUMNS, std::min((task + 1) * TASK_COLUMNS, p.out));
    });
}

template <typename K>
void multiply_many(const Product<K>& p, int64_t threads) {
    const int64_t panels = ceil_div(p.out, PANEL);
    const int64_t depth = ceil_div(ceil_div(p.words, ceil_div(p.words, MOST_DEPTH)), 16) * 16;
    // rows whose input stays in the cache: all parts of it, or one part if there is only one; packing again for each
    // block of rows costs time
    const int64_t cached = p.words > depth ? (K::PACKED ? 1 : 2) * INPUT_WORDS / p.words : INPUT_BYTES / (4 * depth);
    const int64_t fitting = std::max<int64_t>(cached, 8 * TILE_ROWS);
    // two tasks for each thread, unless a task would have fewer than about four tiles of rows
    const int64_t for_threads = std::min(ceil_div(2 * threads, panels), ceil_div(p.rows, 4 * TILE_ROWS));
    const int64_t row_blocks = std::max({ceil_div(p.rows, fitting), threads > 1 ? for_threads : 1, int64_t(1)});
    const int64_t height = ceil_div(ceil_div(p.rows, row_blocks), TILE_ROWS) * TILE_ROWS;
    const int64_t tasks = panels * ceil_div(p.rows, height);
    const bool fits = std::min(height, p.rows) * p.words <= INPUT_WORDS;
    const int64_t together = fits ? 1 : std::max<int64_t>(PARTIAL_WORDS / (height * PANEL), 1);
    const int64_t partial = depth < p.words ? together * height : 0, packed = K::PACKED ? 0 : depth;
    threads = std::min(threads, tasks);
    const Memory memory = allocate(threads * (packed + partial) * PANEL);
    share(tasks, threads, [&](int64_t first, int64_t last, int64_t thread) {
        for (int64_t task = first, next; task < last; task = next) {
            next = std::min({last, task + together, (task / panels + 1) * panels});
            const int64_t row = task / panels * height, column = task % panels * PANEL;
            float* own = memory.get() + thread * (packed + partial) * PANEL;
            panels_of(p, row, std::min(height, p.rows - row), column, column + (next - task) * PANEL, depth, own);
        }
    });
}

// Copies the input as words, with a stride that avoids conflicts of cache sets, and makes the product read the copy.
template <typename K>
void copy_input(const typename K::Input* input, int64_t input_stride, Product<K>& p, float* to, int64_t threads) {
    const int64_t stride = stride_of(p.words);
    share(p.rows, threads, [&](int64_t first, int64_t last, int64_t) {
        for (int64_t row = first; row < last; row++)
            for (int64_t k = 0; k < p.words; k++) {
                const int64_t n = k * K::NUMBERS;
                K::put_input(to + row * stride + k, input + row * input_stride + n, p.in - n);
            }
    });
    p.input = to;
    p.input_stride = stride;
}

template <typename K>
void product_of(const void* input, const void* weight, const void* extra, void* result, int64_t rows, int64_t in,
                int64_t out, int64_t input_stride, int64_t weight_stride, int64_t activation) {
    Product<K> p{(const float*)input,           (const typename K::Weight*)weight, (const typename K::Extra*)extra,
                 (typename K::Result*)result,   rows,                              in,
                 ceil_div(in, K::NUMBERS),       out,                               input_stride,
                 weight_stride,                 activation};
    const int64_t most = omp_in_parallel() ? 1 : omp_get_max_threads();
    const int64_t threads = std::min(most, 1 + rows * in * out / PER_THREAD);
    Memory words;
    const bool is_narrow = !std::is_same<typename K::Input, float>::value;
    if (is_narrow || (rows > FEW_ROWS && collides(input_stride))) {
        words = allocate(rows * stride_of(p.words));
        copy_input<K>((const typename K::Input*)input, input_stride, p, words.get(), rows <= FEW_ROWS ? 1 : threads);
    }
    if constexpr (!K::IN_GROUPS && !K::PACKED)
        if (rows <= FEW_ROWS) return multiply_few(p, threads);
    multiply_many(p, threads);
}

}  // namespace products
"""

# The arguments: weight, packed weight, in, out, weight row stride.
PACK_ARGUMENTS = ("const float*", "float*", *("int64_t",) * 3)
PACK_ENTRY = r"""
void kernel(const float* weight, float* packed, int64_t in, int64_t out, int64_t stride) {
    using namespace products;
    const int64_t panels = ceil_div(out, PANEL);
    share(panels, omp_in_parallel() ? 1 : std::min<int64_t>(omp_get_max_threads(), panels),
          [&](int64_t first, int64_t last, int64_t) {
              for (int64_t panel = first; panel < last; panel++) {
                  const int64_t column = panel * PANEL, width = std::min<int64_t>(PANEL, out - column);
                  pack<Packed>(weight + column * stride, stride, in, width, packed + column * in);
              }
          });
}
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


def source_of(kind: str, vectors: str = VECTORS, entry: str = ENTRY) -> str:
    """Return the C++ source of a kind, which is a C++ type.

    `vectors` is the source of the vector functions. `entry` is the source of the function, with `KIND` for the type.
    """
    parts = (HEADERS, NUMBERS, vectors, ACTIVATIONS, MEMORY, CONSTANTS, KINDS, PRODUCT, PACKING, PRODUCTS)
    return "".join(parts) + entry.replace("KIND", kind)
