"""Detect changes of tensors by reading machine words of PyTorch's C++ objects.

A tensor refers to its storage and to its version counter, and holds its sizes, its strides and its storage offset. The
offsets of these words are not documented, so this module finds them at import on tensors with known values, and tests
that changes of a tensor change the words. `LAYOUT` is None if an offset is not found or a test fails.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.tracing.library.changes.memory_words import (
    TENSOR_POINTER_OFFSET,
    TYPE_OFFSET,
    WORD,
    Words,
    address_of,
    items_of,
    word_at,
)
from thunder_core.tracing.library.changes.module_state import CannotWatch

KIND: dict[str, Any] = {"dtype": torch.float32, "device": "cpu"}  # of the tensors on which the offsets are found
CLASSES = (torch.Tensor, torch.nn.Parameter)
MAX_DIMENSIONS = 5  # of a tensor whose sizes and strides are stored in the tensor itself
IMPLEMENTATION_WORDS, STORAGE_WORDS = 24, 12  # the first words of `TensorImpl` and `StorageImpl`, which are searched


@dataclass(frozen=True)
class Layout:
    """The offsets of words in bytes: in `TensorImpl`, in `VersionCounter`, and of the data pointer in `StorageImpl`.

    `sizes` is the offset of the number of dimensions, which the sizes and then the strides follow.
    """

    storage: int
    counter: int
    storage_offset: int
    sizes: int
    version: int
    data: int

    def implementation_words(self, implementation: int, dimensions: int) -> Iterable[int]:
        """Return the addresses of the words of a tensor's implementation in C++ that change with its metadata."""
        offsets = [self.storage, self.counter, self.storage_offset, self.sizes]
        for dimension in range(dimensions):
            size = self.sizes + (1 + dimension) * WORD
            offsets += [size, size + MAX_DIMENSIONS * WORD]
        return (implementation + offset for offset in offsets)


class TensorStates:
    """The versions, addresses, shapes and strides of tensors, without references to the tensors.

    Raises `CannotWatch` if changes of one of the tensors cannot be detected: a subclass, or a tensor with another
    layout, with more than `MAX_DIMENSIONS` dimensions, without a version counter, or without memory of its own.
    """

    def __init__(self, tensors: tuple[torch.Tensor, ...]) -> None:
        if LAYOUT is None:
            raise CannotWatch
        self._addresses = items_of(tensors)
        self._objects, self._implementations, self._contents = states_of(LAYOUT, tensors)

    def are_unchanged(self, tensors: tuple[torch.Tensor, ...]) -> bool:
        """Whether these are the tensors whose states were stored, and none has changed since.

        The words of an object are read only after the words that refer to it were found unchanged: it is alive then.
        """
        return (
            items_of(tensors) == self._addresses
            and self._objects.are_unchanged()
            and self._implementations.are_unchanged()
            and self._contents.are_unchanged()
        )


def states_of(layout: Layout, tensors: Sequence[torch.Tensor]) -> tuple[Words, Words, Words]:
    """Return the words of the Python objects, of their implementations, and of version counters and storages."""
    objects, implementations, contents = list[int](), list[int](), list[int]()
    for tensor in tensors:
        if TENSOR_POINTER_OFFSET is None or type(tensor) not in CLASSES or tensor.layout is not torch.strided:
            raise CannotWatch
        if tensor.is_nested or tensor.dim() > MAX_DIMENSIONS:
            raise CannotWatch
        objects += [address_of(tensor) + TYPE_OFFSET, address_of(tensor) + TENSOR_POINTER_OFFSET]
        implementation = word_at(objects[-1])
        implementations += layout.implementation_words(implementation, tensor.dim())
        counter, storage = word_at(implementation + layout.counter), word_at(implementation + layout.storage)
        if not counter or not storage:  # inference tensors have no counter, and wrappers of tensors no storage
            raise CannotWatch
        contents += [counter + layout.version, storage + layout.data]
    return Words(objects), Words(implementations), Words(contents)


