"""The vector extension is Inductor's own choice, found without compiling anything."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from torch._inductor import config, cpp_builder, cpu_vec_isa
from torch._inductor.cpu_vec_isa import pick_vec_isa

from thunder_executors.inductor.building.vector_extension import takes_flags, vector_extension

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
CLASSES = (cpu_vec_isa.VecAMX, cpu_vec_isa.VecAVX512VNNI, cpu_vec_isa.VecAVX512)


@pytest.fixture(autouse=True)
def nothing_known() -> Iterator[None]:
    """Forget the cached facts about the CPU, before and after."""
    forget()
    yield
    forget()


def forget() -> None:
    cpu_vec_isa.valid_vec_isa_list.cache_clear()
    takes_flags.cache_clear()
    cpp_builder.cpp_compiler_search.cache_clear()
    for kind in CLASSES:
        kind.__bool__.cache_clear()


def compiler_that(tmp_path: Path, rule: str) -> tuple[Path, Path]:
    """A compiler that logs its arguments and then runs a shell command, and the path of the log."""
    path, log = tmp_path / "compiler", tmp_path / "calls"
    path.write_text(f'#!/bin/sh\necho "$*" >> {log}\n{rule}\nexec {shutil.which("g++")} "$@"\n')
    path.chmod(0o755)
    return path, log


def test_vector_extension_is_the_choice_of_inductor_and_needs_no_compilation(tmp_path):
    expected = str(pick_vec_isa())
    forget()
    path, log = compiler_that(tmp_path, "")
    with config.patch({"cpp.cxx": (None, str(path))}):
        assert str(vector_extension()) == expected
    commands = (
        [line for line in log.read_text().splitlines() if line not in ("--version", "-v")] if log.exists() else []
    )
    assert all(" -E " in line for line in commands) and (commands or "vnni" not in expected), commands


def test_instructions_that_the_compiler_does_not_have_are_not_used(tmp_path):
    if not {"avx512_vnni"} <= set(str(vector_extension()).split()):
        pytest.skip("this CPU has no instructions that are asked about")
    forget()
    path, _ = compiler_that(tmp_path, 'case "$*" in *vnni*) exit 1;; esac')
    with config.patch({"cpp.cxx": (None, str(path))}):
        assert str(vector_extension()) == "avx512"
