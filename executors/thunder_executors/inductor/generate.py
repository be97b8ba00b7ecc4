"""The code that Inductor writes for a region: the Python wrapper that calls kernels, and their C++."""

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
from torch._inductor import codecache, config
from torch._inductor.exc import InvalidCxxCompiler
from torch._inductor.runtime import triton_compat
from torch._subclasses import fake_impls
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx import GraphModule

from thunder_core.backend.fusion.conditions import NO_SIZES, SizesByName, named_sizes, size_of
from thunder_core.backend.fusion.fuse import Refusal
from thunder_core.backend.fusion.region import Region
from thunder_core.foundation.errors.tree import first_line
from thunder_core.tracing.capture.symbolic.all_sizes import size_oblivious
from thunder_core.tracing.capture.torch_facts.convolutions import convolutions_for_all_sizes
from thunder_core.tracing.capture.torch_facts.layouts import is_symbolic
from thunder_executors.inductor.atomic_tiles import transform_indices_once
from thunder_executors.inductor.building.vector_extension import trusted_processor
from thunder_executors.inductor.flex_attention import attention_graph, is_attention, with_threads_of_call
from thunder_executors.inductor.graph import graph_of
from thunder_executors.inductor.imported import AsyncCompile, compiled_graph
from thunder_executors.inductor.loop_strides import expanded_strides
from thunder_executors.inductor.precision.accurate_functions import accurate_near_zero
from thunder_executors.inductor.precision.roundings import reads_rounded_numbers
from thunder_executors.inductor.sizes import conditions_of

# The module whose `triton_key`, the hash of Triton's files, Inductor calls. It is `codecache` from PyTorch 2.12 on.
TRITON_KEY_MODULE: Any = codecache if hasattr(codecache, "triton_key") else triton_compat
INDUCTOR_CONFIG: dict[str, Any] = {
    "compile_threads": 1,
    "fx_graph_cache": False,
    "force_disable_caches": True,
    "cpp_wrapper": False,
    "freezing": False,
    "max_autotune": False,
    "graph_partition": False,
}

# A parallel region of OpenMP with its number of threads. The code has one accumulator for each thread.
OMP_PARALLEL = re.compile(r"#pragma omp parallel(?: num_threads\((\d+)\))?")
LOGGER = logging.getLogger("torch._inductor.utils")
COMPILER_ERROR_MODULES = ("torch._inductor.exc", "torch._dynamo.exc")
# Errors of the machine's state: a later attempt may succeed.
ENVIRONMENT_ERRORS = (InvalidCxxCompiler, OSError, MemoryError, torch.OutOfMemoryError, subprocess.SubprocessError)


@dataclass(frozen=True)
class CppKernel:
    """A C++ function `kernel(...)` and the types of its arguments."""

    arguments: tuple[str, ...]
    source: str


@dataclass(frozen=True)
class GeneratedCode:
    """The wrapper module that Inductor wrote, and its C++ kernels by the names of their variables in the wrapper.

    `strides` are the strides of each result, or None if unknown. `conditions` are the guards on the region's symbols
    that the code relies on, as Python expressions.
    """

    wrapper: str
    kernels: dict[str, CppKernel]
    strides: tuple[tuple[Any, ...] | None, ...]
    conditions: tuple[str, ...] = ()


class Unsupported(Exception):
    """Raised if Inductor's code for a region cannot be used or stored; the message is the reason."""


def generate(region: Region) -> GeneratedCode:
    """Generate Inductor's code for a region whose symbols have a `ShapeEnv` of their own.

    Raises `Unsupported`, or any exception of Inductor.
    """
    with size_oblivious_codegen() if region.symbols else nullcontext():
        return _generate(region, *(attention_graph(region) if is_attention(region) else graph_of(region)))


OVERLAP_UNKNOWN = 2  # `MemOverlap::TooHard` (ATen/MemoryOverlap.h)


@contextmanager
def size_oblivious_codegen() -> Iterator[None]:
    """Make PyTorch and Inductor specialize on sizes of 0 or 1 only where they must, within the context."""
    compute = fake_impls._compute_stride

    def stride(old_shape: Any, old_stride: Any, new_shape: Any, size_oblivious: bool = True) -> Any:
        # always size-oblivious, also if the caller asks for the opposite
        return compute(old_shape, old_stride, new_shape, size_oblivious=True)

    def overlap(tensor: torch.Tensor) -> int:
        # The check would specialize on symbolic sizes. `copy_` calls it to refuse overlapping memory, which tracing
        # has already refused.
        return OVERLAP_UNKNOWN if is_symbolic(tensor) else original_overlap(tensor)

    original_overlap = torch._debug_has_internal_overlap
    with (
        size_oblivious(),
        convolutions_for_all_sizes(),
        mock.patch.object(fake_impls, "_compute_stride", stride),
        mock.patch.object(torch, "_debug_has_internal_overlap", overlap),
    ):
        yield


