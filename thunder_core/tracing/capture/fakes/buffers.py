"""Buffers: the memory of NumPy arrays and other Python objects, which tensors may share."""

from __future__ import annotations

import array
import ctypes
import mmap
from collections.abc import Iterable
from typing import Any

import torch

BUFFER_CLASSES = (bytearray, memoryview, array.array, mmap.mmap)
CTYPES_CLASSES = (ctypes.Structure, ctypes.Union, ctypes.Array, ctypes._SimpleCData)


def is_array(value: object) -> bool:
    """Whether a value is a NumPy array."""
    return any(base.__module__ == "numpy" and base.__name__ == "ndarray" for base in type(value).__mro__)


def is_buffer(value: object) -> bool:
    """Whether a value is an array or another object whose memory a tensor can share."""
    return isinstance(value, (*BUFFER_CLASSES, *CTYPES_CLASSES)) or is_array(value)


def contents_of(buffer: Any) -> bytes:
    """Return the bytes of a buffer; no bytes if the buffer was closed or released."""
    try:
        return bytes(buffer.tobytes() if is_array(buffer) else memoryview(buffer).tobytes())
    except (TypeError, ValueError, BufferError, NotImplementedError):
        return b""


def addresses_of_buffer(buffer: Any) -> range | None:
    """Return the addresses from a buffer's first byte to its last; None for memory that no tensor can share."""
    if is_array(buffer):
        start = stop = buffer.__array_interface__["data"][0]
        for size, stride in zip(buffer.shape, buffer.strides, strict=True):
            if not size:
                return None
            start, stop = start + min(stride * (size - 1), 0), stop + max(stride * (size - 1), 0)
        return range(start, stop + buffer.itemsize)
    try:
        start = ctypes.addressof(ctypes.c_char.from_buffer(buffer))
        return range(start, start + memoryview(buffer).nbytes)
    except (TypeError, ValueError, BufferError):
        return None


def addresses_of_tensor(tensor: torch.Tensor) -> range | None:
    """Return the addresses of the storage of a tensor on the CPU; None for other tensors."""
    if tensor.layout is not torch.strided or tensor.device.type != "cpu":
        return None
    storage = tensor.untyped_storage()
    return range(storage.data_ptr(), storage.data_ptr() + storage.nbytes())


def overlap(first: Iterable[range | None], second: Iterable[range | None]) -> bool:
    """Whether a range of `first` and a range of `second` have an element in common; None stands for no range."""
    others = [other for other in second if other is not None]
    return any(
        left.start < right.stop and right.start < left.stop for left in first if left is not None for right in others
    )
