"""The C++ source of global average pooling of images in the channels-last format."""

from __future__ import annotations

POOLING = r"""
// Stores the means of COUNT vectors of channels; `some` is the number of channels of the last vector. Each row is
// summed separately and then added to the total, so that rounding errors grow with height + width, not with
// height * width.
template <int COUNT>
inline void store_means(const Images& x, const float* from, int64_t some, float* to) {
    Vector sums[COUNT];
    UNROLLED for (int v = 0; v < COUNT; v++) sums[v] = zero();
    for (int64_t y = 0; y < x.height; y++) {
        Vector row[COUNT];
        UNROLLED for (int v = 0; v < COUNT; v++) row[v] = zero();
        const float* pixel = from + y * x.row_stride;
        for (int64_t i = 0; i < x.width; i++, pixel += x.column_stride) {
            UNROLLED for (int v = 0; v + 1 < COUNT; v++) row[v] = add(row[v], load(pixel + v * WIDTH));
            row[COUNT - 1] = add(row[COUNT - 1], load_some(pixel + (COUNT - 1) * WIDTH, some));
        }
        UNROLLED for (int v = 0; v < COUNT; v++) sums[v] = add(sums[v], row[v]);
    }
    const Vector count = constant((float)(x.height * x.width));
    UNROLLED for (int v = 0; v + 1 < COUNT; v++) store(to + v * WIDTH, divide(sums[v], count));
    alignas(64) float last[WIDTH];
    store(last, divide(sums[COUNT - 1], count));
    std::copy_n(last, some, to + (COUNT - 1) * WIDTH);
}

void pool(const Images& x, float* result, int64_t threads) {
    constexpr int64_t TOGETHER = 4;  // vectors
    const int64_t vectors = ceil_div(x.channels, WIDTH), parts = ceil_div(vectors, TOGETHER), tasks = x.batch * parts;
    share(tasks, std::min(threads, tasks), [&](int64_t first, int64_t last, int64_t) {
        for (int64_t task = first; task < last; task++) {
            const int64_t image = task / parts, start = task % parts * TOGETHER;
            const int64_t end = std::min(start + TOGETHER, vectors);
            const float* from = x.words + image * x.image_stride;
            float* to = result + image * x.channels;
            const auto some = [&](int64_t vector) { return std::min<int64_t>(WIDTH, x.channels - vector * WIDTH); };
            if (end - start == TOGETHER)
                store_means<TOGETHER>(x, from + start * WIDTH, some(end - 1), to + start * WIDTH);
            else
                for (int64_t vector = start; vector < end; vector++)
                    store_means<1>(x, from + vector * WIDTH, some(vector), to + vector * WIDTH);
        }
    });
}
"""

# The arguments: input, result; batch, channels, height and width; the strides of the input.
ARGUMENTS = ("const float*", "float*", *("int64_t",) * 8)
ENTRY = r"""
void kernel(const float* x, float* result, int64_t batch, int64_t channels, int64_t height, int64_t width,
            int64_t image_stride, int64_t channel_stride, int64_t row_stride, int64_t column_stride) {
    using namespace products;
    if (batch * channels == 0) return;
    const Images images{x, batch, channels, height, width, image_stride, channel_stride, row_stride, column_stride};
    const int64_t most = omp_in_parallel() ? 1 : omp_get_max_threads();
    pool(images, result, std::min(most, 1 + batch * channels * height * width / PER_THREAD));
}
"""
