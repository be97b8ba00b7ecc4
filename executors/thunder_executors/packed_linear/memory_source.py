"""The C++ source of buffers, of row strides that avoid conflicts in the L1 cache, and of tasks for threads."""

from __future__ import annotations

MEMORY = r"""
constexpr int PANEL = 2 * WIDTH;      // columns of the result whose weights are packed together
constexpr int64_t TILE_STEPS = WIDTH == 16 ? 1 : 4;  // words of a row in one pass of a loop
constexpr int64_t LINE = 64;         // bytes that a prefetch reads
constexpr int64_t L1_STRIDE = 1024;  // words: rows at a multiple of this stride map to the same sets of the L1 cache

constexpr int64_t ceil_div(int64_t number, int64_t by) { return (number + by - 1) / by; }

struct Free {
    void operator()(float* memory) const { std::free(memory); }
};
typedef std::unique_ptr<float, Free> Memory;

inline Memory allocate(int64_t words) {
    Memory memory((float*)std::aligned_alloc(64, ceil_div(words, 16) * 64));
    if (!memory) throw std::bad_alloc();
    return memory;
}

// Rows that lie a stride apart, read at one word after the other. A row is read at the first row of its group of three,
// plus 0, 1 or 2 strides. The processor computes such an address within the instruction that reads.
template <int ROWS>
struct TileRows {
    static constexpr int GROUPS = (ROWS + 2) / 3;
    const char* groups[GROUPS];
    int64_t apart;  // bytes

    TileRows(const float* first, int64_t stride) : apart(stride * sizeof(float)) {
        UNROLLED for (int g = 0; g < GROUPS; g++) {
            groups[g] = (const char*)(first + 3 * g * stride);
            asm("" : "+r"(groups[g]));  // otherwise, g++ computes each address from that of the first row
        }
    }
    Vector broadcast_word(int row, int64_t k) const {
        return broadcast((const float*)(groups[row / 3] + row % 3 * apart) + k);
    }
    void advance(int64_t words) {
        UNROLLED for (int g = 0; g < GROUPS; g++) groups[g] += words * sizeof(float);
    }
};

// Divides the tasks evenly among threads and calls `work(first, last, thread)`.
template <typename Work>
void share(int64_t tasks, int64_t threads, const Work& work) {
    if (threads <= 1) return work(0, tasks, 0);
#pragma omp parallel num_threads(threads)
    {
        const int64_t count = omp_get_num_threads(), thread = omp_get_thread_num();
        work(tasks * thread / count, tasks * (thread + 1) / count, thread);
    }
}

// Whether the rows of a tile map to the same sets of the L1 cache, which has eight ways.
inline bool collides(int64_t stride) { return TILE_ROWS > 8 && stride % L1_STRIDE == 0; }

inline int64_t stride_of(int64_t words) { return collides(words) ? words + 16 : words; }
"""
