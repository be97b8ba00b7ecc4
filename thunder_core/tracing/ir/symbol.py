"""Symbols, which are what can be called, and bound symbols, which are calls of them: a trace is a list of these."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.ir.literal import Definition
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.tree import leaves, replace_leaves

BACKWARD_OF = "backward of "  # begins the module of a bound symbol that computes the derivative of one of the module's


# The namespaces of the operators by which processes communicate: PyTorch's, and Thunder's own.
COMMUNICATION = (
    *("torch.ops._c10d_functional", "torch.ops.c10d", "torch.ops.thunder_c10d."),
    *("torch.ops._dtensor.", "torch.ops.symm_mem."),
)


@dataclass(frozen=True)
class Symbol:
    """Something that a trace calls: its printed name and the Python callable that it means.

    Two symbols are equal where they mean one callable; different ones may have one printed name, such as the functions
    that a factory makes. One that `empties` takes one list of tensors, which it empties, so that each can go as soon as
    it was read last.
    """

    name: str
    target: Callable[..., Any] = field(repr=False)
    empties: bool = field(default=False, compare=False)

    @property
    def short_name(self) -> str:
        """The last part of the name: `linear` of `torch.nn.functional.linear`."""
        return self.name.rpartition(".")[2]

    @cached_property
    def communicates(self) -> bool:
        """Whether it is an operator by which processes communicate."""
        return self.name.startswith(COMMUNICATION)

    @property
    def level(self) -> str:
        """`aten` for PyTorch's own operations, `torch` for what a user writes."""
        return "aten" if self.name.startswith("torch.ops.") else "torch"


def renamed_proxies(tree: Any, names: Mapping[str, Proxy]) -> Any:
    """The tree with each proxy whose name is a key replaced."""
    return replace_leaves(tree, lambda leaf: names.get(leaf.name, leaf) if isinstance(leaf, Proxy) else leaf)


@dataclass(frozen=True, eq=False)
class BoundSymbol:
    """One call of a symbol.

    `args`, `kwargs` and `output` are nested tuples, lists, dicts and slices whose leaves are proxies or constants.
    `subsymbols` say what the call means one level below, in the same names. `mutates` names the tensors that
    the call writes to; `ordered` calls change a state of the process (the grad mode, the random number
    generator) and must keep their place among the others. `derives` is the bound symbol whose derivative the
    call is part of. Each result of a `fresh` call has memory of its own, where nothing below says so. A call that
    `uses_process_group` communicates with other processes by code of its own, of which nothing is recorded.
    """

    symbol: Symbol
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any
    subsymbols: tuple[BoundSymbol, ...] = ()
    source: SourceLine | None = None
    module: str = ""
    mutates: tuple[str, ...] = ()
    ordered: bool = False
    executor: str = ""
    derives: BoundSymbol | None = None
    fresh: bool = False
    uses_process_group: bool = False

    @cached_property
    def inputs(self) -> tuple[Proxy, ...]:
        """Each proxy that the call reads, once, in order."""
        proxies = {leaf.name: leaf for leaf in leaves((self.args, dict(self.kwargs))) if isinstance(leaf, Proxy)}
        return tuple(proxies.values())

    @cached_property
    def outputs(self) -> tuple[Proxy, ...]:
        """Each proxy that the call returns, once, in order; some may be among its inputs."""
        proxies = {leaf.name: leaf for leaf in leaves(self.output) if isinstance(leaf, Proxy)}
        return tuple(proxies.values())

    @cached_property
    def functions(self) -> tuple[Any, ...]:
        """The traces among the arguments: the functions that a higher-order operator is given."""
        return tuple(leaf for leaf in leaves((self.args, dict(self.kwargs))) if isinstance(leaf, Definition))

    @cached_property
    def defines(self) -> tuple[Proxy, ...]:
        """The outputs that are not among the inputs: the names that the call defines."""
        read = {proxy.name for proxy in self.inputs}
        return tuple(proxy for proxy in self.outputs if proxy.name not in read)

    @property
    def operations(self) -> tuple[BoundSymbol, ...]:
        """The aten operations that the call consists of, itself if it is one; empty where they are not known."""
        return self.subsymbols or ((self,) if self.symbol.level == "aten" else ())

    @cached_property
    def is_resolved(self) -> bool:
        """Whether no tensor of the call, nor of what it consists of, is conjugated or negated when it is read."""
        proxies = (*self.inputs, *self.outputs)
        return all(proxy.is_resolved for proxy in proxies if isinstance(proxy, TensorProxy)) and all(
            part.is_resolved for part in self.subsymbols
        )

    @property
    def keeps_place(self) -> bool:
        """Whether the call keeps its place among the others, is made once, and is no part of a region."""
        return self.ordered or self.communicates

    @property
    def has_effect(self) -> bool:
        """Whether the call matters even when nobody reads what it returns."""
        return self.keeps_place or bool(self.mutates)

    @cached_property
    def communicates(self) -> bool:
        """Whether the call takes part in a collective, or waits for one: then other processes hang without it."""
        if self.uses_process_group or self.symbol.communicates or any(part.communicates for part in self.subsymbols):
            return True
        functions = (argument for argument in self.args if isinstance(argument, Definition))
        return any(bsym.communicates for function in functions for bsym in getattr(function, "bound_symbols", ()))

    @property
    def gives_number(self) -> bool:
        """Whether the call gave a number, which stands where it is used, so that nothing refers to the call."""
        return isinstance(self.output, int | float | complex) and not self.has_effect

    @property
    def tensors(self) -> tuple[TensorProxy, ...]:
        """The tensors among the outputs that the call defines."""
        return tuple(proxy for proxy in self.defines if isinstance(proxy, TensorProxy))

    def at_level(self, level: str) -> Iterator[BoundSymbol]:
        """The call itself, or at level `aten` what it consists of."""
        if level != "aten" or not self.subsymbols:
            yield self
            return
        for part in self.subsymbols:
            yield from part.at_level(level)

    def renamed(self, names: Mapping[str, Proxy], at: tuple[SourceLine | None, str] | None = None) -> BoundSymbol:
        """The call with each proxy whose name is a key replaced, in the sub-symbols too; `at` another place."""
        source, module = at or (self.source, self.module)
        return BoundSymbol(
            symbol=self.symbol,
            args=renamed_proxies(self.args, names),
            kwargs=renamed_proxies(dict(self.kwargs), names),
            output=renamed_proxies(self.output, names),
            subsymbols=tuple(sub.renamed(names) for sub in self.subsymbols),
            source=source,
            module=module,
            mutates=tuple(names[name].name if name in names else name for name in self.mutates),
            ordered=self.ordered,
            executor=self.executor,
            derives=self.derives,
            fresh=self.fresh,
            uses_process_group=self.uses_process_group,
        )
