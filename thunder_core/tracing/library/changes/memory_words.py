"""Watch words of memory that change when objects change: versions of dicts, and pointers to classes and parts.

The offsets are valid for CPython 3.11 and 3.12, where each change of a dict changes its version. This module tests the
offsets when it is imported.
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
MAX_WORDS = 500  # the largest number of words that NumPy reads without letting other threads run
CACHE_LINE = 64  # bytes of a cache line of x86 and most ARM processors
FIRST = 4096  # the lowest address that is read
address_of = id
_count = (2**47 - FIRST) // 8
MEMORY: Any = np.ctypeslib.as_array((ctypes.c_uint64 * _count).from_address(FIRST)) if WORD == 8 else None

TYPE = WORD  # the offset of `ob_type` in PyObject
DICT_VERSION = 3 * WORD  # the offset of `ma_version_tag` in PyDictObject
DICT_KEYS = 4 * WORD  # the offset of `ma_keys` in PyDictObject
MANAGED_DICT = -3 * WORD  # the offset of the pointer to an object's `__dict__`, if its class has the flag


class Words:
    """The words at some addresses, with the values that they had when this object was created.

    `pieces` are pairs of indices of `MEMORY` and the values of these words. Words are read in the order of their
    addresses, which takes half the time if they are not in the processor's cache. A piece has at most `MAX_WORDS`
    words, so that no other thread runs while NumPy reads the piece.
    """

    def __init__(self, addresses: Iterable[int]) -> None:
        indices = (np.unique(np.fromiter(addresses, dtype=np.int64)) - FIRST) // WORD
        pieces = [indices[start : start + MAX_WORDS] for start in range(0, len(indices), MAX_WORDS)]
        self.pieces = [(piece, MEMORY[piece]) for piece in pieces]

    def are_unchanged(self) -> bool:
        """Whether all words still have these values. The caller keeps the objects at the addresses alive."""
        return all((MEMORY[indices] == values).all() for indices, values in self.pieces)


def word_at(address: int) -> int:
    """Return the word at an address."""
    return int(ctypes.c_uint64.from_address(address).value)


def dict_slot(value: object, namespace: dict[str, Any]) -> int | None:
    """Return the address of the pointer from an object to its `__dict__`; None if it is not found."""
    kind = type(value)
    offset = MANAGED_DICT if kind.__flags__ & HAS_MANAGED_DICT else kind.__dictoffset__
    address = address_of(value) + offset
    return address if offset and word_at(address) == address_of(namespace) else None


def _find_tensor_slot() -> int | None:
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
    if dict_slot(tried, namespace) is None or "number" not in dict_of(Tried):
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
    seen = {word_at(address_of(namespace) + DICT_VERSION)}
    for change in changes:
        change()
        seen.add(word_at(address_of(namespace) + DICT_VERSION))
    return len(seen) == len(changes) + 1


def _assign_number(tried: Any, number: int) -> None:
    tried.number = number


TENSOR_SLOT = _find_tensor_slot() if WORD == 8 else None
CAN_WATCH = WORD == 8 and TENSOR_SLOT is not None and _versions_change()
