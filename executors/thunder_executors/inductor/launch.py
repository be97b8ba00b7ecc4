"""Run fused regions on a GPU from stored machine code (cubins). Nothing here imports Inductor."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from typing import Any

import torch

from thunder_core.foundation.errors import ArtifactForeign
from thunder_core.tracing.library.extent import extent
from thunder_executors.triton.cubin import Cubin
from thunder_executors.triton.driver import LoadedCubin, architecture, driver
from thunder_executors.triton.launch import ALIGNMENT

LENGTH_BYTES = 8  # size in bytes of the field with the length of the header


@dataclass(frozen=True, eq=False)
class CubinLaunch:
    """An Inductor kernel as machine code. A call launches it with the given arguments on the current stream.

    `arguments` are the argument names in order, including constants of the machine code. If the grid
    depends on symbolic sizes, `grid` is empty, and `grid_function` computes the grid from all arguments by name.
    """

    cubin: Cubin
    arguments: tuple[str, ...]
    grid: tuple[int, ...]
    grid_function: Callable[..., tuple[int, ...]] | None = None

    @cached_property
    def loaded(self) -> LoadedCubin:
        """The machine code, which each device loads at its first launch."""
        return LoadedCubin(self.cubin)

    @cached_property
    def parameters(self) -> tuple[int, ...]:
        """The indices in `arguments` of the parameters of the machine code."""
        return tuple(self.arguments.index(name) for name, _ in self.cubin.specialization.types)

    def __call__(self, *values: Any) -> None:
        """Launch the kernel on the current device's current stream."""
        function = self.grid_function
        grid = self.grid if function is None else function(**dict(zip(self.arguments, values, strict=True)))
        if 0 not in grid:
            ordered = [values[index] for index in self.parameters]
            self.loaded.launch(driver(), torch.cuda.current_device(), grid, ordered)

    def with_grid(self, grid_function: Callable[..., tuple[int, ...]]) -> CubinLaunch:
        """Return the kernel with a function that computes the grid from the arguments of each launch."""
        return replace(self, grid_function=grid_function)


def library_of(kernels: Mapping[str, CubinLaunch]) -> bytes:
    """Return kernels as bytes: the length of a JSON header, the header, and the machine code of each kernel."""
    facts = [
        {
            "name": name,
            "size": len(kernel.cubin.image),
            "cubin": kernel.cubin.metadata(),
            "arguments": kernel.arguments,
            "grid": kernel.grid,
        }
        for name, kernel in kernels.items()
    ]
    head = json.dumps(facts).encode()
    return b"".join([len(head).to_bytes(LENGTH_BYTES, "little"), head, *(k.cubin.image for k in kernels.values())])


def kernels_of(library: bytes) -> dict[str, CubinLaunch]:
    """Return the kernels in a library, whose digest the caller has checked.

    Raises `ArtifactForeign` if no GPU of this machine runs them.
    """
    kernels: dict[str, CubinLaunch] = {}
    for facts, image in images_of(library):
        cubin = Cubin.from_metadata(facts["cubin"], image)
        kernels[facts["name"]] = CubinLaunch(cubin, tuple(facts["arguments"]), tuple(facts["grid"]))
    _require_gpu({kernel.cubin.target for kernel in kernels.values()})
    return kernels


def images_of(library: bytes) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the facts and the machine code of each kernel in a library."""
    start = LENGTH_BYTES + int.from_bytes(library[:LENGTH_BYTES], "little")
    for facts in json.loads(library[LENGTH_BYTES:start]):
        yield facts, library[start : start + facts["size"]]
        start += facts["size"]


def _require_gpu(targets: set[str]) -> None:
    """Raise `ArtifactForeign` if this machine has GPUs, but none of a target's architecture."""
    if not torch.cuda.is_available():
        return  # the kernels are for another machine, and are only inspected here
    here = dict.fromkeys(map(architecture, range(torch.cuda.device_count())))
    if targets - here.keys():
        raise ArtifactForeign(
            f"compiled regions are machine code for {', '.join(sorted(targets))}, and this machine's GPUs are "
            f"{', '.join(here)}",
            fix=f"load the artifact on such a GPU, or make it again with --target {next(iter(here))}",
        )


def on_gpu(function: Callable[..., Any], index: int, written: Sequence[int] = ()) -> Callable[..., Any]:
    """Return a region's function that runs on a device, with inputs aligned as its kernels expect.

    `written` are the indices of the inputs that the region writes to. If such an input was replaced by an aligned copy,
    the copy is copied back.
    """

    @wraps(function)
    def region(args: list[torch.Tensor]) -> Any:
        with torch.cuda.device(index):
            originals = [args[number] for number in written]
            align(args)
            aligned_inputs = [args[number] for number in written]
            result = function(args)
            for tensor, copy in zip(originals, aligned_inputs, strict=True):
                if copy is not tensor:
                    tensor.copy_(copy)
            return result

    return region


def align(args: list[Any]) -> None:
    """Replace tensors in the list by copies if vectors cannot be loaded from their addresses."""
    for index, value in enumerate(args):
        if isinstance(value, torch.Tensor):
            args[index] = align_tensor(value)


def align_tensor(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor, or a copy with the same strides, at an address from which vectors can be loaded."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else copy_with_strides(tensor)


def copy_with_strides(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor with the same strides."""
    length = extent(tensor.shape, tensor.stride())
    return tensor.as_strided((length,), (1,)).clone().as_strided(tensor.shape, tensor.stride())
