"""Find the dtypes and shapes that PyTorch's kernels refuse, although its meta functions accept them, and results with
another dtype.

In eager PyTorch, a kernel that refuses the dtypes of its arguments raises an error even if its result is not used. Meta
functions, which run on fakes, rarely check dtypes. So a call is tried once on real tensors if its dtypes are unusual,
or if the program may catch the error.
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Hashable
from dataclasses import replace
from typing import Any, cast

import torch

from thunder_core.tracing.analysis.data_errors import LIN_ALG_ERROR
from thunder_core.tracing.capture.fakes.tensors import Tensors, tensors_in
from thunder_core.tracing.capture.fakes.trial import Key, Trial, try_in_eager
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.symbolic.tensors_as_numbers import INTEGERS
from thunder_core.tracing.capture.torch_facts.layouts import is_symbolic
from thunder_core.tracing.ir.tree import leaves

NATIVE = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType)
IN_PYTHON = frozenset({"torch.nn.functional", "torch.functional", "torch._tensor"})  # modules of functions in Python
# If all tensors have the same one of these dtypes, only a few functions refuse it.
USUAL = frozenset({torch.float32, torch.float64, torch.bfloat16})
MAX_ELEMENTS = 1 << 16  # of all tensors of a call that is tried for its shapes
# Functions that refuse these dtypes, without underscores at the ends of their names.
ONLY_FOR_INTEGERS = frozenset(
    {
        *("bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not", "bitwise_left_shift", "bitwise_right_shift"),
        *("and", "or", "xor", "invert", "lshift", "rshift", "iand", "ior", "ixor", "ilshift", "irshift"),
        *("rand", "ror", "rxor", "rlshift", "rrshift", "gcd", "lcm"),
    }
)
POSSIBLE_INDICES = INTEGERS | {torch.uint8}
NAMES_A_DTYPE = re.compile(
    r"not implemented for|dtype|scalar type|data type|\b(Float|Double|Half|BFloat16|Long|Int|Bool)\b"
)
# Parts of names of functions that are not tried: a workspace of zeros can end the process in kernels of oneDNN.
NOT_TRIED = ("backward", "rnn", "lstm", "gru")
OTHER_DEVICES = frozenset({"cuda", "meta", "xpu", "mps", "hpu", "xla"})


class KernelTypes:
    """The functions that were tried on real tensors: each function once for each combination of dtypes.

    Within a `try` statement, a function is tried once for each combination of shapes.
    """

    def __init__(self) -> None:
        self._accepted: set[Key] = set()

    def trial(
        self,
        function: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        tensors: Tensors,
        is_caught: Callable[[], bool],
    ) -> Trial | None:
        """Return the trial of a call on real tensors; None if the function is known to accept these fakes.

        `is_caught()` returns whether the program may catch an error.
        """
        fakes = tensors_in((args, kwargs))
        if not fakes or not is_pytorch_function(function):
            return None
        is_in_try = is_caught()
        if are_usual(fakes, function) and not is_in_try:
            return None
        if any(map(names_other_device, leaves((args, kwargs)))):
            return None
        form_of = shape_of if is_in_try and are_small(fakes, tensors) else kind_of
        key = (function, *map(form_of, leaves((args, kwargs))))
        if key in self._accepted:
            return None
        trial = trial_for_all_values(function, args, kwargs, tensors)
        if trial.error is None:
            self._accepted.add(key)
        return replace(trial, key=key)

    def agrees(self, trial: Trial | None, output: object) -> bool:
        """Whether the result of a call on fakes has the dtypes of the kernel's result, if the call was tried."""
        if trial is None or not trial.is_accepted:
            return True
        dtypes = tuple(fake.dtype for fake in tensors_in(output))
        if len(dtypes) != len(trial.dtypes) or dtypes == trial.dtypes:
            return True
        self._accepted.discard(trial.key)
        return False


def trial_for_all_values(function: Callable[..., Any], args: Any, kwargs: Any, tensors: Tensors) -> Trial:
    """Return the trial of a function on tensors of zeros, without an error that depends on the values of tensors.

    Such an error differs for tensors of ones, or is raised for one of the values alone. Both are singular matrices, so
    a `LinAlgError` never counts. The values of integers may be sizes or indices, which zeros and ones violate alike,
    and symbolic numbers and sizes differ between calls. In these cases, only an error that names a dtype counts.
    """
    trial = try_in_eager(function, args, kwargs, tensors, valued=False, value=0)
    if trial.error is None:
        return trial
    if isinstance(trial.error, LIN_ALG_ERROR):
        return Trial()
    error = try_in_eager(function, args, kwargs, tensors, valued=False, value=1).error
    is_equal = type(error) is type(trial.error) and str(error) == str(trial.error)
    may_differ = any(map(may_differ_between_calls, leaves((args, kwargs))))
    return trial if is_equal and (not may_differ or NAMES_A_DTYPE.search(str(error))) else Trial()


def may_differ_between_calls(leaf: object) -> bool:
    """Whether an argument may have another value or shape in another call: integers, and symbolic numbers and sizes."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype in POSSIBLE_INDICES or is_symbolic(leaf)
    return isinstance(leaf, torch.SymInt | torch.SymFloat | torch.SymBool | SymbolicNumber)


def names_other_device(leaf: object) -> bool:
    """Whether an argument is a device other than the CPU, or the name of one."""
    if isinstance(leaf, torch.device):
        return leaf.type != "cpu"
    return isinstance(leaf, str) and leaf.partition(":")[0] in OTHER_DEVICES


def kind_of(leaf: object) -> Hashable:
    """Return the dtype of a tensor, a dtype itself, or the class of another argument."""
    if isinstance(leaf, torch.Tensor):
        return leaf.dtype
    if isinstance(leaf, torch.dtype):
        return leaf
    return cast(Hashable, type(leaf))


def shape_of(leaf: object) -> Hashable:
    """Return the dtype, the shape and the strides of a tensor, or the text of another argument."""
    return (leaf.dtype, str(leaf.shape), str(leaf.stride())) if isinstance(leaf, torch.Tensor) else repr(leaf)


def are_small(fakes: list[torch.Tensor], tensors: Tensors) -> bool:
    """Whether a call with these fakes is tried for each combination of their shapes."""
    if any(fake.layout is not torch.strided for fake in fakes):
        return False
    total = tensors.sum_in_call(fake.numel() for fake in fakes)
    return total is not None and total <= MAX_ELEMENTS


def are_usual(fakes: list[torch.Tensor], function: Callable[..., Any]) -> bool:
    """Whether a function accepts the dtypes of these fakes without a trial."""
    dtype = fakes[0].dtype
    if dtype not in USUAL or any(fake.dtype is not dtype for fake in fakes):
        return False
    return getattr(function, "__name__", "").partition(".")[0].strip("_") not in ONLY_FOR_INTEGERS


def is_pytorch_function(function: Callable[..., Any]) -> bool:
    """Whether a function that is called with tensors is PyTorch's own, so that a trial has no side effects.

    An assertion (`torch._assert_async`) does not count, because its message is the program's.
    """
    name = getattr(function, "__name__", "")
    if "_assert" in name or any(part in name for part in NOT_TRIED):
        return False
    if isinstance(function, torch._ops.OpOverload):
        return function.namespace == "aten"
    return isinstance(function, NATIVE) or getattr(function, "__module__", "") in IN_PYTHON


KERNEL_TYPES = KernelTypes()
