"""A launch of a Triton kernel as data, which can be run, recorded, or compiled ahead of time.

A launcher (for example `rms_norm.rms_norm`) allocates its outputs and creates a `Launch` with them. The `Launch`
derives the `Specialization` that the kernel is compiled for. An immediate launch, ahead-of-time compilation and the
lookup of stored machine code all use this specialization, so they cannot differ.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import asdict, dataclass, replace
from functools import cached_property, lru_cache
from typing import Any, TypeAlias

import torch
from torch._subclasses.fake_tensor import FakeTensor
from triton import knobs

from thunder_core.foundation.errors import DeviceNotAvailable
from thunder_executors.triton import interpreted

Constant: TypeAlias = int | float | bool | str | None

POINTERS = {
    torch.float32: "*fp32",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.float8_e4m3fn: "*fp8e4nv",
    torch.int8: "*i8",
    torch.uint8: "*u8",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
# The type of a number by the annotation of its parameter. Without an annotation, Triton compiles up to three variants
# for an integer (1, a multiple of 16, other); with an annotation, it compiles two, because 1 is not special.
NUMBERS = {"tl.int32": "i32", "tl.int64": "i64", "tl.float32": "fp32"}
INTERPRETED = bool(knobs.runtime.interpret)  # the value of TRITON_INTERPRET when this file is imported
if INTERPRETED:
    interpreted.patch_interpreter()
# Triton generates vectorized loads if an address in bytes, or an integer argument, is a multiple of this.
ALIGNMENT = 16


@dataclass(frozen=True)
class Specialization:
    """The arguments' types, constants and options that a kernel is compiled for.

    `kernel` is the path of its function (`module:name`). `types` are its run-time parameters in order, each with its
    type (`*bf16`, `i64`). `divisible` names the parameters that are multiples of 16. `constants` are compile-time
    constants (`tl.constexpr`, and parameters that are None). `stages` is the number of steps of a loop whose loads
    overlap (0: Triton's default).
    """

    kernel: str
    types: tuple[tuple[str, str], ...]
    divisible: tuple[str, ...]
    constants: tuple[tuple[str, Constant], ...]
    warps: int
    stages: int = 0

    @cached_property
    def _hash(self) -> int:
        return hash((self.kernel, self.types, self.divisible, self.constants, self.warps, self.stages))

    def __hash__(self) -> int:
        return self._hash

    def with_alignment(self, divisible: tuple[str, ...]) -> Specialization:
        """Return the specialization with other parameters that are multiples of 16."""
        return replace(self, divisible=divisible)

    def as_dict(self) -> dict[str, Any]:
        """Return the specialization as JSON data, for a manifest."""
        return asdict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Specialization:
        """Return the specialization of JSON data, whose lists become tuples."""
        return cls(
            kernel=str(data["kernel"]),
            types=tuple((str(name), str(kind)) for name, kind in data["types"]),
            divisible=tuple(map(str, data["divisible"])),
            constants=tuple((str(name), value) for name, value in data["constants"]),
            warps=int(data["warps"]),
            stages=int(data.get("stages", 0)),
        )

    @property
    def options(self) -> dict[str, int]:
        """Triton's options for the compilation."""
        return options_of(self.warps, self.stages)


@dataclass(frozen=True)
class Launch:
    """A kernel with everything that it is launched with.

    `arguments` are tensors (real or fake), numbers and None, in the order of the kernel's parameters. None and
    `constants` are compile-time constants (`tl.constexpr`).
    """

    kernel: Any
    arguments: Mapping[str, torch.Tensor | int | float | None]
    constants: Mapping[str, Constant]
    grid: tuple[int, ...]
    warps: int
    stages: int = 0

    def run(self) -> None:
        """Launch the kernel; inside `recorded_launches`, record it; inside `dropped_launches`, do nothing."""
        _launch_handler.get()(self)

    @property
    def values(self) -> dict[str, torch.Tensor | int | float]:
        """The arguments that are passed at the launch: all that are not None."""
        return {name: value for name, value in self.arguments.items() if value is not None}

    @property
    def device(self) -> torch.device:
        """The device of the launch's tensors."""
        return next(value.device for value in self.arguments.values() if isinstance(value, torch.Tensor))

    @cached_property
    def specialization(self) -> Specialization:
        """The specialization that the kernel must be compiled for to be launched like this."""
        traits = tuple((name, *_traits_of(value)) for name, value in self.arguments.items())
        return _specialization(self.kernel.fn, traits, tuple(self.constants.items()), self.warps, self.stages)


# The name of an argument; its pointer type, "number" or "constant"; and whether it is a multiple of 16.
Traits: TypeAlias = tuple[str, str, bool]


def _traits_of(value: torch.Tensor | int | float | None) -> tuple[str, bool]:
    if value is None:
        return "constant", False
    return POINTERS[value.dtype] if isinstance(value, torch.Tensor) else "number", is_divisible(value)


@lru_cache(maxsize=4096)  # without the cache, this would take most of a launch's time
def _specialization(
    function: Callable[..., Any],
    traits: tuple[Traits, ...],
    constants: tuple[tuple[str, Constant], ...],
    warps: int,
    stages: int,
) -> Specialization:
    annotations = inspect.get_annotations(function)
    missing = tuple((name, None) for name, kind, _ in traits if kind == "constant")
    passed = [(name, NUMBERS[annotations[name]] if kind == "number" else kind) for name, kind, _ in traits]
    return Specialization(
        kernel=f"{function.__module__}:{function.__name__}",
        types=tuple((name, kind) for name, kind in passed if kind != "constant"),
        divisible=tuple(name for name, _, divisible in traits if divisible),
        constants=(*missing, *constants),
        warps=warps,
        stages=stages,
    )


def options_of(warps: int, stages: int) -> dict[str, int]:
    """Return Triton's options for a number of warps, and of stages if it is not 0."""
    return {"num_warps": warps, **({"num_stages": stages} if stages else {})}


def is_divisible(value: torch.Tensor | int | float) -> bool:
    """Whether an integer, or the address of a tensor's data, is a multiple of 16.

    A fake tensor has no address: its storage is assumed to begin at a multiple of 16, as allocated memory does.
    """
    if isinstance(value, FakeTensor):
        return int(value.storage_offset()) * value.element_size() % ALIGNMENT == 0
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % ALIGNMENT == 0
    return isinstance(value, int) and value % ALIGNMENT == 0


# The functions that launch stored machine code, by specialization; `launch_now` calls them instead of compiling.
STORED_KERNELS: dict[Specialization, Callable[[Launch], None]] = {}


def launch_now(launch: Launch) -> None:
    """Launch a kernel: its stored machine code if there is any, else through Triton. An empty grid launches nothing.

    Raises DeviceNotAvailable for CPU tensors, unless Triton's interpreter was enabled before Triton was imported.
    """
    if 0 in launch.grid:
        return
    if STORED_KERNELS:
        specialization = launch.specialization
        kernel = STORED_KERNELS.get(specialization) or find_weaker(specialization)
        if kernel:
            kernel(launch)
            return
    compile_now(launch)


def find_weaker(specialization: Specialization) -> Callable[[Launch], None] | None:
    """Return stored code that assumes no more alignment than a launch has; None if there is none.

    If all stored code of the kernel assumes more alignment, warn that Triton compiles the kernel again.
    """
    # The list is a copy, because another thread may store code during the search.
    same = [
        compiled
        for compiled in list(STORED_KERNELS)
        if compiled.with_alignment(specialization.divisible) == specialization
    ]
    usable = [compiled for compiled in same if set(compiled.divisible) <= set(specialization.divisible)]
    if usable:
        return STORED_KERNELS[max(usable, key=lambda compiled: len(compiled.divisible))]
    if same and specialization not in _REPORTED:
        _REPORTED.add(specialization)
        name = specialization.kernel.partition(":")[2]
        warnings.warn(
            f"Triton compiles {name} again: the artifact's machine code assumes addresses and sizes that are multiples "
            f"of {ALIGNMENT}, but a call has others",
            RuntimeWarning,
            stacklevel=2,
        )
    return None


_REPORTED: set[Specialization] = set()


def compile_now(launch: Launch) -> None:
    """Launch a kernel through Triton, which compiles each specialization at its first launch."""
    device = launch.device
    if device.type != "cuda" and not INTERPRETED:
        raise DeviceNotAvailable(
            f"the Triton kernel {launch.kernel.fn.__name__} needs CUDA tensors, but got tensors on {device}",
            fix="leave out the executor 'triton' on this device; TRITON_INTERPRET=1 runs the kernels slowly on CPU",
        )
    elsewhere = device.type == "cuda" and device.index != torch.cuda.current_device()
    with torch.cuda.device(device) if elsewhere else nullcontext():
        options = options_of(launch.warps, launch.stages)
        launch.kernel[launch.grid](**launch.arguments, **launch.constants, **options)


def ignore_launch(launch: Launch) -> None:
    """Launch nothing: the handler inside `dropped_launches`."""


_launch_handler: ContextVar[Callable[[Launch], None]] = ContextVar("_launch_handler", default=launch_now)


def is_dropping() -> bool:
    """Whether launches are dropped, so that a launcher need not prepare its inputs."""
    return _launch_handler.get() is ignore_launch


def is_recording() -> bool:
    """Whether launches are recorded.

    `Operator` then calls the launcher directly, because the operation's fake implementation does not launch.
    """
    return _launch_handler.get() not in (launch_now, ignore_launch)


def is_recording_variants() -> bool:
    """Whether a launcher of kernels for all sizes records, for each variant of its launches, the launches of a size."""
    return is_recording() and _records_variants.get()


_records_variants: ContextVar[bool] = ContextVar("_records_variants", default=False)


@contextmanager
def recorded_launches(*, variants: bool = False) -> Iterator[list[Launch]]:
    """Within the context, append launches to the yielded list instead of running them: tensors may be fake.

    If other sizes have other launches, `variants` also records these, in the same order for all sizes.
    """
    launches: list[Launch] = []
    token, variants_token = _launch_handler.set(launches.append), _records_variants.set(variants)
    try:
        yield launches
    finally:
        _launch_handler.reset(token)
        _records_variants.reset(variants_token)


@contextmanager
def dropped_launches() -> Iterator[None]:
    """Drop launches within the context: launchers only allocate their outputs, for an operation's metadata."""
    token = _launch_handler.set(ignore_launch)
    try:
        yield
    finally:
        _launch_handler.reset(token)
