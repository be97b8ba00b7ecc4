"""Launch the user's Triton kernels. A trace contains each launch as an operation with all its arguments.

On tensors without data, no kernel is launched. Instead, the custom operator `thunder::triton_launch` is called and
recorded. Its arguments are the tensors that the kernel reads and writes. On real tensors, the operator launches the
kernel.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from thunder_core.foundation.errors import OperationFailed

Grid = Sequence[int]
# For each configuration of an autotuner, the constants that identify it, and the grid of the launch.
Grids = Sequence[tuple[Mapping[str, Any], Grid]]


def launch(kernel: Any, grids: Grids, args: Sequence[Any], kwargs: Mapping[str, Any], written: Sequence[int]) -> None:
    """Launch a kernel, or record the launch if a tensor has no data.

    `grids` has a grid for each configuration of the kernel. `written` has the tensors that the kernel may write to, as
    indices among all tensors in the arguments.
    """
    tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
    if not any(isinstance(tensor, FakeTensor) for tensor in tensors):
        kernel.run(*args, grid=lambda meta: grid_for(grids, meta), warmup=False, **kwargs)
        return
    indices = iter(range(len(tensors)))
    arguments = tree_map(lambda leaf: _TensorPlaceholder(next(indices)) if _is_tensor(leaf) else leaf, (args, kwargs))
    key = _key_of(_Launch(kernel, grids, arguments, tuple(written)))
    read = [tensor for index, tensor in enumerate(tensors) if index not in written]
    with torch.no_grad():
        torch.ops.thunder.triton_launch([tensors[index] for index in written], read, key)


def grid_for(grids: Grids, meta: Mapping[str, Any]) -> Grid:
    """Return the grid for the configuration that a kernel runs with; `meta` has the kernel's arguments."""
    for constants, grid in grids:
        if all(meta.get(name) == value for name, value in constants.items()):
            return grid
    raise OperationFailed(
        "an autotuner chose a configuration that the Triton kernel did not have when the program was traced",
        fix="declare all configurations in triton.autotune, or compile the program again",
    )


@dataclass(frozen=True)
class _TensorPlaceholder:
    """A placeholder for the tensor with this index among the tensors of a launch."""

    index: int


@dataclass(frozen=True)
class _Launch:
    """A recorded launch, whose `arguments` have placeholders in place of the tensors.

    `written` has the indices of the tensors that the kernel may write to.
    """

    kernel: Any
    grids: Grids
    arguments: tuple[Sequence[Any], Mapping[str, Any]]
    written: tuple[int, ...]

    def run(self, written: Sequence[torch.Tensor], read: Sequence[torch.Tensor]) -> None:
        """Launch the kernel with these tensors in place of the placeholders."""
        read_indices = [index for index in range(len(written) + len(read)) if index not in self.written]
        tensors = dict(zip((*self.written, *read_indices), (*written, *read), strict=True))

        def tensor_of(leaf: object) -> Any:
            return tensors[leaf.index] if isinstance(leaf, _TensorPlaceholder) else leaf

        args, kwargs = tree_map(tensor_of, self.arguments)
        launch(self.kernel, self.grids, args, kwargs, self.written)


_keys = itertools.count()
_launches: dict[int, _Launch] = {}  # by the `key` that the operator is called with
_equal_keys: dict[Hashable, int] = {}  # the keys of launches with plain arguments, by the contents of the launches
PLAIN = (int, float, bool, str, type(None), torch.dtype, _TensorPlaceholder)


def _key_of(launch: _Launch) -> int:
    """Store a launch and return its key. Equal launches have the same key, so that retracing stores no second launch.

    The launch keeps its kernel alive, so no other kernel has the same identity.
    """
    leaves, structure = tree_flatten((launch.grids, launch.arguments, launch.written))
    if not all(type(leaf) in PLAIN for leaf in leaves):
        _launches[key := next(_keys)] = launch
        return key
    content = (id(launch.kernel), structure, tuple((type(leaf), repr(leaf)) for leaf in leaves))
    if content not in _equal_keys:
        _launches[key := next(_keys)] = launch
        _equal_keys[content] = key
    return _equal_keys[content]


_library: Any = torch.library.Library("thunder", "FRAGMENT")  # type: ignore[no-untyped-call]
_library.define("triton_launch(Tensor(a!)[] written, Tensor[] read, int key) -> ()")


def _run(written: Sequence[torch.Tensor], read: Sequence[torch.Tensor], key: int) -> None:
    """Launch the kernel of a recorded launch on real tensors."""
    if key not in _launches:
        raise OperationFailed(
            "a custom operator launches a Triton kernel that only the process that traced the program can launch",
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
    """Return a pair for each configuration that an autotuner may choose: its constants, and the grid of the launch.

    The constants are the kernel's arguments that differ between the configurations. `call(function, meta)` calls a
    function of the user: the grid function, or a heuristic of the kernel.
    """
    if not callable(grid):
        return [({}, _dimensions(grid))]
    metas = list(_configurations(kernel, {**dict(zip(kernel.arg_names, args, strict=False)), **kwargs}, call))
    names = [name for name, value in metas[0].items() if any(meta[name] is not value for meta in metas)]
    return [({name: meta[name] for name in names}, _dimensions(call(grid, meta))) for meta in metas]


def _dimensions(grid: Any) -> tuple[int, ...]:
    """Return a grid as a tuple; a grid with one dimension may be an integer."""
    return tuple(map(int, grid if isinstance(grid, Sequence) else (grid,)))


def _configurations(kernel: Any, arguments: dict[str, Any], call: Callable[..., Any]) -> Iterator[dict[str, Any]]:
    """Yield the arguments that the kernel gets in each configuration, which are all that a grid function may read.

    `arguments` are those of the launch. Heuristics also read the options of a configuration, such as `num_warps`.
    """
    heuristics = getattr(kernel, "values", None)
    configurations = getattr(kernel, "configs", None)
    if heuristics is not None:
        for name, heuristic in heuristics.items():
            arguments = {**arguments, name: call(heuristic, arguments)}
        yield from _configurations(kernel.fn, arguments, call)
    elif configurations is not None:
        for configuration in configurations:
            yield from _configurations(kernel.fn, {**arguments, **configuration.all_kwargs()}, call)
    else:
        parameters = inspect.signature(kernel.fn).parameters
        values = {name: arguments.get(name, parameter.default) for name, parameter in parameters.items()}
        yield {name: value for name, value in values.items() if value is not inspect.Parameter.empty}


def _is_tensor(leaf: object) -> bool:
    return isinstance(leaf, torch.Tensor)
