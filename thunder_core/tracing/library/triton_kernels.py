"""Launch the user's Triton kernels. A trace contains each launch as an operation with all its arguments.

On tensors without data, no kernel is launched. Instead, a custom operator represents the launch. The operator declares
the tensors that the kernel reads and writes, and launches the kernel when it runs on real tensors.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_leaves, tree_map

from thunder_core.foundation.errors import OperationFailed

Grid = Sequence[int]
# For each configuration of an autotuner, its constants and the grid.
Grids = Sequence[tuple[Mapping[str, Any], Grid]]


def launch(kernel: Any, grids: Grids, args: Sequence[Any], kwargs: Mapping[str, Any], written: Sequence[int]) -> None:
    """Launch a kernel, or record the launch if a tensor has no data.

    `grids` has a grid for each configuration of the kernel. `written` are the positions of the tensors that the kernel
    may write to, among all tensors in the arguments.
    """
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if not any(isinstance(tensor, FakeTensor) for tensor in tensors):
        kernel.run(*args, grid=lambda meta: grid_for(grids, meta), warmup=False, **kwargs)
        return
    key = next(_keys)
    indices = iter(range(len(tensors)))
    arguments = tree_map(lambda leaf: _TensorPlaceholder(next(indices)) if _is_tensor(leaf) else leaf, (args, kwargs))
    _launches[key] = _Launch(kernel, grids, arguments, tuple(written))
    read = [tensor for index, tensor in enumerate(tensors) if index not in written]
    with torch.no_grad():
        torch.ops.thunder.triton_launch([tensors[index] for index in written], read, key)


def grid_for(grids: Grids, meta: Mapping[str, Any]) -> Grid:
    """Return the grid for the configuration that a kernel runs with: `meta` has its constants and arguments."""
    return next(grid for constants, grid in grids if all(meta.get(name) == value for name, value in constants.items()))


@dataclass(frozen=True)
class _TensorPlaceholder:
    """A placeholder for a tensor, by its index among the tensors of a launch."""

    index: int


@dataclass(frozen=True)
class _Launch:
    """A recorded launch: its arguments have placeholders for the tensors."""

    kernel: Any
    grids: Grids
    arguments: tuple[Sequence[Any], Mapping[str, Any]]
    written: tuple[int, ...]

    def run(self, written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> None:
        """Launch the kernel with tensors."""
        tensors = dict(zip(self.written, written, strict=True))
        others = (index for index in range(len(written) + len(read)) if index not in tensors)
        tensors |= zip(others, read, strict=True)

        def tensor_of(leaf: object) -> Any:
            return tensors[leaf.index] if isinstance(leaf, _TensorPlaceholder) else leaf

        args, kwargs = tree_map(tensor_of, self.arguments)
        launch(self.kernel, self.grids, args, kwargs, self.written)


_keys = itertools.count()
_launches: dict[int, _Launch] = {}  # by the key that is an argument of the operator
_library: Any = torch.library.Library("thunder", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("triton_launch(Tensor(a!)[] written, Tensor[] read, int key) -> ()")


def _run(written: Sequence[torch.Tensor], read: Sequence[torch.Tensor], key: int) -> None:
    """Launch the kernel of a recorded launch on real tensors."""
    if key not in _launches:
        raise OperationFailed(
            "a Triton kernel that a custom operator launches is known only to the process that traced it",
            fix="trace the program in this process, or launch the kernel in an operator of torch.library.triton_op",
        )
    _launches[key].run(written, read)


def _run_without_data(written: Sequence[torch.Tensor], read: Sequence[torch.Tensor], key: int) -> None:
    """Launch nothing, because the tensors have no data."""


for dispatch_key in ("CPU", "CUDA"):
    _library.impl("triton_launch", _run, dispatch_key)
_library.impl("triton_launch", _run_without_data, "Meta")


def grids_of(
    kernel: Any, grid: Any, args: Sequence[Any], kwargs: Mapping[str, Any], call: Callable[..., Any]
) -> list[tuple[dict[str, Any], tuple[int, ...]]]:
    """Return, for each configuration that an autotuner may choose, its constants and the grid of the launch.

    `call(function, meta)` calls a function of the user: the grid function, or a heuristic of the kernel.
    """
    if not callable(grid):
        return [({}, tuple(map(int, grid if isinstance(grid, Sequence) else (grid,))))]
    arguments = {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}
    return [
        (constants, grids_of(kernel, call(grid, meta), args, kwargs, call)[0][1])
        for constants, meta in _configurations(kernel, arguments, call)
    ]


def _configurations(
    kernel: Any, arguments: dict[str, Any], call: Callable[..., Any]
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yield the constants of each configuration of a kernel, and all values that a grid function may read."""
    heuristics = getattr(kernel, "values", None)
    if heuristics is not None:
        for name, heuristic in heuristics.items():
            arguments = {**arguments, name: call(heuristic, arguments)}
        yield from _configurations(kernel.fn, arguments, call)
        return
    configurations = getattr(kernel, "configs", None)
    if configurations is None:
        yield {}, arguments
        return
    for configuration in configurations:
        for constants, meta in _configurations(kernel.fn, {**arguments, **configuration.kwargs}, call):
            yield {**configuration.kwargs, **constants}, meta


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)
