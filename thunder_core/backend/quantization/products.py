"""Products with quantized weights, as operations of PyTorch: `torch.ops.thunder.int8_product` and others.

Each product takes rows (n, columns) in bfloat16, or in float64 for a reference, and returns (n, rows of the weight) in
the same dtype; layers convert to this dtype and back, and compilers fuse the conversions with other operations. Each
call chooses its algorithm by the number of rows, so that one program is valid for all numbers of rows. A few rows are
multiplied by PyTorch's kernel for quantized weights, which is memory-bound. For many rows, the weight is converted
block by block for a matrix product, so that a block stays in the processor's cache.

The functions here implement the operations on tensors with data; `IMPLEMENTATIONS` has them by name.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from thunder_core.backend.quantization.integers import BLOCK, dequantize_groups, pack, rotate, rotation, unpack
from thunder_core.backend.quantization.normal_float import dequantize_normal

LIBRARY = torch.library.Library("thunder", "FRAGMENT")  # type: ignore[no-untyped-call]
WHOLE_VECTORS = 32  # a number of columns that every processor reads as whole vectors of bfloat16
FEW_ROWS = 16  # the number of rows for which both algorithms are equally fast on a Xeon with AMX (docs/quantization.md)
MIN_ROWS_ON_GPU = 17  # the minimum number of rows for `torch._int_mm` on a GPU
MULTIPLE_ON_GPU = 8  # the other sizes of `torch._int_mm` on a GPU are multiples of this
FP8_CAPABILITY = (8, 9)  # of GPUs with Tensor Cores for 8-bit floats: Ada; Hopper is (9, 0)
MIN_BLOCK_ELEMENTS = 1 << 20  # the minimum number of elements of a block


IMPLEMENTATIONS: dict[str, Callable[..., Tensor]] = {}


def operation(
    columns: Callable[..., int | torch.SymInt], dtype: torch.dtype | None = None
) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Define an operation, named like the decorated function, that calls the function on any device.

    The decorator returns the function. `columns` computes the result's number of columns from the arguments; the result
    has `dtype`, or the dtype of the first argument.
    """

    def define(implementation: Callable[..., Tensor]) -> Callable[..., Tensor]:
        name = implementation.__name__
        arguments = ", ".join(f"Tensor {parameter}" for parameter in inspect.signature(implementation).parameters)
        LIBRARY.define(f"{name}({arguments}) -> Tensor")  # type: ignore[no-untyped-call]
        LIBRARY.impl(name, implementation, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]

        def metadata(x: Tensor, *operands: Tensor) -> Tensor:
            return x.new_empty((x.shape[0], columns(x, *operands)), dtype=dtype or x.dtype)

        torch.library.register_fake(f"thunder::{name}", metadata, lib=LIBRARY)
        IMPLEMENTATIONS[name] = implementation
        return implementation

    return define


@functools.cache
def compute_dtype_on(device: str, dtype: torch.dtype) -> torch.dtype:
    """Return the dtype in which a device computes products: `dtype`, or float32 on processors without bfloat16."""
    if device == "cpu" and dtype != torch.float64 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return torch.float32
    return dtype


def fits_kernel(x: Tensor) -> bool:
    """Whether PyTorch's kernel for quantized weights multiplies these rows: few rows in bfloat16 on the CPU."""
    return 0 < x.shape[0] <= FEW_ROWS and x.dtype == torch.bfloat16 and x.is_cpu


