"""The code that Inductor writes for a region: the Python that calls its kernels, and their C++."""

from __future__ import annotations

import logging
import os
import re
import subprocess
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch._inductor import config
from torch._inductor.exc import InvalidCxxCompiler
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule

from thunder_core.capture.sizes import size_oblivious
from thunder_core.fusion.conditions import NO_SIZES, Sizes, named_sizes, size_of
from thunder_core.fusion.fuse import Refusal
from thunder_core.fusion.region import Region
from thunder_executors.inductor.graph import graph_of
from thunder_executors.inductor.imported import AsyncCompile, compile_fx_inner
from thunder_executors.inductor.sizes import conditions_of

SETTINGS: dict[str, Any] = {
    "compile_threads": 1,
    "fx_graph_cache": False,
    "force_disable_caches": True,
    "cpp_wrapper": False,
    "freezing": False,
    "max_autotune": False,
    "graph_partition": False,
    "cpp.vec_isa_ok": True,  # what the CPU has is read from it; compiling a probe for each takes seconds
}

# A parallel region with the number of threads that it was compiled for, by which its accumulators are counted.
PARALLEL = re.compile(r"#pragma omp parallel(?: num_threads\((\d+)\))?")
LOGGER = logging.getLogger("torch._inductor.utils")
OF_THE_MACHINE = (InvalidCxxCompiler, OSError, MemoryError, torch.OutOfMemoryError, subprocess.SubprocessError)


@dataclass(frozen=True)
class CppKernel:
    """One C++ function `kernel(...)` and the types of its arguments."""

    arguments: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class Generated:
    """The module that Inductor wrote, its kernels by the names that it calls them, and the strides of its results.

    `conditions` are what it decided by the region's symbols, as Python.
    """

    wrapper: str
    kernels: dict[str, CppKernel]
    strides: tuple[tuple[Any, ...] | None, ...]
    conditions: tuple[str, ...] = ()


class Unsupported(Exception):
    """Inductor wrote something that cannot be kept; the message says what."""


def generate(region: Region) -> Generated:
    """Have Inductor write the region, whose symbols are its own; raises `Unsupported`, or whatever Inductor raises."""
    with for_all_sizes() if region.symbols else nullcontext():
        return _generated(region, *graph_of(region))


@contextmanager
def for_all_sizes() -> Iterator[None]:
    """While this lasts, PyTorch and Inductor do not ask whether a symbolic size is one, where they need not."""
    compute = fake_impls._compute_stride

    def stride(old_shape: Any, old_stride: Any, new_shape: Any, size_oblivious: bool = True) -> Any:
        return compute(old_shape, old_stride, new_shape, size_oblivious=True)

    with size_oblivious(), mock.patch.object(fake_impls, "_compute_stride", stride):
        yield


def _generated(region: Region, graph: GraphModule, fakes: list[FakeTensor]) -> Generated:
    sources: list[CppKernel] = []

    def note(self: object, argtypes: list[str], source_code: str) -> object:
        sources.append(CppKernel(tuple(argtypes), with_bounded_teams(source_code)))
        return None

    settings = {**SETTINGS, "cpp.threads": torch.get_num_threads()}  # said, it is written into every parallel region
    with quiet(), config.patch(settings), mock.patch.object(AsyncCompile, "cpp_pybinding", note), torch.no_grad():
        compiled: Any = compile_fx_inner(graph, fakes)
    if getattr(compiled, "constants", None):
        raise Unsupported("it holds constant tensors")
    kernels = dict(zip(_names(compiled.source_code), sources, strict=True))
    strides = strides_of(compiled, named_sizes(region.symbols))
    return Generated(compiled.source_code, kernels, strides, conditions_of(region))


def with_bounded_teams(source: str) -> str:
    """A kernel whose parallel regions have at most the threads that they were compiled for, and that a call may use.

    With more, threads would write behind the accumulators that each has one of. With more than a call may use, what
    PyTorch is told later (`torch.set_num_threads`) would not hold, and a forked child, which has to use one thread,
    would wait for those of its parent.
    """
    return PARALLEL.sub(_bounded, source)


def _bounded(region: re.Match[str]) -> str:
    if region[1] is None:
        raise Unsupported("it has a parallel region for any number of threads")
    allowed = "omp_get_max_threads()"
    return f"#pragma omp parallel num_threads({allowed} < {region[1]} ? {allowed} : {region[1]})"


def strides_of(compiled: Any, sizes: Sizes = NO_SIZES) -> tuple[tuple[Any, ...] | None, ...]:
    """The strides of the results, which Inductor gives as texts; None where it does not say."""
    found = compiled.output_strides or ()
    return tuple(None if one is None else tuple(size_of(str(size), sizes) for size in one) for one in found)


def _names(wrapper: str) -> list[str]:
    """The names to which the module binds its kernels, in the order in which it compiles them."""
    return [line.partition(" = ")[0] for line in wrapper.splitlines() if " = async_compile.cpp_pybinding(" in line]


def refusal_for(error: Exception) -> Refusal:
    """The refusal of a region for which Inductor raised; one that is the machine's fault may pass, and is not kept."""
    cause = getattr(error, "inner_exception", error)
    told = str(error).strip().partition("\n")[0]
    return Refusal(f"Inductor: {type(error).__name__}: {told}", lasting=not isinstance(cause, OF_THE_MACHINE))


@contextmanager
def quiet() -> Iterator[None]:
    """While this lasts, Inductor's files go into a folder that is then removed, and it warns of nothing."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder),
        warnings.catch_warnings(action="ignore"),
        mock.patch.object(LOGGER, "disabled", True),  # it names the folder as one that is kept
    ):
        yield
