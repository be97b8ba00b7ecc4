"""Trace a call for a device that this machine may not have, and return the machine code of its kernels."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.backend.cache.built_for import record_model
from thunder_core.backend.claiming.device_code import DeviceCode, targeting
from thunder_core.backend.runtime.compiled import COMPILING, Specializations
from thunder_core.backend.runtime.generate import executable
from thunder_core.backend.runtime.observed_values import ObservedValues
from thunder_core.backend.runtime.program import Program
from thunder_core.backend.runtime.prologues.settled_prologue import Prepare
from thunder_core.backend.runtime.retraces import subject_name
from thunder_core.compilation.compiler.binding import bind_compiler
from thunder_core.compilation.compiler.compiler import Compiler
from thunder_core.compilation.compiler.last_call import specializations_of
from thunder_core.foundation.errors import WrongInputs
from thunder_core.foundation.options.compile_options import CompileOptions
from thunder_core.frontend.acquire.run.run_inputs import children_of
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.capture.torch_facts.modes import without_functions
from thunder_core.tracing.ir.printer import Source

WITHOUT_DATA = torch.device("meta")


def trace_for(
    compiled: object, device: torch.device, args: tuple[Any, ...], kwargs: dict[str, Any], *, target: str = ""
) -> tuple[Program, tuple[DeviceCode, ...]]:
    """Trace a call for a device that this machine may not have; return the program and its kernels' machine code.

    The program is added to the cache and does not run. The kernels are compiled for a GPU of the architecture `target`
    (`sm_90`).
    """
    cache = specializations_of(compiled)
    compiler = replace(own_compiler(cache), device=device)
    with record_model(subject_name(cache.subject)):
        with COMPILING, targeting(target):
            program = compiler(cache.subject, args, kwargs)
            cache.add(program)
            cache.last = program
            cache.misses += 1
        kernels = kernels_of(program, compiler, target)
    return program, kernels


def own_compiler(cache: Specializations) -> Compiler:
    """Return the compiler of a compiled function or module; raise `WrongInputs` if it was loaded from an artifact."""
    if not isinstance(cache.compiler, Compiler):
        raise WrongInputs("this module was loaded from an artifact", fix="pass the result of jit or compile")
    return cache.compiler


def kernels_of(program: Program, compiler: Compiler, target: str) -> tuple[DeviceCode, ...]:
    """Return the machine code of a program's kernels for the architecture `target`."""
    claimed = program.last("computation")
    return tuple(code for executor in compiler.executors for code in executor.device_code(claimed, target))


@dataclass(frozen=True)
class CompilerForDevice:
    """A compiler for a device that this machine may not have, for models that other code calls, such as `generate`.

    Tensors on the meta device stand for tensors on the `device`. Each call compiles a program for the device, and then
    runs in eager PyTorch on the meta device. The machine code of the programs' kernels for the architecture `target` is
    added to `kernels`.
    """

    compiler: Compiler
    device: torch.device
    target: str = ""
    kernels: list[DeviceCode] = field(default_factory=list, compare=False)

    @property
    def settings(self) -> Compiler:
        """The settings of the compiler, without the device."""
        return self.compiler

    @property
    def transforms(self) -> tuple[Transform, ...]:
        """The transforms in their order."""
        return self.compiler.transforms

    @property
    def options(self) -> CompileOptions:
        """The options of the compiler."""
        return self.compiler.options

    @property
    def differs_from_eager(self) -> bool:
        """Whether programs may compute other values than eager PyTorch."""
        return self.compiler.differs_from_eager

    @property
    def leaves_to_eager(self) -> bool:
        """Whether eager PyTorch makes the calls that no trace can represent: False, because there is no data."""
        return False

    def __call__(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        observed: ObservedValues | None = None,
    ) -> Program:
        """Compile a call for the device; return a program that makes its calls in eager PyTorch, on the meta device."""
        compiler = replace(self.compiler, device=self.device, moves_from=WITHOUT_DATA)
        with (
            without_functions(),
            _disable_current_modes(),
            targeting(self.target),
            devices_read_as(self.device, (args, kwargs)),
        ):
            program = compiler(subject, args, kwargs, observed)
        own_images = {code.image for code in self.kernels}
        self.kernels.extend(code for code in kernels_of(program, compiler, self.target) if code.image not in own_images)
        values = {field.name: getattr(program, field.name) for field in fields(Program) if field.init}
        return EagerProgram(**values, device=self.device)


