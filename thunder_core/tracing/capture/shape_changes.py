"""In-place changes of a tensor's shape while autograd tracks views of the tensor.

When the view is used, eager PyTorch finds it in the changed tensor by sizes and strides. For fakes, autograd instead
repeats the view operation on the changed tensor if the version of the memory has increased. The repetition may fail or
give other elements, so the version is kept.
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
    """The memory of tensors whose shape was changed in place while autograd tracked views of them.

    `fakes()` returns all existing fakes. Later writes to this memory do not increase its version either. After such a
    write, `misses_writes` is True, and a backward pass would be wrong.
    """

    def __init__(self, fakes: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._fakes = fakes
        self._memories: set[int] = set()
        self.misses_writes = False

    @contextmanager
    def around(self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Iterator[None]:
        """Keep the version of the memory while a function runs that changes a shape in place."""
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
        elif function in SHAPE_CHANGES and any(fake._base is args[0] and fake.requires_grad for fake in self._fakes()):
            self._memories.add(memory_of(args[0]))
            with torch.autograd.grad_mode._unsafe_preserve_version_counter(args[0]):
                yield
        else:
            yield
