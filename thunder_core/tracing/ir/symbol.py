"""Symbols are callables, and bound symbols are calls of symbols. A trace is a list of bound symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

from thunder_core.foundation.errors import SourceLine
from thunder_core.foundation.quick_objects import ComputedOnce, with_quick_init
from thunder_core.tracing.ir.listing import CODE
from thunder_core.tracing.ir.literal import Code, Definition
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.tree import leaves, replace_leaves

# Classes of frequent constants.
SCALAR_TYPES = frozenset({type(None), bool, int, float, str, torch.dtype, torch.device, torch.layout})
BACKWARD_OF = "backward of "  # prefix of the module of a bound symbol that computes a derivative


# The namespaces of the operators for communication between processes: PyTorch's, and Thunder's own.
COMMUNICATION = (
    *("torch.ops._c10d_functional", "torch.ops.c10d", "torch.ops.thunder_c10d."),
    *("torch.ops._dtensor.", "torch.ops.symm_mem."),
)


@dataclass(frozen=True)
class Symbol:
    """A callable in a trace: its printed name and the Python callable `target`.

    Two symbols are equal if they have the same target. Different symbols may have the same printed name, for example
    functions from one factory. If `empties` is set, the callable takes one list of tensors and empties the list, so
    that each tensor can be freed after its last read.
    """

    name: str
    target: Callable[..., Any] = field(repr=False)
    empties: bool = field(default=False, compare=False)

    @classmethod
    def of_function(cls, function: Callable[..., Any]) -> Symbol:
        """Return the symbol of a Python function, whose printed name is the function's module and qualified name."""
        return cls(f"{function.__module__}.{function.__qualname__}", function)

    @property
    def short_name(self) -> str:
        """The last part of the name: `linear` of `torch.nn.functional.linear`."""
        return self.name.rpartition(".")[2]

    @property
    def packet_name(self) -> str:
        """The name of an aten operation without its overload: `torch.ops.aten.sum` of `torch.ops.aten.sum.default`."""
        return self.name.rpartition(".")[0]

    @ComputedOnce
    def communicates(self) -> bool:
        """Whether the symbol is an operator for communication between processes."""
        return self.name.startswith(COMMUNICATION)

    @property
    def level(self) -> str:
        """`aten` for operators of `torch.ops`, and `torch` for the functions that users call."""
        return "aten" if self.name.startswith("torch.ops.") else "torch"


def renamed_proxies(tree: Any, names: Mapping[str, Proxy]) -> Any:
    """Return the tree with each proxy whose name is a key replaced."""
    kind = type(tree)
    if kind is TensorProxy:
        return names.get(tree.name, tree)
    if kind is tuple or kind is list:
        renamed = [
            names.get(item.name, item)
            if type(item) is TensorProxy
            else item
            if type(item) in SCALAR_TYPES
            else renamed_proxies(item, names)
            for item in tree
        ]
        return tuple(renamed) if kind is tuple else renamed
    if kind in SCALAR_TYPES:
        return tree
    return replace_leaves(tree, lambda leaf: names.get(leaf.name, leaf) if isinstance(leaf, Proxy) else leaf)


def proxies_in(tree: object) -> tuple[Proxy, ...]:
    """Return the proxies among the leaves of a tree and in its source code (`Code`), without duplicates, in order."""
    if isinstance(tree, Proxy):
        return (tree,)
    proxies = dict[str, Proxy]()
    for leaf in leaves(tree):
        if isinstance(leaf, Proxy):
            proxies[leaf.name] = leaf
        elif isinstance(leaf, Code):
            proxies.update({proxy.name: proxy for proxy in leaf.reads})
    return tuple(proxies.values())


