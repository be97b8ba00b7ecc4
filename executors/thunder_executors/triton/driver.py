"""Launch stored machine code through CUDA's driver, without Triton and without a compiler."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterable, Sequence
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
from thunder_executors.triton.launch import STORED_KERNELS, Launch, Specialization, compile_now

LIBRARY = "libcuda.so.1"
MAX_DYNAMIC_SHARED_SIZE_BYTES = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
FREE_SHARED = 48 * 1024  # shared memory that a block may have without a request
SCRATCH = 2  # the number of pointers after the parameters of Triton's kernels; Thunder's kernels do not read them
INVALID_CONTEXT = 201  # the error of a launch in a thread that has no context

# The C type of each type of a number; pointers are passed as `c_void_p`.
SCALARS: dict[str, Callable[[], Any]] = {"i32": ctypes.c_int32, "i64": ctypes.c_int64, "fp32": ctypes.c_float}

# The driver's error codes that have a cause outside this program.
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
UNEXPECTED: tuple[type[ThunderError], str] = (Bug, "please report it, with the output of `thunder doctor --json`")


@dataclass(frozen=True)
class Driver:
    """Access to CUDA's driver: the few functions that launch a kernel, with exceptions instead of error codes."""

    library: Any

    def call(self, function: str, *args: Any) -> None:
        """Call a function of the driver; raise a ThunderError with the name of its error."""
        self.check(function, getattr(self.library, function)(*args))

    def check(self, function: str, code: int) -> None:
        """Raise a ThunderError with the name of an error code that a function has returned; 0 is no error."""
        if code:
            error, fix = CAUSES.get(code, UNEXPECTED)
            raise error(f"{function} failed: {self.name_of(code)} ({code})", fix=fix)

    def name_of(self, code: int) -> str:
        """Return the name of an error code, such as CUDA_ERROR_OUT_OF_MEMORY."""
        name = ctypes.c_char_p()
        self.library.cuGetErrorName(ctypes.c_int(code), ctypes.byref(name))
        return (name.value or b"an unknown error").decode()

    def enter(self, device: int) -> None:
        """Set the thread's context to the device's primary context, which PyTorch uses, if the thread has none."""
        context = ctypes.c_void_p()
        self.call("cuCtxGetCurrent", ctypes.byref(context))
        if not context.value:
            self.call("cuInit", ctypes.c_uint(0))
            self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), ctypes.c_int(device))
            self.call("cuCtxSetCurrent", context)

    def function(self, cubin: Cubin) -> ctypes.c_void_p:
        """Load machine code into the current context for the lifetime of the process."""
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self.call("cuModuleLoadData", ctypes.byref(module), ctypes.c_char_p(cubin.image))
        self.call("cuModuleGetFunction", ctypes.byref(function), module, ctypes.c_char_p(cubin.entry.encode()))
        if cubin.shared > FREE_SHARED:
            attribute, size = ctypes.c_int(MAX_DYNAMIC_SHARED_SIZE_BYTES), ctypes.c_int(cubin.shared)
            self.call("cuFuncSetAttribute", function, attribute, size)
        return function

    def launch(
        self, function: ctypes.c_void_p, grid: tuple[int, ...], cubin: Cubin, stream: int, addresses: Any, device: int
    ) -> None:
        """Launch a function on a stream of a device; `addresses` is a C array of the addresses of its parameters."""
        x, y, z = (*grid, 1, 1)[:3]
        arguments = (function, x, y, z, cubin.threads, 1, 1, cubin.shared, stream, addresses, None)
        code = self.library.cuLaunchKernel(*arguments)
        if code == INVALID_CONTEXT:
            self.enter(device)
            code = self.library.cuLaunchKernel(*arguments)
        self.check("cuLaunchKernel", code)


@cache
def driver() -> Driver:
    """Return the driver of this machine; raise DeviceNotAvailable if there is none."""
    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise DeviceNotAvailable(
            f"the CUDA driver cannot be loaded: {error}", fix="run on a machine with a GPU"
        ) from error
    # With these types, ctypes converts integers faster than objects of the types are made.
    library.cuLaunchKernel.argtypes = [ctypes.c_void_p, *[ctypes.c_uint] * 7, *[ctypes.c_void_p] * 3]
    return Driver(library)


