"""A bound symbol that calls a compiled function, and checks its result against the recorded one."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch.utils._pytree import TreeSpec, tree_flatten

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import CannotReplay, NotDifferentiable, SourceLine
from thunder_core.tracing.analysis.control_flow import has_gradients
from thunder_core.tracing.capture.torch_facts.autograd_nodes import FROM_CALL, FROM_VALUES
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.objects import UnexpectedValue

BESIDE = "beside"  # the keyword for tensors that the function reads or writes besides its arguments
RETURNED = "returned_as_is"  # the keyword for values that the caller has, and that the function returned when traced
OWN_KEYWORDS = (BESIDE, RETURNED)
WHY_RECORDED = "it calls a compiled function that has its own backward"


class CompiledPrograms(Protocol):
    """The compiled programs of a function."""

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function."""


@dataclass(frozen=True)
class Same:
    """A part of a result that the caller already has: an argument, or an outside object; `kind` is its class."""

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
    """A compiled function that a bound symbol calls: its result has a structure (`spec`) and these `parts`.

    If `depends_on_values` is True, its control flow depends on tensor values, so another call may return another
    structure. If `has_effects` is True, it has effects that cannot be undone. If `in_eager` is True, it is a function
    of the program that is not compiled and returns nothing that requires a gradient.
    """

    name: str
    compiled: CompiledPrograms
    spec: TreeSpec
    parts: tuple[Part, ...]
    where: SourceLine | None
    depends_on_values: bool = False
    has_effects: bool = False
    in_eager: bool = False

    def __post_init__(self) -> None:
        self.__module__, self.__name__, self.__qualname__ = "compiled", self.name, self.name

    @property
    def output(self) -> Proxy | tuple[Proxy, ...]:
        """The proxies that the bound symbol returns for parts of the result: a single proxy, or a tuple."""
        names = tuple(name for part in self.parts if (name := proxy_of(part)) is not None)
        return names[0] if len(names) == 1 else names

    def __call__(
        self,
        *args: Any,
        beside: tuple[Any, ...] = (),  # noqa: ARG002
        returned_as_is: tuple[Any, ...] = (),
        **kwargs: Any,
    ) -> Any:
        """Call the function, and return the parts of its result that have proxies.

        `beside` are tensors that the function reads or writes without receiving them as arguments. They are unused
        here, and are arguments of the bound symbol only so that passes keep the order of reads and writes.
        `returned_as_is` are values that the caller has already and that the result must contain; it is empty if this is
        not checked.
        """
        result = self.compiled.call(args, kwargs)
        leaves, spec = tree_flatten(result)
        if spec != self.spec or not all(map(fits, self.parts, leaves)):
            raise self._mismatch(leaves, spec)
        if returned_as_is:
            same = (leaf for part, leaf in zip(self.parts, leaves, strict=True) if isinstance(part, Same))
            if not all(map(is_same_value, same, returned_as_is)):
                raise self._refusal("a certain argument or outside object", "another one")
        returned = tuple(leaf for part, leaf in zip(self.parts, leaves, strict=True) if proxy_of(part) is not None)
        return returned[0] if len(returned) == 1 else returned

    def _mismatch(self, leaves: list[Any], spec: TreeSpec) -> Exception:
        pairs = zip(self.parts, leaves, strict=True) if spec == self.spec else ()
        differing = next(((part, leaf) for part, leaf in pairs if not fits(part, leaf)), None)
        expected = f"{self.spec}" if differing is None else describe(differing[0])
        received = f"{spec}" if differing is None else describe(part_like(differing[1]))
        return self._refusal(expected, received)

    def _refusal(self, expected: str, received: str) -> Exception:
        """Return the error for a result other than the recorded one."""
        if self.depends_on_values and not self.has_effects:
            return UnexpectedValue(expected, received)
        return CannotReplay(
            f"the compiled function `{self.name}` returned {received}, but it returned {expected} when the program "
            "that calls it was traced",
            fix="return the same kind of result from each call, or compile both functions with the same settings, so "
            "that one program contains them",
            where=self.where,
        )


