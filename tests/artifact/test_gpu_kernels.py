"""An artifact that is made on a GPU holds the machine code of its kernels, for the architecture of that GPU."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import thunder_core as thunder
from thunder_core.backend.claiming import executor
from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.compilation.compiler import trace_for
from thunder_core.foundation.errors import Bug
from thunder_core.tracing.ir.trace import Trace
from thunder_core.workflow.artifact import gpu_kernels
from thunder_core.workflow.artifact.format.cubins import read_cubins
from thunder_core.workflow.artifact.format.read import open_artifact


class Kernels(thunder.OperatorExecutor):
    """Claims silu with a kernel whose machine code is the name of the architecture."""

    error: Bug | None = None

    def missing_for(self, target: str) -> str | None:
        return "it compiles for Hopper only" if target != "sm_90" else None

    def device_code(self, trace: Trace, target: str) -> Sequence[DeviceCode]:
        if self.error is not None:
            raise self.error
        lines = [bsym for bsym in trace.bound_symbols if bsym.executor == self.name]
        return [DeviceCode(self.name, f"{bsym.symbol.short_name} for {target}".encode(), {}) for bsym in lines]


def silu_kernel(input: torch.Tensor, inplace: bool = False) -> torch.Tensor:  # noqa: A002 - PyTorch's name
    return input * torch.sigmoid(input)


silu_kernel.__module__ = "tests.artifact.test_gpu_kernels"


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Kernels:
    kernels = Kernels("kernels_of_a_test")
    kernels.implements(functional.silu)(silu_kernel)
    monkeypatch.setitem(executor._executors, kernels.name, kernels)
    return kernels


def activated(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return functional.silu(x) + functional.silu(y)


activated.__module__ = "tests.artifact.test_gpu_kernels"


def on_gpu(kernels: Kernels, monkeypatch: pytest.MonkeyPatch, capability: tuple[int, int]) -> Any:
    """Return a function with a program for a GPU, which this machine then seems to have."""
    compiled = thunder.jit(activated, executors=(kernels, "torch"))
    trace_for(compiled, torch.device("cuda"), (torch.ones(3), torch.ones(3)), {})
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: capability)
    monkeypatch.setattr(gpu_kernels, "has_gpu", lambda: True)
    return compiled


def test_an_artifact_of_a_gpu_holds_its_kernels_once(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    thunder.save(on_gpu(kernels, monkeypatch, (9, 0)), tmp_path / "artifact")
    artifact = open_artifact(tmp_path / "artifact")
    (cubin,) = artifact.manifest.cubins
    assert artifact.content(cubin.file) == b"silu_kernel for sm_90"
    assert artifact.manifest.target == "", "another GPU may load it: it compiles the kernels"
    assert {name: [code.image for code in codes] for name, codes in read_cubins(artifact).items()} == {
        kernels.name: [b"silu_kernel for sm_90"]
    }


def test_a_gpu_that_an_executor_cannot_compile_for_is_left_out(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    thunder.save(on_gpu(kernels, monkeypatch, (8, 6)), tmp_path / "artifact")
    assert open_artifact(tmp_path / "artifact").manifest.cubins == ()


def test_kernels_that_cannot_be_stored_are_reported(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled = on_gpu(kernels, monkeypatch, (9, 0))
    kernels.error = Bug("the kernel takes a pointer too many", fix="report it")
    with pytest.warns(RuntimeWarning, match="kernels_of_a_test are not stored in the artifact: the kernel takes"):
        thunder.save(compiled, tmp_path / "artifact")
    assert open_artifact(tmp_path / "artifact").manifest.cubins == ()


def test_a_program_on_the_cpu_has_no_kernels_for_gpus(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    compiled = thunder.jit(activated, executors=(kernels, "torch"))
    compiled(torch.ones(3), torch.ones(3))
    monkeypatch.setattr(gpu_kernels, "has_gpu", lambda: True)
    thunder.save(compiled, tmp_path / "artifact")
    assert open_artifact(tmp_path / "artifact").manifest.cubins == ()
