"""Collectives: which bound symbols communicate, in which group, how much, and where the program waits for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace, nested_bound_symbols

WAITS = frozenset({"wait_tensor", "wait"})
FROM_RANK_TO_RANK = frozenset({"send", "recv", "isend", "irecv", "batch_p2p_ops"})
OWN_CODE = "code of its own"  # the kind of what a `torch.autograd.Function` communicates
# Collectives to which each rank may give tensors of other sizes than the others.
UNEVEN = frozenset({"all_to_all_single", "all_to_all", "all_gather"})
SEVERAL = "_coalesced"  # the end of the names of collectives with several tensors, the same ones on all ranks


@dataclass(frozen=True)
class Collective:
    """A collective that begins: its kind, its group, and `facts` that are the same on all ranks of the group.

    `bytes` are those of the tensors that it reads. Only ranks of the group that are named have to do with a message
    from one rank to another.
    """

    kind: str
    group: str
    facts: tuple[str, ...]
    bytes: int
    source: SourceLine | None = field(default=None, compare=False)

    @property
    def is_of_all_ranks(self) -> bool:
        """Whether all ranks of the group take part."""
        return self.kind not in FROM_RANK_TO_RANK

    def __str__(self) -> str:
        return " ".join((self.kind, *self.facts))


def name_of_operator(bsym: BoundSymbol) -> str:
    """The name of an operator without its namespace and overload: `all_reduce` of `_c10d_functional.all_reduce`."""
    return bsym.symbol.name.removesuffix(".default").rpartition(".")[2].removesuffix("_")


def operators(bsym: BoundSymbol) -> Iterator[BoundSymbol]:
    """The operators by which a bound symbol communicates: itself, or parts of it."""
    if bsym.symbol.communicates or bsym.uses_process_group:
        yield bsym
    else:
        for part in bsym.subsymbols:
            yield from operators(part)


def is_wait(operator: BoundSymbol) -> bool:
    """Whether an operator waits for a collective that has begun."""
    return operator.symbol.communicates and name_of_operator(operator) in WAITS


def collective_of(operator: BoundSymbol, source: SourceLine | None) -> Collective:
    """The collective that an operator begins."""
    tensors = [proxy for proxy in operator.inputs if isinstance(proxy, TensorProxy)]
    size = sum(proxy.bytes for proxy in tensors)
    if operator.uses_process_group:
        return Collective(OWN_CODE, "", (operator.symbol.name,), size, source)
    kind = name_of_operator(operator)
    texts = [argument for argument in operator.args if isinstance(argument, str)]
    numbers = [str(argument) for argument in operator.args if type(argument) is int]
    sized = () if kind in UNEVEN else tensors if kind.endswith(SEVERAL) else tensors[:1]
    shapes = [f"{proxy.bytes} bytes" for proxy in sized]
    dtypes = sorted({str(proxy.dtype).removeprefix("torch.") for proxy in tensors})
    return Collective(kind, texts[-1] if texts else "", (*texts[:-1], *numbers, *dtypes, *shapes), size, source)


def collectives_of(trace: Trace) -> tuple[Collective, ...]:
    """The collectives that a trace begins, in their order."""
    return tuple(
        collective_of(operator, bsym.source)
        for bsym in nested_bound_symbols(trace)
        if bsym.communicates
        for operator in operators(bsym)
        if not is_wait(operator)
    )


@dataclass(frozen=True)
class Waits:
    """The places in a row of bound symbols at which the program waits, and for which collectives that began before."""

    bsyms: Sequence[BoundSymbol]

    @cached_property
    def starts(self) -> dict[int, int]:
        """The place of what began, by the place of the wait for it."""
        makers: dict[str, int] = {}
        starts: dict[int, int] = {}
        for place, bsym in enumerate(self.bsyms):
            if not bsym.communicates:
                continue
            if any(map(is_wait, operators(bsym))):
                begun = [makers[proxy.name] for proxy in bsym.inputs if proxy.name in makers]
                starts |= {place: begun[0]} if begun else {}
            makers |= {proxy.name: place for proxy in bsym.outputs}
        return starts

    def held(self) -> dict[int, tuple[Proxy, ...]]:
        """The proxies that a collective reads, by the place of the wait for it: their memory is needed until then."""
        return {wait: self.bsyms[start].inputs for wait, start in self.starts.items() if wait != start}


def groups_of(collectives: Iterable[Collective]) -> dict[str, list[Collective]]:
    """The collectives in which all ranks of a group take part, by the name of the group."""
    groups: dict[str, list[Collective]] = {}
    for collective in collectives:
        if collective.is_of_all_ranks and collective.group:
            groups.setdefault(collective.group, []).append(collective)
    return groups
