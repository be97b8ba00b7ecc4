"""Kernels as machine code: compiled for a GPU that this machine may lack, with the facts that a launcher needs."""

from __future__ import annotations

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
from thunder_core.foundation.errors import BadOption, Bug, EnvironmentLacks
from thunder_executors.triton.elf import architecture_of, parameter_sizes, required_threads
from thunder_executors.triton.launch import ALIGNMENT, Specialization

WARP = 32
VERSION = f"triton {triton.__version__}"  # the compiler
SIZES = {"i32": 4, "i64": 8, "fp32": 4}  # bytes of a parameter; a pointer has eight
SCRATCH_POINTERS = 2  # Triton appends them to every kernel's parameters; Thunder's kernels do not use them
# A launcher passes none of these, so a kernel that needs them is refused.
UNSUPPORTED = {
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
    architecture (`sm_90`), and `compiler` the compiler that made it.
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
        """Return everything but the image as plain data, for a manifest."""
        return {
            "specialization": self.specialization.as_dict(),
            "entry": self.entry,
            "shared": self.shared,
            "target": self.target,
            "compiler": self.compiler,
        }

    @classmethod
    def from_metadata(cls, data: Mapping[str, Any], image: bytes) -> Cubin:
        """Make a cubin of the plain data and the image."""
        rest = {name: value for name, value in data.items() if name != "specialization"}
        return cls(specialization=Specialization.from_dict(data["specialization"]), image=image, **rest)


def capability_of(target: str) -> int:
    """Return the number of an architecture: 90 for `sm_90`."""
    digits = target.removeprefix("sm_")
    if digits == target or not digits.isdecimal():
        raise BadOption(
            f"{target!r} is not an NVIDIA GPU architecture", fix="use a name such as sm_90 (Hopper) or sm_80"
        )
    return int(digits)


def compile_for(specialization: Specialization, target: str = "sm_90") -> Cubin:
    """Compile a specialization for an architecture; no GPU is needed, and no cache is read or written.

    Raises EnvironmentLacks under Triton's interpreter, which compiles nothing.
    """
    kernel = plugins.import_object(specialization.kernel)
    if not isinstance(kernel, JITFunction):
        raise EnvironmentLacks(
            f"{specialization.kernel} was loaded for Triton's interpreter and cannot be compiled",
            fix="unset TRITON_INTERPRET and start the process again",
        )
    compiled = _compile(kernel, specialization, GPUTarget("cuda", capability_of(target), WARP))
    metadata = compiled.metadata
    cubin = Cubin(specialization, compiled.asm["cubin"], metadata.name, metadata.shared, target, VERSION)
    odd = {name: value for name, usual in UNSUPPORTED.items() if (value := getattr(metadata, name, usual)) != usual}
    if odd or not is_consistent(cubin):
        raise Bug(
            f"Triton compiled {specialization.kernel} into a kernel that Thunder cannot launch correctly: {odd}",
            fix="please report it, with the output of `thunder doctor --json`",
        )
    return cubin


def is_consistent(cubin: Cubin) -> bool:
    """Whether the machine code is for its architecture, and takes the parameters and threads of a launch."""
    if architecture_of(cubin.image) != cubin.target:
        return False
    expected = [SIZES.get(kind, 8) for _, kind in cubin.specialization.types] + [8] * SCRATCH_POINTERS
    sizes, threads = parameter_sizes(cubin.image, cubin.entry), required_threads(cubin.image, cubin.entry)
    return sizes == expected and threads == cubin.threads


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
        return triton.compile(source, target=target, options={"num_warps": specialization.warps})
