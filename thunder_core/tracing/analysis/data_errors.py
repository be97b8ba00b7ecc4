"""Find operations that raise an error depending on the values of their input tensors.

Such an operation must not be removed even if no operation reads its result, because eager PyTorch may raise its error.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import torch

from thunder_core.tracing.analysis.named_arguments import named_arguments
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.sizes import is_symbolic
from thunder_core.tracing.ir.symbol import BoundSymbol

# Checks of metadata: tracing has decided them, because tensors without data have metadata.
CHECK_METADATA = frozenset({"aten::_assert_tensor_metadata"})
MARKS_FOR_PROFILERS = "profiler::"  # the namespace of operators that mark ranges for profilers
# Checks that return a token tensor, with which a program can order operations.
RETURN_TOKEN = frozenset({"aten::_functional_assert_async", "aten::_functional_assert_scalar"})

# Operators, out-of-place or in-place, that raise for invalid indices, invalid probabilities or some matrices.
RAISE_BY_VALUES = frozenset({"thunder::linear_sum_assignment"}) | frozenset(
    f"aten::{name}"
    for name in (
        *("index", "index_put", "index_select", "index_add", "index_copy", "index_fill", "index_reduce"),
        *("gather", "scatter", "scatter_add", "scatter_reduce", "take", "put", "masked_scatter", "segment_reduce"),
        *("embedding", "_embedding_bag", "_embedding_bag_forward_only", "embedding_renorm", "max_unpool2d"),
        *("max_unpool3d", "nll_loss_forward", "nll_loss2d_forward", "multi_margin_loss", "_ctc_loss"),
        *("multilabel_margin_loss_forward", "binary_cross_entropy", "repeat_interleave", "bincount", "histc"),
        *("linalg_eig", "lu_unpack", "_pack_padded_sequence", "histogram", "_histogramdd_bin_edges"),
        *("_linalg_svd", "linalg_pinv", "linalg_lu_solve", "linalg_ldl_solve", "multinomial", "bernoulli", "normal"),
        *("_linalg_eigh", "_linalg_eigvals", "linalg_eigvals", "cholesky", "cholesky_inverse", "poisson", "binomial"),
        *("fake_quantize_per_channel_affine_cachemask", "_fake_quantize_learnable_per_channel_affine"),
    )
)
# Operators whose GPU kernels assert that values are valid: an invalid value stops the kernel, and the process can no
# longer use the GPU. Most other operators raise an exception on the CPU, which a program can catch.
ASSERT_IN_KERNELS = frozenset(
    f"aten::{name}"
    for name in ("index", "index_select", "index_copy", "index_fill", "gather", "scatter", "scatter_add", "embedding")
)
MASKS = (torch.bool, torch.uint8)  # dtypes of indices that select elements, whose shapes are checked on the CPU
# The classes of errors that depend on tensor values, in PyTorch and in Python's operators on numbers.
LIN_ALG_ERROR: type[Exception] = torch.linalg.LinAlgError  # type: ignore[attr-defined]
ERRORS_BY_VALUES = (IndexError, RuntimeError, LIN_ALG_ERROR, ValueError, ZeroDivisionError, OverflowError)
# Functions that read tensor values although their recorded operations only read metadata.
READING_VALUES = frozenset({torch.nn.functional.one_hot, torch.nn.functional.ctc_loss, torch.ctc_loss})
# Python's operators on computed numbers, which raise if the divisor is zero.
DIVIDE_NUMBERS = frozenset({operator.truediv, operator.floordiv, operator.mod})
# Python's functions of computed numbers that raise for some numbers: NaN, infinities, negative or large numbers.
RAISE_BY_NUMBERS: frozenset[object] = frozenset(
    {
        *(float, int, round, operator.pow, math.floor, math.ceil, math.trunc),
        *(math.sqrt, math.exp, math.expm1, math.log, math.log2, math.log10, math.log1p, math.sin, math.cos, math.tan),
    }
)


# Functions whose kernels refuse some empty tensors, or sizes that their operations for symbolic sizes do not check.
CHECK_SIZES = frozenset(
    {
        *(
            torch.nn.functional.interpolate,
            *(kernel for name, kernel in vars(torch._C._nn).items() if "upsample" in name),
        ),
        *(torch.nn.functional.ctc_loss, torch.ctc_loss),
    }
)
# Operators whose kernels refuse some empty tensors; PyTorch does not raise this error for tensors without data.
CHECK_SIZES_IN_KERNELS = frozenset(
    f"aten::{name}"
    for name in ("_adaptive_avg_pool2d", "_adaptive_avg_pool3d", "grid_sampler_2d", "grid_sampler_3d", "max", "min")
)


def divides_integers(operation: BoundSymbol) -> bool:
    """Whether an operation returns integers, and its divisor is zero or a computed value."""
    divisor = second_argument(operation)
    return returns_integers(operation) and (isinstance(divisor, Proxy) or divisor == 0)


def divides_numbers(operation: BoundSymbol) -> bool:
    """Whether an operation on numbers has a divisor that is zero or a computed value."""
    divisor = second_argument(operation)
    is_of_tensors = any(isinstance(proxy, TensorProxy) for proxy in operation.inputs)
    return not is_of_tensors and (isinstance(divisor, Proxy) or divisor == 0)


def raises_integers_to_negative_power(operation: BoundSymbol) -> bool:
    """Whether an operation raises integers to a scalar power that is negative or computed."""
    power = second_argument(operation)
    if power is None or isinstance(power, TensorProxy) or not returns_integers(operation):
        return False
    return isinstance(power, Proxy) or power < 0


def stores_number_in_integers(operation: BoundSymbol) -> bool:
    """Whether an operation stores a computed number in an integer tensor, whose dtype may not represent the number."""
    return returns_integers(operation) and not all(isinstance(proxy, TensorProxy) for proxy in operation.inputs)


def checks_errors(operation: BoundSymbol) -> bool:
    """Whether a factorization with the argument `check_errors` (`linalg_inv_ex`) raises errors."""
    return bool(named_arguments(operation.symbol.target, operation.args, operation.kwargs)["check_errors"])


def has_sorter(operation: BoundSymbol) -> bool:
    """Whether a search has a `sorter`, a tensor of indices which may be out of range."""
    return operation.kwargs.get("sorter") is not None


def second_argument(operation: BoundSymbol) -> Any:
    """Return the second positional argument of an operation, or None if it has only one."""
    return operation.args[1] if len(operation.args) > 1 else None


def returns_integers(operation: BoundSymbol) -> bool:
    """Whether no tensor result of an operation has a floating-point or complex dtype."""
    tensors = (proxy for proxy in operation.outputs if isinstance(proxy, TensorProxy))
    return not any(proxy.dtype.is_floating_point or proxy.dtype.is_complex for proxy in tensors)


# Operators that raise depending on values only for some arguments, and the check of these arguments.
RAISE_BY_ARGUMENTS: Mapping[str, Callable[[BoundSymbol], bool]] = {
    **{f"aten::{name}": divides_integers for name in ("div", "floor_divide", "remainder", "fmod")},
    "aten::pow": raises_integers_to_negative_power,
    "aten::searchsorted": has_sorter,
    **{
        f"aten::{name}": checks_errors
        for name in (
            *("linalg_cholesky_ex", "linalg_inv_ex", "linalg_lu_factor_ex", "linalg_ldl_factor_ex"),
            *("linalg_solve_ex", "_linalg_solve_ex"),
        )
    },
    **{
        f"aten::{name}": stores_number_in_integers
        for name in ("full", "full_like", "new_full", "fill", "masked_fill", "scalar_tensor")
    },
}


@cache
def is_check(target: object) -> bool:
    """Whether a target is an operator without results, which is called for its error or another effect."""
    if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
        return False
    name = target._schema.name
    if name.startswith(MARKS_FOR_PROFILERS):
        return False
    return name in RETURN_TOKEN or (not target._schema.returns and name not in CHECK_METADATA)


def may_raise(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol may raise an error depending on tensor values, according to its aten operations."""
    target = bsym.symbol.target
    if target in DIVIDE_NUMBERS and divides_numbers(bsym):
        return True
    if target in RAISE_BY_NUMBERS or target in READING_VALUES:
        return True
    return any(map(_may_raise, bsym.operations))


