"""Launches of kept machine code: the calls of the driver, with a driver that only records them, and on a GPU."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from tests.executors.triton.closeness import DTYPES, assert_close, draw, tensors, wide
from tests.executors.triton.examples import EXAMPLES, random_tensors
from thunder_core.foundation.errors import (
    ArtifactDamaged,
    ArtifactForeign,
    Bug,
    DeviceNotAvailable,
    OutOfMemory,
    ThunderError,
)
from thunder_executors.triton import driver as driving
from thunder_executors.triton import launch as launching
from thunder_executors.triton.cubin import Cubin, compile_for
from thunder_executors.triton.driver import CAUSES, INVALID_CONTEXT, CubinKernel, Driver, LoadedCubin, keep
from thunder_executors.triton.launch import INTERPRETED, STORED_KERNELS, Launch, Specialization, launch_now
from thunder_executors.triton.operations import OPERATORS
from thunder_executors.triton.rms_norm import rms_norm

STREAM = 0x5EED
READERS: dict[str, Callable[[int], Any]] = {
    "i32": lambda address: ctypes.c_int32.from_address(address).value,
    "i64": lambda address: ctypes.c_int64.from_address(address).value,
    "fp32": lambda address: ctypes.c_float.from_address(address).value,
}


class Notes:
    """CUDA's driver: every function records its name and arguments, and returns a status code."""

    def __init__(self, **codes: int) -> None:
        self.codes, self.calls, self.launched, self.context = codes, [], [], 7
        self.types: tuple[tuple[str, str], ...] = ()

    def __getattr__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append((name, arguments))
            return self.codes.get(name, 0)

        return call

    def named(self, name: str) -> list[tuple[Any, ...]]:
        return [arguments for called, arguments in self.calls if called == name]

    def cuCtxGetCurrent(self, context: Any) -> int:
        context._obj.value = self.context
        return 0

    def cuModuleGetFunction(self, function: Any, module: Any, name: Any) -> int:
        function._obj.value = 0xF00D
        self.calls.append(("cuModuleGetFunction", (name.value,)))
        return self.codes.get("cuModuleGetFunction", 0)

    def cuGetErrorName(self, code: Any, name: Any) -> int:
        name._obj.value = b"CUDA_ERROR_OF_A_TEST"
        return 0

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        """Read the arguments while they are alive, like the driver."""
        *sizes, stream, addresses, extra = rest
        kinds = [kind for _, kind in self.types] + ["*", "*"]
        values = [
            READERS.get(kind, lambda at: ctypes.c_void_p.from_address(at).value)(address)
            for kind, address in zip(kinds, addresses, strict=True)
        ]
        self.launched.append((function.value, tuple(sizes), stream, values, extra))
        return self.codes.get("cuLaunchKernel", 0)


@pytest.fixture
def one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=STREAM))


def example() -> tuple[Launch, Cubin]:
    (launch,) = rms_norm.launches(draw(3, 33, dtype=torch.bfloat16), draw(33, dtype=torch.bfloat16), 0.5)
    return launch, Cubin(launch.specialization, b"\x7fELF", "rms_norm_forward_kernel", 64, "sm_90", "triton 3.7.1")


def test_each_argument_reaches_the_kernel(one_gpu: None) -> None:
    launch, cubin = example()
    notes = Notes()
    notes.types = launch.specialization.types
    CubinKernel(cubin, Driver(notes))(launch)
    ((function, sizes, stream, values, extra),) = notes.launched
    x, weight, y = (launch.values[name].data_ptr() for name in ("x", "weight", "y"))
    assert (function, stream, extra) == (0xF00D, STREAM, None)
    assert sizes == (3, 1, 1, 32, 1, 1, 64)
    assert values == [x, weight, y, 33, 0, 33, 0.5, None, None]


def test_machine_code_is_loaded_once(one_gpu: None) -> None:
    launch, cubin = example()
    notes = Notes()
    notes.types = launch.specialization.types
    kernel = CubinKernel(cubin, Driver(notes))
    kernel(launch)
    kernel(launch)
    assert [arguments[1].value for arguments in notes.named("cuModuleLoadData")] == [cubin.image]
    assert notes.named("cuModuleGetFunction") == [(b"rms_norm_forward_kernel",)]
    assert len(notes.launched) == 2
    assert not notes.named("cuFuncSetAttribute")


def test_large_shared_memory_is_requested() -> None:
    notes = Notes()
    _, cubin = example()
    Driver(notes).function(Cubin(cubin.specialization, cubin.image, cubin.entry, 100_000, "sm_90", ""))
    ((_, attribute, size),) = notes.named("cuFuncSetAttribute")
    assert (attribute.value, size.value) == (8, 100_000)


def test_a_thread_without_a_context_gets_pytorchs() -> None:
    notes = Notes()
    Driver(notes).enter(0)
    assert not notes.calls
    notes.context = None
    Driver(notes).enter(3)
    assert [name for name, _ in notes.calls] == ["cuInit", "cuDevicePrimaryCtxRetain", "cuCtxSetCurrent"]
    assert notes.named("cuDevicePrimaryCtxRetain")[0][1].value == 3