@dataclass(eq=False)
class EagerProgram(Program):
    """A program for a device that this machine may not have, whose calls run in eager PyTorch on the meta device.

    Its prologue checks all guards, and accepts tensors on the meta device instead of tensors on the `device`.
    """

    device: torch.device = WITHOUT_DATA

    def build_prologue(self) -> Prepare:
        """Return the function that checks the guards, which accepts tensors on the meta device, too."""
        source = self.source("prologue")
        constants = {name: accepting_meta_device(value, self.device) for name, value in source.constants.items()}
        accepts = executable(Source(source.text, constants), "prologue")
        return partial(self._prepare, accepts)

    def _prepare(
        self, accepts: Callable[..., Any], subject: object, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Any]:
        """Check the guards, and return the arguments of the call for `run`; raise the errors of the prologue."""
        with without_functions(), _disable_current_modes(), devices_read_as(self.device, (args, kwargs)):
            accepts(subject, args, kwargs)
        return (), (subject, args, kwargs)

    def run(self, inputs: tuple[Any, ...], outside: tuple[Any, ...]) -> Any:  # noqa: ARG002
        """Make the call in eager PyTorch."""
        subject, args, kwargs = outside
        return subject(*args, **kwargs)


@dataclass(frozen=True, eq=False)
class DeviceOrMeta:
    """A device in the guards of a program, equal to `device` and to the meta device, which stands for `device`."""

    device: torch.device

    def __eq__(self, other: object) -> bool:
        return other in (self.device, WITHOUT_DATA)

    def __hash__(self) -> int:
        return hash(self.device)


def accepting_meta_device(constant: object, device: torch.device) -> object:
    """Return a constant of a prologue. A device of the same type as `device` is replaced by a `DeviceOrMeta`."""
    if not isinstance(constant, torch.device) or constant.type != device.type:
        return constant
    return DeviceOrMeta(constant)


@contextmanager
def devices_read_as(device: torch.device, arguments: object) -> Iterator[None]:
    """Within the block, attributes of arguments such as KV caches have `device` in place of the meta device."""
    indexed = device if device.index is not None else torch.device(device.type, 0)
    attributes = [
        (state, name)
        for state in attribute_dicts(arguments, set())
        for name, value in state.items()
        if isinstance(value, torch.device) and value == WITHOUT_DATA
    ]
    for state, name in attributes:
        state[name] = indexed
    try:
        yield
    finally:
        for state, name in attributes:
            state[name] = WITHOUT_DATA


def attribute_dicts(value: object, visited: set[int]) -> Iterator[dict[str, Any]]:
    """Yield the attribute dicts of all objects in arguments that are neither modules nor tensors."""
    if isinstance(value, torch.Tensor | torch.nn.Module | type | ModuleType) or id(value) in visited:
        return
    visited.add(id(value))
    state = getattr(value, "__dict__", None)
    if type(state) is dict:
        yield state
    for inner in (*children_of(value), *(state or {}).values()):
        yield from attribute_dicts(inner, visited)


def compile_for(compiled: object, device: torch.device, target: str, kernels: list[DeviceCode]) -> torch.nn.Module:
    """Return a compiled module whose calls are compiled for a device, and then run in eager PyTorch on the meta device.

    The machine code of the kernels for the architecture `target` is added to `kernels`.
    """
    cache = specializations_of(compiled)
    compiler = CompilerForDevice(own_compiler(cache), device, target, kernels)
    bound: torch.nn.Module = bind_compiler(compiler, cache.subject)
    return bound
