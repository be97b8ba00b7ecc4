"""Lists of tensors that a recorded loop has appended, which `torch.stack` and `torch.cat` read as one tensor."""

from __future__ import annotations

from typing import Any

import torch

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken


class Rows:
    """The list to which a recorded loop has appended tensors, represented by the `stack` of these tensors.

    `is_returned` is True after `torch.stack` has returned `stack` itself. A second result must be a copy.
    """

    def __init__(self, stack: torch.Tensor) -> None:
        self.stack = stack
        self.is_returned = False


@lookaside(torch.stack)
def stack_rows(run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.Tensor | NotTaken:
    """Return the stack of the rows of a recorded loop along a dimension."""
    return join_rows(run, *args, **kwargs) if args and type(args[0]) is Rows else NOT_TAKEN


@lookaside(torch.cat)
def concatenate_rows(run: TracedRun, /, *args: Any, **kwargs: Any) -> torch.Tensor | NotTaken:
    """Return the concatenation of the rows of a recorded loop along a dimension."""
    return join_rows(run, *args, **kwargs, flat=True) if args and type(args[0]) is Rows else NOT_TAKEN


def join_rows(run: TracedRun, rows: Rows, dim: int = 0, *, flat: bool = False) -> torch.Tensor:
    """Return the rows of a loop joined along a new or an existing dimension: a new contiguous tensor."""
    call = run.machine.call
    if not flat and dim in (0, -rows.stack.dim()) and not rows.is_returned:
        rows.is_returned = True
        return rows.stack
    index = dim % (rows.stack.dim() - 1 if flat else rows.stack.dim())
    copy = call(torch.Tensor.clone, call(torch.movedim, rows.stack, 0, index), memory_format=torch.contiguous_format)
    return call(torch.flatten, copy, index, index + 1) if flat else copy  # type: ignore[no-any-return]