@with_quick_init
@dataclass(frozen=True, eq=False)
class BoundSymbol:
    """One call of a symbol.

    `args`, `kwargs` and `output` are nested tuples, lists, dicts and slices whose leaves are proxies or constants.

    - `subsymbols`: the operations of the call one level below, with the same names.
    - `mutates`: the names of the tensors that the call writes to.
    - `ordered`: the call changes the state of the process (the grad mode, the random number generator), and must keep
    its position.
    - `derives`: the bound symbol that the call helps to differentiate.
    - `fresh`: the results of the call have new memory, even if no subsymbols show it.
    - `uses_process_group`: the call communicates with other processes in code that is not recorded.
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

    @ComputedOnce
    def inputs(self) -> tuple[Proxy, ...]:
        """The proxies that the call reads, without duplicates, in order."""
        return proxies_in((self.args, dict(self.kwargs)) if self.kwargs else self.args)

    @ComputedOnce
    def outputs(self) -> tuple[Proxy, ...]:
        """The proxies that the call returns, without duplicates, in order; some may also be inputs."""
        return proxies_in(self.output)

    @ComputedOnce
    def functions(self) -> tuple[Any, ...]:
        """The traces among the arguments: the functions that are passed to a higher-order operator."""
        return tuple(leaf for leaf in leaves((self.args, dict(self.kwargs))) if isinstance(leaf, Definition))

    @ComputedOnce
    def defines(self) -> tuple[Proxy, ...]:
        """The outputs that are not inputs: the names that the call defines."""
        read = {proxy.name for proxy in self.inputs}
        return tuple([proxy for proxy in self.outputs if proxy.name not in read])

    @property
    def operations(self) -> tuple[BoundSymbol, ...]:
        """The aten operations that the call consists of, or the call itself if it is an aten operation.

        Empty if unknown.
        """
        return self.subsymbols or ((self,) if self.symbol.level == "aten" else ())

    @ComputedOnce
    def is_resolved(self) -> bool:
        """Whether no tensor of the call or of its subsymbols has the conjugate or negative bit of PyTorch."""
        proxies = (*self.inputs, *self.outputs)
        return all(proxy.is_resolved for proxy in proxies if isinstance(proxy, TensorProxy)) and all(
            part.is_resolved for part in self.subsymbols
        )

    @property
    def keeps_position(self) -> bool:
        """Whether the call keeps its position, runs exactly once, and cannot belong to a region."""
        return self.ordered or self.communicates

    @property
    def has_effect(self) -> bool:
        """Whether the call must not be removed even if no other call reads its results."""
        return self.keeps_position or bool(self.mutates)

    @ComputedOnce
    def communicates(self) -> bool:
        """Whether the call starts or awaits a collective, so that other processes would hang without the call."""
        if self.uses_process_group or self.symbol.communicates:
            return True
        for part in self.subsymbols:
            if part.communicates:
                return True
        functions = (argument for argument in self.args if isinstance(argument, Definition))
        return any(bsym.communicates for function in functions for bsym in getattr(function, "bound_symbols", ()))

    @property
    def returns_number(self) -> bool:
        """Whether the call returned a number. Other calls have the number as a constant, so no name refers to it."""
        return isinstance(self.output, int | float | complex) and not self.has_effect

    @property
    def tensors(self) -> tuple[TensorProxy, ...]:
        """The tensors among the outputs that the call defines."""
        return tuple(proxy for proxy in self.defines if isinstance(proxy, TensorProxy))

    def at_level(self, level: str) -> Iterator[BoundSymbol]:
        """Yield the call itself at level `torch`, or the aten operations of the call at level `aten`."""
        if level != "aten" or not self.subsymbols:
            yield self
            return
        for part in self.subsymbols:
            yield from part.at_level(level)

    def rename(self, names: Mapping[str, Proxy], at: tuple[SourceLine | None, str] | None = None) -> BoundSymbol:
        """Return the call with each proxy whose name is a key replaced, also in subsymbols.

        `at` is the source line and the module of the new call; by default, they do not change.
        """
        source, module = at or (self.source, self.module)
        renamed = object.__new__(BoundSymbol)
        vars(renamed).update(  # takes a third of the time of the constructor
            symbol=self.symbol,
            args=renamed_proxies(self.args, names),
            kwargs=renamed_proxies(dict(self.kwargs), names) if self.kwargs else {},
            output=renamed_proxies(self.output, names),
            subsymbols=tuple([sub.rename(names) for sub in self.subsymbols]) if self.subsymbols else (),
            source=source,
            module=module,
            mutates=tuple([names[name].name if name in names else name for name in self.mutates])
            if self.mutates
            else (),
            ordered=self.ordered,
            executor=self.executor,
            derives=self.derives,
            fresh=self.fresh,
            uses_process_group=self.uses_process_group,
        )
        return renamed


PYTHON = Symbol(CODE, exec)


def python_statement(text: str, output: Proxy | None = None, reads: tuple[Proxy, ...] = ()) -> BoundSymbol:
    """Return a statement of plain Python as a bound symbol. Its value is assigned to the output's name.

    Statements of a prologue state the variables that they read.
    """
    return BoundSymbol(symbol=PYTHON, args=(Code(text, reads),), kwargs={}, output=output)
