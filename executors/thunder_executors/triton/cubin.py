"""Compile Triton kernels to cubins with the facts for a launch, for a GPU that this machine need not have."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime.jit import JITFunction

from thunder_core.foundation import plugins
from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import BadOption, Bug, EnvironmentLacks
from thunder_executors.triton.elf import architecture_of, parameter_sizes, required_threads
from thunder_executors.triton.launch import ALIGNMENT, INTERPRETED, Specialization

WARP = 32
VERSION = f"triton {triton.__version__}"  # the compiler
SIZES = {"i32": 4, "i64": 8, "fp32": 4}  # type of a parameter to its bytes; a pointer has eight
SCRATCH_POINTERS = 2  # Triton appends them to every kernel's parameters; Thunder's kernels do not use them
# The only value of each option that a launcher supports.
SUPPORTED_OPTIONS = {
    "num_ctas": 1,
    "global_scratch_size": 0,
    "profile_scratch_size": 0,
    "launch_cooperative_grid": False,
    "launch_pdl": False,
}


@dataclass(frozen=True)
class Cubin:
    """The machine code of a specialization of a kernel: an ELF file, and the facts for a launch.

    `entry` is the function's name in the file, `shared` the bytes of shared memory of a block, `target` the GPU's
    architecture (`sm_90`), and `compiler` the compiler and its version.
    """

    specialization: Specialization
    image: bytes
    entry: str
    shared: int
    target: str
    compiler: str

    @property
    def threads(self) -> int:
        """The number of threads of a block."""
        return WARP * self.specialization.warps

    def metadata(self) -> dict[str, Any]:
        """Return the facts without the image, as JSON data for a manifest."""
        return {
            "specialization": self.specialization.as_dict(),
            "entry": self.entry,
            "shared": self.shared,
            "target": self.target,
            "compiler": self.compiler,
        }

    @classmethod
    def from_metadata(cls, data: Mapping[str, Any], image: bytes) -> Cubin:
        """Return the cubin with these facts and this image."""
        rest = {name: value for name, value in data.items() if name != "specialization"}
        return cls(specialization=Specialization.from_dict(data["specialization"]), image=image, **rest)


def capability_of(target: str) -> int:
    """Return the number of an architecture: 90 for `sm_90`. Raises BadOption for another name."""
    if variant := re.fullmatch(r"(sm_\d+)[af]", target):  # machine code for one architecture or family
        raise BadOption(f"the architecture {target!r} is not supported", fix=f"use {variant[1]}")
    digits = target.removeprefix("sm_")
    if digits == target or not digits.isdecimal():
        raise BadOption(
            f"{target!r} is not an NVIDIA GPU architecture", fix="use a name such as sm_90 (Hopper) or sm_80"
        )
    return int(digits)


def compile_for(specialization: Specialization, target: str = "sm_90") -> Cubin:
    """Compile a specialization for an architecture; no GPU is needed, and Triton's cache of kernels is not used.

    Raises EnvironmentLacks under Triton's interpreter, which compiles nothing, and Bug for a kernel that has another
    decorator than `triton.jit`, such as `triton.autotune`.
    """
    kernel = plugins.import_object(specialization.kernel)
    if not isinstance(kernel, JITFunction) and not INTERPRETED:
        raise Bug(
            f"{specialization.kernel} is {object_of_class(type(kernel))}; only a function that is "
            "decorated with triton.jit alone can be compiled ahead of time",
            fix="please report it, with the output of `thunder doctor --json`",
        )
    if not isinstance(kernel, JITFunction):
        raise EnvironmentLacks(
            f"{specialization.kernel} was loaded for Triton's interpreter and cannot be compiled",
            fix="unset TRITON_INTERPRET and start the process again",
        )
    compiled = _compile(kernel, specialization, GPUTarget("cuda", capability_of(target), WARP))
    metadata = compiled.metadata
    cubin = Cubin(specialization, compiled.asm["cubin"], metadata.name, metadata.shared, target, VERSION)
    if problems := launch_problems(cubin, metadata):
        raise Bug(
            f"Triton compiled {specialization.kernel} into a kernel that Thunder cannot launch correctly: "
            f"{', '.join(problems)}",
            fix="please report it, with the output of `thunder doctor --json`",
        )
    return cubin


def launch_problems(cubin: Cubin, metadata: object) -> list[str]:
    """Return the reasons why a launcher cannot launch a cubin; `metadata` are the compiler's facts about the kernel."""
    options = ((name, getattr(metadata, name, value), value) for name, value in SUPPORTED_OPTIONS.items())
    unsupported = [f"{name} is {value}" for name, value, supported in options if value != supported]
    return [*unsupported, *inconsistencies(cubin)]


def inconsistencies(cubin: Cubin) -> list[str]:
    """Return the differences between the machine code and the facts for a launch: architecture, parameters, threads."""
    architecture = architecture_of(cubin.image)
    if architecture != cubin.target:
        return [f"its architecture is {architecture}, not {cubin.target}"]
    expected = [SIZES.get(kind, 8) for _, kind in cubin.specialization.types] + [8] * SCRATCH_POINTERS
    sizes, threads = parameter_sizes(cubin.image, cubin.entry), required_threads(cubin.image, cubin.entry)
    compared = (("parameter sizes in bytes", sizes, expected), ("threads", threads, cubin.threads))
    return [f"its {name} are {actual}, not {wanted}" for name, actual, wanted in compared if actual != wanted]


def _compile(kernel: Any, specialization: Specialization, target: GPUTarget) -> Any:
    constants = dict(specialization.constants)
    types = dict(specialization.types)
    source = ASTSource(
        kernel,
        signature={name: types.get(name, "constexpr") for name in kernel.arg_names},
        constexprs=constants,
        attrs={(kernel.arg_names.index(name),): [["tt.divisibility", ALIGNMENT]] for name in specialization.divisible},
    )
    knobs = triton.knobs
    with ExitStack() as stack:
        stack.enter_context(knobs.cache.scope())
        stack.enter_context(knobs.compilation.scope())
        # Triton's own cache is not trusted: it does not notice a flipped bit.
        knobs.cache.dir = stack.enter_context(tempfile.TemporaryDirectory(prefix="thunder-triton-"))
        # Source paths of this machine mean nothing elsewhere, and would make the code differ between machines.
        knobs.compilation.disable_line_info = True
        return triton.compile(source, target=target, options=specialization.options)
