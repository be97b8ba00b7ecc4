"""Aliasing: the names of a trace that may share memory, according to the schemas of the aten operations."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch

from thunder_core.tracing.analysis.disjoint_sets import DisjointSets
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves

# Operators that share memory with their inputs, although their schemas do not declare it.
UNDECLARED_VIEWS = frozenset({"aten::_unsafe_view", "aten::_reshape_alias"})
MASKS = (torch.bool, torch.uint8)  # dtypes of indices that select elements
# Corrected schemas of operators that always return views, although PyTorch's schemas do not declare it.
SCHEMAS = {torch.ops.aten.data.default: torch._C.parse_schema("aten::data(Tensor(a) self) -> Tensor(a)")}


class AliasSets(DisjointSets[str]):
    """Sets of names that may share memory."""

    def add(self, bsym: BoundSymbol) -> None:
        """Record which results of a bound symbol's aten operations may share memory with their inputs."""
        for operation in bsym.at_level("aten"):
            for result in operation.outputs:
                for source in aliased_inputs(operation) if not isinstance(result, NumberProxy) else ():
                    self.unite(result.name, source.name)


def alias_sets(bsyms: Iterable[BoundSymbol], aliases: Iterable[Iterable[str]] = ()) -> AliasSets:
    """Return the sets of names in bound symbols that may share memory.

    Names in one of `aliases` share memory already.
    """
    sets = AliasSets()
    for first, *others in aliases:
        for alias in others:
            sets.unite(first, alias)
    for bsym in bsyms:
        sets.add(bsym)
    return sets


def names_written_to(trace: Trace) -> frozenset[str]:
    """Return every name whose memory a bound symbol of the trace writes to, or may write to."""
    if not any(bsym.mutates for bsym in trace.bound_symbols):
        return frozenset()
    aliasing = alias_sets(trace.bound_symbols, trace.aliases)
    written = {aliasing.representative(name) for bsym in trace.bound_symbols for name in bsym.mutates}
    names = {proxy.name for bsym in trace.bound_symbols for proxy in (*bsym.inputs, *bsym.outputs)}
    names |= {proxy.name for proxy in trace.inputs}
    return frozenset(name for name in names if aliasing.representative(name) in written)


def writes_to_inputs(trace: Trace) -> bool:
    """Whether a bound symbol may write to the memory of an input."""
    written = names_written_to(trace)
    return any(proxy.name in written for proxy in trace.inputs)


def aliased_inputs(operation: BoundSymbol) -> Iterator[Proxy]:
    """Yield the inputs whose memory the results of an operation may share; all inputs if the schema is unknown.

    Numbers have no memory.
    """
    if operation.fresh or selects_by_tensor(operation):
        return
    schema = schema_of(operation)
    if schema is None:
        yield from (proxy for proxy in operation.inputs if not isinstance(proxy, NumberProxy))
        return
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None:
            value = operation.args[index] if index < len(operation.args) else operation.kwargs.get(argument.name)
            yield from (leaf for leaf in leaves(value) if isinstance(leaf, Proxy))


def selects_by_tensor(operation: BoundSymbol) -> bool:
    """Whether an operation is `x[index]` with a tensor in the index, so that its result has new memory.

    An integer tensor without dimensions counts as a number, and an index of numbers makes a view.
    """
    if operation.symbol.target is not torch.Tensor.__getitem__:
        return False
    entries = leaves(operation.args[1:])
    tensors = (entry for entry in entries if isinstance(entry, TensorProxy))
    return any(entry.shape or entry.dtype in MASKS for entry in tensors)


def is_view(bsym: BoundSymbol) -> bool:
    """Whether all results of a bound symbol are views: each aten operation returns a view and writes nothing."""
    schemas = [schema_of(operation) for operation in bsym.at_level("aten")]
    return all(
        schema is not None
        and not schema.is_mutable
        and bool(schema.returns)
        and all(result.alias_info is not None for result in schema.returns)
        for schema in schemas
    )


def may_return_view(bsym: BoundSymbol) -> bool:
    """Whether a result of a bound symbol may be a view of its inputs; unknown operations count as views."""
    schemas = [schema_of(operation) for operation in bsym.at_level("aten")]
    return any(schema is None or any(out.alias_info is not None for out in schema.returns) for schema in schemas)


def shares_storage(operation: BoundSymbol) -> bool:
    """Whether an aten operation returns the storage of an input, by its schema or by `UNDECLARED_VIEWS`."""
    schema = schema_of(operation)
    if schema is None:
        return False
    return schema.name in UNDECLARED_VIEWS or any(result.alias_info is not None for result in schema.returns)


def computes_nothing(operation: BoundSymbol) -> bool:
    """Whether an aten operation only returns the storage of an input, as a view, and writes nothing."""
    schema = schema_of(operation)
    return schema is not None and not schema.is_mutable and shares_storage(operation)


def schema_of(operation: BoundSymbol) -> torch.FunctionSchema | None:
    """Return the schema of the operator that a bound symbol calls; None if it does not call an operator."""
    target = operation.symbol.target
    return SCHEMAS.get(target, target._schema) if isinstance(target, torch._ops.OpOverload) else None


def written_tensors(operation: BoundSymbol) -> Iterator[TensorProxy]:
    """Yield the tensors that an aten operation writes to, according to its schema."""
    schema = schema_of(operation)
    if schema is None or not schema.is_mutable:
        return
    for index, argument in enumerate(schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = operation.args[index] if index < len(operation.args) else operation.kwargs.get(argument.name)
            yield from (leaf for leaf in leaves(value) if isinstance(leaf, TensorProxy))
