"""What tests of packed kernels share: an empty cache, given times, and artifacts in a process without a compiler."""

from __future__ import annotations

import os
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import thunder_core as thunder
from tests.processes import run_python
from thunder_executors.inductor.building.kernel_library import KernelLibrary


def use_own_cache(monkeypatch: pytest.MonkeyPatch, folder: Path, library: KernelLibrary) -> None:
    """Use a cache that contains the compiled kernel and no measurements."""
    content = library.content
    monkeypatch.setenv("THUNDER_CACHE_DIR", str(folder / "cache"))
    monkeypatch.setenv("THUNDER_TUNE", "10s")
    monkeypatch.setattr(KernelLibrary, "content", content)


def set_measured_times(
    monkeypatch: pytest.MonkeyPatch, measurement: ModuleType, kernel: float, library: float
) -> list[str]:
    """Make measurements return these seconds, and return the list of the titles of what is measured."""
    titles: list[str] = []

    def measure(measured: Any, _function: object) -> Any:
        titles.append(measured.title)
        return measurement.Times(kernel, library)

    monkeypatch.setattr(measurement, "measure", measure)
    return titles


def refusals_by(compiled: Any, kernel: Any) -> list[tuple[str, int]]:
    """Return the reasons with which a kernel refused bound symbols, and how many bound symbols each concerns."""
    refused = thunder.last_traces(compiled)[-1].refused
    return [(refusal.reason, refusal.count) for refusal in refused if refusal.executor == kernel.name]


LOADS = """
import sys, torch
import thunder_core as thunder
{imports}
x, expected = torch.load(sys.argv[2])
loaded = thunder.load(sys.argv[1], {module}, strict=True)
with torch.no_grad():
    assert torch.equal(loaded(x), expected)
assert "torch._inductor.compile_fx" not in sys.modules
print("equal")
"""


def assert_equal_without_compiler(compiled: Any, x: torch.Tensor, imports: str, module: str, folder: Path) -> None:
    """Assert that an artifact computes the same in a process without compiler and cache.

    `imports` and `module` are the source with which the process makes the model.
    """
    with torch.no_grad():
        torch.save((x, compiled(x)), folder / "values.pt")
    thunder.save(compiled, folder / "artifact")
    places = {**os.environ, "CXX": "/bin/false", "THUNDER_CACHE_DIR": str(folder / "empty")}
    program = LOADS.format(imports=imports, module=module)
    done = run_python("-c", program, folder / "artifact", folder / "values.pt", env=places)
    assert done.stdout == "equal\n", done.stderr
