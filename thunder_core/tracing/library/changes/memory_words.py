"""Detect changes of Python objects by reading machine words.

The words are the version of a dict, and the pointers from an object to its class, to its `__dict__` and to its tensor
in C++. The offsets are valid for CPython 3.11 and 3.12, where each change of a dict changes its version. At import,
this module tests the offsets of the version, of `__dict__` and of the tensor; `CAN_WATCH` is False if a test fails.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import torch

from thunder_core.foundation.type_flags import HAS_MANAGED_DICT
from thunder_core.tracing.library.changes.class_entries import dict_of

WORD = struct.calcsize("P")
MAX_WORDS = 500  # NumPy releases the GIL to read more words
CACHE_LINE = 64  # bytes of a cache line of x86 and most ARM processors
ADDRESS_BITS = 56  # the largest addresses of user space on x86-64 (with five levels of page tables) and on 64-bit ARM
LOWEST_ADDRESS = 4096  # a null pointer is never read
address_of = id


def _view_memory() -> Any:
    """Return the address space of the process from `LOWEST_ADDRESS` on, as a NumPy array of words."""
    count = (2**ADDRESS_BITS - LOWEST_ADDRESS) // WORD
    return np.ctypeslib.as_array((ctypes.c_uint64 * count).from_address(LOWEST_ADDRESS))


MEMORY: Any = _view_memory() if WORD == 8 else None  # only the words of objects that are alive may be read

TYPE_OFFSET = WORD  # the offset of `ob_type` in PyObject
DICT_VERSION_OFFSET = 3 * WORD  # the offset of `ma_version_tag` in PyDictObject
DICT_KEYS_OFFSET = 4 * WORD  # the offset of `ma_keys` in PyDictObject
TUPLE_ITEMS_OFFSET = 3 * WORD  # the offset of `ob_item` in PyTupleObject
MANAGED_DICT_OFFSET = -3 * WORD  # the offset of the pointer to `__dict__`, if the class has `HAS_MANAGED_DICT`


class Words:
    """The words at some addresses, with the values that they had when this object was created.

    `pieces` are pairs of indices of `MEMORY` and the bytes of these words. Words are read in the order of their
    addresses, which takes half the time if they are not in the processor's cache. A piece has at most `MAX_WORDS`
    words, so that NumPy keeps the GIL while it reads the piece. Comparing bytes takes a third of the time of comparing
    arrays.
    """

    def __init__(self, addresses: Iterable[int]) -> None:
        indices = (np.unique(np.fromiter(addresses, dtype=np.int64)) - LOWEST_ADDRESS) // WORD
        pieces = [indices[start : start + MAX_WORDS] for start in range(0, len(indices), MAX_WORDS)]
        self.pieces = [(piece, MEMORY[piece].tobytes()) for piece in pieces]

    def are_unchanged(self) -> bool:
        """Return whether all words have the values that they had when this object was created.

        The caller must keep the objects alive, because their memory is read.
        """
        return all(MEMORY[indices].tobytes() == content for indices, content in self.pieces)


def items_of(values: tuple[Any, ...]) -> bytes:
    """Return the pointers to the items of a tuple."""
    first = (address_of(values) + TUPLE_ITEMS_OFFSET - LOWEST_ADDRESS) // WORD
    content: bytes = MEMORY[first : first + len(values)].tobytes()
    return content


def word_at(address: int) -> int:
    """Return the word at an address."""
    return int(ctypes.c_uint64.from_address(address).value)


def dict_pointer_address(value: object, namespace: dict[str, Any]) -> int | None:
    """Return the address of the pointer from an object to its `__dict__`; None if it is not found.

    `namespace` is the `__dict__` of the object.
    """
    kind = type(value)
    offset = MANAGED_DICT_OFFSET if kind.__flags__ & HAS_MANAGED_DICT else kind.__dictoffset__
    address = address_of(value) + offset
    return address if offset and word_at(address) == address_of(namespace) else None


def _find_tensor_pointer_offset() -> int | None:
    """Return the offset of the pointer from a tensor object to its implementation in C++; None if it is not found."""
    tensor = torch.empty(0)
    own: int = tensor._cdata
    return next((offset for offset in (2 * WORD, 3 * WORD) if word_at(address_of(tensor) + offset) == own), None)


def _versions_change() -> bool:
    """Whether each change of a dict changes its version, including attribute changes by specialized bytecode."""

    class Tried:
        number = 0

    tried = Tried()
    namespace: dict[str, Any] = tried.__dict__
    if dict_pointer_address(tried, namespace) is None or "number" not in dict_of(Tried):
        return False
    changes: list[Callable[[], Any]] = [
        *[lambda number=number: setattr(tried, "number", 1000 + number) for number in range(3)],
        *[lambda number=number: _assign_number(tried, 2000 + number) for number in range(100)],
        lambda: namespace.update(other=1),
        lambda: namespace.pop("other"),
        lambda: namespace.setdefault("other", 2),
        lambda: namespace.__delitem__("other"),
        namespace.clear,
    ]
    seen = {word_at(address_of(namespace) + DICT_VERSION_OFFSET)}
    for change in changes:
        change()
        seen.add(word_at(address_of(namespace) + DICT_VERSION_OFFSET))
    return len(seen) == len(changes) + 1


def _assign_number(tried: Any, number: int) -> None:
    tried.number = number


TENSOR_POINTER_OFFSET = _find_tensor_pointer_offset() if WORD == 8 else None
CAN_WATCH = WORD == 8 and TENSOR_POINTER_OFFSET is not None and _versions_change()
