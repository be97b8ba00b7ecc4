"""Running regions on CUDA: kept cubins, launched as they are. Nothing here imports Inductor."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from typing import Any

import torch

from thunder_core.foundation.errors import ArtifactForeign
from thunder_core.tracing.library.extent import extent
from thunder_executors.triton.cubin import Cubin
from thunder_executors.triton.driver import LoadedCubin, driver
from thunder_executors.triton.launch import ALIGNMENT

LENGTH = 8  # bytes of the number before the facts


@dataclass(frozen=True, eq=False)
class CubinLaunch:
    """A kernel of Inductor's as machine code: called with its arguments, it is launched on their stream.

    `arguments` names them in order; those that the machine code does not take were built in.
    """

    cubin: Cubin
    arguments: tuple[str, ...]
    grid: tuple[int, ...]

    @cached_property
    def loaded(self) -> LoadedCubin:
        """The machine code with its functions on devices."""
        return LoadedCubin(self.cubin)

    def __call__(self, *values: Any) -> None:
        """Launch it on the current device's current stream."""
        arguments = dict(zip(self.arguments, values, strict=True))
        self.loaded.launch(driver(), torch.cuda.current_device(), self.grid, arguments)


def library_of(kernels: Mapping[str, CubinLaunch]) -> bytes:
    """Kernels as bytes: the length of the facts, the facts, and the machine code of one after the other."""
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
    return b"".join([len(head).to_bytes(LENGTH, "little"), head, *(k.cubin.image for k in kernels.values())])


def kernels_of(library: bytes) -> dict[str, CubinLaunch]:
    """Kernels from bytes whose digest was checked; raises `ArtifactForeign` where this GPU does not run them."""
    start = LENGTH + int.from_bytes(library[:LENGTH], "little")
    found: dict[str, CubinLaunch] = {}
    for facts in json.loads(library[LENGTH:start]):
        image, start = library[start : start + facts["size"]], start + facts["size"]
        cubin = Cubin.from_metadata(facts["cubin"], image)
        found[facts["name"]] = CubinLaunch(cubin, tuple(facts["arguments"]), tuple(facts["grid"]))
    _require_gpu({kernel.cubin.target for kernel in found.values()})
    return found


def _require_gpu(targets: set[str]) -> None:
    if not torch.cuda.is_available():
        return  # a program that is made for a GPU elsewhere: it does not run here
    here = "sm_{}{}".format(*torch.cuda.get_device_capability())
    if targets - {here}:
        raise ArtifactForeign(
            f"compiled regions are machine code for {', '.join(sorted(targets))}, and this GPU is {here}",
            fix=f"load the artifact on such a GPU, or make it again with --target {here}",
        )


def on_gpu(function: Callable[..., Any], index: int, written: Sequence[int] = ()) -> Callable[..., Any]:
    """The function of a region, run on that device, with inputs that lie as its kernels expect.

    What it writes to copies, for those of the inputs at the places `written`, is written to the inputs as well.
    """

    @wraps(function)
    def region(args: list[torch.Tensor]) -> Any:
        with torch.cuda.device(index):
            given = [args[place] for place in written]
            align(args)
            used = [args[place] for place in written]
            result = function(args)
            for tensor, copy in zip(given, used, strict=True):
                if copy is not tensor:
                    tensor.copy_(copy)
            return result

    return region


def align(args: list[torch.Tensor]) -> None:
    """Put copies into a list of inputs for those from whose address vectors cannot be loaded."""
    for place in range(len(args)):
        args[place] = aligned(args[place])


def aligned(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a copy of it in the same strides, at an address from which vectors can be loaded."""
    if tensor.data_ptr() % ALIGNMENT == 0:
        return tensor
    length = extent(tensor.shape, tensor.stride())
    return tensor.as_strided((length,), (1,)).clone().as_strided(tensor.shape, tensor.stride())
