"""Executors: who runs a bound symbol. An executor is one file in `thunder_executors` that defines EXECUTOR."""

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
from thunder_core.tracing.extension.authorship import checked_return
from thunder_core.tracing.extension.declaration import require_traits
from thunder_core.tracing.extension.traits import Traits
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace

EXECUTOR = "EXECUTOR"  # the name of a plug-in's executor in its module


class Executor(Traits, ABC):
    """Something that can run bound symbols of a trace. `name` is how recipes and users call it.

    One that `fuses_regions` takes many bound symbols as one, where it stands among the others. One that does not take
    `symbolic_sizes` is left out of programs that have them; one that does may decide by them, which constrains them.
    One that `only_compares` claims nothing, and compares what the others compute as it runs: `thunder optimize` has it
    do so once, and the artifact is without it.
    Its traits decide its place among the executors of recipes that are added to each other: see `Traits`.
    """

    name: str
    fuses_regions: ClassVar[bool] = False
    symbolic_sizes: ClassVar[bool] = False
    only_compares: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Raises `BadRecipe` for traits that are no tuples of names."""
        super().__init_subclass__()
        require_traits(cls.__name__, cls)

    @property
    def labels(self) -> frozenset[str]:
        """Its name, and what it provides."""
        return frozenset((self.name, *self.provides))

    @property
    def title(self) -> str:
        """Its name."""
        return self.name

    @property
    def replacements(self) -> Sequence[Replacement]:
        """The functions that it calls in place of matches of patterns, tried in order before single bound symbols."""
        return ()

    def missing(self) -> str | None:
        """The reason why this machine cannot run it; None if it can."""
        return None

    def missing_on(self, device: torch.device) -> str | None:  # noqa: ARG002
        """The reason why it can take no part in a program on that device of this machine."""
        return self.missing()

    def missing_for(self, target: str) -> str | None:  # noqa: ARG002
        """The reason why it can take no part in a program for a GPU of that architecture (`sm_90`), here or not."""
        return self.missing()

    def device_code(self, trace: Trace, target: str) -> Sequence[DeviceCode]:  # noqa: ARG002
        """The machine code of the kernels that its bound symbols of a claimed trace launch on such a GPU."""
        return ()

    def keep(self, kernels: Iterable[DeviceCode]) -> None:
        """From now on, launch this machine code, whose digests were checked, in place of what would be compiled."""
        raise NotImplementedError(f"{self.name} has no machine code for {len(list(kernels))} kernels")

    @property
    @abstractmethod
    def claims(self) -> str:
        """In a phrase, what it can claim; `thunder executors` prints it."""

    @abstractmethod
    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """The bound symbol as this executor runs it, or None if it cannot."""

    def takes(self, bsym: BoundSymbol) -> bool:
        """Whether it could take a bound symbol, alone or with others."""
        return self.claim(bsym) is not None

    def without_measuring(self) -> Executor:
        """The executor that runs all that it can run, also where a measurement would choose another one."""
        return self

    def claim_all(self, trace: Trace) -> Trace:
        """The trace with all that this executor takes, of what nobody has claimed yet.

        Kernels read memory as it is: eager PyTorch alone runs what reads a conjugated or negated view.
        """
        bsyms = (bsym if bsym.executor or not bsym.is_resolved else self._claimed(bsym) for bsym in trace.bound_symbols)
        return trace.having(bsyms, made_by=f"claim by {self.name}")

    def _claimed(self, bsym: BoundSymbol) -> BoundSymbol:
        """A bound symbol as this executor runs it, or as it is; raises `BadRecipe` where `claim` returns neither."""
        claimed = self.claim(bsym)
        if claimed is None or type(claimed) is BoundSymbol:
            return claimed or bsym
        found: BoundSymbol = checked_return(self, "claim", claimed, (BoundSymbol, type(None)))
        return found

    def check_claimed(self, unclaimed: Trace, claimed: Trace) -> Trace:  # noqa: ARG002
        """The claimed trace with what this executor does to compare it, as it runs, with what was to be claimed."""
        return claimed

    def wrap_claimed(self, trace: Trace) -> Trace:
        """The trace with what this executor does to what all have claimed."""
        return trace


@dataclass(frozen=True)
class Implementation:
    """The implementation of a symbol by an executor: what it calls instead, and for which bound symbols.

    Those that write are for an implementation that `writes` alone.
    """

    symbol: Symbol
    supports: Callable[[BoundSymbol], bool] = lambda bsym: True
    writes: bool = False

    def is_for(self, bsym: BoundSymbol) -> bool:
        """Whether it does all that a bound symbol of its operation does."""
        return (self.writes or not bsym.mutates) and self.supports(bsym)


@dataclass(eq=False)
class OperatorExecutor(Executor):
    """An executor that replaces single operations, and matches of patterns, by functions of its own.

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
        names = [*(one.pattern.name for one in self.registered), *(symbol.name for symbol in self.table)]
        return ", ".join(dict.fromkeys(names))

    def implements(
        self,
        operation: Callable[..., Any],
        *,
        supports: Callable[[BoundSymbol], bool] = lambda bsym: True,
        writes: bool = False,
    ) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        """Register the decorated function for a torch operation, for the bound symbols that `supports` accepts.

        Calls that write to what they are given (`inplace=True`, `out=`, `mul_`) are left to others, unless it `writes`
        to the same.
        """

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            symbol = Symbol(f"{function.__module__}.{function.__qualname__}", function)
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
        """Register the decorated function for every part of a program that computes what `computation` does.

        `computation` is a pattern, or a function that becomes one. The decorated function takes the pattern's
        parameters that have no default, in their order, and returns what the pattern returns. `supports` is given
        the bound symbol as it would be claimed. `meta`, for a function that cannot run on tensors without data, returns
        tensors like its results. Raises `BadPattern` for a function that cannot be a pattern or its replacement.
        """
        pattern_of = pattern(computation)

        def register(function: Callable[..., Any]) -> Callable[..., Any]:
            self.registered.append(replacement(pattern_of, function, supports=supports, meta=meta))
            return function

        return register

    def claim(self, bsym: BoundSymbol) -> BoundSymbol | None:
        """The bound symbol with the registered function in place of the symbol."""
        implementation = self.table.get(bsym.symbol)
        if implementation is None or not implementation.is_for(bsym):
            return None
        return replace(bsym, symbol=implementation.symbol, executor=self.name)


