"""The C++ source of attention: panels of queries, tiles of scores, and sums of values in registers."""

from __future__ import annotations

# Scores and their weights are stored transposed: a row of numbers for each key, with a number for each query of a
# panel. Largest scores, sums and exponentials are therefore computed without reductions within a vector, and a tile
# reads keys and values where they are. Scores are multiplied by log2(e), so that weights are powers of two.
SCORES = r"""
constexpr int64_t MOST_KEYS = 256;     // most keys in a block: their scores stay in the cache
constexpr int FETCHED = 12;            // rows that are prefetched for each tile
constexpr float LOG2_E = 1.44269504f, LEAST = -3.402823466e38f, INFINITE = __builtin_inff();
constexpr int VALUE_ROWS = (TILE_ROWS * 4 + 3) / 5;  // queries of a tile of values: a panel has three such tiles

// The tensors of attention. Strides are of batches, heads and rows; those of the mask are also of keys.
struct Attention {
    const float *query, *key, *value;
    const void* mask;
    float* result;
    int64_t batch, heads, groups, rows, keys, width, value_width;
    int64_t query_strides[3], key_strides[3], value_strides[3], result_strides[3], mask_strides[4];
    int64_t mask_kind, causal;
    float scale;
};

// Rows of a tensor that are prefetched little by little, while tiles are computed.
struct Rows {
    const float* row;
    int64_t stride, width, count;
    bool fetch() {
        if (count <= 0) return false;
        for (int64_t k = 0; k < width; k += LINE / 4) _mm_prefetch((const char*)(row + k), _MM_HINT_T1);
        row += stride;
        return count--;
    }
};

// Memory for the scores of a panel, and for copies of the keys and values of a head.
struct Scratch {
    Rows next[3] = {};
    void fetch() {
        for (int rows = FETCHED; rows; rows--)
            if (!next[0].fetch() && !next[1].fetch() && !next[2].fetch()) return;
    }
    float *panel, *scores, *added, *sums, *keys, *values;
    alignas(64) float largest[PANEL], totals[PANEL], factors[PANEL];
    int64_t head = -1;  // the head whose keys and values were copied
};

// Two to the power of x, which is at most zero; zero below -126.5. The error of the polynomial is 9.2e-8.
inline Vector power_of(Vector x) {
    const Vector bounded = maximum(constant(-127.0f), x);
    const Vector digits = round_to_nearest(bounded);
    const Vector rest = add(bounded, multiply(digits, constant(-1.0f)));
    Vector sum = constant(1.326472731307149e-3f);
    for (float factor : {9.671512991189957e-3f, 5.550733581185341e-2f, 2.4022242426872253e-1f, 6.931470036506653e-1f,
                         1.0f})
        sum = fma(sum, rest, constant(factor));
    return multiply(sum, power_of_two(digits));
}

// Multiplies a panel of queries by some keys. `first` is the index of the first key relative to the first query: key r
// is hidden from the queries before `first + r` (-PANEL hides no key). Adds a mask if there is one, and updates the
// largest scores.
template <int KEYS, int VECTORS>
void score_tile(const float* panel, int64_t width, const float* key, int64_t stride, const float* added, int64_t first,
                float* scores, float* largest) {
    Vector sums[KEYS][VECTORS];
    UNROLLED for (int r = 0; r < KEYS; r++)
        UNROLLED for (int part = 0; part < VECTORS; part++) sums[r][part] = zero();
    TileRows<KEYS> rows(key, stride);
    const auto add_products = [&](int64_t k) __attribute__((always_inline)) {
        Vector queries[VECTORS];
        UNROLLED for (int part = 0; part < VECTORS; part++) queries[part] = load(panel + k * PANEL + part * WIDTH);
        UNROLLED for (int r = 0; r < KEYS; r++) {
            const Vector value = rows.broadcast_word(r, k);
            UNROLLED for (int part = 0; part < VECTORS; part++)
                sums[r][part] = fma_in_place(value, queries[part], sums[r][part]);
        }
    };
    int64_t k = 0;
    for (; k + TILE_STEPS <= width; k += TILE_STEPS, rows.advance(TILE_STEPS), panel += TILE_STEPS * PANEL)
        UNROLLED for (int step = 0; step < TILE_STEPS; step++) add_products(step);
    for (; k < width; k++, rows.advance(1), panel += PANEL) add_products(0);
    if (added)
        UNROLLED for (int r = 0; r < KEYS; r++)
            UNROLLED for (int part = 0; part < VECTORS; part++)
                sums[r][part] = add(sums[r][part], load(added + r * PANEL + part * WIDTH));
    if (first > -KEYS) {
        alignas(64) float bounds[2 * PANEL];
        std::fill_n(bounds, PANEL, -INFINITE);
        std::fill_n(bounds + PANEL, PANEL, INFINITE);
        UNROLLED for (int r = 0; r < KEYS; r++)
            UNROLLED for (int part = 0; part < VECTORS; part++) {
                const int64_t hidden = std::max<int64_t>(first + r, 0);
                sums[r][part] = minimum(sums[r][part], load(bounds + PANEL - hidden + part * WIDTH));
            }
    }
    UNROLLED for (int part = 0; part < VECTORS; part++) {
        Vector most = load(largest + part * WIDTH);
        UNROLLED for (int r = 0; r < KEYS; r++) {
            most = maximum(most, sums[r][part]);
            store(scores + r * PANEL + part * WIDTH, sums[r][part]);
        }
        store(largest + part * WIDTH, most);
    }
}

typedef void (*ScoreTile)(const float*, int64_t, const float*, int64_t, const float*, int64_t, float*, float*);
template <int KEYS, int VECTORS>
ScoreTile score_tile_of(int64_t keys) {
    if constexpr (KEYS == 1) return score_tile<1, VECTORS>;
    else return keys >= KEYS ? score_tile<KEYS, VECTORS> : score_tile_of<KEYS - 1, VECTORS>(keys);
}

// Replaces scores by their weights: two to the power of the difference to the largest score of the query.
template <int VECTORS>
void weigh(float* scores, int64_t keys, const float* largest, float* totals) {
    Vector most[VECTORS], sums[VECTORS];
    UNROLLED for (int part = 0; part < VECTORS; part++) {
        most[part] = multiply(load(largest + part * WIDTH), constant(-1.0f));
        sums[part] = load(totals + part * WIDTH);
    }
    for (int64_t j = 0; j < keys; j++)
        UNROLLED for (int part = 0; part < VECTORS; part++) {
            float* at = scores + j * PANEL + part * WIDTH;
            const Vector weight = power_of(add(load(at), most[part]));
            sums[part] = add(sums[part], weight);
            store(at, weight);
        }
    UNROLLED for (int part = 0; part < VECTORS; part++) store(totals + part * WIDTH, sums[part]);
}

// Multiplies the weights of some queries by values, and adds the products to `sums`, which are first multiplied by the
// factors `earlier`; a null pointer means that there are no sums yet. With `result`, writes the sums, multiplied by
// `factors`, to `count` numbers of each row of the result instead of `sums`.
template <int ROWS, int VECTORS>
void value_tile(const float* weights, int64_t keys, const float* value, int64_t stride, const float* earlier,
                float* sums, int64_t length, const float* factors, float* result, int64_t result_stride,
                int64_t count) {
    Vector tile[ROWS][VECTORS];
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int part = 0; part < VECTORS; part++)
            tile[r][part] =
                earlier ? multiply(load(sums + r * length + part * WIDTH), broadcast(earlier + r)) : zero();
    for (int64_t j = 0; j < keys; j++) {
        Vector values[VECTORS];
        UNROLLED for (int part = 0; part < VECTORS; part++) values[part] = load(value + j * stride + part * WIDTH);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Vector weight = broadcast(weights + j * PANEL + r);
            UNROLLED for (int part = 0; part < VECTORS; part++)
                tile[r][part] = fma_in_place(weight, values[part], tile[r][part]);
        }
    }
    if (result)
        UNROLLED for (int r = 0; r < ROWS; r++)
            UNROLLED for (int part = 0; part < VECTORS; part++)
                tile[r][part] = multiply(tile[r][part], broadcast(factors + r));
    const bool is_edge = result && count < VECTORS * WIDTH;
    alignas(64) float edge[ROWS * PANEL];
    float* to = !result ? sums : is_edge ? edge : result;
    const int64_t step = !result ? length : is_edge ? PANEL : result_stride;
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int part = 0; part < VECTORS; part++) store(to + r * step + part * WIDTH, tile[r][part]);
    if (is_edge)
        for (int r = 0; r < ROWS; r++) std::copy_n(edge + r * PANEL, count, result + r * result_stride);
}

typedef void (*ValueTile)(const float*, int64_t, const float*, int64_t, const float*, float*, int64_t, const float*,
                          float*, int64_t, int64_t);
template <int ROWS, int VECTORS>
ValueTile value_tile_of(int64_t rows) {
    if constexpr (ROWS == 1) return value_tile<1, VECTORS>;
    else return rows >= ROWS ? value_tile<ROWS, VECTORS> : value_tile_of<ROWS - 1, VECTORS>(rows);
}
"""

