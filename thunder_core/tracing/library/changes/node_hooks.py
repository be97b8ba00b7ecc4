"""Check for hooks at a C++ node of autograd's graph.

PyTorch has no function for this check. A node stores its hooks in vectors, and the first word of such a vector is null
while no hook was registered. The positions of these words are found once, by registering hooks at a test node.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch

from thunder_core.tracing.library.changes.memory_words import LOWEST_ADDRESS, MEMORY, WORD

WORDS_OF_NODE = 40  # the number of words at the start of a node that may contain the vectors of its hooks


def has_hooks(node: object) -> bool:
    """Whether a hook was ever registered at a C++ node; True if this cannot be determined."""
    indices = _word_indices_of_hooks()
    if not indices:
        return True
    start = _address_of(node)
    return any(_word(start, index) for index in indices)


@cache
def _word_indices_of_hooks() -> tuple[int, ...]:
    """Return the indices of the words of a C++ node that registering hooks sets; empty if they are not found."""
    with torch.enable_grad():
        node: Any = torch.ones(1, requires_grad=True).view(1, 1).grad_fn
    start, indices = _address_of(node), []
    for register in (node.register_hook, node.register_prehook):
        before = [_word(start, index) for index in range(WORDS_OF_NODE)]
        register(_ignore_gradients)
        changed = [index for index, word in enumerate(before) if _word(start, index) != word]
        if not changed or before[changed[0]]:
            return ()
        indices.append(changed[0])
    return tuple(indices)


def _ignore_gradients(*_: Any) -> None:
    """Leave all gradients unchanged."""


def _address_of(node: object) -> int:
    """Return the address of a C++ node; the pointer follows the header of the node's Python object."""
    address = ctypes.c_void_p.from_address(id(node) + object.__basicsize__).value
    assert address is not None
    return address


def _word(start: int, index: int) -> int:
    return ctypes.c_size_t.from_address(start + WORD * index).value


class _Gathered(torch.autograd.Function):
    """A node with many input tensors, so that its `next_functions` are their nodes; its backward never runs."""

    @staticmethod
    def forward(ctx: object, *tensors: torch.Tensor) -> torch.Tensor:  # noqa: ARG004
        return torch.empty(0)

    @staticmethod
    def backward(ctx: object, *gradients: Any) -> Any:
        raise NotImplementedError("no gradients are computed to look for hooks")


def accumulate_without_hooks(*leaves: torch.Tensor) -> bool:
    """Whether the nodes that accumulate the gradients of these leaves have no hooks."""
    with torch.inference_mode(False), torch.enable_grad(), torch._C.DisableTorchFunction():
        gathered: Any = super(torch.autograd.Function, _Gathered).apply(*leaves)  # type: ignore[no-untyped-call]
    following = () if gathered.grad_fn is None else gathered.grad_fn.next_functions
    nodes = [node for node, _ in following if node is not None]
    return all(type(node) is _class_of_accumulation() for node in nodes) and not any_has_hooks(nodes)


def any_has_hooks(nodes: Sequence[object]) -> bool:
    """Whether one of several C++ nodes has hooks; True if this cannot be determined."""
    indices = _word_indices_of_hooks()
    if MEMORY is None or not indices:
        return any(map(has_hooks, nodes))
    objects = np.fromiter(map(id, nodes), dtype=np.int64)
    starts = MEMORY[(objects + object.__basicsize__ - LOWEST_ADDRESS) // WORD].astype(np.int64)
    return any(MEMORY[(starts - LOWEST_ADDRESS) // WORD + index].any() for index in indices)


@cache
def _class_of_accumulation() -> type:
    """Return the class of the nodes that accumulate gradients."""
    with torch.enable_grad():
        node: Any = torch.ones(1, requires_grad=True).view(1, 1).grad_fn
    return type(node.next_functions[0][0])
