"""The complete C++ source of attention, and the arguments of its function."""

from __future__ import annotations

from thunder_executors.packed_attention.attention_source import BLOCKS, SCORES
from thunder_executors.packed_linear.arithmetic import KINDS
from thunder_executors.packed_linear.memory_source import MEMORY
from thunder_executors.packed_linear.packing_source import PACKING
from thunder_executors.packed_linear.source import CONSTANTS, HEADERS, PRODUCT
from thunder_executors.packed_linear.vector_source import NUMBERS, VECTORS

NAME = "packed_attention"  # the function in the extension module
# The arguments: query, key, value, mask, result; batch, heads, heads of keys, rows, keys, widths of keys and of values;
# strides of batches, heads and rows of query, key, value and result, and those of the mask, also of its keys; the kind
# of the mask (0: none, 1: boolean, 2: float), whether attention is causal, and the bits of the scale.
ARGUMENTS = (*("const void*",) * 4, "void*", *("int64_t",) * 26)

ENTRY = r"""
}  // namespace products

void kernel(const void* query, const void* key, const void* value, const void* mask, void* result, int64_t batch,
            int64_t heads, int64_t groups, int64_t rows, int64_t keys, int64_t width, int64_t value_width,
            int64_t q_batch, int64_t q_head, int64_t q_row, int64_t k_batch, int64_t k_head, int64_t k_row,
            int64_t v_batch, int64_t v_head, int64_t v_row, int64_t r_batch, int64_t r_head, int64_t r_row,
            int64_t m_batch, int64_t m_head, int64_t m_row, int64_t m_key, int64_t mask_kind, int64_t causal,
            int64_t scale) {
    using namespace products;
    if (batch * heads * rows * value_width == 0) return;
    double factor;
    std::memcpy(&factor, &scale, 8);
    attend({(const float*)query, (const float*)key, (const float*)value, mask, (float*)result, batch, heads, groups,
            rows, keys, width, value_width, {q_batch, q_head, q_row}, {k_batch, k_head, k_row},
            {v_batch, v_head, v_row}, {r_batch, r_head, r_row}, {m_batch, m_head, m_row, m_key}, mask_kind, causal,
            (float)factor});
}
"""


def source_of(vectors: str = VECTORS) -> str:
    """Return the C++ source; `vectors` is the source of the vector functions."""
    parts = (HEADERS, NUMBERS, vectors, MEMORY, CONSTANTS, KINDS, PRODUCT, PACKING, SCORES, BLOCKS, ENTRY)
    return "".join(parts)