BLOCKS = r"""
// Reads the mask of some queries and keys as numbers that are added to scores, transposed like them.
inline void read_mask(const Attention& a, int64_t batch, int64_t head, int64_t row, int64_t rows, int64_t key,
                      int64_t keys, float* added) {
    const int64_t* strides = a.mask_strides;
    const int64_t offset = batch * strides[0] + head * strides[1] + row * strides[2] + key * strides[3];
    const bool is_float = a.mask_kind == 2;
    const float* numbers = (const float*)a.mask + offset;
    const int8_t* choices = (const int8_t*)a.mask + offset;
    if (strides[2] == 0 || strides[3] != 1) {
        for (int64_t j = 0; j < keys; j++)
            for (int64_t r = 0; r < PANEL; r++) {
                const int64_t at = std::min(r, rows - 1) * strides[2] + j * strides[3];
                added[j * PANEL + r] = is_float ? numbers[at] : choices[at];
            }
    } else if (is_float) {
        pack<Floats<float>>(numbers, strides[2], keys, rows, added);
    } else {
        pack<Floats<float, int8_t>>(choices, strides[2], keys, rows, added);
    }
    for (int64_t i = 0; i < keys * PANEL; i += WIDTH) {
        const Vector read = load(added + i);
        const Vector hidden = multiply(multiply(add(read, constant(-1.0f)), constant(-LEAST)), constant(2.0f));
        store(added + i, is_float ? multiply(read, constant(LOG2_E)) : hidden);
    }
}

// Computes the weights of a panel of queries for `keys` keys from `start` on, and adds the weighted values to the sums.
template <int VECTORS>
void keys_of_panel(const Attention& a, int64_t batch, int64_t head, int64_t row, int64_t rows, int64_t start,
                   int64_t keys, bool is_last, const float* key, int64_t key_stride, const float* value,
                   int64_t value_stride, Scratch& s) {
    alignas(64) float before[PANEL];
    std::copy_n(s.largest, PANEL, before);
    if (a.mask_kind) read_mask(a, batch, head, row, rows, start, keys, s.added);
    const int64_t tiles = ceil_div(keys, TILE_ROWS);
    for (int64_t tile = 0; tile < tiles; tile++) {
        const int64_t first = keys * tile / tiles, count = keys * (tile + 1) / tiles - first;
        score_tile_of<TILE_ROWS, VECTORS>(count)(
            s.panel, a.width, key + (start + first) * key_stride, key_stride,
            a.mask_kind ? s.added + first * PANEL : nullptr, a.causal ? start + first - row : -PANEL,
            s.scores + first * PANEL, s.largest);
        s.fetch();
    }
    UNROLLED for (int part = 0; part < VECTORS; part++) {
        const Vector old = load(before + part * WIDTH), most = maximum(constant(LEAST), load(s.largest + part * WIDTH));
        const Vector factor = power_of(add(old, multiply(most, constant(-1.0f))));
        store(s.largest + part * WIDTH, most);
        store(s.factors + part * WIDTH, factor);
        store(s.totals + part * WIDTH, multiply(load(s.totals + part * WIDTH), factor));
    }
    weigh<VECTORS>(s.scores, keys, s.largest, s.totals);
    alignas(64) float inverse[PANEL];
    UNROLLED for (int part = 0; part < VECTORS; part++)
        store(inverse + part * WIDTH,
              divide(constant(1.0f), maximum(constant(1e-30f), load(s.totals + part * WIDTH))));
    const int64_t length = ceil_div(a.value_width, WIDTH) * WIDTH;
    const int64_t* strides = a.result_strides;
    float* result = a.result + batch * strides[0] + head * strides[1] + row * strides[2];
    const int64_t row_tiles = ceil_div(rows, VALUE_ROWS);
    for (int64_t tile = 0; tile < row_tiles; tile++) {
        const int64_t r = rows * tile / row_tiles, count = rows * (tile + 1) / row_tiles - r;
        const int64_t seen = a.causal ? std::min(keys, row + r + count - start) : keys;
        for (int64_t c = 0; c < a.value_width; c += PANEL) {
            const int64_t columns = std::min<int64_t>(PANEL, a.value_width - c);
            const auto tile_of = columns > WIDTH ? value_tile_of<VALUE_ROWS, 2> : value_tile_of<VALUE_ROWS, 1>;
            tile_of(count)(s.scores + r, std::max<int64_t>(seen, 0), value + start * value_stride + c, value_stride,
                           start ? s.factors + r : nullptr, s.sums + r * length + c, length, inverse + r,
                           is_last ? result + r * strides[2] + c : nullptr, strides[2], columns);
            s.fetch();
        }
    }
}

// Computes the results of a panel of queries.
inline void panel_of(const Attention& a, int64_t batch, int64_t head, int64_t row, const float* key, int64_t key_stride,
                     const float* value, int64_t value_stride, Scratch& s) {
    const int64_t rows = std::min<int64_t>(PANEL, a.rows - row);
    const int64_t* strides = a.query_strides;
    pack<Floats<float>>(a.query + batch * strides[0] + head * strides[1] + row * strides[2], strides[2], a.width, rows,
                        s.panel);
    const Vector scale = constant(a.scale * LOG2_E);
    for (int64_t i = 0; i < a.width * PANEL; i += WIDTH) store(s.panel + i, multiply(load(s.panel + i), scale));
    std::fill_n(s.largest, PANEL, -INFINITE);
    std::fill_n(s.totals, PANEL, 0.0f);
    const int64_t keys = a.causal ? std::min(a.keys, row + rows) : a.keys;
    const int64_t blocks = std::max<int64_t>(ceil_div(keys, MOST_KEYS), 1);  // without keys, results are zeros
    for (int64_t block = 0; block < blocks; block++) {
        const int64_t start = keys * block / blocks, count = keys * (block + 1) / blocks - start;
        const auto work = rows > WIDTH ? keys_of_panel<2> : keys_of_panel<1>;
        work(a, batch, head, row, rows, start, count, block + 1 == blocks, key, key_stride, value, value_stride, s);
    }
}

// Copies rows to rows with another stride, and zeros behind them.
inline void copy_rows(const float* from, int64_t stride, int64_t rows, int64_t width, float* to, int64_t length) {
    for (int64_t row = 0; row < rows; row++) {
        std::copy_n(from + row * stride, width, to + row * length);
        std::fill_n(to + row * length + width, length - width, 0.0f);
    }
}

// The first of some rows of a head of a tensor.
inline const float* rows_of(const float* tensor, const int64_t* strides, int64_t batch, int64_t head, int64_t row) {
    return tensor + batch * strides[0] + head * strides[1] + row * strides[2];
}

// Plans the prefetch of the next panel of queries, and of a part of the keys and values of the next head.
inline void prefetch_after(const Attention& a, int64_t task, int64_t panels, Scratch& s) {
    std::fill_n(s.next, 3, Rows{});
    const int64_t next = task + 1, head = next / panels, panel = task % panels, row = next % panels * PANEL;
    if (head < a.batch * a.heads)
        s.next[0] = {rows_of(a.query, a.query_strides, head / a.heads, head % a.heads, row), a.query_strides[2],
                     a.width, std::min<int64_t>(PANEL, a.rows - row)};
    const int64_t following = task / panels + 1, group = following % a.heads / (a.heads / a.groups);
    if (following >= a.batch * a.heads || following % (a.heads / a.groups) != 0) return;
    const int64_t first = a.keys * panel / panels, count = a.keys * (panel + 1) / panels - first;
    s.next[1] = {rows_of(a.key, a.key_strides, following / a.heads, group, first), a.key_strides[2], a.width, count};
    s.next[2] = {rows_of(a.value, a.value_strides, following / a.heads, group, first), a.value_strides[2],
                 a.value_width, count};
}

inline void attend(const Attention& a) {
    const int64_t panels = ceil_div(a.rows, PANEL), tasks = a.batch * a.heads * panels;
    const int64_t multiplications = a.batch * a.heads * a.rows * a.keys * (a.width + a.value_width);
    const int64_t most = omp_in_parallel() ? 1 : omp_get_max_threads();
    const int64_t threads = std::min({most, tasks, 1 + multiplications / PER_THREAD});
    const int64_t length = ceil_div(a.value_width, WIDTH) * WIDTH;
    const bool copies_keys = a.key_strides[2] % (L1_STRIDE / 2) == 0;
    const bool copies_values = a.value_strides[2] % (L1_STRIDE / 2) == 0 || length != a.value_width;
    const int64_t key_stride = copies_keys ? stride_of(a.width) : a.key_strides[2];
    const int64_t value_stride = copies_values ? stride_of(length) : a.value_strides[2];
    const int64_t copied = (copies_keys ? a.keys * key_stride : 0) + (copies_values ? a.keys * value_stride : 0);
    const int64_t most_keys = std::min(a.keys, MOST_KEYS);
    const int64_t fixed = (a.width + (a.mask_kind ? 2 : 1) * most_keys + length) * PANEL;
    const int64_t own = ceil_div(fixed + copied, 16) * 16;
    const Memory memory = allocate(threads * own);
    share(tasks, threads, [&](int64_t first, int64_t last, int64_t thread) {
        Scratch s;
        s.panel = memory.get() + thread * own;
        s.scores = s.panel + a.width * PANEL;
        s.sums = s.scores + most_keys * PANEL;
        s.added = s.sums + length * PANEL;
        s.keys = s.panel + fixed;
        s.values = s.keys + (copies_keys ? a.keys * key_stride : 0);
        for (int64_t task = first; task < last; task++) {
            const int64_t batch = task / panels / a.heads, head = task / panels % a.heads;
            const int64_t group = head / (a.heads / a.groups), source = batch * a.groups + group;
            const float* key = a.key + batch * a.key_strides[0] + group * a.key_strides[1];
            const float* value = a.value + batch * a.value_strides[0] + group * a.value_strides[1];
            if (s.head != source) {
                if (copies_keys) copy_rows(key, a.key_strides[2], a.keys, a.width, s.keys, key_stride);
                if (copies_values) copy_rows(value, a.value_strides[2], a.keys, a.value_width, s.values, value_stride);
                s.head = source;
            }
            prefetch_after(a, task, panels, s);
            panel_of(a, batch, head, task % panels * PANEL, copies_keys ? s.keys : key, key_stride,
                     copies_values ? s.values : value, value_stride, s);
        }
    });
}
"""
