"""Executors, the backends that run the bound symbols of traces. Users and plug-ins define executors of their own.

A file in `thunder_executors` that defines `EXECUTOR` adds an executor to Thunder.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any, ClassVar

import torch

from thunder_core.backend.claiming.device_code import DeviceCode
from thunder_core.backend.patterns.pattern import Pattern, pattern
from thunder_core.backend.patterns.replacement import Replacement, replacement
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadRecipe, UnknownName, WrongInputs
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.extension.authorship import require_return_type
from thunder_core.tracing.extension.declaration import require_traits
from thunder_core.tracing.extension.traits import Traits
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace

EXECUTOR = "EXECUTOR"  # the name of a plug-in's executor in its module


class Executor(Traits, ABC):
    """An object that can run bound symbols of a trace. `name` is its name in recipes and options.

    An executor that `fuses_regions` compiles many bound symbols into one. An executor without `symbolic_sizes` is left
    out of programs with symbolic sizes; an executor with `symbolic_sizes` may branch on them, which adds constraints.
    An executor that `only_compares` claims nothing, and compares the results of the other executors at run time:
    `thunder optimize` runs it once, and the artifact does not contain it. The traits decide an executor's position
    among the executors of combined recipes: see `Traits`.
    """

    name: str
    fuses_regions: ClassVar[bool] = False
    symbolic_sizes: ClassVar[bool] = False
    only_compares: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Raise `BadRecipe` for traits that are not tuples of names."""
        super().__init_subclass__()
        require_traits(cls.__name__, cls)

    @property
    def labels(self) -> frozenset[str]:
        """The executor's name, and the traits that it provides."""
        return frozenset((self.name, *self.provides))

    @property
    def title(self) -> str:
        """The executor's name."""
        return self.name

    @property
    def replacements(self) -> Sequence[Replacement]:
        """The functions that replace matches of patterns, tried in order before single bound symbols."""
        return ()

    def missing(self) -> str | None:
        """Return the reason why this machine cannot run the executor; None if it can."""
        return None

    def missing_on(self, device: torch.device) -> str | None:  # noqa: ARG002
        """Return the reason why the executor cannot be used on a device of this machine; None if it can."""
        return self.missing()

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """Return the reason why the executor cannot be used for a GPU architecture (`sm_90`); None if it can."""
        return self.missing()

    def device_code(self, trace: Trace, target: str) -> Sequence[DeviceCode]:  # noqa: ARG002
        """Return the machine code of the kernels that the executor launches on a GPU of that architecture."""
        return ()

    def kernels_in_regions(self, trace: Trace) -> frozenset[bytes]:  # noqa: ARG002
        """Return the machine code of the kernels for a GPU that compiled regions of the executor contain."""
        return frozenset()

    def keep(self, kernels: Iterable[DeviceCode]) -> None:
        """Store verified machine code, to launch it instead of compiling kernels."""
        raise NotImplementedError(f"{self.name} has no machine code for {len(list(kernels))} kernels")

    @property
    @abstractmethod
    def claims(self) -> str:
        """A phrase for the operations that the executor can claim; `thunder executors` prints it."""

    @abstractmethod
    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """Return the bound symbol in the executor's form, or None if the executor cannot run it."""

    def can_claim(self, bsym: BoundSymbol) -> bool:
        """Whether the executor could claim a bound symbol, alone or as a part of a region."""
        return self.claim(bsym) is not None

    def without_measuring(self) -> Executor:
        """Return an executor that claims every operation that this executor can run, and measures nothing."""
        return self

    def claim_all(self, trace: Trace) -> Trace:
        """Return the trace with every unclaimed bound symbol that this executor can run claimed by this executor.

        Kernels read memory directly, so operations on a conjugated or negated view run in eager PyTorch.
        """
        bsyms = (bsym if bsym.executor or not bsym.is_resolved else self._claim(bsym) for bsym in trace.bound_symbols)
        return trace.having(bsyms, made_by=f"claim by {self.name}")

    def _claim(self, bsym: BoundSymbol) -> BoundSymbol:
        """Return the bound symbol that `claim` returns, or the unchanged bound symbol if `claim` returns None.

        Raise `BadRecipe` if `claim` returns anything else.
        """
        claimed = self.claim(bsym)
        if claimed is None or type(claimed) is BoundSymbol:
            return claimed or bsym
        checked: BoundSymbol = require_return_type(self, "claim", claimed, (BoundSymbol, type(None)))
        return checked

    def check_claimed(self, unclaimed: Trace, claimed: Trace) -> Trace:  # noqa: ARG002
        """Return the claimed trace with the checks that the executor adds, which compare with the unclaimed trace."""
        return claimed

    def wrap_claimed(self, trace: Trace) -> Trace:
        """Return the claimed trace with the wrappers that the executor adds."""
        return trace


@dataclass(frozen=True)
class Implementation:
    """The implementation of an operation by an executor: the function to call instead, and the supported calls.

    An implementation without `writes` does not support bound symbols that write to their arguments.
    """

    symbol: Symbol
    supports: Callable[[BoundSymbol], bool] = lambda bsym: True
    writes: bool = False

    def is_for(self, bsym: BoundSymbol) -> bool:
        """Whether the implementation supports a bound symbol of its operation."""
        return (self.writes or not bsym.mutates) and self.supports(bsym)


