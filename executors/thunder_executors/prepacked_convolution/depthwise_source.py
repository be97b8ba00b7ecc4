"""The C++ source of depthwise convolutions: each channel has a kernel of its own."""

from __future__ import annotations

DEPTHWISE = r"""
// A convolution of each channel by its own kernel, with weights [kernel height, kernel width, channels]. `top` and
// `left` are the padding of the input, which is not padded in memory.
struct Depthwise : Convolution {
    int64_t top, left;
};

// Adds the products of a row of the kernel, which has KERNEL columns, to the sums of COUNT adjacent pixels. The columns
// of the input are read once, from column `left` on. With IS_EDGE, columns outside of the input are left out.
template <int COUNT, int KERNEL, int STRIDE, bool IS_EDGE>
inline void add_row(const Depthwise& c, const float* from, const float* weight, int64_t left, Vector (&sums)[COUNT]) {
    constexpr int COLUMNS = (COUNT - 1) * STRIDE + KERNEL;
    Vector weights[KERNEL];
    UNROLLED for (int j = 0; j < KERNEL; j++) weights[j] = load(weight + j * c.in);
    UNROLLED for (int column = 0; column < COLUMNS; column++) {
        if (IS_EDGE && (left + column < 0 || left + column >= c.width)) continue;
        const Vector value = load(from + column * c.pixel);
        UNROLLED for (int p = 0; p < COUNT; p++) {
            const int j = column - p * STRIDE;
            if (j >= 0 && j < KERNEL) sums[p] = fma(value, weights[j], sums[p]);
        }
    }
}

// Computes COUNT adjacent pixels of a row of the result for WIDTH channels. Without IS_EDGE, all columns of the kernel
// are inside of the input.
template <int COUNT, int KERNEL, int STRIDE, bool IS_EDGE>
inline void depthwise_tile(const Depthwise& c, int64_t image, int64_t y, int64_t x, const Finish& finish) {
    const int64_t channel = finish.channel;
    Vector sums[COUNT];
    UNROLLED for (int p = 0; p < COUNT; p++) sums[p] = zero();
    const int64_t stride = STRIDE ? STRIDE : c.stride_width;
    const int64_t left = x * stride - c.left;
    for (int64_t i = 0; i < c.kernel_height; i++) {
        const int64_t row = y * c.stride_height - c.top + i * c.dilation_height;
        if (row < 0 || row >= c.height) continue;
        const float* from = c.at(image, row, left) + channel;
        const float* weight = c.weight + i * c.kernel_width * c.in + channel;
        if constexpr (KERNEL > 0) {
            add_row<COUNT, KERNEL, STRIDE, IS_EDGE>(c, from, weight, left, sums);
        } else {
            for (int64_t j = 0; j < c.kernel_width; j++) {
                const Vector value = load(weight + j * c.in);
                UNROLLED for (int p = 0; p < COUNT; p++)
                    sums[p] = fma(load(from + (p * stride + j * c.dilation_width) * c.pixel), value, sums[p]);
            }
        }
    }
    finish.store_pixels((image * c.out_height + y) * c.out_width + x, sums);
}

// Computes two rows of COUNT adjacent pixels of the result, with a 3 x 3 kernel and stride 1. A pixel of the input is
// read once for both rows. With AVX-512, there are enough registers.
template <int COUNT, bool IS_EDGE>
inline void depthwise_pair(const Depthwise& c, int64_t image, int64_t y, int64_t x, const Finish& finish) {
    constexpr int KERNEL = 3, COLUMNS = COUNT + KERNEL - 1;
    const int64_t channel = finish.channel, left = x - c.left;
    const float* weight = c.weight + channel;
    Vector upper[COUNT], lower[COUNT];
    UNROLLED for (int p = 0; p < COUNT; p++) upper[p] = lower[p] = zero();
    UNROLLED for (int i = 0; i <= KERNEL; i++) {
        const int64_t row = y - c.top + i;
        if (row < 0 || row >= c.height) continue;
        const float* from = c.at(image, row, left) + channel;
        Vector weights[KERNEL], before[KERNEL];  // of the rows `i` and `i - 1` of the kernel
        UNROLLED for (int j = 0; j < KERNEL; j++) {
            if (i < KERNEL) weights[j] = load(weight + (i * KERNEL + j) * c.in);
            if (i > 0) before[j] = load(weight + ((i - 1) * KERNEL + j) * c.in);
        }
        UNROLLED for (int column = 0; column < COLUMNS; column++) {
            if (IS_EDGE && (left + column < 0 || left + column >= c.width)) continue;
            const Vector value = load(from + column * c.pixel);
            UNROLLED for (int p = 0; p < COUNT; p++) {
                const int j = column - p;
                if (j < 0 || j >= KERNEL) continue;
                if (i < KERNEL) upper[p] = fma(value, weights[j], upper[p]);
                if (i > 0) lower[p] = fma(value, before[j], lower[p]);
            }
        }
    }
    const int64_t pixel = (image * c.out_height + y) * c.out_width + x;
    finish.store_pixels(pixel, upper);
    finish.store_pixels(pixel + c.out_width, lower);
}

// Computes up to WIDTH channels of a pixel of the result, with columns outside of the input as zeros.
inline void depthwise_edge(const Depthwise& c, int64_t image, int64_t y, int64_t x, const Finish& finish) {
    const int64_t channel = finish.channel, count = std::min<int64_t>(WIDTH, c.out - channel);
    alignas(64) float values[WIDTH] = {}, weights[WIDTH] = {};
    Vector sum = zero();
    for (int64_t i = 0; i < c.kernel_height; i++)
        for (int64_t j = 0; j < c.kernel_width; j++) {
            const int64_t row = y * c.stride_height - c.top + i * c.dilation_height;
            const int64_t column = x * c.stride_width - c.left + j * c.dilation_width;
            if (row < 0 || row >= c.height || column < 0 || column >= c.width) continue;
            const float* from = c.at(image, row, column) + channel;
            const float* weight = c.weight + (i * c.kernel_width + j) * c.in + channel;
            if (count == WIDTH) sum = fma(load(from), load(weight), sum);
            else {
                std::copy_n(from, count, values);
                std::copy_n(weight, count, weights);
                sum = fma(load(values), load(weights), sum);
            }
        }
    finish.store_pixels((image * c.out_height + y) * c.out_width + x, {sum});
}

// Computes a row of the result, or two rows with ARE_TWO: COUNT pixels at a time, with all their channels, in the order
// of memory. The last pixels and the last channels may be computed twice.
template <int KERNEL, int STRIDE, int COUNT, bool ARE_TWO>
void depthwise_tiles(const Depthwise& c, int64_t image, int64_t y) {
    constexpr int64_t COLUMNS = (COUNT - 1) * STRIDE + KERNEL;
    for (int64_t start = 0; start < c.out_width; start += COUNT) {
        const int64_t x = std::min(start, c.out_width - COUNT), left = x * STRIDE - c.left;
        const bool is_edge = left < 0 || left + COLUMNS > c.width;
        for (int64_t channel = 0; channel < c.out; channel += WIDTH) {
            const Finish finish(c, std::min(channel, c.out - WIDTH));
            if constexpr (ARE_TWO) {
                if (is_edge) depthwise_pair<COUNT, true>(c, image, y, x, finish);
                else depthwise_pair<COUNT, false>(c, image, y, x, finish);
            } else if (is_edge) depthwise_tile<COUNT, KERNEL, STRIDE, true>(c, image, y, x, finish);
            else depthwise_tile<COUNT, KERNEL, STRIDE, false>(c, image, y, x, finish);
        }
    }
}

// Computes a row of the result for any kernel and any number of channels. Pixels at the edges are computed alone.
void depthwise_row(const Depthwise& c, int64_t image, int64_t y) {
    constexpr int COUNT = WIDTH == 16 ? 8 : 4;
    const int64_t reach = (c.kernel_width - 1) * c.dilation_width;  // columns from the first of the kernel to the last
    // the pixels from `inside` to `last` read no padding
    const int64_t inside = std::min(ceil_div(c.left, c.stride_width), c.out_width);
    const int64_t room = c.width + c.left - reach - 1;
    const int64_t last = std::max(inside, std::min(c.out_width, room < 0 ? 0 : room / c.stride_width + 1));
    const int64_t whole = c.out / WIDTH * WIDTH;  // channels of whole vectors
    const auto edge = [&](int64_t x, int64_t first) {
        for (int64_t channel = first; channel < c.out; channel += WIDTH)
            depthwise_edge(c, image, y, x, Finish(c, channel));
    };
    const auto tile = [&](auto count, int64_t x) {
        for (int64_t channel = 0; channel < whole; channel += WIDTH)
            depthwise_tile<decltype(count)::value, 0, 0, false>(c, image, y, x, Finish(c, channel));
    };
    for (int64_t x = 0; x < inside; x++) edge(x, 0);
    if (inside + COUNT <= last)
        for (int64_t x = inside; x < last; x += COUNT)  // the last pixels may be computed twice
            tile(std::integral_constant<int, COUNT>(), std::min(x, last - COUNT));
    else
        for (int64_t x = inside; x < last; x++) tile(std::integral_constant<int, 1>(), x);
    if (whole < c.out)
        for (int64_t x = inside; x < last; x++) edge(x, whole);
    for (int64_t x = last; x < c.out_width; x++) edge(x, 0);
}

typedef void (*DepthwiseRow)(const Depthwise&, int64_t, int64_t);
constexpr int MOST_PIXELS = 8;  // of a tile of a depthwise convolution
template <int KERNEL, int STRIDE, bool ARE_TWO = false, int COUNT = MOST_PIXELS>
DepthwiseRow depthwise_tiles_of(int64_t count) {
    if constexpr (COUNT == 1) return depthwise_tiles<KERNEL, STRIDE, 1, ARE_TWO>;
    else return count >= COUNT ? depthwise_tiles<KERNEL, STRIDE, COUNT, ARE_TWO>
                               : depthwise_tiles_of<KERNEL, STRIDE, ARE_TWO, COUNT - 1>(count);
}

DepthwiseRow depthwise_row_of(const Depthwise& c) {
    const int64_t pixels = ceil_div(c.out_width, ceil_div(c.out_width, MOST_PIXELS)), step = c.stride_width;
    if (c.dilation_width != 1 || c.out < WIDTH) return depthwise_row;
    if (c.kernel_width == 3 && step == 1) return depthwise_tiles_of<3, 1>(pixels);
    if (c.kernel_width == 3 && step == 2) return depthwise_tiles_of<3, 2>(pixels);
    if (c.kernel_width == 5 && step == 1) return depthwise_tiles_of<5, 1>(pixels);
    if (c.kernel_width == 5 && step == 2) return depthwise_tiles_of<5, 2>(pixels);
    return depthwise_row;
}

// Returns the function that computes two rows of the result; a null pointer if they are computed one by one.
DepthwiseRow depthwise_rows_of(const Depthwise& c) {
    if (WIDTH < 16 || c.out < WIDTH || c.dilation_width != 1 || c.dilation_height != 1) return nullptr;
    if (c.kernel_width != 3 || c.kernel_height != 3 || c.stride_width != 1 || c.stride_height != 1) return nullptr;
    return depthwise_tiles_of<3, 1, (WIDTH == 16)>(ceil_div(c.out_width, ceil_div(c.out_width, MOST_PIXELS)));
}

void convolve_depthwise(const Depthwise& c, int64_t threads) {
    const DepthwiseRow run = depthwise_row_of(c), run_two = depthwise_rows_of(c);
    const int64_t height = run_two ? 2 : 1, parts = ceil_div(c.out_height, height), tasks = c.batch * parts;
    share(tasks, std::min(threads, tasks), [&](int64_t first, int64_t last, int64_t) {
        for (int64_t task = first; task < last; task++) {
            const int64_t y = task % parts * height;
            (y + height <= c.out_height && run_two ? run_two : run)(c, task / parts, y);
        }
    });
}
"""
