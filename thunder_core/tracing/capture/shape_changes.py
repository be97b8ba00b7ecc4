"""Changes of a tensor's own shape in place, while there are views of it that autograd follows.

When such a view is used, eager PyTorch finds it in the changed tensor by sizes and strides. For tensors without data
autograd repeats what made the view, on what the tensor has become: that may fail, or be a view of other elements. It
does so where the version of the memory went up, so the version stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from thunder_core.tracing.capture.fakes.tensors import tensors_in
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.writes import may_write

NAMES = ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_")
SHAPE_CHANGES: frozenset[Callable[..., Any]] = frozenset(
    getattr(owner, name) for owner in (torch.Tensor, torch) for name in NAMES if hasattr(owner, name)
)


class ShapeChanges:
    """The memory of tensors that got another shape in place while autograd followed views of them.

    `fakes()` are the tensors that there are. Where such memory is written to later, autograd is not told either:
    `misses_writes` then, and a backward pass would not be right.
    """

    def __init__(self, fakes: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._fakes = fakes
        self._memories: set[int] = set()
        self.misses_writes = False

    @contextmanager
    def around(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """While a function runs, keep the versions of such memory."""
        if function not in SHAPE_CHANGES and not self._memories:
            yield
            return
        touched = [tensor for tensor in tensors_in((args, kwargs)) if memory_of(tensor) in self._memories]
        if touched and (may_write(function, kwargs) or function is torch.Tensor.__setitem__):
            self.misses_writes = True
            with (
                torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(touched)),
                torch._C._AutoDispatchBelowAutograd(),
            ):
                yield
        elif function in SHAPE_CHANGES and any(one._base is args[0] and one.requires_grad for one in self._fakes()):
            self._memories.add(memory_of(args[0]))
            with torch.autograd.grad_mode._unsafe_preserve_version_counter(args[0]):
                yield
        else:
            yield
