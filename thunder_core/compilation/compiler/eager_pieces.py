"""Eager pieces: functions of a program that run in eager PyTorch, because they read tensor values.

The rest of the program is compiled.
"""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch._prims_common import make_contiguous_strides_for
from torch.utils._pytree import tree_flatten, tree_unflatten

from thunder_core.compilation.compiler.nested import NestedCall, record_call, tensors_of
from thunder_core.compilation.compiler.settings import CompilerSettings
from thunder_core.foundation.errors import CannotReplay, SourceLine
from thunder_core.foundation.options.compile_options import CompileOptions
from thunder_core.frontend.acquire.assembly import Acquired
from thunder_core.frontend.acquire.run.run import Run
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.analysis.aliasing import names_written_to
from thunder_core.tracing.capture.symbolic.expectations import with_count_checks
from thunder_core.tracing.capture.symbolic.numbers import SYMBOLIC_CLASSES
from thunder_core.tracing.capture.torch_facts.compiled_call import CompiledCall, NumberOf, Part
from thunder_core.tracing.extension.lookaside import Lookaside
from thunder_core.tracing.extension.transform import Transform
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.sizes import symbolic_dense_strides
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol

CONTAINERS = (list, tuple, set, frozenset, dict)
SEPARATE_FUNCTION = (
    "read the value in a separate function that takes and returns tensors and numbers, and that has no other effects"
)


@dataclass(frozen=True)
class EagerSettings:
    """The settings of an eager piece: no transforms, no lookasides and no device."""

    options: CompileOptions
    transforms: tuple[Transform, ...] = ()
    lookasides: tuple[Lookaside, ...] = ()
    device: torch.device | None = None

    @property
    def settings(self) -> EagerSettings:
        """The settings themselves, as in `Compiler.settings`."""
        return self


