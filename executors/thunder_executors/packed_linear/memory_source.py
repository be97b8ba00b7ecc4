"""The C++ source of buffers, of row strides that avoid conflicts in the L1 cache, and of tasks for threads."""

from __future__ import annotations

MEMORY = r"""
constexpr int PANEL = 2 * WIDTH;      // columns of the result whose weights are packed together
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
