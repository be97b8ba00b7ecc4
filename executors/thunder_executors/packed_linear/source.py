"""The C++ source of the matrix product.

Many input rows are multiplied by panels: PANEL columns of the weight, packed side by side. A tile, some rows of one
panel, stays in registers. Few input rows use dot products without packing. A column of the weight is an output feature,
which is a row of PyTorch's weight.
"""

from __future__ import annotations

from thunder_executors.packed_linear.arithmetic import KINDS
from thunder_executors.packed_linear.dot_source import DOTS
from thunder_executors.packed_linear.memory_source import MEMORY
from thunder_executors.packed_linear.packing_source import PACKING
from thunder_executors.packed_linear.tile_source import TILES
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
    parts = (HEADERS, NUMBERS, vectors, ACTIVATIONS, MEMORY, CONSTANTS, KINDS, PRODUCT, PACKING, TILES, DOTS, PRODUCTS)
    return "".join(parts) + entry.replace("KIND", kind)
