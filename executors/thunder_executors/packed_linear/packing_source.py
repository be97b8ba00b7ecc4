"""The C++ source that packs panels: columns of a weight become rows of words, in the order that a tile reads."""

from __future__ import annotations

PACKING = r"""
// Transposes four words of WIDTH columns into WIDTH words of four rows of a panel.
template <typename K>
inline void transpose(const typename K::Weight* from, int64_t stride, float* to) {
    Vector words[4];
    UNROLLED for (int i = 0; i < 4; i++) {
        __m128 columns[WIDTH / 4];
        UNROLLED for (int c = 0; c < WIDTH / 4; c++) columns[c] = K::four_words(from + (4 * c + i) * stride);
        words[i] = join(columns);
    }
    const Vector a = lower_pairs(words[0], words[1]), b = upper_pairs(words[0], words[1]);
    const Vector c = lower_pairs(words[2], words[3]), d = upper_pairs(words[2], words[3]);
    store(to, lower_halves(a, c));
    store(to + PANEL, upper_halves(a, c));
    store(to + 2 * PANEL, lower_halves(b, d));
    store(to + 3 * PANEL, upper_halves(b, d));
}

// Packs `numbers` weights of each of up to PANEL columns as words, in the order in which a tile reads them; missing
// numbers and columns are zeros.
template <typename K>
inline void pack(const typename K::Weight* weight, int64_t stride, int64_t numbers, int width, float* panel) {
    int64_t k = 0;
    if (width == PANEL)
        for (; (k + 16) * K::NUMBERS <= numbers; k += 16)  // 16 words of each column at a time
            for (int c = 0; c < PANEL; c += WIDTH)
                UNROLLED for (int i = 0; i < 16; i += 4)
                    transpose<K>(weight + c * stride + (k + i) * K::NUMBERS, stride, panel + (k + i) * PANEL + c);
    for (; k * K::NUMBERS < numbers; k++)
        for (int c = 0; c < PANEL; c++) {
            const int64_t n = k * K::NUMBERS;
            if (c < width) K::put_word(panel + k * PANEL + c, weight + c * stride + n, numbers - n);
            else panel[k * PANEL + c] = 0.0f;
        }
}

// Packs `count` 4-bit weights, from `depth` on, of each of up to PANEL columns as float32 numbers.
template <typename K>
inline void pack_groups(const Product<K>& p, int64_t column, int64_t depth, int64_t count, int width, float* panel) {
    const int64_t half = column % BLOCK / (BLOCK / 2), length = p.weight_stride;
    const uint8_t* codes = p.weight + (column / BLOCK * p.in + depth) * (BLOCK / 2) + column % (BLOCK / 2);
    for (int64_t k = 0; k < count;) {
        const int64_t group = (depth + k) / length, last = std::min(count, (group + 1) * length - depth);
        alignas(64) uint32_t numbers[PANEL] = {};
        std::memcpy(numbers, p.extra + (group * p.out + column) * 2, 4 * width);
        Vector scales[2], zeros[2];
        UNROLLED for (int part = 0; part < 2; part++) {
            scales[part] = lower(numbers + part * WIDTH);
            zeros[part] = fma(scales[part], constant(-8.0f), upper(numbers + part * WIDTH));
        }
        for (; k < last; k++)
            UNROLLED for (int part = 0; part < 2; part++) {
                const Vector code = codes_of(codes + k * (BLOCK / 2) + part * WIDTH, 4 * half);
                store(panel + k * PANEL + part * WIDTH, fma(code, scales[part], zeros[part]));
            }
    }
}
"""
