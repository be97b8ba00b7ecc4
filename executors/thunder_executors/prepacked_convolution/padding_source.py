"""The C++ source that pads images in memory, and the function that takes the arguments of a convolution."""

from __future__ import annotations

PADDING = r"""
// Images in memory, with strides in words.
struct Images {
    const float* words;
    int64_t batch, channels, height, width, image_stride, channel_stride, row_stride, column_stride;

    bool is_dense() const {  // in channels-last format
        return channel_stride == 1 && column_stride == channels && row_stride == width * column_stride &&
               (batch == 1 || image_stride == height * row_stride);
    }
};

// Copies a row of images to `pixel` words for each pixel.
inline void copy_row(const Images& x, const float* from, float* to, int64_t pixel) {
    if (x.channel_stride == 1 && x.column_stride == pixel) {
        std::copy_n(from, x.width * pixel, to);
    } else if (x.channel_stride == 1) {
        for (int64_t i = 0; i < x.width; i++, from += x.column_stride, to += pixel) {
            std::copy_n(from, x.channels, to);
            std::fill_n(to + x.channels, pixel - x.channels, 0.0f);
        }
    } else {
        for (int64_t k = 0; k < pixel; k++)
            for (int64_t i = 0; i < x.width; i++)
                to[i * pixel + k] = k < x.channels ? from[k * x.channel_stride + i * x.column_stride] : 0.0f;
    }
}

// Copies images to a buffer of the size of a convolution's input, with `top` rows and `left` columns of zeros before
// them, and zeros behind them.
inline void copy_padded(const Images& x, const Convolution& c, int64_t top, int64_t left, float* to, int64_t threads) {
    const int64_t tasks = c.batch * c.height, right = std::max<int64_t>(c.width - left - x.width, 0);
    share(tasks, std::min(threads, tasks), [&](int64_t first, int64_t last, int64_t) {
        for (int64_t task = first; task < last; task++) {
            float* row = to + task * c.width * c.pixel;
            const int64_t y = task % c.height - top;
            if (y < 0 || y >= x.height) {
                std::fill_n(row, c.width * c.pixel, 0.0f);
                continue;
            }
            std::fill_n(row, left * c.pixel, 0.0f);
            copy_row(x, x.words + task / c.height * x.image_stride + y * x.row_stride, row + left * c.pixel, c.pixel);
            std::fill_n(row + (left + x.width) * c.pixel, right * c.pixel, 0.0f);
        }
    });
}
"""

# The number of each method in the kernel.
METHODS = {"direct": 0, "Winograd": 1, "depthwise": 2, "planes": 3}
# The arguments: input, packed weight, bias, addend, result; the number of the method; batch, input channels, height and
# width; the strides of the input; output channels, height and width; kernel height and width; stride; dilation; rows
# above and columns left of the input; the number of the activation; whether there is a bias, and an addend.
ARGUMENTS = (*("const float*",) * 4, "float*", *("int64_t",) * 23)
ENTRY = r"""
void kernel(const float* x, const float* weight, const float* bias, const float* other, float* result, int64_t method,
            int64_t batch, int64_t in, int64_t height, int64_t width, int64_t image_stride, int64_t channel_stride,
            int64_t row_stride, int64_t column_stride, int64_t out, int64_t out_height, int64_t out_width,
            int64_t kernel_height, int64_t kernel_width, int64_t stride_height, int64_t stride_width,
            int64_t dilation_height, int64_t dilation_width, int64_t top, int64_t left, int64_t activation,
            int64_t has_bias, int64_t has_other) {
    using namespace products;
    enum { DIRECT, WINOGRAD, DEPTHWISE, PLANES };
    const Images images{x, batch, in, height, width, image_stride, channel_stride, row_stride, column_stride};
    Depthwise c;
    c.shape(batch, height, width, in, out_height, out_width, out);
    c.window(kernel_height, kernel_width, stride_height, stride_width, dilation_height, dilation_width);
    c.read(x, weight, has_bias ? bias : nullptr, has_other ? other : nullptr, result, activation);
    c.top = top, c.left = left;
    if (c.pixels() == 0) return;
    const int64_t most = omp_in_parallel() ? 1 : omp_get_max_threads();
    const int64_t depth = kernel_height * kernel_width * (method == DEPTHWISE ? 1 : in);
    const int64_t threads = std::min(most, 1 + c.pixels() * depth * out / PER_THREAD);

    const bool has_lines = channel_stride == 1 && in <= FEW_CHANNELS && dilation_width == 1 && out_width >= TILE_ROWS;
    if (method == PLANES || (method == DIRECT && has_lines && kernel_width * in <= MOST_TERMS))
        return convolve_lines(c, images, method == PLANES, threads);
    int64_t rows = (out_height - 1) * stride_height + (kernel_height - 1) * dilation_height + 1;  // rows that are read
    int64_t columns = (out_width - 1) * stride_width + (kernel_width - 1) * dilation_width + 1;
    bool is_copied = !images.is_dense();
    if (method == WINOGRAD) {
        rows = ceil_div(out_height, 2) * 2 + 2, columns = ceil_div(out_width, 2) * 2 + 2;
        c.pixel = ceil_div(in, WIDTH) * WIDTH;
    } else if (method == DIRECT && collides(in * stride_width)) {
        c.pixel = in + WIDTH;
    }
    if (method == DEPTHWISE) top = left = 0;  // columns outside of the input are left out
    else {
        is_copied = is_copied || top || left || rows > height || columns > width || c.pixel != in;
        c.height = std::max(rows, height + top), c.width = std::max(columns, width + left);
    }
    Memory memory;
    if (is_copied) {
        memory = allocate(batch * c.height * c.width * c.pixel);
        copy_padded(images, c, top, left, memory.get(), threads);
        c.input = memory.get();
    }
    if (method == DEPTHWISE) convolve_depthwise(c, threads);
    else if (method == WINOGRAD) convolve_winograd(c, threads);
    else convolve(c, threads);
}
"""
