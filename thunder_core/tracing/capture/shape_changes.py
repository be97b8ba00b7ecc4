"""In-place changes of a tensor's shape while autograd tracks views of the tensor.

If the version counter of a base tensor has increased, autograd regenerates the `grad_fn` of a view when the view is
used. In eager PyTorch, autograd does this with `as_strided`, that is, from sizes and strides. For fakes, autograd
replays the view function on the changed base instead. The replay may fail or select other elements, so `ShapeChanges`
prevents the increase of the version counter.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from thunder_core.tracing.capture.fakes.tensors import tensors_in
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.writes import may_write

FUNCTION_NAMES = ("t_", "transpose_", "swapaxes_", "swapdims_", "squeeze_", "unsqueeze_", "as_strided_")
SHAPE_CHANGES: frozenset[Callable[..., Any]] = frozenset(
    getattr(owner, name) for owner in (torch.Tensor, torch) for name in FUNCTION_NAMES if hasattr(owner, name)
)


class ShapeChanges:
    """The storages of tensors whose shape was changed in place while autograd tracked views of the tensors.

    `fakes` is a function that returns all existing fakes. Later writes to these storages do not increase the version
    counter either, and are hidden from autograd. After such a write, `misses_writes` is True, and derivatives of the
    recorded program would be wrong.
    """

    def __init__(self, fakes: Callable[[], Iterable[torch.Tensor]]) -> None:
        self._fakes = fakes
        self._storages: set[int] = set()  # identities, as `memory_of` returns them
        self.misses_writes = False

    @contextmanager
    def preserve_versions(
        self, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Iterator[None]:
        """Prevent an increase of version counters in the block, which calls a function of the program.

        A function that changes the shape of a tracked view's base adds the storage of the base to the known storages. A
        function that may write to a known storage runs below autograd. Other functions run as usual.
        """
        if function not in SHAPE_CHANGES and not self._storages:
            yield
            return
        affected = [tensor for tensor in tensors_in((args, kwargs)) if memory_of(tensor) in self._storages]
        if affected and (may_write(function, kwargs) or function is torch.Tensor.__setitem__):
            self.misses_writes = True
            with (
                torch.autograd.grad_mode._unsafe_preserve_version_counter(tuple(affected)),
                torch._C._AutoDispatchBelowAutograd(),
            ):
                yield
        elif function in SHAPE_CHANGES and any(fake._base is args[0] and fake.requires_grad for fake in self._fakes()):
            self._storages.add(memory_of(args[0]))
            with torch.autograd.grad_mode._unsafe_preserve_version_counter(args[0]):
                yield
        else:
            yield
