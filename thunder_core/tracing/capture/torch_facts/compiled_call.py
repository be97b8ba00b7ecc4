"""A bound symbol that calls a compiled function: what it gives is checked against what it was recorded with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._pytree import TreeSpec, tree_flatten

from thunder_core.foundation.errors import CannotReplay, NotDifferentiable, SourceLine
from thunder_core.tracing.analysis.control_flow import has_gradients
from thunder_core.tracing.capture.torch_facts.autograd_nodes import FROM_CALL
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.objects import UnexpectedValue

BESIDE = "beside"  # the keyword for tensors that the function reads or writes past its arguments
WHY_RECORDED = "it calls a compiled function that has its own backward"


class CompiledPrograms(Protocol):
    """The programs of a compiled function."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function."""


@dataclass(frozen=True)
class Same:
    """A part of a result that the caller has already: an argument, or an object from outside; `kind` is its class."""

    kind: type


@dataclass(frozen=True)
class Constant:
    """A part of a result that is the same at each call."""

    value: Any


@dataclass(frozen=True)
class NumberOf:
    """A part of a result that is a number of a class, known when the trace runs."""

    proxy: Proxy
    kind: type


Part = TensorProxy | Same | Constant | NumberOf


@dataclass(eq=False)
class CompiledCall:
    """A compiled function as a bound symbol calls it: its result has a structure (`spec`) and these `parts`.

    One that is `valued` decides by values of tensors, so that another call may give something else; one that `acts`
    has effects that cannot be taken back. One `in_eager` is a function of the program that is not compiled, and returns
    nothing that requires a gradient.
    """

    name: str
    compiled: CompiledPrograms
    spec: TreeSpec
    parts: tuple[Part, ...]
    where: SourceLine | None
    valued: bool = False
    acts: bool = False
    in_eager: bool = False

    def __post_init__(self) -> None:
        self.__module__, self.__name__, self.__qualname__ = "compiled", self.name, self.name

    @property
    def output(self) -> Any:
        """The names that the bound symbol gives to parts of the result: one alone, or a tuple."""
        names = tuple(name for part in self.parts if (name := named(part)) is not None)
        return names[0] if len(names) == 1 else names

    def __call__(self, *args: Any, beside: tuple[Any, ...] = (), **kwargs: Any) -> Any:  # noqa: ARG002
        """Call it, and return the parts that have names.

        `beside` are tensors that it reads or writes by itself: they are named for the order of the bound symbols alone.
        """
        result = self.compiled.call(args, kwargs)
        leaves, spec = tree_flatten(result)
        if spec != self.spec or not all(map(fits, self.parts, leaves)):
            raise self._mismatch(leaves, spec)
        returned = tuple(leaf for part, leaf in zip(self.parts, leaves, strict=True) if named(part) is not None)
        return returned[0] if len(returned) == 1 else returned

    def _mismatch(self, leaves: list[Any], spec: TreeSpec) -> Exception:
        pairs = zip(self.parts, leaves, strict=True) if spec == self.spec else ()
        differing = next(((part, leaf) for part, leaf in pairs if not fits(part, leaf)), None)
        wanted = f"{self.spec}" if differing is None else told(differing[0])
        received = f"{spec}" if differing is None else told(part_like(differing[1]))
        if self.valued and not self.acts:
            return UnexpectedValue(wanted, received)
        return CannotReplay(
            f"the compiled function `{self.name}` returned {received}, but it returned {wanted} when the program that "
            "calls it was traced",
            fix="return the same kind of result from each call, or compile both functions with the same settings, so "
            "that one program contains them",
            where=self.where,
        )


def named(part: Part) -> Proxy | None:
    """The name that a bound symbol gives to a part of its result, if it gives one."""
    if isinstance(part, NumberOf):
        return part.proxy
    return part if isinstance(part, TensorProxy) else None


def fits(part: Part, leaf: Any) -> bool:
    """Whether a part of a result is what it was when it was recorded."""
    if isinstance(part, TensorProxy):
        return isinstance(leaf, torch.Tensor) and (
            (leaf.dtype, tuple(leaf.shape), leaf.stride(), leaf.device, leaf.is_conj(), leaf.is_neg())
            == (part.dtype, part.shape, part.stride, part.device, part.is_conj, part.is_neg)
        )
    if isinstance(part, NumberOf):
        return type(leaf) is part.kind
    if isinstance(part, Same):
        return type(leaf) is part.kind
    return leaf is part.value or (type(leaf) is type(part.value) and repr(leaf) == repr(part.value))


def part_like(leaf: Any) -> Part:
    """A part of a result as it was found."""
    if isinstance(leaf, torch.Tensor):
        facts = (tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype, leaf.device)
        return TensorProxy("", *facts, is_conj=leaf.is_conj(), is_neg=leaf.is_neg())
    return Constant(leaf)


def told(part: Part) -> str:
    """A part of a result in words."""
    if isinstance(part, TensorProxy):
        return f"{part.described} with strides {part.stride}"
    return f"{part.value!r:.60}" if isinstance(part, Constant) else f"a {part.kind.__name__}"


def call_of(bsym: BoundSymbol) -> CompiledCall | None:
    """The compiled function that a bound symbol calls, if it calls one."""
    return bsym.symbol.target if isinstance(bsym.symbol.target, CompiledCall) else None


def is_repeatable(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol calls a compiled function that, run on copies of what it is given, leaves no mark."""
    call, beside = call_of(bsym), {proxy.name for proxy in bsym.kwargs.get(BESIDE, ())}
    return call is not None and not call.acts and beside.isdisjoint(bsym.mutates)


def is_followed_call(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol calls a compiled function that autograd follows."""
    call = call_of(bsym)
    return call is not None and not call.in_eager and has_gradients(bsym)


def acts_before(bsyms: Iterable[BoundSymbol]) -> str | None:
    """The name of a compiled function with effects that one of the bound symbols calls, if one does."""
    return next((call.name for bsym in bsyms if (call := call_of(bsym)) is not None and call.acts), None)


def require_taken_apart(nodes: Iterable[object]) -> None:
    """Raise `NotDifferentiable` where nodes of autograd's graph lead into a compiled function that is called."""
    if any(isinstance(node, FROM_CALL) for node in nodes):
        raise NotDifferentiable(
            "the program calls backward() through a compiled function with its own settings, or through a branch or "
            "loop (torch.cond, while_loop, scan, map)",
            fix="call backward() outside the compiled program, or compile both functions with the same settings",
        )
