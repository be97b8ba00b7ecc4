"""The C++ source of inverted residual blocks: three convolutions of some rows at a time, which stay in the cache."""

from __future__ import annotations

BLOCK = r"""
// A pointwise convolution that expands the channels, a depthwise convolution, and a pointwise convolution that projects
// to other channels (Sandler et al. 2018). The first or the last may be missing. The rows between them are computed in
// bands, so that they stay in the cache.
struct Block {
    Convolution expand, project;
    Depthwise depthwise;
    bool has_expand, has_project;
    int64_t batch;

    const Convolution& first() const { return has_expand ? expand : static_cast<const Convolution&>(depthwise); }
    const Convolution& last() const { return has_project ? project : static_cast<const Convolution&>(depthwise); }
    int64_t inner_row() const { return depthwise.width * depthwise.in; }       // words of a row that is expanded
    int64_t outer_row() const { return depthwise.out_width * depthwise.out; }  // words of a row that is projected
    int64_t reach() const { return (depthwise.kernel_height - 1) * depthwise.dilation_height + 1; }
    int64_t rows_for(int64_t rows) const { return (rows - 1) * depthwise.stride_height + reach(); }

    int64_t band() const {  // the rows of the result that are computed together
        const int64_t each = depthwise.stride_height * inner_row() + outer_row();
        const int64_t fitting = (CACHED_WORDS - reach() * inner_row()) / each;
        return std::max<int64_t>(1, std::min(fitting, depthwise.out_height));
    }
};

// The memory of a thread: the expanded rows from `start` to `end` of an image, and the rows that are projected.
struct Band {
    float *inner, *outer;
    int64_t start = 0, end = 0;
};

// Computes the expanded rows from `start` to `end` in the band, except rows that the band already has.
inline void expand_rows(const Block& b, int64_t image, int64_t start, int64_t end, Band& band) {
    const int64_t row = b.inner_row(), known = std::max(start, std::min(band.end, end));
    if (known > start) std::memmove(band.inner, band.inner + (start - band.start) * row, (known - start) * row * 4);
    Convolution c = b.expand;
    c.batch = 1, c.height = c.out_height = end - known;
    c.input = b.expand.at(image, known, 0);
    c.result = band.inner + (known - start) * row;
    if (end > known) convolve(c, 1);
    band.start = start, band.end = end;
}

// Computes the rows from `first` to `last` of an image of the result.
inline void block_rows(const Block& b, int64_t image, int64_t first, int64_t last, Band& band) {
    const Depthwise& all = b.depthwise;
    const int64_t from = first * all.stride_height - all.top;
    const int64_t start = std::max<int64_t>(from, 0);
    const int64_t end = std::max(std::min(from + b.rows_for(last - first), all.height), start);
    Depthwise c = all;
    if (b.has_expand) {
        expand_rows(b, image, start, end, band);
        c.input = band.inner;
    } else {
        c.input = all.at(image, start, 0);
    }
    const int64_t place = (image * all.out_height + first) * all.out_width;
    c.batch = 1, c.height = end - start, c.out_height = last - first, c.top = start - from;
    c.result = b.has_project ? band.outer : all.result + place * all.out;
    if (!b.has_project && all.other) c.other = all.other + place * all.out;
    convolve_depthwise(c, 1);
    if (!b.has_project) return;
    Convolution p = b.project;
    p.batch = 1, p.height = p.out_height = last - first;
    p.input = band.outer;
    p.result = b.project.result + place * p.out;
    if (p.other) p.other = b.project.other + place * p.out;
    convolve(p, 1);
}

void convolve_block(const Block& b, int64_t threads) {
    const int64_t rows = b.depthwise.out_height, height = b.band(), all = b.batch * rows;
    const int64_t inner = b.has_expand ? b.rows_for(height) * b.inner_row() : 0;
    const int64_t outer = b.has_project ? height * b.outer_row() : 0;
    threads = std::min(threads, ceil_div(all, height));
    const Memory memory = allocate(threads * (ceil_div(inner, 16) + ceil_div(outer, 16)) * 16);
    share(all, threads, [&](int64_t first, int64_t last, int64_t thread) {
        float* own = memory.get() + thread * (ceil_div(inner, 16) + ceil_div(outer, 16)) * 16;
        for (int64_t row = first, next; row < last; row = next) {
            const int64_t image = row / rows;
            Band band{own, own + ceil_div(inner, 16) * 16};
            for (next = row; next < std::min(last, (image + 1) * rows);) {
                const int64_t start = next;
                next = std::min({next + height, last, (image + 1) * rows});
                block_rows(b, image, start - image * rows, next - image * rows, band);
            }
        }
    });
}
"""

# The arguments: input; weight and bias of each convolution; addend, result; batch, channels, height and width of the
# input and its strides; channels between the convolutions; channels, height and width of the result; kernel, stride and
# dilation of the depthwise convolution, rows above and columns left of its input; the numbers of the activations;
# whether there is a first and a last convolution, a bias of each convolution, and an addend.
ARGUMENTS = (*("const float*",) * 8, "float*", *("int64_t",) * 29)
ENTRY = r"""
void kernel(const float* x, const float* expand, const float* expand_bias, const float* depthwise,
            const float* depthwise_bias, const float* project, const float* project_bias, const float* other,
            float* result, int64_t batch, int64_t in, int64_t height, int64_t width, int64_t image_stride,
            int64_t channel_stride, int64_t row_stride, int64_t column_stride, int64_t inner, int64_t out,
            int64_t out_height, int64_t out_width, int64_t kernel_height, int64_t kernel_width, int64_t stride_height,
            int64_t stride_width, int64_t dilation_height, int64_t dilation_width, int64_t top, int64_t left,
            int64_t expand_activation, int64_t depthwise_activation, int64_t project_activation, int64_t has_expand,
            int64_t has_project, int64_t has_expand_bias, int64_t has_depthwise_bias, int64_t has_project_bias,
            int64_t has_other) {
    using namespace products;
    const Images images{x, batch, in, height, width, image_stride, channel_stride, row_stride, column_stride};
    Block b;
    b.batch = batch, b.has_expand = has_expand, b.has_project = has_project;
    b.expand.shape(batch, height, width, in, height, width, inner);
    b.expand.read(x, expand, has_expand_bias ? expand_bias : nullptr, nullptr, nullptr, expand_activation);
    b.depthwise.shape(batch, height, width, inner, out_height, out_width, inner);
    b.depthwise.window(kernel_height, kernel_width, stride_height, stride_width, dilation_height, dilation_width);
    b.depthwise.read(x, depthwise, has_depthwise_bias ? depthwise_bias : nullptr,
                     has_other && !has_project ? other : nullptr, result, depthwise_activation);
    b.depthwise.top = top, b.depthwise.left = left;
    b.project.shape(batch, out_height, out_width, inner, out_height, out_width, out);
    b.project.read(nullptr, project, has_project_bias ? project_bias : nullptr, has_other ? other : nullptr, result,
                   project_activation);
    if (b.last().pixels() == 0) return;
    Memory memory;
    if (!images.is_dense()) {
        memory = allocate(batch * height * width * in);
        copy_padded(images, b.first(), 0, 0, memory.get(), 1);
        b.expand.input = b.depthwise.input = memory.get();
    }
    const int64_t pixels = height * width * in + out_height * out_width * (kernel_height * kernel_width + out);
    const int64_t most = omp_in_parallel() ? 1 : omp_get_max_threads();
    convolve_block(b, std::min(most, 1 + batch * pixels * inner / PER_THREAD));
}
"""
