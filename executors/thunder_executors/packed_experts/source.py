"""The C++ source of products of groups of rows, each with the weight of its expert, and the function's arguments."""

from __future__ import annotations

from thunder_executors.packed_linear import source
from thunder_executors.packed_linear.product_kinds import FLOAT32
from thunder_executors.packed_linear.vector_source import VECTORS

NAME = "packed_experts"  # the function in the extension module
# The arguments: input, weights, offsets, result; rows, in, out, experts; the strides of input rows, of weight columns,
# and of experts.
ARGUMENTS = (*("const void*",) * 3, "void*", *("int64_t",) * 7)

# The groups of rows are slices, as in PyTorch's kernel: the end of a group is the start of the next one, a negative
# number counts from the end, a number beyond the rows means the end, and a group that ends before it starts is empty.
# Rows of no group are not written, and rows of several groups have the result of the last of these groups.
ENTRY = r"""
void kernel(const void* input, const void* weights, const void* offsets, void* result, int64_t rows, int64_t in,
            int64_t out, int64_t experts, int64_t input_stride, int64_t weight_stride, int64_t expert_stride) {
    using namespace products;
    typedef KIND Kind;
    for (int64_t expert = 0, start = 0, end; expert < experts; expert++, start = end) {
        end = ((const int32_t*)offsets)[expert];
        const int64_t first = std::clamp<int64_t>(start < 0 ? start + rows : start, 0, rows);
        const int64_t last = std::clamp<int64_t>(end < 0 ? end + rows : end, first, rows);
        if (first == last) continue;
        product_of<Kind>((const Kind::Input*)input + first * input_stride,
                         (const Kind::Weight*)weights + expert * expert_stride, nullptr,
                         (Kind::Result*)result + first * out, last - first, in, out, input_stride, weight_stride, 0);
    }
}
"""


def source_of(vectors: str = VECTORS) -> str:
    """Return the C++ source; `vectors` is the source of the vector functions."""
    return source.source_of(FLOAT32.type, vectors, ENTRY)
