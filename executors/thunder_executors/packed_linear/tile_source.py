"""The C++ source of tiles: some rows of the input times a panel of packed weights, with the sums in registers."""

from __future__ import annotations

TILES = r"""
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
    TileRows<ROWS> rows(p.input + row * p.input_stride + start, p.input_stride);
    const auto add_products = [&](int64_t k) __attribute__((always_inline)) {
        const Vector left = load(panel + k * PANEL), right = load(panel + k * PANEL + WIDTH);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Vector value = rows.broadcast_word(r, k);
            sums[r][0] = K::accumulate(value, left, sums[r][0]);
            sums[r][1] = K::accumulate(value, right, sums[r][1]);
        }
    };
    const auto advance = [&](int64_t steps) __attribute__((always_inline)) {
        rows.advance(steps);
        panel += steps * PANEL;
    };
    int64_t k = 0;
    for (int64_t fetched = 0; fetched < fetch.columns; fetched++) {
        const char* next = fetch.from + fetched * fetch.stride;
        const int64_t end = count * (fetched + 1) / fetch.columns / TILE_STEPS * TILE_STEPS;
        for (; k < end; k += TILE_STEPS, next += TILE_STEPS * fetch.step) {
            UNROLLED for (int step = 0; step < TILE_STEPS; step++) {
                if (step % 2 == 0) prefetch_weights(next + step * fetch.step);  // two steps are at most a line
                if constexpr (WIDTH == 16) prefetch_row(panel + (step + AHEAD) * PANEL);  // slows down AVX2's tiles
                add_products(step);
            }
            advance(TILE_STEPS);
        }
    }
    for (; k + TILE_STEPS <= count; k += TILE_STEPS) {
        UNROLLED for (int step = 0; step < TILE_STEPS; step++) {
            if constexpr (K::PACKED) prefetch_row(panel + (step + FAR_AHEAD) * PANEL);
            add_products(step);
        }
        advance(TILE_STEPS);
    }
    for (; k < count; k++, advance(1)) add_products(0);
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

"""