def is_same_value(value: object, other: object) -> bool:
    """Whether two values are the same object, or tensors with the same elements of the same memory."""
    if value is other:
        return True
    if not (isinstance(value, torch.Tensor) and isinstance(other, torch.Tensor)):
        return False
    layouts = [(tensor.dtype, tensor.shape, tensor.stride(), tensor.storage_offset()) for tensor in (value, other)]
    aliases: bool = torch._C._is_alias_of(value, other)  # type: ignore[attr-defined]
    return layouts[0] == layouts[1] and aliases


def proxy_of(part: Part) -> Proxy | None:
    """Return the proxy of a part of a result, or None."""
    if isinstance(part, NumberOf):
        return part.proxy
    return part if isinstance(part, TensorProxy) else None


def fits(part: Part, leaf: object) -> bool:
    """Whether a part of a result has the class, metadata or value of the recorded part."""
    if isinstance(part, TensorProxy):
        return (
            isinstance(leaf, torch.Tensor)
            and (leaf.dtype, leaf.device, leaf.is_conj(), leaf.is_neg())
            == (part.dtype, part.device, part.is_conj, part.is_neg)
            and fits_layout(part, leaf)
        )
    if isinstance(part, NumberOf):
        return type(leaf) is part.kind
    if isinstance(part, Same):
        return type(leaf) is part.kind
    return leaf is part.value or (type(leaf) is type(part.value) and repr(leaf) == repr(part.value))


def fits_layout(part: TensorProxy, leaf: torch.Tensor) -> bool:
    """Whether a tensor has the sizes and strides of a part.

    If a size of the part is symbolic, the tensor must be contiguous; bound symbols that follow the call check its size.
    """
    if not any(isinstance(size, torch.SymInt) for size in part.shape):
        return (tuple(leaf.shape), leaf.stride()) == (part.shape, part.stride)
    return leaf.ndim == len(part.shape) and leaf.is_contiguous()


def part_like(leaf: object) -> Part:
    """Return the part that describes a leaf of a result."""
    if isinstance(leaf, torch.Tensor):
        facts = (tuple(leaf.shape), tuple(leaf.stride()), leaf.dtype, leaf.device)
        return TensorProxy("", *facts, is_conj=leaf.is_conj(), is_neg=leaf.is_neg())
    return Constant(leaf)


def describe(part: Part) -> str:
    """Describe a part of a result in words."""
    if isinstance(part, TensorProxy):
        return f"{part.described} with strides {part.stride}"
    return f"{part.value!r:.60}" if isinstance(part, Constant) else object_of_class(part.kind)


def call_of(bsym: BoundSymbol) -> CompiledCall | None:
    """Return the compiled function that a bound symbol calls, or None."""
    return bsym.symbol.target if isinstance(bsym.symbol.target, CompiledCall) else None


def is_repeatable(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol calls a compiled function that has no effects when it runs on copies of its inputs."""
    call, beside = call_of(bsym), {proxy.name for proxy in bsym.kwargs.get(BESIDE, ())}
    return call is not None and not call.has_effects and beside.isdisjoint(bsym.mutates)


def is_tracked_call(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol calls a compiled function whose call autograd tracks."""
    call = call_of(bsym)
    return call is not None and not call.in_eager and has_gradients(bsym)


def name_of_call_with_effects(bsyms: Iterable[BoundSymbol]) -> str | None:
    """Return the name of a compiled function with effects that one of the bound symbols calls, or None."""
    return next((call.name for bsym in bsyms if (call := call_of(bsym)) is not None and call.has_effects), None)


def require_differentiable(nodes: Iterable[object]) -> None:
    """Raise `NotDifferentiable` if nodes of autograd's graph belong to a called compiled function, or to an operation
    that ran on values.
    """
    nodes = list(nodes)
    if any(isinstance(node, FROM_VALUES) for node in nodes):
        failure = NotDifferentiable(
            "the program calls backward() through an operation whose result depends on the values of its arguments, "
            "such as a recurrent network of a packed sequence",
            fix="call backward() outside the compiled program",
        )
        failure.runs_in_eager = True
        raise failure
    if any(isinstance(node, FROM_CALL) for node in nodes):
        failure = NotDifferentiable(
            "the program calls backward() through a compiled function with its own settings, or through a branch or "
            "loop (torch.cond, while_loop, scan, map)",
            fix="call backward() outside the compiled program, or compile both functions with the same settings",
        )
        failure.runs_in_eager = True
        raise failure
