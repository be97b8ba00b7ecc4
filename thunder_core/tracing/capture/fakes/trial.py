"""Run an operation that failed on fake tensors on real tensors, to get the exact error of eager PyTorch.

PyTorch's meta functions are often separate implementations in Python: they refuse the same arguments as the operation,
but with another message and sometimes with another exception.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Container, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType
from typing import Any

import torch
from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.tracing.capture.fakes.fake import mark
from thunder_core.tracing.capture.fakes.memo import CONSTANTS
from thunder_core.tracing.capture.fakes.tensors import Tensors, tensors_in
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.tree import leaves, replace_leaves

FUNCTIONS_IN_C = (BuiltinFunctionType, MethodDescriptorType, WrapperDescriptorType)
Key = tuple[Hashable, ...]
MAX_BYTES = 1 << 26  # bytes of all tensors; larger ones are not worth the exact error message


@dataclass(frozen=True)
class Trial:
    """A call of an operation on copies of real tensors, if it `was_made`; its error, and the dtypes of its results.

    Calls with the same `key` have arguments of equal kinds.
    """

    was_made: bool = False
    error: Exception | None = None
    dtypes: tuple[torch.dtype, ...] = ()
    key: Key = ()

    @property
    def is_accepted(self) -> bool:
        """Whether the operation was called and raised no error."""
        return self.was_made and self.error is None


def try_in_eager(
    function: Callable[..., Any],
    args: Any,
    kwargs: Any,
    tensors: Tensors,
    *,
    valued: bool,
    value: int | None = None,
) -> Trial:
    """Call an operation on copies of real tensors, if it can be tried.

    Fakes without a real tensor become zeros. With `valued`, an operation on such zeros is not tried, because the error
    may depend on values. With `value`, all elements of all tensors are this value.
    """
    fakes = tensors_in((args, kwargs))
    args, kwargs = tensors.in_call((args, kwargs))
    reals = [tensors.reals.get(id(fake)) for fake in fakes]
    known_reals = [real for real in reals if real is not None]
    if (
        symbol_of(function).communicates
        or not _can_be_tried([*fakes, *known_reals], (args, kwargs), tensors)
        or (valued and len(known_reals) < len(fakes))
    ):
        return Trial()
    with outside_recording():
        pairs = zip(fakes, reals, strict=True)
        copies = {id(fake): _real_copy(fake, tensors.proxy(fake), real, tensors, value) for fake, real in pairs}
        args, kwargs = replace_leaves((args, kwargs), lambda leaf: copies.get(id(leaf), leaf))
        try:
            output = function(*args, **kwargs)
        except Exception as error:
            return Trial(was_made=True, error=error.with_traceback(None))
        return Trial(was_made=True, dtypes=tuple(tensor.dtype for tensor in tensors_in(output)))


def overlap_error(
    function: Callable[..., Any], args: Any, kwargs: Any, tensors: Tensors, written: Container[int]
) -> Exception | None:
    """Return the error for a write to overlapping memory, which fakes accept; None if there is none or none can be
    found.

    `written` is the memory to which the operation writes. The operation is tried on new CPU memory.
    """
    fakes = [fake for fake in tensors_in((args, kwargs)) if fake.layout is torch.strided]
    memory_of_targets = {id(fake): memory for fake in fakes if (memory := memory_of(fake)) in written}
    # with repetitions: in `x.scatter_(0, index, x)`, one tensor is written to and read
    targets = [leaf for leaf in leaves((args, kwargs)) if id(leaf) in memory_of_targets]
    if not any(map(repeats_elements, targets)) and len(targets) == len({*memory_of_targets.values()}):
        return None
    args, kwargs = tensors.in_call((args, kwargs))
    if not isinstance(function, FUNCTIONS_IN_C) or not _can_be_tried(fakes, (args, kwargs), tensors):
        return None
    with outside_recording(), torch.no_grad():
        memories = {memory_of(fake): _memory_of_size(fake, tensors) for fake in fakes}
        copies = {id(fake): _on_memory(memories[memory_of(fake)], tensors.proxy(fake), fake, tensors) for fake in fakes}
        args, kwargs = replace_leaves((args, kwargs), lambda leaf: copies.get(id(leaf), leaf))
        try:
            function(*args, **kwargs)
        except RuntimeError as error:
            return error.with_traceback(None) if "single memory location" in str(error) else None
        except Exception:
            return None
    return None


def repeats_elements(tensor: torch.Tensor) -> bool:
    """Whether a tensor is expanded, so that several elements share one place in memory."""
    return any(
        type(size) is int and type(stride) is int and size > 1 and stride == 0
        for size, stride in zip(tensor.shape, tensor.stride(), strict=True)
    )


def _memory_of_size(source: torch.Tensor, tensors: Tensors) -> torch.UntypedStorage:
    """Return new memory of the size of a tensor's memory."""
    size = tensors.in_call(source.untyped_storage().nbytes())
    return torch.zeros(size, dtype=torch.uint8).untyped_storage()


def _on_memory(
    memory: torch.UntypedStorage, proxy: TensorProxy, source: torch.Tensor, tensors: Tensors
) -> torch.Tensor:
    """Return a tensor on some memory with the metadata of a proxy, at the offset of `source`."""
    copy = torch.empty(0, dtype=proxy.dtype)
    offset = tensors.in_call(source.storage_offset())
    copy.set_(memory, offset, *tensors.in_call((tuple(proxy.shape), tuple(proxy.stride))))
    return mark(copy, is_conj=proxy.is_conj, is_neg=proxy.is_neg)


def _can_be_tried(tensors_taken: Iterable[torch.Tensor], tree: object, tensors: Tensors) -> bool:
    """Whether an operation can be tried: it takes only tensors and constants, on the CPU and of known moderate size."""
    plain = all(isinstance(leaf, (*CONSTANTS, torch.Tensor)) or leaf is ... for leaf in leaves(tree))
    here = all(tensor.device.type == "cpu" and tensor.layout is torch.strided for tensor in tensors_taken)
    if not plain or not here:
        return False
    total = tensors.sum_in_call(tensor.untyped_storage().nbytes() for tensor in tensors_taken)
    return total is not None and total <= MAX_BYTES


@contextmanager
def outside_recording() -> Iterator[None]:
    """Run the block outside of the recording, without effects on warnings and the random number generator."""
    with (
        out_of_inference_mode(),
        _disable_current_modes(),
        torch._C.DisableTorchFunction(),
        temporarily_clear_interpreter_stack(),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        state = torch.get_rng_state()
        try:
            yield
        finally:
            torch.set_rng_state(state)


@contextmanager
def out_of_inference_mode() -> Iterator[None]:
    """Run the block with grad mode off instead of inference mode, whose tensors have no versions."""
    if not torch.is_inference_mode_enabled():
        yield
        return
    with torch.inference_mode(False), torch.no_grad():
        yield


def _real_copy(
    fake: torch.Tensor, proxy: TensorProxy, real: torch.Tensor | None, tensors: Tensors, value: int | None
) -> torch.Tensor:
    """Return a copy of the real tensor, or zeros, or a tensor of one value.

    The proxy has the metadata, which the failed call may have changed in `fake`.
    """
    source = fake if real is None else real
    memory = _memory_of_size(source, tensors)
    if value is not None:
        torch.empty(0, dtype=proxy.dtype).set_(memory).fill_(value)
    elif real is not None:
        memory.copy_(real.untyped_storage())
    copy = _on_memory(memory, proxy, source, tensors)
    copy.requires_grad_(proxy.requires_grad)
    return copy if fake.is_leaf else copy.clone()