@dataclass(eq=False)
class OperatorExecutor(Executor):
    """An executor that replaces single operations, and matches of patterns, by its own functions.

    >>> import torch
    >>> fast = OperatorExecutor("fast")
    >>> @fast.implements(torch.nn.functional.silu)
    ... def fast_silu(input, inplace=False):
    ...     return input * torch.sigmoid(input)
    >>> def swiglu(gate, up):
    ...     return torch.nn.functional.silu(gate) * up
    >>> @fast.replaces(swiglu)
    ... def fast_swiglu(gate, up):
    ...     return gate * torch.sigmoid(gate) * up
    >>> fast.claims
    'swiglu, torch.nn.functional.silu'
    """

    symbolic_sizes: ClassVar[bool] = True
    name: str
    table: dict[Symbol, Implementation] = field(default_factory=dict)
    registered: list[Replacement] = field(default_factory=list)

    @property
    def replacements(self) -> Sequence[Replacement]:
        """The replacements that `replaces` registered, in the order of registration."""
        return self.registered

    @property
    def claims(self) -> str:
        """The names of the patterns and the symbols."""
        names = [*(item.pattern.name for item in self.registered), *(symbol.name for symbol in self.table)]
        return ", ".join(dict.fromkeys(names))

    def implements(
        self,
        operation: Callable[..., Any],
        *,
        supports: Callable[[BoundSymbol], bool] = lambda bsym: True,
        writes: bool = False,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register the decorated function for a torch operation, for the bound symbols that `supports` accepts.

        Calls that write to an argument (`inplace=True`, `out=`, `mul_`) are left to other executors, unless the
        function `writes` to the same argument.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            symbol = Symbol.of_function(function)
            self.table[symbol_of(operation)] = Implementation(symbol, supports, writes)
            return function

        return register

    def replaces(
        self,
        computation: Callable[..., Any] | Pattern,
        *,
        supports: Callable[[BoundSymbol], bool] = lambda bsym: True,
        meta: Callable[..., Any] | None = None,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register the decorated function for every part of a program that computes the same as `computation`.

        `computation` is a pattern, or a function that becomes a pattern. The decorated function takes the pattern's
        parameters without a default, in their order, and returns the pattern's results. `supports` is called with the
        bound symbol that calls the decorated function. For a function that cannot run on tensors without data, `meta`
        returns tensors with the metadata of its results. Raises `BadPattern` for a function that cannot be a pattern or
        its replacement.
        """
        replaced_pattern = pattern(computation)

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.registered.append(replacement(replaced_pattern, function, supports=supports, meta=meta))
            return function

        return register

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """Return the bound symbol with the registered function in place of its symbol."""
        implementation = self.table.get(bsym.symbol)
        if implementation is None or not implementation.is_for(bsym):
            return None
        return replace(bsym, symbol=implementation.symbol, executor=self.name)


_executors: dict[str, Executor] = {}


def register_executor(executor: Executor) -> Executor:
    """Register an executor under its name, for `jit(executors=[...])`."""
    _executors[executor.name] = executor
    return executor


def registered_executor(name: str) -> Executor:
    """Return the executor of that name registered in this process; raise `UnknownName` if there is none."""
    if name not in _executors:
        raise UnknownName(f"no executor is named {name!r}", fix=f"use one of: {', '.join(sorted(_executors))}")
    return _executors[name]


def registered_names() -> list[str]:
    """Return the names registered in this process."""
    return sorted(_executors)


def find_executor(name: str | Executor) -> Executor:
    """Return an executor by name: an executor registered in this process, or the EXECUTOR of a plug-in's module.

    Raises `UnknownName`, `EnvironmentLacks`, `BadRecipe` for a module without an EXECUTOR, and `WrongInputs` for a
    value that is neither a name nor an executor.
    """
    if isinstance(name, Executor):
        return name
    if not isinstance(name, str):
        raise WrongInputs(
            f"{name!r:.80} is not an executor", fix="pass the name of an executor, or an instance of Executor"
        )
    if name in registered_names():
        return registered_executor(name)
    return executor_in(plugins.load("executors", name), f"the executor {name}")


def executor_in(module: ModuleType, what: str, name: str = "") -> Executor:
    """Return the executor of a module with this name, by default `EXECUTOR`; raise `BadRecipe` if there is none.

    `what` names the module in the error: the path of a file, or `the executor NAME` for a plug-in.
    """
    executor = vars(module).get(name or EXECUTOR)
    if isinstance(executor, Executor):
        return executor
    own = [attribute for attribute, value in vars(module).items() if isinstance(value, Executor)]
    names = f"; it has {', '.join(own)}" if own else ""
    is_file = what.endswith(".py")  # only executors in files can be named after a colon
    raise BadRecipe(
        f"{what} defines no {name or EXECUTOR} that is an instance of Executor{names}",
        fix=f"assign the executor to the name {EXECUTOR}" + (f", or write {what}:{own[0]}" if own and is_file else ""),
    )