@dataclass(frozen=True, eq=False)
class EagerPiece:
    """A function that is called in eager PyTorch.

    Some arguments are objects that the program creates and that contain only constants. `constants` maps the positions
    of such arguments to copies of the objects. Each call gets new copies, because the program creates new objects at
    each call.
    """

    subject: Callable[..., Any]
    compiler: EagerSettings
    constants: dict[int, Any] = field(default_factory=dict)

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function with the arguments of the call, and with the constants at their positions."""
        passed, constants = iter(args), copy.deepcopy(self.constants)
        indices = range(len(args) + len(constants))
        arguments = (constants[index] if index in constants else next(passed) for index in indices)
        return self.subject(*arguments, **kwargs)


class PieceCall(NestedCall):
    """A call of an eager piece while a program is traced. The values of tensors are those of the traced call."""

    def refuse(self, what: str, fix: str = SEPARATE_FUNCTION) -> NoReturn:
        """Raise the error for a function that cannot be called in eager PyTorch."""
        raise CannotReplay(
            f"the function `{self.name}`, which reads values of tensors, {what}", fix=fix, where=self.line
        )

    def record(self) -> Any:
        """Run the function, record its bound symbol, and return its result.

        The values that the function reads are not guarded, because the program calls the function each time. Raises
        `CannotReplay` if the function writes to its arguments or to other state, returns a tensor that requires a
        gradient or a value of an unsupported type, reads a tensor of the program that is not an argument, or is called
        after effects that cannot be undone.
        """
        piece: Any = self.compiled
        indices = [index for index in range(len(self.args)) if index not in piece.constants]
        args = self._bound_arguments(tuple(self.args[index] for index in indices))
        kwargs = self._bound_arguments(dict(self.kwargs))
        probe, acquired, output = self._probe()
        if probe.outside.effects.effects or names_written_to(acquired.computation):
            self.refuse("writes to its arguments or to other state")
        captured, _ = self._captured_and_mutated(probe, acquired.computation)
        leaves, spec = tree_flatten(output)
        proxies = {proxy.name: proxy for proxy in acquired.computation.output}
        parts = [self._part(leaf, probe, proxies) for leaf in leaves]
        if any(getattr(part, "requires_grad", False) for part, _ in parts):
            self.refuse("returns a tensor that requires a gradient")
        checked = tuple(part for part, _ in parts)
        call = CompiledCall(self.name, piece, spec, checked, self.line, depends_on_values=True, in_eager=True)
        self._require_repeatable(call)
        named = {**kwargs, **self._own_keywords(call, captured, parts)}
        bsym = BoundSymbol(Symbol("eager.call", call), args, named, call.output, (), ordered=True)
        self.recorder.emit(bsym)
        for check in with_count_checks(bsym) if self.recorder.sizes is not None else ():
            self.recorder.emit(check)
        return tree_unflatten([value for _, value in parts], spec)

    def _probe(self) -> tuple[Run, Acquired, Any]:
        """Trace the function on the tensors of this call."""
        if self.recorder.sizes is None:
            return super()._probe()
        self._give_values()
        self.depends_on_values = True
        return self._trace(evaluates_tensor_values=True)

    def _with_symbolic_sizes(self, proxy: TensorProxy) -> TensorProxy:
        """Return the proxy of a contiguous result; a symbol replaces each size equal to a symbolic size of an argument.

        For example, the indices that sort a tensor have the size of the tensor. A bound symbol checks the sizes at each
        call. A result that is not contiguous is returned unchanged.
        """
        if self.recorder.sizes is None or proxy.stride != make_contiguous_strides_for(proxy.shape):
            return proxy
        symbols = self._symbols_of_arguments()
        shape: Any = tuple(symbols.get(size, size) for size in proxy.shape)
        strides: Any = symbolic_dense_strides(proxy.stride, proxy.shape, shape)
        return replace(proxy, shape=shape, stride=tuple(strides))

    def _symbols_of_arguments(self) -> dict[int, torch.SymInt]:
        """Map each size to the first symbolic size of an argument that has this value in this call."""
        sizes: Any = self.recorder.sizes
        symbols: dict[int, torch.SymInt] = {}
        for tensor in tensors_of((self.args, self.kwargs), self.run):
            shape: tuple[Any, ...] = self.recorder.proxy_of(tensor).shape
            for size in shape:
                if isinstance(size, torch.SymInt):
                    symbols.setdefault(int(sizes.in_call(size)), size)
        return symbols

    def _part(self, leaf: object, probe: Run, proxies: dict[str, Proxy]) -> tuple[Part, Any]:
        """Return a part of the result, and its value for the program.

        A number becomes symbolic: it differs between calls.
        """
        if type(leaf) not in SYMBOLIC_CLASSES:
            return super()._part(leaf, probe, proxies)
        number = self.recorder.numbers.new(type(leaf))
        return NumberOf(number.proxy, number.kind), number


@dataclass(frozen=True)
class EagerFunctions:
    """The recorder of eager calls: it handles calls of functions that contain one of these source `lines`.

    `settings` are the settings of the calling program's compiler.
    """

    settings: CompilerSettings
    lines: frozenset[SourceLine]

    def __call__(self, run: TracedRun, function: object, *args: Any, **kwargs: Any) -> Any:
        """Call a function of the program in eager PyTorch, and record the call as one bound symbol.

        Raises `CannotReplay` if the function cannot be called in eager PyTorch.
        """
        return record_call(run, args, kwargs, partial(eager_call, run, self.settings, function))


def eager_call(
    run: TracedRun,
    settings: CompilerSettings,
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> PieceCall:
    """Return the call of a function in eager PyTorch.

    Raises `CannotReplay` if the function is a closure that the program created, because it reads local variables.
    """
    plain, owner = (
        (function.__func__, (function.__self__,)) if isinstance(function, types.MethodType) else (function, ())
    )
    arguments = (*owner, *args)
    if plain.__closure__ and run.outside.path_of(plain) is None:
        raise CannotReplay(
            f"the function `{plain.__qualname__}`, which needs values of tensors, reads variables of the program",
            fix="pass the variables as arguments, so that the function can be called in eager PyTorch",
            where=run.location().source,
        )
    constants = {index: value for index, value in enumerate(arguments) if is_made_of_constants(value, run)}
    # The program may change these objects later, so they are copied.
    piece: Any = EagerPiece(plain, EagerSettings(settings.options), copy.deepcopy(constants))
    return PieceCall(run, settings, piece, arguments, kwargs)


def is_made_of_constants(value: object, run: TracedRun) -> bool:
    """Whether a value is an object that the program created, and that contains only constants."""
    if is_constant(value) or isinstance(value, (*BY_IDENTITY, *CONTAINERS, torch.Tensor, torch.Generator)):
        return False
    return run.outside.path_of(value) is None and has_only_constants(value, {id(value)})


def has_only_constants(value: object, seen: set[int]) -> bool:
    """Whether an object has no slots, and each attribute is a constant, or a container or module of constants."""
    attributes = getattr(value, "__dict__", None)
    if any("__slots__" in vars(kind) and vars(kind)["__slots__"] for kind in type(value).__mro__):
        return False
    return type(attributes) is dict and all(is_constant_tree(attribute, seen) for attribute in attributes.values())


def is_constant_tree(value: object, seen: set[int]) -> bool:
    """Whether a value is a constant, or a container or module of constants; `seen` are its enclosing objects."""
    if is_constant(value) or isinstance(value, BY_IDENTITY):
        return True
    if id(value) in seen:
        return False
    seen = seen | {id(value)}
    if isinstance(value, dict):
        return all(is_constant_tree(item, seen) for item in (*value.keys(), *value.values()))
    if isinstance(value, CONTAINERS):
        return all(is_constant_tree(item, seen) for item in value)
    return isinstance(value, torch.nn.Module) and has_only_constants(value, seen)