class WithoutContext(Notes):
    """A driver in a thread without a context: launches fail until the thread has one."""

    def cuLaunchKernel(self, function: Any, *rest: Any) -> int:
        code = super().cuLaunchKernel(function, *rest)
        return code if self.named("cuCtxSetCurrent") else INVALID_CONTEXT


def test_a_thread_without_a_context_launches(one_gpu: None) -> None:
    """Another thread has loaded the machine code, so this thread has not called `enter`."""
    launch, cubin = example()
    notes = WithoutContext()
    notes.types = launch.specialization.types
    kernel = CubinKernel(cubin, Driver(notes))
    with pytest.raises(DeviceNotAvailable, match=r"cuLaunchKernel failed: CUDA_ERROR_OF_A_TEST \(201\)"):
        kernel(launch)
    assert len(notes.launched) == 2
    notes.context = 0
    kernel(launch)
    assert len(notes.launched) == 4
    assert len(notes.named("cuCtxSetCurrent")) == 1
    kernel(launch)
    assert len(notes.launched) == 5


# A library that has the driver's function, and counts launches whose three parameters are not equal.
LIBRARY = """
#include <cstring>
extern "C" {
long launches, mixed, sizes[7];
long long* stream_seen;
int cuCtxGetCurrent(void** context) { *context = &launches; return 0; }
int cuModuleLoadData(void** module, const void* image) { *module = &launches; return 0; }
int cuModuleGetFunction(void** function, void* module, const char* name) { *function = &mixed; return 0; }
int cuLaunchKernel(void* function, unsigned x, unsigned y, unsigned z, unsigned threads_x, unsigned threads_y,
                   unsigned threads_z, unsigned shared, long long* stream, void** parameters, void** extra) {
    unsigned all[] = {x, y, z, threads_x, threads_y, threads_z, shared};
    for (int index = 0; index < 7; index++) sizes[index] = all[index];
    stream_seen = stream;
    long long first; int second; float third; void* scratch;
    memcpy(&first, parameters[0], 8);
    memcpy(&second, parameters[1], 4);
    memcpy(&third, parameters[2], 4);
    memcpy(&scratch, parameters[4], 8);
    launches++;
    if (first != second || second != (int)third || scratch || extra || function != &mixed) mixed++;
    return 0;
}
}
"""


def test_threads_do_not_share_parameters(one_gpu: None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The launches go through ctypes to a compiled function, as they go to the driver."""
    source, library = tmp_path / "driver.cpp", tmp_path / "libdriver.so"
    source.write_text(LIBRARY)
    subprocess.run(["g++", "-shared", "-fPIC", "-o", library, source], check=True)
    monkeypatch.setattr(driving, "LIBRARY", str(library))
    kind = Specialization("k", (("first", "i64"), ("second", "i32"), ("third", "fp32")), (), (), 8)
    kernel = LoadedCubin(Cubin(kind, b"code", "k", 64, "sm_90", "triton"))
    driver = driving.driver.__wrapped__()

    def launch_often(value: int) -> None:
        for _ in range(2000):
            kernel.launch(driver, 0, (7, 5), (value, value, value))

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            list(threads.map(launch_often, (1, 2**20, -3, 4)))
    finally:
        sys.setswitchinterval(interval)
    compiled = driver.library
    number = ctypes.c_long.in_dll
    assert (number(compiled, "launches").value, number(compiled, "mixed").value) == (8000, 0)
    assert list((ctypes.c_long * 7).in_dll(compiled, "sizes")) == [7, 5, 1, 256, 1, 1, 64]
    assert ctypes.c_void_p.in_dll(compiled, "stream_seen").value == STREAM
    assert 1 <= len(kernel.unused) <= 4


@pytest.mark.parametrize("code", [*CAUSES, 700])
def test_a_code_becomes_an_error(code: int) -> None:
    expected, _ = CAUSES.get(code, (Bug, ""))
    with pytest.raises(expected, match=rf"cuModuleLoadData failed: CUDA_ERROR_OF_A_TEST \({code}\)") as caught:
        Driver(Notes(cuModuleLoadData=code)).function(example()[1])
    assert isinstance(caught.value, ThunderError)
    assert caught.value.fix


def test_the_causes_of_driver_errors_are_distinguished() -> None:
    assert [CAUSES[code][0] for code in (2, 100, 200, 209)] == [
        OutOfMemory,
        DeviceNotAvailable,
        ArtifactDamaged,
        ArtifactForeign,
    ]


def test_arguments_that_do_not_fit_never_reach_the_driver(one_gpu: None) -> None:
    launch, cubin = example()
    notes = Notes()
    uneven = draw(100, dtype=torch.bfloat16)[1:]
    for arguments in ({**launch.arguments, "x": uneven}, {**launch.arguments, "weight": None}):
        with pytest.raises(Bug, match="cannot be launched as"):
            CubinKernel(cubin, Driver(notes))(replace(launch, arguments=arguments))
    assert not notes.calls
    assert not notes.launched


def test_missing_driver_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "LIBRARY", "libcuda_that_is_not_there.so")
    driving.driver.cache_clear()
    with pytest.raises(DeviceNotAvailable, match="the CUDA driver cannot be loaded"):
        keep([example()[1]])
    assert example()[0].specialization not in STORED_KERNELS


def test_kept_machine_code_is_launched(one_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    launch, cubin = example()
    notes = Notes()
    notes.types = launch.specialization.types
    monkeypatch.setattr(driving, "driver", lambda: Driver(notes))
    monkeypatch.setattr(driving, "STORED_KERNELS", kept := {})
    keep([cubin])
    assert list(kept) == [launch.specialization]
    kept[launch.specialization](launch)
    assert len(notes.launched) == 1


def test_each_architecture_has_machine_code_of_its_own(one_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Artifacts for two architectures are loaded in one process; a GPU of a third one gets Triton's own kernel."""
    launch, cubin = example()
    notes, compiled = Notes(), []
    notes.types = launch.specialization.types
    monkeypatch.setattr(driving, "driver", lambda: Driver(notes))
    monkeypatch.setattr(driving, "STORED_KERNELS", kept := {})
    monkeypatch.setattr(driving, "compile_now", compiled.append)
    keep([replace(cubin, target="sm_80", image=b"\x7fELF of sm_80"), cubin])
    keep([cubin])
    kernels = kept[launch.specialization]
    assert set(kernels.by_architecture) == {"sm_80", "sm_90"}
    for capability in ((9, 0), (8, 0), (8, 6)):
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, here=capability: here)
        kernels.by_device.clear()
        kernels(launch)
    assert [arguments[1].value for arguments in notes.named("cuModuleLoadData")] == [cubin.image, b"\x7fELF of sm_80"]
    assert compiled == [launch]


