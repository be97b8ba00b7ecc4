"""The C++ source of products of few rows: dot products with vectors along the depth, without packing."""

from __future__ import annotations

DOTS = r"""
// Computes dot products of some rows with some columns, with vectors along the depth, without packing. The columns are
// adjacent, or each is `apart` columns after the previous one. Each dot product has STEPS independent sums, which hide
// the latency of additions. STEPS is larger if fewer dot products are computed together.
template <typename K, int ROWS, int COLUMNS, int STEPS, bool ADJACENT = true>
void dots(const Product<K>& p, int64_t row, int64_t column, int64_t apart = 1) {
    constexpr int DOTS = ROWS * COLUMNS, PADDED = ceil_div(DOTS, 4) * 4;
    const float* input = p.input + row * p.input_stride;
    const typename K::Weight* weight = p.weight + column * p.weight_stride;
    const int64_t stride = apart * p.weight_stride;
    Vector sums[STEPS][PADDED];
    UNROLLED for (int s = 0; s < STEPS; s++)
        UNROLLED for (int dot = 0; dot < PADDED; dot++) sums[s][dot] = zero();
    const auto add_products = [&](int64_t k, Vector* to) {
        Vector columns[COLUMNS];
        UNROLLED for (int c = 0; c < COLUMNS; c++)
            columns[c] = K::words(weight + c * stride + k * K::NUMBERS);
        if constexpr (COLUMNS > 1 && ADJACENT)  // prefetch the group of columns after the next group
            UNROLLED for (int c = 2 * COLUMNS; c < 3 * COLUMNS; c++)
                _mm_prefetch((const char*)(weight + c * stride + k * K::NUMBERS), _MM_HINT_T0);
        UNROLLED for (int r = 0; r < ROWS; r++) {
            const Vector value = load(input + r * p.input_stride + k);
            UNROLLED for (int c = 0; c < COLUMNS; c++)
                to[r * COLUMNS + c] = K::multiply_add(value, columns[c], to[r * COLUMNS + c]);
        }
    };
    int64_t k = 0;
    for (; (k + STEPS * WIDTH) * K::NUMBERS <= p.in; k += STEPS * WIDTH)
        UNROLLED for (int s = 0; s < STEPS; s++) add_products(k + s * WIDTH, sums[s]);
    for (; (k + WIDTH) * K::NUMBERS <= p.in; k += WIDTH) add_products(k, sums[0]);
    UNROLLED for (int s = 1; s < STEPS; s++)
        UNROLLED for (int dot = 0; dot < DOTS; dot++) sums[0][dot] = K::plus(sums[0][dot], sums[s][dot]);
    typename K::Sum totals[PADDED];
    UNROLLED for (int dot = 0; dot < PADDED; dot += 4) K::totals_of_four(sums[0] + dot, totals + dot);
    for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLUMNS; c++) {
            typename K::Sum sum = 0;
            for (int64_t rest = k; rest < p.words; rest++) {
                const int64_t n = rest * K::NUMBERS;
                sum += K::product(input + r * p.input_stride + rest, weight + c * stride + n, p.in - n);
            }
            sum += totals[r * COLUMNS + c];
            if (p.extra) sum = K::finish(sum, p.extra_of(column + c * apart));
            put(p.result + (row + r) * p.out + column + c * apart, sum);
        }
}

template <typename K, int ROWS, int COLUMNS>
void dots_of(const Product<K>& p, int64_t row, int64_t first, int64_t last) {
    if constexpr (COLUMNS > 1)
        for (; first + COLUMNS <= last; first += COLUMNS) dots<K, ROWS, COLUMNS, 1>(p, row, first);
    for (; first < last; first++) dots<K, ROWS, 1, ROWS == 1 ? 8 : ROWS == 2 ? 6 : ROWS == 3 ? 4 : 3>(p, row, first);
}

// Computes dot products with columns that lie apart. The core prefetches several streams of memory at the same time
// with a higher bandwidth than one stream, and than adjacent columns.
template <typename K, int ROWS>
void dots_in_streams(const Product<K>& p, int64_t row, int64_t first, int64_t last) {
    constexpr int STREAMS = WIDTH == 16 || ROWS <= 2 ? 4 : 2, STEPS = ROWS == 1 ? 2 : 1;  // as many as registers hold
    const int64_t apart = (last - first) / STREAMS;
    for (int64_t column = first; column < first + apart; column++)
        dots<K, ROWS, STREAMS, STEPS, false>(p, row, column, apart);
    dots_of<K, ROWS, 1>(p, row, first + STREAMS * apart, last);
}

// Computes up to TASK_COLUMNS columns of the result for a few rows. For up to four rows, and for up to eight rows that
// fit in the L1 cache, the columns are read in the order of memory, in a few streams. For more rows, several adjacent
// columns are computed at a time, and share the loads of the input.
template <typename K>
void columns_of(const Product<K>& p, int64_t first, int64_t last) {
    int64_t row = 0;
    if (p.rows <= 4 || (p.rows <= 8 && p.rows * p.words <= L1_WORDS)) {
        for (; row + 4 <= p.rows; row += 4) dots_in_streams<K, 4>(p, row, first, last);
    } else {
        for (; row + DOT_ROWS <= p.rows; row += DOT_ROWS) dots_of<K, DOT_ROWS, DOT_COLUMNS>(p, row, first, last);
        for (; row + 4 <= p.rows; row += 4) dots_of<K, 4, DOT_COLUMNS>(p, row, first, last);
    }
    switch (p.rows - row) {
        case 3: dots_in_streams<K, 3>(p, row, first, last); break;
        case 2: dots_in_streams<K, 2>(p, row, first, last); break;
        case 1: dots_in_streams<K, 1>(p, row, first, last); break;
    }
    if constexpr (std::is_same<typename K::Result, float>::value)
        for (int64_t r = 0; p.activation && r < p.rows; r++) {
            alignas(64) float values[TASK_COLUMNS] = {};
            std::copy(p.result + r * p.out + first, p.result + r * p.out + last, values);
            activate(p.activation, values, TASK_COLUMNS);
            std::copy_n(values, last - first, p.result + r * p.out + first);
        }
}

template <typename K>
void multiply_few(const Product<K>& p, int64_t threads) {
    const int64_t tasks = ceil_div(p.out, TASK_COLUMNS);
    share(tasks, std::min(threads, tasks), [&](int64_t first, int64_t last, int64_t) {
        for (int64_t task = first; task < last; task++)
            columns_of(p, task * TASK_COLUMNS, std::min((task + 1) * TASK_COLUMNS, p.out));
    });
}

"""
