"""The C++ source of convolutions of images with few channels: rows are copied as lines, which stay in the L1 cache."""

from __future__ import annotations

FEW_CHANNELS = 4  # the most channels of images whose rows are copied to lines, such as the input of a model
DECLARATION = f"\nconstexpr int64_t FEW_CHANNELS = {FEW_CHANNELS};\n"
LINES = (
    DECLARATION
    + r"""
// The padded part of an input that a row of the result reads, as lines: with `is_planar`, a line is a row of one
// channel, and else a row of all channels. Sizes are in words.
struct Lines {
    const Depthwise& c;  // its shape, its kernel and its padding
    const Images& images;
    const bool is_planar;
    const int64_t channels = is_planar ? 1 : c.in;                // of a line
    const int64_t planes = is_planar ? c.in : 1;                  // lines for each row of the input
    const int64_t length = std::max((c.out_width - 1) * c.stride_width + c.kernel_width, c.left + c.width) * channels;
    const int64_t count = c.kernel_width * channels, step = c.stride_width * channels;

    int64_t lines() const { return c.kernel_height * planes; }
    int64_t words() const { return ceil_div(lines() * length, 16) * 16; }

    void copy(int64_t image, int64_t y, float* to) const {
        for (int64_t i = 0; i < c.kernel_height; i++) {
            const int64_t row = y * c.stride_height - c.top + i * c.dilation_height;
            for (int64_t plane = 0; plane < planes; plane++, to += length) {
                const int64_t place = image * images.image_stride + row * images.row_stride;
                copy_line(row, images.words + place + plane * images.channel_stride, to);
            }
        }
    }
    void copy_line(int64_t row, const float* from, float* to) const {
        if (row < 0 || row >= c.height) return (void)std::fill_n(to, length, 0.0f);
        const int64_t before = c.left * channels, inside = c.width * channels;
        std::fill_n(to, before, 0.0f);
        if (images.column_stride == channels) std::copy_n(from, inside, to + before);
        else
            for (int64_t x = 0; x < c.width; x++)
                std::copy_n(from + x * images.column_stride, channels, to + before + x * channels);
        std::fill_n(to + before + inside, length - before - inside, 0.0f);
    }
};

template <int ROWS, int HALVES, bool IS_NARROW>
inline void lines_tile(const Lines& l, const float* lines, int64_t x, int64_t pixel, int64_t channel) {
    Sums<ROWS, HALVES, IS_NARROW> sums, parts;  // of the last terms, and of those before them
    sums.clear();
    Terms terms;
    const float* panel = l.c.weight + channel * l.c.depth();
    const float* from = lines + x * l.step;
    for (int64_t line = l.lines(); line > 0; line--, from += l.length, panel += l.count * PANEL) {
        const float* rows[ROWS];
        UNROLLED for (int r = 0; r < ROWS; r++) rows[r] = from + r * l.step;
        terms.add(l.count, sums, parts);
        multiply(rows, l.count, panel, sums);
    }
    if (terms.has_parts) sums.add_all(parts);
    store_sums(l.c, pixel, channel, sums);
}

// Computes all channels of ROWS adjacent pixels of a row of the result.
template <int ROWS>
void lines_pixels(const Lines& l, const float* lines, int64_t x, int64_t pixel) {
    for_panels(l.c, 0, l.c.out, [&](auto halves, auto is_narrow, int64_t channel) {
        lines_tile<ROWS, decltype(halves)::value, decltype(is_narrow)::value>(l, lines, x, pixel, channel);
    });
}

typedef void (*LinesPixels)(const Lines&, const float*, int64_t, int64_t);
template <int ROWS>
LinesPixels lines_pixels_of(int64_t rows) {
    if constexpr (ROWS == 1) return lines_pixels<1>;
    else return rows >= ROWS ? lines_pixels<ROWS> : lines_pixels_of<ROWS - 1>(rows);
}

// Fetches words of the next row of the result, which is not in the cache, before they are written.
inline void fetch(const float* words, int64_t count) {
    for (int64_t i = 0; i < count; i += 16) __builtin_prefetch(words + i, 1);
}

void convolve_lines(const Depthwise& c, const Images& images, bool is_planar, int64_t threads) {
    const Lines l{c, images, is_planar};
    const int64_t tasks = c.batch * c.out_height, width = c.out_width;
    const int64_t rows = ceil_div(width, ceil_div(width, TILE_ROWS));
    threads = std::min(threads, tasks);
    const Memory memory = allocate(threads * l.words());
    share(tasks, threads, [&](int64_t first, int64_t last, int64_t thread) {
        float* lines = memory.get() + thread * l.words();
        for (int64_t task = first; task < last; task++) {
            l.copy(task / c.out_height, task % c.out_height, lines);
            for (int64_t x = 0; x < width; x += rows) {
                if (task + 1 < last) fetch(c.result + ((task + 1) * width + x) * c.out, rows * c.out);
                lines_pixels_of<TILE_ROWS>(std::min(rows, width - x))(l, lines, x, task * width + x);
            }
        }
    });
}
"""
)