def test_machine_code_that_assumes_less_serves_aligned_launches(one_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept code for odd addresses is launched for aligned ones; the other way round Triton compiles, with a warning."""
    launch, cubin = example()
    odd = replace(launch, arguments={**launch.arguments, "x": draw(100, dtype=torch.bfloat16)[1:]})
    notes = Notes()
    notes.types = launch.specialization.types
    monkeypatch.setattr(driving, "driver", lambda: Driver(notes))
    monkeypatch.setattr(launching, "compile_now", pytest.fail)
    kept: dict[Any, Any] = {}
    with monkeypatch.context() as patch:
        for module in (driving, launching):
            patch.setattr(module, "STORED_KERNELS", kept)
        keep([replace(cubin, specialization=odd.specialization)])
        launch_now(launch)
        launch_now(odd)
        assert len(notes.launched) == 2
        compiled = []
        patch.setattr(launching, "compile_now", compiled.append)
        kept.clear()
        keep([cubin])
        with pytest.warns(RuntimeWarning, match="Triton compiles rms_norm_forward_kernel again"):
            launch_now(odd)
        launch_now(odd)  # without another warning
        assert compiled == [odd, odd]


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="Triton's interpreter is on: run make test-gpu")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EXAMPLES)
def test_on_a_gpu_each_operation_is_its_reference(name: str, dtype: torch.dtype) -> None:
    operator = OPERATORS[name]
    for arguments in EXAMPLES[name](random_tensors(dtype, "cuda")):
        if name == "quantize_rows":
            values, scales = operator(*arguments)
            expected, factors = operator.reference(*arguments)
            assert_close(scales, factors)
            assert (values.float() - expected.float()).abs().max() <= (1 if arguments[1] == torch.int8 else 32)
            continue
        for actual, wanted in zip(
            tensors(operator(*arguments)), tensors(operator.reference(*map(wide, arguments))), strict=True
        ):
            assert_close(actual, wanted, dtype)


@pytest.mark.gpu
@pytest.mark.skipif(INTERPRETED, reason="Triton's interpreter is on: run make test-gpu")
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", EXAMPLES)
def test_on_a_gpu_kept_machine_code_equals_triton(
    name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    operator = OPERATORS[name]
    target = "sm_{}{}".format(*torch.cuda.get_device_capability())
    for arguments in EXAMPLES[name](random_tensors(dtype, "cuda")):
        expected = tensors(operator(*arguments))
        specializations = {launch.specialization for launch in operator.launches(*arguments)}
        kernels = {
            specialization: CubinKernel(compile_for(specialization, target), driving.driver())
            for specialization in specializations
        }
        with monkeypatch.context() as patch:
            for specialization, kernel in kernels.items():
                patch.setitem(STORED_KERNELS, specialization, kernel)
            actual = tensors(operator(*arguments))
        assert all(kernel.loaded.functions for kernel in kernels.values())
        for found, wanted in zip(actual, expected, strict=True):
            assert torch.equal(found.float(), wanted.float())
