"""The C++ source of Winograd's algorithm for 3 x 3 kernels: fewer multiplications, more additions."""

from __future__ import annotations

WINOGRAD = r"""
// Winograd's algorithm F(2 x 2, 3 x 3) (Lavin and Gray 2016): 16 products for 2 x 2 results instead of 36.

// Transforms a 4 x 4 block of the input, for WIDTH channels: to[(4 * i + j) * step].
inline void transform_input(const float* from, int64_t row, int64_t pixel, float* to, int64_t step) {
    Vector d[4][4], t[4][4];
    UNROLLED for (int i = 0; i < 4; i++)
        UNROLLED for (int j = 0; j < 4; j++) d[i][j] = load(from + i * row + j * pixel);
    UNROLLED for (int j = 0; j < 4; j++) {
        t[0][j] = subtract(d[0][j], d[2][j]);
        t[1][j] = add(d[1][j], d[2][j]);
        t[2][j] = subtract(d[2][j], d[1][j]);
        t[3][j] = subtract(d[1][j], d[3][j]);
    }
    UNROLLED for (int i = 0; i < 4; i++) {
        store(to + (4 * i + 0) * step, subtract(t[i][0], t[i][2]));
        store(to + (4 * i + 1) * step, add(t[i][1], t[i][2]));
        store(to + (4 * i + 2) * step, subtract(t[i][2], t[i][1]));
        store(to + (4 * i + 3) * step, subtract(t[i][1], t[i][3]));
    }
}

// Computes WIDTH channels of 2 x 2 pixels of the result from 16 products: from[(4 * i + j) * step].
inline void transform_output(const Convolution& c, const float* from, int64_t step, const Finish& finish,
                             int64_t image, int64_t y, int64_t x) {
    Vector m[4][4], t[2][4];
    UNROLLED for (int i = 0; i < 4; i++)
        UNROLLED for (int j = 0; j < 4; j++) m[i][j] = load(from + (4 * i + j) * step);
    UNROLLED for (int j = 0; j < 4; j++) {
        t[0][j] = add(add(m[0][j], m[1][j]), m[2][j]);
        t[1][j] = subtract(subtract(m[1][j], m[2][j]), m[3][j]);
    }
    for (int i = 0; i < 2 && y + i < c.out_height; i++) {
        const int64_t pixel = (image * c.out_height + y + i) * c.out_width + x;
        const Vector both[2] = {add(add(t[i][0], t[i][1]), t[i][2]), subtract(subtract(t[i][1], t[i][2]), t[i][3])};
        if (x + 1 < c.out_width) finish.store_pixels(pixel, both);
        else finish.store_pixels(pixel, {both[0]});
    }
}

template <Weights WEIGHTS, int ROWS, int HALVES>
void winograd_tile(const float* input, int64_t stride, int64_t count, const float* panel, float* to, Fetch fetch) {
    const float* rows[ROWS];
    UNROLLED for (int r = 0; r < ROWS; r++) rows[r] = input + r * stride;
    Sums<ROWS, HALVES, false> sums;
    sums.clear();
    multiply<WEIGHTS>(rows, count, panel, sums, fetch);
    UNROLLED for (int r = 0; r < ROWS; r++)
        UNROLLED for (int half = 0; half < HALVES; half++) store(to + r * PANEL + half * WIDTH, sums.whole[half][r]);
}

typedef void (*WinogradTile)(const float*, int64_t, int64_t, const float*, float*, Fetch);
template <Weights WEIGHTS, int ROWS = TILE_ROWS>
WinogradTile winograd_tile_of(int64_t rows, bool is_half) {
    if constexpr (ROWS > 1)
        if (rows < ROWS) return winograd_tile_of<WEIGHTS, ROWS - 1>(rows, is_half);
    return is_half ? winograd_tile<WEIGHTS, ROWS, 1> : winograd_tile<WEIGHTS, ROWS, 2>;
}

// The channels of the input are padded to a multiple of WIDTH (c.pixel).
void convolve_winograd(const Convolution& c, int64_t threads) {
    const int64_t across = ceil_div(c.out_width, 2), down = ceil_div(c.out_height, 2), all = c.batch * down * across;
    const int64_t panels = ceil_div(c.out, PANEL), stride = stride_of(ceil_div(c.in, WIDTH) * WIDTH);
    const bool are_cached = 16 * panels * PANEL * c.in <= CACHED_WORDS;  // the weights; otherwise each task reads them
    const int64_t fitting = std::max<int64_t>(CACHED_WORDS / (are_cached ? 2 : 1) / (16 * stride), TILE_ROWS);
    const int64_t length = ceil_div(all, ceil_div(all, fitting));
    const int64_t blocks = ceil_div(all, length);
    const int64_t parts = std::min(panels, ceil_div(threads, blocks));  // of the panels, for few blocks
    const int64_t tasks = blocks * parts;
    threads = std::min(threads, tasks);
    const int64_t transformed = 16 * length * stride, products = 16 * length * PANEL;
    const Memory memory = allocate(threads * (transformed + products));
    share(tasks, threads, [&](int64_t first, int64_t last, int64_t thread) {
        float* values = memory.get() + thread * (transformed + products);
        float* sums = values + transformed;
        for (int64_t task = first; task < last; task++) {
            const int64_t start = task / parts * length, count = std::min(length, all - start), part = task % parts;
            for (int64_t t = 0; t < count; t++) {
                const int64_t block = start + t, x = block % across, y = block / across % down;
                const float* from = c.at(block / across / down, 2 * y, 2 * x);
                for (int64_t k = 0; k < c.in; k += WIDTH)
                    transform_input(from + k, c.width * c.pixel, c.pixel, values + t * stride + k, length * stride);
            }
            for (int64_t panel = panels * part / parts; panel < panels * (part + 1) / parts; panel++) {
                const int64_t channel = panel * PANEL;
                const bool is_half = c.out - channel <= WIDTH;
                const float* weight = c.weight + 16 * channel * c.in;
                const int64_t tiles = ceil_div(count, TILE_ROWS), rows = ceil_div(count, tiles);
                const int64_t step = ceil_div(PANEL * sizeof(float), tiles);
                for (int64_t i = 0; i < 16; i++) {
                    const float* words = weight + i * c.in * PANEL;
                    Fetch fetch{(const char*)(words + c.in * PANEL), step};  // the next product's weights
                    for (int64_t t = 0; t < count; t += rows, fetch.next += c.in * step) {
                        const int64_t some = std::min(rows, count - t);
                        const auto run = are_cached ? winograd_tile_of<CACHED>(some, is_half)
                                                    : winograd_tile_of<NEXT_IN_MEMORY>(some, is_half);
                        run(values + (i * length + t) * stride, stride, c.in, words, sums + (i * length + t) * PANEL,
                            fetch);
                    }
                }
                for (int64_t half = 0; half < (is_half ? 1 : 2); half++) {
                    const Finish finish(c, channel + half * WIDTH);
                    for (int64_t t = 0; t < count; t++) {
                        const int64_t block = start + t, x = block % across, y = block / across % down;
                        transform_output(c, sums + t * PANEL + half * WIDTH, length * PANEL, finish,
                                         block / across / down, 2 * y, 2 * x);
                    }
                }
            }
        }
    });
}
"""
