"""The C++ source of a convolution of images in channels-last format: register tiles of pixels and channels."""

from __future__ import annotations

CONVOLUTION = r"""
// A function that g++ would call with the sums in memory; inlined, the sums stay in registers.
#define ALWAYS_INLINE inline __attribute__((always_inline))

constexpr int64_t CACHED_WORDS = 1 << 17;  // words that stay in the L2 cache of a core
constexpr int64_t PER_THREAD = 1 << 16;    // multiplications for each additional thread
constexpr int64_t ROWS_AHEAD = 64;         // distance of the prefetched row of a panel from the current row
constexpr int64_t MOST_TERMS = 128;        // most terms of a sum, because errors grow with the number of terms
constexpr int64_t FEW_TILES = 8;           // most tiles of pixels for which waiting for a panel in memory takes long

// A convolution of images [batch, height, width, in] whose channels are adjacent. The input is padded already.
// result[n, y, x, o] = activation(bias[o] + other[n, y, x, o] + sum over (i, j, k) of
//     input[n, y * stride + i * dilation, x * stride + j * dilation, k] * weight[o, k, i, j])
struct Convolution {
    const float *input, *weight, *bias, *other;
    float* result;
    int64_t batch, height, width, in;  // of the padded input
    int64_t pixel;                     // words from a pixel of the padded input to the next
    int64_t out_height, out_width, out;
    int64_t kernel_height, kernel_width, stride_height, stride_width, dilation_height, dilation_width;
    float lowest, highest;  // of the result: relu and relu6
    int64_t activation;     // the number of another activation, or 0

    void shape(int64_t images, int64_t rows, int64_t columns, int64_t channels, int64_t rows_of_result,
               int64_t columns_of_result, int64_t channels_of_result) {
        batch = images, height = rows, width = columns, in = pixel = channels;
        out_height = rows_of_result, out_width = columns_of_result, out = channels_of_result;
        window(1, 1, 1, 1, 1, 1);
    }
    void window(int64_t rows, int64_t columns, int64_t row_step, int64_t column_step, int64_t row_gap,
                int64_t column_gap) {
        kernel_height = rows, kernel_width = columns, stride_height = row_step, stride_width = column_step;
        dilation_height = row_gap, dilation_width = column_gap;
    }
    void read(const float* images, const float* weights, const float* biases, const float* addend, float* to,
              int64_t number) {
        enum { RELU = 1, RELU6 = 5 };
        input = images, weight = weights, bias = biases, other = addend, result = to;
        const bool is_bounded = number == RELU || number == RELU6;
        lowest = is_bounded ? 0.0f : -INFINITY, highest = number == RELU6 ? 6.0f : INFINITY;
        activation = is_bounded ? 0 : number;
    }
    int64_t depth() const { return kernel_height * kernel_width * in; }
    int64_t pixels() const { return batch * out_height * out_width; }
    const float* at(int64_t image, int64_t row, int64_t column) const {
        return input + ((image * height + row) * width + column) * pixel;
    }
};

// Eight channels at the end of a panel. With AVX-512, a processor may multiply two of these at once.
typedef __m256 Narrow;
constexpr int NARROW = 8;

// The sums of ROWS pixels: HALVES vectors of channels, and eight more channels with IS_NARROW.
template <int ROWS, int HALVES, bool IS_NARROW>
struct Sums {
    Vector whole[HALVES][ROWS];
    Narrow narrow[IS_NARROW ? ROWS : 1];

    ALWAYS_INLINE void clear() {
        UNROLLED for (int half = 0; half < HALVES; half++)
            UNROLLED for (int r = 0; r < ROWS; r++) whole[half][r] = zero();
        if constexpr (IS_NARROW)
            UNROLLED for (int r = 0; r < ROWS; r++) narrow[r] = _mm256_setzero_ps();
    }
    ALWAYS_INLINE void add_all(const Sums& others) {
        UNROLLED for (int half = 0; half < HALVES; half++)
            UNROLLED for (int r = 0; r < ROWS; r++) whole[half][r] = add(others.whole[half][r], whole[half][r]);
        if constexpr (IS_NARROW)
            UNROLLED for (int r = 0; r < ROWS; r++) narrow[r] = _mm256_add_ps(others.narrow[r], narrow[r]);
    }
};

// Where the weights of a panel are: in the L2 cache; or in memory, so that later rows of the panel and of the next
// panel are prefetched (the processor itself fetches no further than a page); or in the L2 cache, while the weights
// that are multiplied next are in memory and are prefetched.
enum Weights { CACHED, IN_MEMORY, NEXT_IN_MEMORY };

// The next weights, which are prefetched into the L2 cache: each step prefetches the line that is `step` bytes after
// the previous one. Steps are shorter than a line, so that the core waits for few lines at a time.
struct Fetch {
    const char* next = nullptr;
    int64_t step = 0;
};

// Multiplies `count` words of ROWS rows by rows of a panel, and adds the products to the sums.
template <Weights WEIGHTS = CACHED, int ROWS, int HALVES, bool IS_NARROW>
ALWAYS_INLINE void multiply(const float* const (&rows)[ROWS], int64_t count, const float* panel,
                            Sums<ROWS, HALVES, IS_NARROW>& sums, Fetch fetch = {}) {
    const float* from[ROWS];
    UNROLLED for (int r = 0; r < ROWS; r++) from[r] = rows[r];
    for (int64_t k = 0; k < count; k++) {
        Vector weights[HALVES];
        Narrow last;
        if constexpr (WEIGHTS == IN_MEMORY) {
            __builtin_prefetch(panel + (k + ROWS_AHEAD) * PANEL);
            if constexpr (PANEL > 16) __builtin_prefetch(panel + (k + ROWS_AHEAD) * PANEL + 16);
        }
        if constexpr (WEIGHTS == NEXT_IN_MEMORY) {
            _mm_prefetch(fetch.next, _MM_HINT_T1);
            fetch.next += fetch.step;
        }
        UNROLLED for (int half = 0; half < HALVES; half++) weights[half] = load(panel + k * PANEL + half * WIDTH);
        if constexpr (IS_NARROW) last = _mm256_loadu_ps(panel + k * PANEL + HALVES * WIDTH);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Vector value = broadcast(from[r] + k);
            UNROLLED for (int half = 0; half < HALVES; half++)
                sums.whole[half][r] = fma(value, weights[half], sums.whole[half][r]);
            if constexpr (IS_NARROW) {
                Narrow lower;
                std::memcpy(&lower, &value, sizeof lower);
                sums.narrow[r] = _mm256_fmadd_ps(lower, last, sums.narrow[r]);
            }
        }
    }
}

// Copies fewer than 16 words.
inline void copy_some(const float* from, int64_t count, float* to) {
    if (count & 8) std::memcpy(to, from, 32), from += 8, to += 8;
    if (count & 4) std::memcpy(to, from, 16), from += 4, to += 4;
    if (count & 2) std::memcpy(to, from, 8), from += 2, to += 2;
    if (count & 1) *to = *from;
}

// Loads up to WIDTH words; the others are zeros.
inline Vector load_some(const float* from, int64_t count) {
    if (count == WIDTH) return load(from);
    alignas(64) float words[WIDTH] = {};
    copy_some(from, count, words);
    return load(words);
}

// Finishes up to WIDTH channels of some pixels of the result, also for fewer channels and for any activation.
__attribute__((noinline)) void finish_slowly(const Convolution& c, int64_t pixel, int64_t pixels, int64_t channel,
                                             float* values) {
    const int64_t count = std::min<int64_t>(WIDTH, c.out - channel);
    const Vector bias = c.bias ? load_some(c.bias + channel, count) : zero();
    const Vector lowest = constant(c.lowest), highest = constant(c.highest);
    for (int64_t p = 0; p < pixels; p++, values += WIDTH) {
        const int64_t place = (pixel + p) * c.out + channel;
        Vector value = add(load(values), bias);
        if (c.other) value = add(value, load_some(c.other + place, count));
        store(values, minimum(highest, maximum(lowest, value)));
        if (c.activation) activate(c.activation, values, WIDTH);
        if (count == WIDTH) store(c.result + place, load(values));
        else copy_some(values, count, c.result + place);
    }
}

// Finishes up to eight channels of some pixels of the result.
template <int COUNT>
inline void store_narrow(const Convolution& c, int64_t pixel, int64_t channel, const Narrow (&sums)[COUNT]) {
    if (c.out - channel < NARROW || c.activation) {
        alignas(64) float values[COUNT * WIDTH] = {};
        UNROLLED for (int p = 0; p < COUNT; p++) _mm256_storeu_ps(values + p * WIDTH, sums[p]);
        return finish_slowly(c, pixel, COUNT, channel, values);
    }
    const Narrow bias = c.bias ? _mm256_loadu_ps(c.bias + channel) : _mm256_setzero_ps();
    const Narrow lowest = _mm256_set1_ps(c.lowest), highest = _mm256_set1_ps(c.highest);
    UNROLLED for (int p = 0; p < COUNT; p++) {
        const int64_t place = (pixel + p) * c.out + channel;
        Narrow value = _mm256_add_ps(sums[p], bias);
        if (c.other) value = _mm256_add_ps(value, _mm256_loadu_ps(c.other + place));
        _mm256_storeu_ps(c.result + place, _mm256_min_ps(highest, _mm256_max_ps(lowest, value)));
    }
}

// Adds the bias and `other` to WIDTH channels of the result, applies the activation, and stores them.
struct Finish {
    const Convolution& c;
    const int64_t channel;
    const bool is_simple;
    const Vector lowest, highest, bias;

    Finish(const Convolution& c, int64_t channel)
        : c(c), channel(channel), is_simple(c.out - channel >= WIDTH && !c.activation), lowest(constant(c.lowest)),
          highest(constant(c.highest)), bias(is_simple && c.bias ? load(c.bias + channel) : zero()) {}

    template <int COUNT>
    void store_pixels(int64_t pixel, const Vector (&sums)[COUNT]) const {
        if (!is_simple) {
            alignas(64) float values[COUNT * WIDTH];
            UNROLLED for (int p = 0; p < COUNT; p++) store(values + p * WIDTH, sums[p]);
            return finish_slowly(c, pixel, COUNT, channel, values);
        }
        float* to = c.result + pixel * c.out + channel;
        const int64_t step = c.out;
        if (c.other) {
            const float* other = c.other + pixel * c.out + channel;
            UNROLLED for (int p = 0; p < COUNT; p++)
                store(to + p * step, bounded(add(add(sums[p], bias), load(other + p * step))));
        } else {
            UNROLLED for (int p = 0; p < COUNT; p++) store(to + p * step, bounded(add(sums[p], bias)));
        }
    }

    Vector bounded(Vector value) const { return minimum(highest, maximum(lowest, value)); }
};

// Stores the sums of the channels of a panel.
template <int ROWS, int HALVES, bool IS_NARROW>
ALWAYS_INLINE void store_sums(const Convolution& c, int64_t pixel, int64_t channel,
                              const Sums<ROWS, HALVES, IS_NARROW>& sums) {
    UNROLLED for (int half = 0; half < HALVES; half++)
        Finish(c, channel + half * WIDTH).store_pixels(pixel, sums.whole[half]);
    if constexpr (IS_NARROW) store_narrow(c, pixel, channel + HALVES * WIDTH, sums.narrow);
}

// The number of terms in the current sums, and whether there are sums of earlier terms.
struct Terms {
    int64_t count = 0;
    bool has_parts = false;

    // Adds `some` terms to the count; from MOST_TERMS terms on, the sums are added to those of earlier terms first.
    template <typename Sums>
    ALWAYS_INLINE void add(int64_t some, Sums& sums, Sums& parts) {
        if (count >= MOST_TERMS) {
            if (has_parts) sums.add_all(parts);
            parts = sums;
            sums.clear();
            count = 0, has_parts = true;
        }
        count += some;
    }
};

// Calls a function for the panels of channels from `first` to `last`, with the number of vectors of channels, whether
// eight more channels follow them, and the first channel.
template <typename Compute>
inline void for_panels(const Convolution& c, int64_t first, int64_t last, const Compute& compute) {
    for (int64_t channel = first; channel < last; channel += PANEL) {
        const int64_t rest = c.out - channel;
        if (rest <= WIDTH) compute(std::integral_constant<int, 1>(), std::false_type(), channel);
        else if (NARROW < WIDTH && rest <= WIDTH + NARROW)
            compute(std::integral_constant<int, 1>(), std::bool_constant<(NARROW < WIDTH)>(), channel);
        else compute(std::integral_constant<int, 2>(), std::false_type(), channel);
    }
}

// Computes the channels of a panel of ROWS pixels of the result, whose first pixels of the input are given.
template <Weights WEIGHTS, int ROWS, int HALVES, bool IS_NARROW>
inline void convolve_tile(const Convolution& c, const float* const (&rows)[ROWS], int64_t pixel, int64_t channel,
                          Fetch fetch) {
    Sums<ROWS, HALVES, IS_NARROW> sums, parts;  // of the last terms, and of those before them
    sums.clear();
    Terms terms;
    const float* panel = c.weight + channel * c.depth();
    const bool is_dense = c.dilation_width == 1 && c.pixel == c.in;  // the columns of the kernel are adjacent
    const int64_t steps = is_dense ? 1 : c.kernel_width, count = is_dense ? c.kernel_width * c.in : c.in;
    for (int64_t i = 0; i < c.kernel_height; i++)
        for (int64_t j = 0; j < steps; j++) {
            const int64_t offset = (i * c.dilation_height * c.width + j * c.dilation_width) * c.pixel;
            const float* from[ROWS];
            UNROLLED for (int r = 0; r < ROWS; r++) from[r] = rows[r] + offset;
            for (int64_t k = 0, some; k < count; k += some) {
                some = std::min(count - k, MOST_TERMS);
                terms.add(some, sums, parts);
                multiply<WEIGHTS>(from, some, panel, sums, fetch);
                fetch.next += some * fetch.step;
                UNROLLED for (int r = 0; r < ROWS; r++) from[r] += some;
                panel += some * PANEL;
            }
        }
    if (terms.has_parts) sums.add_all(parts);
    store_sums(c, pixel, channel, sums);
}

// Computes the same for a whole panel and a 1 x 1 kernel with at most MOST_TERMS words of input, whose sums have one
// part. In a function of its own, the sums stay in registers.
template <Weights WEIGHTS, int ROWS>
__attribute__((noinline)) void convolve_short_tile(const Convolution& c, const float* const (&rows)[ROWS],
                                                   int64_t pixel, int64_t channel, Fetch fetch) {
    Sums<ROWS, 2, false> sums;
    sums.clear();
    multiply<WEIGHTS>(rows, c.in, c.weight + channel * c.in, sums, fetch);
    store_sums(c, pixel, channel, sums);
}

// Computes the channels from `first` to `last` of ROWS pixels of the result.
template <Weights WEIGHTS, int ROWS>
void convolve_pixels(const Convolution& c, int64_t pixel, int64_t first, int64_t last, Fetch fetch) {
    const float* rows[ROWS];
    int64_t x = pixel % c.out_width, y = pixel / c.out_width % c.out_height, image = pixel / c.out_width / c.out_height;
    UNROLLED for (int r = 0; r < ROWS; r++) {
        rows[r] = c.at(image, y * c.stride_height, x * c.stride_width);
        if (++x == c.out_width) {
            x = 0;
            if (++y == c.out_height) y = 0, image++;
        }
    }
    const bool is_short = c.kernel_height == 1 && c.kernel_width == 1 && c.in <= MOST_TERMS;
    for_panels(c, first, last, [&](auto halves, auto is_narrow, int64_t channel) {
        constexpr int HALVES = decltype(halves)::value;
        if constexpr (HALVES == 2)
            if (is_short) return convolve_short_tile<WEIGHTS, ROWS>(c, rows, pixel, channel, fetch);
        convolve_tile<WEIGHTS, ROWS, HALVES, decltype(is_narrow)::value>(c, rows, pixel, channel, fetch);
    });
}

typedef void (*ConvolvePixels)(const Convolution&, int64_t, int64_t, int64_t, Fetch);
template <Weights WEIGHTS, int ROWS = TILE_ROWS>
ConvolvePixels convolve_pixels_of(int64_t rows) {
    if constexpr (ROWS == 1) return convolve_pixels<WEIGHTS, 1>;
    else return rows >= ROWS ? convolve_pixels<WEIGHTS, ROWS> : convolve_pixels_of<WEIGHTS, ROWS - 1>(rows);
}

void convolve(const Convolution& c, int64_t threads) {
    const int64_t panels = ceil_div(c.out, PANEL), pixels = c.pixels();
    const bool are_cached = panels * PANEL * c.depth() <= CACHED_WORDS;  // the weights of all panels
    const int64_t together = are_cached ? panels : 1;
    const int64_t each = c.stride_height * c.stride_width * c.in;  // words of the input for a pixel
    int64_t height = std::max<int64_t>(CACHED_WORDS / each, 4 * TILE_ROWS);
    if (threads > 1) height = std::min(height, ceil_div(pixels, ceil_div(2 * threads * together, panels)));
    height = ceil_div(height, TILE_ROWS) * TILE_ROWS;
    const int64_t parts = ceil_div(panels, together), tasks = ceil_div(pixels, height) * parts;
    share(tasks, std::min(threads, tasks), [&](int64_t first, int64_t last, int64_t) {
        for (int64_t task = first; task < last; task++) {
            const int64_t start = task / parts * height, end = std::min(start + height, pixels);
            const int64_t channel = task % parts * together * PANEL;
            const int64_t tiles = ceil_div(end - start, TILE_ROWS), rows = ceil_div(end - start, tiles);
            const int64_t step = ceil_div(PANEL * sizeof(float), tiles);
            Fetch fetch{(const char*)(c.weight + (channel + PANEL) * c.depth()), step};  // the next panel
            for (int64_t p = start; p < end; p += rows, fetch.next += c.depth() * step) {
                const int64_t count = std::min(rows, end - p);
                const auto run = !are_cached && tiles <= FEW_TILES ? convolve_pixels_of<NEXT_IN_MEMORY>(count)
                                 : p == start                      ? convolve_pixels_of<IN_MEMORY>(count)
                                                                   : convolve_pixels_of<CACHED>(count);
                run(c, p, channel, std::min(channel + together * PANEL, c.out), fetch);
            }
        }
    });
}
"""
