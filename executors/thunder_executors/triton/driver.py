"""Launching kept machine code through CUDA's driver: no Triton, no compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any

import torch

from thunder_core.foundation.errors import (
    ArtifactDamaged,
    ArtifactForeign,
    Bug,
    DeviceNotAvailable,
    OutOfMemory,
    ThunderError,
)
from thunder_executors.triton.cubin import Cubin
from thunder_executors.triton.launch import KEPT, Launch, Specialization

LIBRARY = "libcuda.so.1"
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
FREE_SHARED = 48 * 1024  # what a block may have without asking
SCRATCH = (ctypes.c_void_p(0), ctypes.c_void_p(0))  # Triton's kernels end in two pointers that ours do not use

# How an argument of a type is passed; pointers go by their address.
SCALARS: dict[str, Callable[[Any], Any]] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float}

# Of the driver's error codes, those that have a cause outside this program.
CAUSES: dict[int, tuple[type[ThunderError], str]] = {
    2: (OutOfMemory, "free memory on the GPU, or use a smaller batch"),
    100: (DeviceNotAvailable, "run on a machine with a GPU"),
    200: (ArtifactDamaged, "make the artifact again"),
    201: (DeviceNotAvailable, "initialize CUDA in this thread: torch.cuda.init()"),
    209: (ArtifactForeign, "compile for this GPU: thunder optimize --target"),
    218: (ArtifactDamaged, "make the artifact again"),
    222: (ArtifactForeign, "update the GPU's driver, or compile with an older Triton"),
    300: (ArtifactDamaged, "make the artifact again"),
    500: (ArtifactDamaged, "make the artifact again"),
}
OURS: tuple[type[ThunderError], str] = (Bug, "please report it, with the output of `thunder doctor --json`")


@dataclass(frozen=True)
class Driver:
    """CUDA's driver: the few functions that launch a kernel, with errors in place of codes."""

    library: Any

    def call(self, function: str, *args: Any) -> None:
        """Call a function of the driver; its error, named, is one of ours."""
        code = getattr(self.library, function)(*args)
        if code:
            error, fix = CAUSES.get(code, OURS)
            raise error(f"{function} failed: {self.name_of(code)} ({code})", fix=fix)

    def name_of(self, code: int) -> str:
        """The name of an error code, such as CUDA_ERROR_OUT_OF_MEMORY."""
        name = ctypes.c_char_p()
        self.library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(name))
        return (name.value or b"an unknown error").decode()

    def enter(self, device: int) -> None:
        """Make the device's context, the one that PyTorch uses, the thread's own, if it has none yet."""
        context = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        if not context.value:
            self.call("cuInit", ctypes.c_uint(0))
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
            self.call("cuCtxSetCurrent", context)

    def function(self, cubin: Cubin) -> ctypes.c_void_p:
        """Load machine code into the current context; it stays there while the process lives."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(cubin.image))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(cubin.entry.encode()))
        if cubin.shared > FREE_SHARED:
            attribute, size = ctypes.c_int(MAX_DYNAMIC_SHARED_SIZE_BYTES), ctypes.c_int(cubin.shared)
            self.call("cuFuncSetAttribute", function, attribute, size)
        return function

    def launch(
        self, function: ctypes.c_void_p, grid: tuple[int, ...], cubin: Cubin, stream: int, values: Iterable[Any]
    ) -> None:
        """Launch on a stream; the arguments are C values in the order of the kernel's parameters."""
        arguments = [*values, *SCRATCH]
        addresses = (ctypes.c_void_p * len(arguments))(*(ctypes.addressof(value) for value in arguments))
        x, y, z = (*grid, 1, 1)[:3]
        sizes = map(ctypes.c_uint, (x, y, z, cubin.threads, 1, 1, cubin.shared))
        self.call("cuLaunchKernel", function, *sizes, ctypes.c_void_p(stream), addresses, None)


@cache
def driver() -> Driver:
    """The driver of this machine; DeviceNotAvailable where there is none."""
    try:
        return Driver(ctypes.CDLL(LIBRARY))
    except OSError as error:
        raise DeviceNotAvailable(
            f"the CUDA driver cannot be loaded: {error}", fix="run on a machine with a GPU"
        ) from error


def packed(specialization: Specialization, values: Mapping[str, Any]) -> list[Any]:
    """The arguments of a launch as C values, in the order of the kernel's parameters."""
    return [
        ctypes.c_void_p(values[name].data_ptr()) if kind.startswith("*") else SCALARS[kind](values[name])
        for name, kind in specialization.types
    ]


@dataclass
class LoadedCubin:
    """Machine code and its functions on the devices that it was launched on: it is loaded when first needed there."""

    cubin: Cubin
    functions: dict[int, ctypes.c_void_p] = field(default_factory=dict)

    def launch(self, driver: Driver, device: int, grid: tuple[int, ...], values: Mapping[str, Any]) -> None:
        """Launch it on the current stream of this device, which is the current one; `values` are its arguments."""
        driver.enter(device)
        if device not in self.functions:
            self.functions[device] = driver.function(self.cubin)
        stream = torch.cuda.current_stream(device).cuda_stream
        arguments = packed(self.cubin.specialization, values)
        driver.launch(self.functions[device], grid, self.cubin, stream, arguments)


@dataclass
class CubinKernel:
    """Machine code that launches as the kernel of ours that it was compiled from."""

    cubin: Cubin
    driver: Driver

    @cached_property
    def loaded(self) -> LoadedCubin:
        """The machine code with its functions on devices."""
        return LoadedCubin(self.cubin)

    def __call__(self, launch: Launch) -> None:
        """Launch it on the current stream of the device of the arguments."""
        if launch.specialization != self.cubin.specialization:
            raise Bug(f"{launch.specialization} cannot be launched as {self.cubin.specialization}", fix=OURS[1])
        device = launch.device.index or 0
        with torch.cuda.device(device) if device != torch.cuda.current_device() else nullcontext():
            self.loaded.launch(self.driver, device, launch.grid, launch.values)


def keep(cubins: Iterable[Cubin]) -> None:
    """From now on, launch these in place of what Triton would compile for the same launches.

    Only pass machine code whose digest was checked.
    """
    for cubin in cubins:
        KEPT[cubin.specialization] = CubinKernel(cubin, driver())
