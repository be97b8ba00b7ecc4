"""nvFuser: whole regions as fused kernels on CUDA, cached as the source of nvFuser definitions."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from thunder_core.backend.fusion.fuse import Fused, FusionExecutor, Refusal
from thunder_core.backend.fusion.machine_code import ENTRY, MachineCode
from thunder_core.backend.fusion.region import Region
from thunder_core.backend.fusion.watch import advance
from thunder_core.foundation import plugins
from thunder_core.foundation.errors.tree import first_line
from thunder_core.tracing.extension.requirement import Cuda
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.extent import extent
from thunder_executors.nvfuser import elementwise, reductions, shapes  # noqa: F401 (they fill the table of rules)
from thunder_executors.nvfuser.definition import Definition, Unsupported, print_module

LIBRARY = "thunder_executors.nvfuser.library"
PYTHON = (3, 12)  # the version that nvFuser has wheels for
INSTALL = "pip install nvfuser-cu130-torch210==0.2.36.dev20260301"


@dataclass(frozen=True)
class Nvfuser(FusionExecutor):
    """Fuses elementwise operations, reductions, conversions and views on CUDA, but no matrix products."""

    before: ClassVar[tuple[str, ...]] = ("inductor",)
    name: str = "nvfuser"

    @property
    def claims(self) -> str:
        """The claimed operations: regions on CUDA."""
        return (
            "regions of elementwise operations, reductions, conversions and views on CUDA; equal regions are built once"
        )

    def missing(self) -> str | None:
        """Return the missing parts: a GPU, the package, or the Python version that nvFuser has wheels for."""
        return "; ".join(missing_parts()) or None

    def fuses(self, bsym: BoundSymbol) -> bool:
        """Whether nvFuser supports all operations of a bound symbol."""
        definition = Definition()
        try:
            for operation in bsym.operations:
                definition.write(operation)
        except Unsupported:
            return False
        return True

    def compile(self, regions: Sequence[Region]) -> Sequence[Fused | Refusal]:
        """Return the function of each region, which ran once on zeros, or the refusal of the region."""
        results = []
        for number, region in enumerate(regions, start=1):
            results.append(build(region))
            advance(number, len(regions))
        return results


def missing_parts() -> Iterator[str]:
    """Yield the requirements that this machine lacks: a GPU, and the package for its version of Python and PyTorch."""
    if (gpu := Cuda().missing()) is not None:
        yield gpu
    if not plugins.is_installed("nvfuser_direct"):
        here, there = (".".join(map(str, version)) for version in (sys.version_info[:2], PYTHON))
        version_note = "" if sys.version_info[:2] == PYTHON else f", under Python {there} (it has no wheels for {here})"
        yield f"nvfuser_direct is not installed: {INSTALL}{version_note}"
        return
    try:
        plugins.import_object(LIBRARY)
    except (ImportError, OSError) as error:
        yield f"nvfuser_direct cannot be loaded with PyTorch {torch.__version__}: {error}"


def build(region: Region) -> Fused | Refusal:
    """Return the function that runs a region, or the reason why nvFuser does not run it."""
    try:
        code = MachineCode(print_module(region), b"", ())
        with quiet():
            code.function(ENTRY)(*zeros(region))
    except Unsupported as error:
        return Refusal(str(error), lasting=True)
    except Exception as error:  # nvFuser's passes may raise any exception
        return Refusal(f"nvFuser: {type(error).__name__}: {first_line(error)}", lasting=True)
    return Fused(code.function)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Suppress nvFuser's own printing of errors, which are also raised, within the context."""
    with contextlib.redirect_stdout(io.StringIO()), torch.no_grad():
        yield


def zeros(region: Region) -> list[torch.Tensor]:
    """Return tensors of zeros with the metadata of the region's inputs."""
    memories = (
        torch.zeros(extent(proxy.shape, proxy.stride), dtype=proxy.dtype, device=proxy.device)
        for proxy in region.inputs
    )
    return [memory.as_strided(proxy.shape, proxy.stride) for memory, proxy in zip(memories, region.inputs, strict=True)]


EXECUTOR = Nvfuser()