_executors: dict[str, Executor] = {}


def register_executor(executor: Executor) -> Executor:
    """Make an executor known by its name, for `jit(executors=[...])`."""
    _executors[executor.name] = executor
    return executor


def registered(name: str) -> Executor:
    """The executor of that name among those registered in this process; `UnknownName` otherwise."""
    if name not in _executors:
        raise UnknownName(f"no executor is named {name!r}", fix=f"use one of: {', '.join(sorted(_executors))}")
    return _executors[name]


def registered_names() -> list[str]:
    """The names registered in this process."""
    return sorted(_executors)


def find_executor(name: str | Executor) -> Executor:
    """An executor by name: one registered in this process, or the EXECUTOR of a plug-in's module.

    Raises `UnknownName`, `EnvironmentLacks`, `BadRecipe` for a module without an EXECUTOR, and `WrongInputs` for what
    is neither a name nor an executor.
    """
    if isinstance(name, Executor):
        return name
    if not isinstance(name, str):
        raise WrongInputs(
            f"{name!r:.80} is not an executor", fix="pass the name of an executor, or an instance of Executor"
        )
    if name in registered_names():
        return registered(name)
    return executor_in(plugins.load("executors", name), f"the executor {name}")


def executor_in(module: ModuleType, what: str, name: str = "") -> Executor:
    """The executor of a module, called `EXECUTOR` if no other name is given; raises `BadRecipe` where there is none."""
    found = vars(module).get(name or EXECUTOR)
    if isinstance(found, Executor):
        return found
    own = [one for one, value in vars(module).items() if isinstance(value, Executor)]
    names = f"; it has {', '.join(own)}" if own else ""
    raise BadRecipe(
        f"{what} defines no {name or EXECUTOR} that is an instance of Executor{names}",
        fix=f"call the executor {EXECUTOR}" + (f", or name one: {what}:{own[0]}" if own else ""),
    )