def find_layout() -> Layout | None:
    """Return the offsets of the words; None if one is not found, or if a change of a tensor changes no word.

    The modes in which this module is imported, such as inference mode, have no effect on the tensors that are used.
    """
    with torch._C.DisableTorchFunction(), _disable_current_modes(), torch.inference_mode(mode=False):
        return find_offsets()


def find_offsets() -> Layout | None:
    """Return the offsets of the words, found on new tensors."""
    pair = (CLASSES, CannotWatch)
    if TENSOR_POINTER_OFFSET is None or items_of(pair) != b"".join(struct.pack("P", address_of(each)) for each in pair):
        return None
    sizes, strides, start = (3, 2, 5), (1021, 1031, 1033), 4099
    tensor, similar = (torch.zeros(16384, **KIND).as_strided(sizes, strides, start) for _ in range(2))
    words = words_at(tensor._cdata, IMPLEMENTATION_WORDS)
    alias, others = (words_at(each._cdata, IMPLEMENTATION_WORDS) for each in (tensor.detach(), similar))
    storage = tensor.untyped_storage()
    shared = [index for index, word in enumerate(words) if word and word == alias[index] != others[index]]
    counters = [index for index in shared if words[index] != storage._cdata]
    positions = [words.index(word) if words.count(word) == 1 else -1 for word in (storage._cdata, start, strides[0])]
    first = positions[2] - 1 - MAX_DIMENSIONS
    if len(counters) != 1 or min(*positions, first) < 0 or words[first : first + 4] != [len(sizes), *sizes]:
        return None
    version, data = find_version(words[counters[0]], tensor), find_data()
    if version is None or data is None:
        return None
    layout = Layout(positions[0] * WORD, counters[0] * WORD, positions[1] * WORD, first * WORD, version, data)
    return layout if changes_are_seen(layout) else None


def words_at(address: int, count: int) -> list[int]:
    """Return some words of memory."""
    return [word_at(address + index * WORD) for index in range(count)]


def find_version(counter: int, tensor: torch.Tensor) -> int | None:
    """Return the offset of the version in a tensor's version counter."""
    before = words_at(counter, 4)
    tensor.zero_()
    offsets = [index for index, word in enumerate(words_at(counter, 4)) if word == before[index] + 1]
    return offsets[0] * WORD if len(offsets) == 1 else None


def find_data() -> int | None:
    """Return the offset of the data pointer in a storage."""
    storage = torch.frombuffer(bytearray(64), dtype=torch.uint8).untyped_storage()  # its deleter has another pointer
    words = words_at(storage._cdata, STORAGE_WORDS)
    return words.index(storage.data_ptr()) * WORD if words.count(storage.data_ptr()) == 1 else None


def changes_are_seen(layout: Layout) -> bool:
    """Whether each way to change a tensor changes a word of its state, and reading it changes none."""
    changes: list[Callable[[torch.Tensor], object]] = [
        lambda tensor: tensor.add_(1),
        lambda tensor: setattr(tensor, "data", tensor.data.clone()),
        lambda tensor: setattr(tensor, "data", tensor.data.t()),
        lambda tensor: setattr(tensor, "data", tensor.data[1:]),
        lambda tensor: setattr(tensor, "data", tensor.data.unsqueeze(0)),
        lambda tensor: tensor.set_(torch.zeros(2, **KIND).untyped_storage()),
        lambda tensor: tensor.resize_(0),
        lambda tensor: tensor.untyped_storage().resize_(1 << 16),
    ]
    tensor = torch.nn.Parameter(torch.zeros(4, 4, **KIND), requires_grad=False)
    for change in changes:
        states = states_of(layout, [tensor])
        tensor.sum()
        if not all(words.are_unchanged() for words in states):
            return False
        change(tensor)
        if all(words.are_unchanged() for words in states):
            return False
    return True


LAYOUT = find_layout()