def _generate(region: Region, graph: GraphModule, fakes: list[FakeTensor | torch.SymInt]) -> GeneratedCode:
    """Make Inductor write the code for a graph with fake tensors as inputs. Its C++ kernels are not compiled."""
    sources: list[CppKernel] = []

    def record_kernel(self: object, argtypes: list[str], source_code: str) -> object:  # compiles nothing
        sources.append(CppKernel(tuple(argtypes), with_bounded_threads(with_threads_of_call(source_code))))
        return None

    # Inductor writes a fixed number of threads at each parallel region.
    settings = {**settings_for(region), "cpp.threads": torch.get_num_threads()}
    with (
        temporary_cache_without_warnings(),
        expanded_strides(),
        accurate_near_zero(),
        transform_indices_once(),
        without_triton_key(),
        config.patch(settings),
        trusted_processor(),
        mock.patch.object(AsyncCompile, "cpp_pybinding", record_kernel),
    ):
        compiled: Any = compiled_graph(graph, fakes)
    if getattr(compiled, "constants", None):
        raise Unsupported("the generated code contains constant tensors")
    kernels = dict(zip(_kernel_names(compiled.source_code), sources, strict=True))
    strides = strides_of(compiled, named_sizes(region.symbols))
    return GeneratedCode(compiled.source_code, kernels, strides, conditions_of(region))


def settings_for(region: Region) -> dict[str, Any]:
    """Return Inductor's settings for a region."""
    return {**INDUCTOR_CONFIG, "emulate_precision_casts": reads_rounded_numbers(region)}


@contextmanager
def without_triton_key() -> Iterator[None]:
    """Within the context, prevent Inductor from hashing Triton's files if there is no GPU: nothing uses the hash."""
    has_gpu = torch.cuda.is_available()
    with nullcontext() if has_gpu else mock.patch.object(TRITON_KEY_MODULE, "triton_key", lambda: None):
        yield


def with_bounded_threads(source: str) -> str:
    """Limit parallel regions to the number of threads that they were compiled for, and to `omp_get_max_threads()`.

    With more threads than compiled, threads would write past the accumulators. The second limit lets
    `torch.set_num_threads` work, and keeps a forked child at one thread: more threads would wait for threads of the
    parent process.
    """
    return OMP_PARALLEL.sub(_bound_parallel_region, source)


def _bound_parallel_region(match: re.Match[str]) -> str:
    if match[1] is None:
        raise Unsupported("the generated code has a parallel region without a fixed number of threads")
    allowed = "omp_get_max_threads()"
    return f"#pragma omp parallel num_threads({allowed} < {match[1]} ? {allowed} : {match[1]})"


def strides_of(compiled: Any, sizes: SizesByName = NO_SIZES) -> tuple[tuple[Any, ...] | None, ...]:
    """Return each result's strides, evaluated from the expressions that Inductor gives, or None if it gives none."""
    output_strides = compiled.output_strides or ()
    return tuple(
        None if strides is None else tuple(size_of(str(stride), sizes) for stride in strides)
        for strides in output_strides
    )


def _kernel_names(wrapper: str) -> list[str]:
    """Return the names to which the module binds its kernels, in compilation order."""
    return [line.partition(" = ")[0] for line in wrapper.splitlines() if " = async_compile.cpp_pybinding(" in line]


def refusal_for(error: Exception) -> Refusal:
    """Return the refusal of a region for which Inductor raised an error.

    The refusal is lasting if the error is Inductor's own. A later attempt may succeed after an error of the machine's
    state, such as a full disk.
    """
    cause = getattr(error, "inner_exception", error)
    message = first_line(error)
    lasting = type(error).__module__ in COMPILER_ERROR_MODULES and not isinstance(cause, ENVIRONMENT_ERRORS)
    return Refusal(f"Inductor: {type(error).__name__}: {message}", lasting=lasting)


@contextmanager
def temporary_cache_without_warnings() -> Iterator[None]:
    """Within the context, silence warnings, and let Inductor write to a folder that is removed at the end."""
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=folder),
        warnings.catch_warnings(action="ignore"),
        mock.patch.object(LOGGER, "disabled", True),  # the logger warns that Inductor keeps the folder
    ):
        yield
