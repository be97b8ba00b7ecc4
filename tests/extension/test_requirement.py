"""Requirements name missing parts and a fix."""

from __future__ import annotations

import sys
import types
from pathlib import Path

import pytest
import torch

from thunder_core.tracing.extension.requirement import (
    Cuda,
    CxxCompiler,
    Package,
    Processor,
    compiler_version,
    problem_of_cxx,
)


def test_an_installed_package_is_not_missing() -> None:
    assert Package("torch").missing() is None


def test_module_without_a_spec_is_not_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stub_backend", types.ModuleType("stub_backend"))
    assert Package("stub_backend").missing() is None


def test_a_package_that_is_not_installed_is_missing() -> None:
    lacking = Package("no_such_backend", extra="triton")
    assert lacking.missing() == "no_such_backend is not installed"
    assert lacking.fix == 'pip install "thunder-optimize[triton]"'
    assert Package("no_such_backend").fix == "pip install no_such_backend"


def test_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    reason = Cuda(capability=(9, 0)).missing()
    assert reason is not None
    assert reason.startswith(f"no CUDA GPU: PyTorch {torch.__version__}")
    assert "9.0" in Cuda(capability=(9, 0)).fix


@pytest.mark.parametrize(
    ("found", "missing"),
    [((8, 9), "Ada has compute capability 8.9"), ((9, 0), None), ((10, 0), None), ((12, 1), None)],
)
def test_the_capability_is_a_minimum(
    monkeypatch: pytest.MonkeyPatch, found: tuple[int, int], missing: str | None
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: found)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Ada")
    assert Cuda(capability=(9, 0)).missing() == missing


@pytest.mark.parametrize(
    ("script", "message"),
    [
        ("exit 3", "exit status 3, without an output file"),
        ("exit 0", "exit status 0, without an output file"),
        ("echo probe.cpp:1: fatal error: Python.h: No such file >&2; exit 1", "error: Python.h: No such file"),
        ("sleep 9", "does not run"),
    ],
)
def test_a_compiler_is_tried(script: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "compiler"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setattr("thunder_core.tracing.extension.requirement.CXX_TIMEOUT", 0.2 if "sleep" in script else 9)
    monkeypatch.setenv("CXX", str(path))
    reason = CxxCompiler().missing()
    assert reason is not None
    assert reason.startswith(f"no C++ compiler: {path} ")
    assert message in reason
    assert "CXX" in CxxCompiler().fix


def test_a_compiler_that_is_not_installed_is_missing() -> None:
    assert problem_of_cxx("no-such-compiler") == "no-such-compiler was not found"
    assert problem_of_cxx("no-such-compiler -O2") == "no-such-compiler -O2 was not found"


def test_a_command_with_arguments_is_no_compiler() -> None:
    assert problem_of_cxx("env g++").startswith("CXX is 'env g++', and PyTorch accepts only the name of one program")


@pytest.mark.parametrize(
    ("found", "missing"),
    [
        ({"avx2", "amx_int8"}, None),
        ({"avx2"}, "the processor has none of avx512_vnni, amx_int8"),
        (set(), None),
    ],
)
def test_a_single_instruction_set_of_several_is_enough(
    monkeypatch: pytest.MonkeyPatch, found: set[str], missing: str | None
) -> None:
    monkeypatch.setattr("thunder_core.tracing.extension.requirement.instruction_sets", lambda: frozenset(found))
    need = Processor(("avx512_vnni", "amx_int8"))
    assert need.missing() == need.missing_on(torch.device("cpu")) == missing
    assert need.missing_on(torch.device("cuda")) is None
    assert need.missing_for("sm_90") is None
    assert need.fix == "run on a processor with avx512_vnni or amx_int8"


def test_compiler_that_cannot_be_started_has_no_version(tmp_path):
    compiler = tmp_path / "compiler"
    compiler.write_text("echo hello")  # no interpreter line
    compiler.chmod(0o755)
    assert compiler_version(str(compiler)) == ""
    assert "does not run" in problem_of_cxx(str(compiler))