class Parameters:
    """The parameters of a kernel as C values, and the array of their addresses, which a launch passes to the driver."""

    def __init__(self, specialization: Specialization) -> None:
        kinds = [kind for _, kind in specialization.types]
        self.values = [ctypes.c_void_p() if kind.startswith("*") else SCALARS[kind]() for kind in kinds]
        self.scratch = [ctypes.c_void_p() for _ in range(SCRATCH)]
        every = [*self.values, *self.scratch]
        self.addresses = (ctypes.c_void_p * len(every))(*map(ctypes.addressof, every))

    def set(self, values: Sequence[Any]) -> None:
        """Set the parameters to tensors and numbers, in the order of the kernel's parameters."""
        for parameter, value in zip(self.values, values, strict=True):
            parameter.value = value.data_ptr() if isinstance(value, torch.Tensor) else value


@dataclass
class LoadedCubin:
    """Machine code and its functions on devices, loaded on a device at the first launch there.

    A launch takes `Parameters` from `unused`, and returns them when the driver has copied the values. So launches from
    several threads never share parameters.
    """

    cubin: Cubin
    functions: dict[int, ctypes.c_void_p] = field(default_factory=dict)
    unused: list[Parameters] = field(default_factory=list)

    def launch(self, driver: Driver, device: int, grid: tuple[int, ...], values: Sequence[Any]) -> None:
        """Launch the kernel on the current stream of this device, which is current.

        `values` are the arguments in the order of the specialization's `types`.
        """
        if (function := self.functions.get(device)) is None:
            driver.enter(device)
            function = self.functions[device] = driver.function(self.cubin)
        try:
            parameters = self.unused.pop()
        except IndexError:
            parameters = Parameters(self.cubin.specialization)
        parameters.set(values)
        stream = torch.cuda.current_stream(device).cuda_stream
        driver.launch(function, grid, self.cubin, stream, parameters.addresses, device)
        self.unused.append(parameters)


@dataclass
class CubinKernel:
    """The machine code of a kernel, which replaces launches of the kernel."""

    cubin: Cubin
    driver: Driver

    @cached_property
    def loaded(self) -> LoadedCubin:
        """The machine code with its functions on devices."""
        return LoadedCubin(self.cubin)

    def __call__(self, launch: Launch) -> None:
        """Launch the kernel on the current stream of the arguments' device."""
        ours, theirs = self.cubin.specialization, launch.specialization
        if ours.with_alignment(theirs.divisible) != theirs or not set(ours.divisible) <= set(theirs.divisible):
            raise Bug(f"{theirs} cannot be launched as {ours}", fix=UNEXPECTED[1])
        device = launch.device.index or 0
        with torch.cuda.device(device) if device != torch.cuda.current_device() else nullcontext():
            values = launch.arguments
            ordered = [values[name] for name, _ in ours.types]
            self.loaded.launch(self.driver, device, launch.grid, ordered)


@dataclass
class CubinKernels:
    """Machine code of one specialization for GPUs of several architectures, by the name of the architecture."""

    by_architecture: dict[str, CubinKernel] = field(default_factory=dict)
    by_device: dict[int, CubinKernel | None] = field(default_factory=dict)

    def add(self, kernel: CubinKernel) -> None:
        """Add machine code for the GPUs of its architecture."""
        self.by_architecture[kernel.cubin.target] = kernel
        self.by_device.clear()

    def __call__(self, launch: Launch) -> None:
        """Launch the machine code for the architecture of the launch's GPU; without any, Triton compiles."""
        device = launch.device.index or 0
        if device not in self.by_device:
            self.by_device[device] = self.by_architecture.get(architecture(device))
        (self.by_device[device] or compile_now)(launch)


def architecture(device: int | torch.device) -> str:
    """Return the architecture of a GPU of this machine, such as `sm_90`."""
    return "sm_{}{}".format(*torch.cuda.get_device_capability(device))


def keep(cubins: Iterable[Cubin]) -> None:
    """Store cubins: launches with their specialization run them, on GPUs of their architecture.

    The caller must have checked the digest of the machine code.
    """
    for cubin in cubins:
        kernel = CubinKernel(cubin, driver())
        kernels = STORED_KERNELS.setdefault(cubin.specialization, CubinKernels())
        if isinstance(kernels, CubinKernels):
            kernels.add(kernel)
