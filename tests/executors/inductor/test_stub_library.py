"""Kernels linked with an empty library find their functions in PyTorch's libraries, and name them as dependencies."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import torch

from tests.executors.inductor.test_precompiled import KERNELS, result_of
from thunder_executors.inductor.building import library
from thunder_executors.inductor.building.compilers import compilers
from thunder_executors.inductor.building.stub_library import LIBRARY, LINKED, with_stub

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere the command stays as it is")
def test_no_library_of_pytorch_is_read(tmp_path):
    command = library.command_for(tmp_path / "kernels.cpp", tmp_path / "kernels.so")
    assert set(LINKED) <= {*command}
    with compilers() as started:
        linked = with_stub(command, tmp_path, started)
    assert not [word for word in linked if word.startswith("-ltorch")]
    assert [Path(word).parent for word in linked if word.endswith(LIBRARY)] == [tmp_path]
    assert (tmp_path / LIBRARY).stat().st_size < 100_000


def test_a_compiler_that_makes_no_stub_is_given_the_libraries(tmp_path):
    with compilers() as started:
        assert with_stub(["/bin/false", "-ltorch_cpu"], tmp_path, started) == ["/bin/false", "-ltorch_cpu"]


def test_kernels_depend_on_the_library_and_give_the_same_results(tmp_path, monkeypatch):
    with compilers() as started:
        made = library.compile_library(KERNELS, started)
        monkeypatch.setattr(library, "with_stub", lambda command, *rest: [*command])
        expected = library.compile_library(KERNELS, started)
    assert f"\0{LIBRARY}\0".encode() in made
    assert torch.equal(result_of(made, tmp_path / "made.so"), result_of(expected, tmp_path / "expected.so"))