def multiply_by_blocks(x: Tensor, rows: int, columns: int, weight: Callable[[int, int], Tensor]) -> Tensor:
    """Return the product of rows with a weight whose rows `weight(start, stop)` computes in blocks."""
    step = max(256, MIN_BLOCK_ELEMENTS // max(columns, 1)) // BLOCK * BLOCK
    if step >= rows:
        return torch.nn.functional.linear(x, weight(0, rows))
    result = x.new_empty(x.shape[0], rows)
    for start in range(0, rows, step):
        stop = min(start + step, rows)
        result[:, start:stop] = torch.nn.functional.linear(x, weight(start, stop))
    return result


@operation(lambda x: x.shape[1])
def rotated_rows(x: Tensor) -> Tensor:
    """Return rows (n, columns) in which large values of a column are spread over up to 32 columns."""
    dtype = (
        compute_dtype_on(x.device.type, x.dtype)
        if x.shape[0] > FEW_ROWS
        else torch.promote_types(x.dtype, torch.float32)
    )
    return rotate(x.to(dtype), _rotation(x.shape[1], dtype, x.device)).to(x.dtype)


@functools.cache
def _rotation(columns: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    return rotation(columns).to(device, dtype)


@operation(lambda _, codes: codes.shape[0], torch.int32)
def integer_product(x: Tensor, codes: Tensor) -> Tensor:
    """Return rows (n, columns) in int8 times a weight (rows, columns) in int8, exactly, as int32 (n, rows).

    `torch._int_mm` on the CPU leaves its result unwritten for a single row whose strides are not (columns, 1), although
    the first stride is never used, and for a single column on processors with VNNI.
    """
    count, columns = x.shape
    if columns == 1:
        return x.to(torch.int32) * codes.t().to(torch.int32)
    if not (count and columns and codes.shape[0]):
        return torch.zeros(count, codes.shape[0], dtype=torch.int32, device=x.device)
    rows = x.reshape(-1).view(count, columns)
    return torch._int_mm(rows, codes.t()) if x.is_cpu else integer_product_on_gpu(rows, codes)


def integer_product_on_gpu(x: Tensor, codes: Tensor) -> Tensor:
    """Return rows in int8 times a weight in int8, both padded with zeros to sizes that `torch._int_mm` takes on GPUs.

    It takes more than 16 rows, and requires that the other sizes are multiples of 8.
    """
    (count, columns), rows = x.shape, codes.shape[0]
    x = pad_to(x, max(count, MIN_ROWS_ON_GPU), columns + -columns % MULTIPLE_ON_GPU)
    codes = pad_to(codes, rows + -rows % MULTIPLE_ON_GPU, columns + -columns % MULTIPLE_ON_GPU)
    return torch._int_mm(x, codes.t())[:count, :rows]


def pad_to(matrix: Tensor, rows: int, columns: int) -> Tensor:
    """Return a matrix with zeros below and to the right of it; the matrix itself if it has this size."""
    below, right = rows - matrix.shape[0], columns - matrix.shape[1]
    return torch.nn.functional.pad(matrix, (0, right, 0, below)) if below or right else matrix


@operation(lambda _, row_scales, codes, scales: codes.shape[0], torch.bfloat16)
def fp8_product(rows: Tensor, row_scales: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Return rows (n, columns) times a weight (rows, columns), both in E4M3 with a scale for each row, in bfloat16.

    `torch._scaled_mm` needs a GPU of compute capability 8.9 (Ada) and sizes that are multiples of 16. Otherwise the
    codes are multiplied as bfloat16 numbers, which represent them exactly.
    """
    if multiplies_fp8(rows.device) and not (codes.shape[0] % 16 or codes.shape[1] % 16) and rows.shape[0]:
        return torch._scaled_mm(rows, codes.t(), row_scales, scales.float()[None], out_dtype=torch.bfloat16)
    dtype = compute_dtype_on(rows.device.type, torch.bfloat16)
    result = torch.nn.functional.linear(rows.to(dtype), codes.to(dtype))
    return (result.float() * row_scales * scales.float()).to(torch.bfloat16)


@functools.cache
def multiplies_fp8(device: torch.device) -> bool:
    """Whether a device has instructions for products of 8-bit floats: a GPU of compute capability 8.9 or more."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= FP8_CAPABILITY


@operation(lambda _, codes, scales: codes.shape[0])
def int8_product(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Return rows times a weight in 8 bits: codes (rows, columns) and bfloat16 scales (rows,).

    PyTorch's kernel for the CPU reads whole vectors even past the last column, and crashes the process or returns
    random numbers if columns are left over (PyTorch 2.13).
    """
    if fits_kernel(x) and codes.shape[1] % WHOLE_VECTORS == 0:
        return torch._weight_int8pack_mm(x, codes, scales)
    dtype = compute_dtype_on(x.device.type, x.dtype)
    rows, columns = codes.shape
    result = multiply_by_blocks(x.to(dtype), rows, columns, lambda start, stop: codes[start:stop].to(dtype))
    return (result * scales).to(x.dtype)


@operation(lambda _, codes, scales_and_zeros: scales_and_zeros.shape[1])
def int4_product(x: Tensor, codes: Tensor, scales_and_zeros: Tensor) -> Tensor:
    """Return rows times a weight in 4 bits: packed codes, and the scales and zeros of the groups (groups, rows, 2)."""
    groups, rows, _ = scales_and_zeros.shape
    columns = x.shape[1]
    size = columns // groups
    if fits_kernel(x) and rows % BLOCK == 0 and kernel_reads_blocks(size):
        return torch._weight_int4pack_mm_for_cpu(x, codes.view(rows, -1), size, scales_and_zeros)
    dtype = compute_dtype_on(x.device.type, x.dtype)
    result = multiply_by_blocks(
        x.to(dtype), rows, columns, lambda start, stop: int4_rows(codes, scales_and_zeros, start, stop, dtype)
    )
    return result.to(x.dtype)


def int4_rows(codes: Tensor, scales_and_zeros: Tensor, start: int, stop: int, dtype: torch.dtype) -> Tensor:
    """Return some rows of a weight in 4 bits, starting at a block boundary, in `dtype`."""
    blocks = codes[start // BLOCK : -(-stop // BLOCK)]
    return dequantize_groups(unpack(blocks)[: stop - start], scales_and_zeros[:, start:stop], dtype)


@functools.cache
def kernel_reads_blocks(group_size: int) -> bool:
    """Whether PyTorch's kernel for 4 bits supports this group size, and reads codes in our layout on this processor.

    The layout depends on the processor's vectors, so some codes are packed by PyTorch and compared.
    """
    if group_size not in (32, 64, 128, 256):
        return False
    codes = torch.arange(BLOCK * 32, dtype=torch.int32).view(BLOCK, 32) * 7 % 16
    try:
        packed_by_pytorch = torch._convert_weight_to_int4pack_for_cpu(codes, 1)
    except (RuntimeError, AttributeError):
        return False
    return torch.equal(packed_by_pytorch.reshape(-1), pack(codes.to(torch.uint8)).reshape(-1))


@operation(lambda _, codes, scales: codes.shape[0])
def normal_product(x: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Return rows times a weight in NormalFloat: codes (rows, columns / 2) and scales (rows, groups)."""
    dtype = compute_dtype_on(x.device.type, x.dtype)
    rows, columns = codes.shape[0], x.shape[1]
    result = multiply_by_blocks(
        x.to(dtype), rows, columns, lambda start, stop: dequantize_normal(codes[start:stop], scales[start:stop], dtype)
    )
    return result.to(x.dtype)


@operation(lambda _, codes, scales: codes.shape[1])
def int8_product_backward(gradient: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Return the gradient (n, columns) of the rows of `int8_product`, from the gradient of its result."""
    return _backward(gradient, lambda dtype: codes.to(dtype) * scales.to(dtype)[:, None])


@operation(lambda _, codes, scales: codes.shape[1])
def int4_product_backward(gradient: Tensor, codes: Tensor, scales_and_zeros: Tensor) -> Tensor:
    """Return the gradient (n, columns) of the rows of `int4_product`, from the gradient of its result."""
    rows = scales_and_zeros.shape[1]
    return _backward(gradient, lambda dtype: int4_rows(codes, scales_and_zeros, 0, rows, dtype))


@operation(lambda _, codes, scales: 2 * codes.shape[1])
def normal_product_backward(gradient: Tensor, codes: Tensor, scales: Tensor) -> Tensor:
    """Return the gradient (n, columns) of the rows of `normal_product`, from the gradient of its result."""
    return _backward(gradient, lambda dtype: dequantize_normal(codes, scales, dtype))


def _backward(gradient: Tensor, weight: Callable[[torch.dtype], Tensor]) -> Tensor:
    dtype = compute_dtype_on(gradient.device.type, gradient.dtype)
    return (gradient.to(dtype) @ weight(dtype)).to(gradient.dtype)


def _register_derivative(name: str) -> None:
    """Register the derivative of a product with respect to its rows with autograd; codes and scales have none."""
    backward = getattr(torch.ops.thunder, f"{name}_backward")

    def save(ctx: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[1:])

    def gradients(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return backward(gradient, *ctx.saved_tensors), None, None

    torch.library.register_autograd(f"thunder::{name}", gradients, setup_context=save, lib=LIBRARY)


for _name in ("int8_product", "int4_product", "normal_product"):
    _register_derivative(_name)


OPERATIONS = {name: getattr(torch.ops.thunder, name) for name in IMPLEMENTATIONS}
