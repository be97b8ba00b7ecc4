"""Memory that C code reads: objects of ctypes are guarded by their bytes, and eager PyTorch reads mapped files."""

from __future__ import annotations

import ctypes
import mmap
import struct
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import thunder_core as thunder
from thunder_core.errors import RecompileWarning


class Pair(ctypes.Structure):
    """A structure of two numbers and an array."""

    _fields_ = (("first", ctypes.c_int), ("rest", ctypes.c_ubyte * 4))


READS: dict[str, Callable[[Any], int]] = {
    "a field": lambda pair: pair.first,
    "its size and bytes": lambda pair: memoryview(pair).nbytes + bytes(pair)[0],
    "bytes of a bytearray": lambda pair: bytearray(pair)[0],
    "joined bytes": lambda pair: b"".join([pair])[0],
    "an unpacked number": lambda pair: struct.unpack_from("i", pair)[0],
    "a number from bytes": lambda pair: int.from_bytes(pair, "little"),
    "an array of NumPy": lambda pair: int(np.frombuffer(pair, dtype=np.int32)[0]),
    "an item of an array": lambda pair: pair.rest[0],
    "items of an array": lambda pair: sum(pair.rest),
    "a pointer": lambda pair: ctypes.pointer(pair).contents.first,
}


@pytest.mark.parametrize("read", READS.values(), ids=READS)
def test_changed_memory_of_ctypes_is_noticed(read: Callable[[Any], int]) -> None:
    pair = Pair(1)
    compiled = thunder.jit(lambda x: x * read(pair))
    for step in range(3):
        for _ in range(2):
            assert compiled(torch.ones(1, dtype=torch.float64)).item() == read(pair)
        assert thunder.cache_misses(compiled) <= step + 1
        pair.first += 1
        pair.rest[0] += 1


def test_memory_of_a_scalar_is_noticed() -> None:
    number = ctypes.c_float(1.0)
    compiled = thunder.jit(lambda x: x * bytes(number)[-1])
    for value in (1.0, 40.0):
        number.value = value
        assert compiled(torch.ones(1)).item() == bytes(number)[-1]


def mapped(values: bytes) -> mmap.mmap:
    memory = mmap.mmap(-1, len(values))
    memory[:] = values
    return memory


POINTED = Pair(4)
IN_EAGER: dict[str, tuple[Any, Callable[[Any], int]]] = {
    "item of a mapped file": (mapped(b"abc"), lambda memory: memory[0]),
    "bytes of a mapped file": (mapped(b"abc"), lambda memory: bytes(memory)[0]),
    "search in a mapped file": (mapped(b"abc"), lambda memory: memory.find(b"c")),
    "item of a pointer": (ctypes.pointer(POINTED), lambda pointer: pointer[0].first),
    "foreign function": (POINTED, lambda pair: ctypes.string_at(ctypes.addressof(pair), 4)[0]),
}


@pytest.mark.parametrize(("memory", "read"), IN_EAGER.values(), ids=IN_EAGER)
def test_eager_reads_memory_that_is_not_compared(memory: Any, read: Callable[[Any], int]) -> None:
    compiled = thunder.jit(lambda x: x * read(memory))
    with pytest.warns(RecompileWarning, match="reads memory through a"):
        compiled(torch.ones(1))
    for step in (7, 8):
        if isinstance(memory, mmap.mmap):
            memory[:] = bytes([step, 99, step])
        POINTED.first = step
        assert compiled(torch.ones(1)).item() == read(memory)


def test_tensor_on_a_mapped_file_is_an_input() -> None:
    memory = mapped(b"abc")
    compiled: Callable[[Tensor], Tensor] = thunder.jit(lambda x: x + torch.frombuffer(memory, dtype=torch.uint8))
    for step in (1, 2):
        memory[0] = step
        assert compiled(torch.zeros(3))[0].item() == step
    assert thunder.cache_misses(compiled) == 1