def may_raise_by_sizes(bsym: BoundSymbol) -> bool:
    """Whether the kernel of a bound symbol may refuse a size of zero, or some symbolic sizes without a constraint."""
    tensors = (proxy for proxy in (*bsym.inputs, *bsym.outputs) if isinstance(proxy, TensorProxy))
    if not any(is_symbolic(size) or not size for proxy in tensors for size in proxy.shape):
        return False
    return bsym.symbol.target in CHECK_SIZES or any(
        getattr(getattr(operation.symbol.target, "_schema", None), "name", "") in CHECK_SIZES_IN_KERNELS
        for operation in bsym.operations
    )


def asserts_on_gpu(bsym: BoundSymbol, device: torch.device) -> bool:
    """Whether the errors of a bound symbol that depend on values are all assertions of a kernel on this GPU."""
    # With deterministic algorithms, some of these operators check their indices on the CPU.
    if device.type != "cuda" or torch.are_deterministic_algorithms_enabled() or bsym.symbol.target in READING_VALUES:
        return False
    raising = [operation for operation in bsym.operations if _may_raise(operation)]
    return bool(raising) and all(_asserts_on_gpu(operation, device) for operation in raising)


def _asserts_on_gpu(operation: BoundSymbol, device: torch.device) -> bool:
    target: Any = operation.symbol.target
    tensors = [proxy for proxy in operation.inputs if isinstance(proxy, TensorProxy)]
    if target._schema.name.removesuffix("_") not in ASSERT_IN_KERNELS:
        return False
    has_masks = any(proxy.dtype in MASKS for proxy in tensors) and target._schema.name == "aten::index"
    return not has_masks and all(proxy.device == device for proxy in tensors)


def _may_raise(operation: BoundSymbol) -> bool:
    raises = _raises_of(operation.symbol.target)
    return raises if isinstance(raises, bool) else raises(operation)


@cache
def _raises_of(target: object) -> bool | Callable[[BoundSymbol], bool]:
    """Return whether calls of a target may raise depending on values, or the function that decides it for a call."""
    if not isinstance(target, torch._ops.OpOverload):
        return False
    name = target._schema.name.removesuffix("_")
    return name in RAISE_BY_VALUES or is_check(target) or RAISE_BY_ARGUMENTS.get(name, False)
