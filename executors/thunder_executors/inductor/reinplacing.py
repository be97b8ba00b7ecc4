"""Restrict Inductor's in-place writes to tensors whose elements do not share memory.

Inductor writes an update of a tensor in place if the tensor is not read later. In an expanded tensor, whose elements
share memory, the new value of one element then overwrites the others. `torch.compile` also returns such wrong results
(torch 2.13); `tests/executors/inductor/test_reinplacing.py` fails once it returns right ones.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest import mock

import torch
from torch._inductor.fx_passes import reinplace
from torch.fx import Node

from thunder_core.backend.fusion.updates import has_distinct_addresses


def careful_reinplacing() -> AbstractContextManager[Any]:
    """Return a context in which Inductor updates no overlapping tensor in place."""
    table = {function: _careful(operation) for function, operation in reinplace.inplaceable_ops.items()}
    return mock.patch.dict(reinplace.inplaceable_ops, table)


def _careful(operation: reinplace.InplaceableOp) -> reinplace.InplaceableOp:
    def is_allowed(node: Node) -> bool:
        written = (node.args[index] for index in operation.mutated_args)
        return all(map(has_own_memory, written)) and operation.extra_check(node)

    return replace(operation, extra_check=is_allowed)


def has_own_memory(written: Any) -> bool:
    """Whether no elements of a graph node's value share memory."""
    value = written.meta.get("val") if isinstance(written, Node) else None
    return isinstance(value, torch.Tensor) and has_distinct_addresses(value.shape, value.stride())
