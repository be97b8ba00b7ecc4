"""Precompiled headers are used and change no result of the compilation."""

from __future__ import annotations

import importlib.util
import shutil

import pytest
import torch
from torch._inductor.cpp_builder import _get_cpp_std_cflag

from thunder_core.backend.fusion.machine_code import MODULE
from thunder_executors.inductor.building import precompiled
from thunder_executors.inductor.building.compilers import compilers
from thunder_executors.inductor.building.library import compile_library
from thunder_executors.inductor.building.precompiled import NAME, PRECOMPILED, VARIABLE
from thunder_executors.inductor.generate import CppKernel

SOURCE = """
#include <torch/csrc/inductor/cpp_prefix.h>
extern "C" void kernel(const float* x, float* y) {
    auto found = at::vec::Vectorized<float>::loadu(x, 4);
    (found.exp() + found * found).store(y, 4);
}
"""
KERNELS = {"kernel_0": CppKernel(("const float*", "float*"), SOURCE)}
# A kernel that needs none of PyTorch's headers, which take the compiler seconds.
SOURCE_WITHOUT_TORCH = """
extern "C" void kernel(const float* x, float* y) {
    for (int place = 0; place < 4; place++) y[place] = x[place] * 3;
}
"""
KERNELS_WITHOUT_TORCH = {"kernel_0": CppKernel(("const float*", "float*"), SOURCE_WITHOUT_TORCH)}
HEADER = "#include <Python.h>\n#include <stdexcept>\n#define FACTOR 3\n"
BY_HEADER = {"kernel_0": CppKernel(("const float*", "float*"), SOURCE_WITHOUT_TORCH.replace("3;", "FACTOR;"))}


def result_of(library, path):
    path.write_bytes(library)
    spec = importlib.util.spec_from_file_location(MODULE, path)
    module = importlib.util.module_from_spec(spec)
    x, y = torch.tensor([-1.5, 0.1, 2.7, 30.0] * 4), torch.zeros(16)
    module.kernel_0(x, y)
    return y[:4]


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_precompiled_headers_are_compiled_once_used_and_change_no_result(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(precompiled, "HEADER", HEADER)  # the headers of all kernels take ten seconds
    with compilers() as started:
        expected = result_of(compile_library(KERNELS_WITHOUT_TORCH, started), tmp_path / "plain.so")
        monkeypatch.setenv(VARIABLE, str(tmp_path / "headers"))
        first = result_of(compile_library(BY_HEADER, started), tmp_path / "first.so")
        (place,) = (tmp_path / "headers").iterdir()
        (place / NAME).write_text("#error the header itself is read\n")
        second = result_of(compile_library(BY_HEADER, started), tmp_path / "second.so")
    assert expected.any()
    assert torch.equal(first, expected)
    assert torch.equal(second, expected)
    assert [*(tmp_path / "headers").iterdir()] == [place]
    assert {path.name for path in place.iterdir()} == {NAME, PRECOMPILED}


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_kernels_compile_without_a_writable_folder_of_headers(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(VARIABLE, str(tmp_path / "file" / "headers"))
    with compilers() as started:
        assert compile_library(KERNELS_WITHOUT_TORCH, started).startswith(b"\x7fELF")


OTHER_STANDARD = """
template <typename T> requires (sizeof(T) == 4) T twice(T value) { return value + value; }
extern "C" void kernel(const float* x, float* y) {
    for (int place = 0; place < 4; place++) y[place] = twice(x[place]);
}
"""


@pytest.mark.skipif(_get_cpp_std_cflag() == ["std=c++17"], reason="the kernel needs C++20, as Inductor takes it")
@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_kernels_that_need_a_newer_standard_are_compiled_with_that_of_inductor(tmp_path, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)  # no other test compiles with that standard
    with compilers() as started:
        library = compile_library({"kernel_0": CppKernel(("const float*", "float*"), OTHER_STANDARD)}, started)
    expected = 2 * torch.tensor([-1.5, 0.1, 2.7, 30.0])
    assert torch.equal(result_of(library, tmp_path / "other.so"), expected)
