"""The C++ source of depthwise convolutions: each channel has a kernel of its own."""

from __future__ import annotations

DEPTHWISE = r"""
// A convolution of each channel by its own kernel, with weights [kernel height, kernel width, channels]. `top` and
// `left` are the padding of the input, which is not padded in memory.
struct Depthwise : Convolution {
    int64_t top, left;
};

// Computes COUNT adjacent pixels of a row of the result for WIDTH channels; all columns of the kernel are inside.
template <int COUNT, int KERNEL, int STRIDE>
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
            constexpr int COLUMNS = (COUNT - 1) * STRIDE + KERNEL;
            Vector weights[KERNEL];
            UNROLLED for (int j = 0; j < KERNEL; j++) weights[j] = load(weight + j * c.in);
            UNROLLED for (int column = 0; column < COLUMNS; column++) {
                const Vector value = load(from + column * c.pixel);
                UNROLLED for (int p = 0; p < COUNT; p++) {
                    const int j = column - p * STRIDE;
                    if (j >= 0 && j < KERNEL) sums[p] = fma(value, weights[j], sums[p]);
                }
            }
        } else {
            for (int64_t j = 0; j < c.kernel_width; j++) {
                const Vector value = load(weight + j * c.in);
                UNROLLED for (int p = 0; p < COUNT; p++)
                    sums[p] = fma(load(from + (p * stride + j * c.dilation_width) * c.pixel), value, sums[p]);
            }
        }
    }
    const int64_t pixel = (image * c.out_height + y) * c.out_width + x;
    finish.store_pixels(pixel, sums);
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

// Computes a row of the result, all channels of some pixels after each other, as they lie in memory.
template <int KERNEL, int STRIDE>
void depthwise_row(const Depthwise& c, int64_t image, int64_t y) {
    constexpr int COUNT = WIDTH == 16 ? 8 : 4;
    const int64_t reach = (c.kernel_width - 1) * c.dilation_width;  // columns from the first of the kernel to the last
    // the pixels from `inside` to `last` read no padding
    const int64_t inside = std::min(divided(c.left, c.stride_width), c.out_width);
    const int64_t room = c.width + c.left - reach - 1;
    const int64_t last = std::max(inside, std::min(c.out_width, room < 0 ? 0 : room / c.stride_width + 1));
    const int64_t whole = c.out / WIDTH * WIDTH;  // channels of whole vectors
    const auto edge = [&](int64_t x, int64_t first) {
        for (int64_t channel = first; channel < c.out; channel += WIDTH)
            depthwise_edge(c, image, y, x, Finish(c, channel));
    };
    const auto tile = [&](auto count, int64_t x) {
        for (int64_t channel = 0; channel < whole; channel += WIDTH)
            depthwise_tile<decltype(count)::value, KERNEL, STRIDE>(c, image, y, x, Finish(c, channel));
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

void convolve_depthwise(const Depthwise& c, int64_t threads) {
    const bool is_plain = c.dilation_width == 1, is_even = c.stride_width == 1 || c.stride_width == 2;
    const auto run = !is_plain || !is_even                              ? depthwise_row<0, 0>
                     : c.kernel_width == 3 && c.stride_width == 1 ? depthwise_row<3, 1>
                     : c.kernel_width == 3                               ? depthwise_row<3, 2>
                     : c.kernel_width == 5 && c.stride_width == 1 ? depthwise_row<5, 1>
                     : c.kernel_width == 5                               ? depthwise_row<5, 2>
                                                                         : depthwise_row<0, 0>;
    const int64_t tasks = c.batch * c.out_height;
    share(tasks, std::min(threads, tasks), [&](int64_t first, int64_t last, int64_t) {
        for (int64_t task = first; task < last; task++) run(c, task / c.out_height, task % c.out_height);
    });
}
"""
