"""The vector extension that Inductor writes C++ for: the widest that this CPU and the compiler support."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest import mock

from torch._inductor import config
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.cpu_vec_isa import VecISA, pick_vec_isa


def vector_extension() -> VecISA:
    """Return the widest vector extension of this CPU that Inductor supports."""
    with trusted_processor():
        return pick_vec_isa()


@contextmanager
def trusted_processor() -> Iterator[None]:
    """Make Inductor trust the CPU's report, and test only whether the compiler accepts the flags, within the context.

    By default, Inductor compiles, links and loads a library for each extension and its variants, once in each process.
    """
    with config.patch({"cpp.vec_isa_ok": True}), mock.patch.object(VecISA, "check_build", compiler_supports):
        yield


def compiler_supports(extension: VecISA, _code: str) -> bool:
    """Whether the compiler has the instructions of an extension; replaces `VecISA.check_build`."""
    return takes_flags(get_cpp_compiler(), extension.build_arch_flags())


@cache
def takes_flags(compiler: str, flags: str) -> bool:
    """Whether a compiler knows all of these flags."""
    command = [compiler, *flags.split(), "-E", "-x", "c++", os.devnull]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0  # noqa: S603
