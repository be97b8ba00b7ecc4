"""How many bytes a computation holds after each of its lines, told from the trace alone."""

from __future__ import annotations

from collections.abc import Iterator

from torch import _C

from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.lower.free import DELETE

UNDECLARED_VIEWS = frozenset({"aten::_unsafe_view", "aten::_reshape_alias"})


def live_bytes(trace: Trace) -> Iterator[int]:
    """Bytes of the tensors that the computation has made and not yet freed, after each line; views share storage."""
    storage: dict[str, str] = {}
    names: dict[str, set[str]] = {}
    held: dict[str, int] = {}
    given = {proxy.name for proxy in trace.inputs}
    for bsym in trace.bound_symbols:
        for proxy, base in births(bsym):
            owner = storage.get(base, base) if base is not None else proxy.name
            storage[proxy.name] = owner
            names.setdefault(owner, set()).add(proxy.name)
            if base is None and owner not in given:
                held[owner] = proxy.bytes
        if bsym.symbol.name == DELETE.name:
            for name in deleted(bsym):
                owner = storage.get(name, name)
                names.get(owner, set()).discard(name)
                if not names.get(owner):
                    held.pop(owner, None)
        yield sum(held.values())


def births(bsym: BoundSymbol) -> Iterator[tuple[TensorProxy, str | None]]:
    """Each tensor that a line makes, with the name whose storage it shares; the steps of a line are looked through."""
    made = {proxy.name for proxy in bsym.tensors}
    bases: dict[str, str] = {}
    for step in bsym.subsymbols or (bsym,):
        read = next((proxy.name for proxy in step.inputs if isinstance(proxy, TensorProxy)), None)
        if read is not None and returns_view(step):
            bases |= {proxy.name: bases.get(read, read) for proxy in step.tensors}
    for proxy in bsym.tensors:
        base = bases.get(proxy.name)
        yield proxy, base if base not in made else None


def returns_view(step: BoundSymbol) -> bool:
    """Whether what an operation returns shares the storage of what it reads, as its schema says."""
    schema = getattr(step.symbol.target, "_schema", None)
    if not isinstance(schema, _C.FunctionSchema):
        return False
    return schema.name in UNDECLARED_VIEWS or any(result.alias_info is not None for result in schema.returns)


def deleted(bsym: BoundSymbol) -> list[str]:
    """The names that a `del` line deletes."""
    return [proxy.name for proxy in bsym.args if isinstance(proxy, Proxy)]
