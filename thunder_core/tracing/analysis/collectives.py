"""Collectives in traces: the bound symbols that communicate, their groups and sizes, and the positions of waits."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2s
from itertools import chain, zip_longest
from types import MappingProxyType

from thunder_core.foundation.errors import SourceLine
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy, dtype_name
from thunder_core.tracing.ir.sizes import is_symbolic
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.trace import Trace, nested_bound_symbols

WAIT_NAMES = frozenset({"wait_tensor", "wait"})
POINT_TO_POINT = frozenset({"send", "recv", "isend", "irecv", "batch_p2p_ops"})
OWN_CODE = "code of its own"  # the `kind` of communication in a `torch.autograd.Function`, whose code is not traced
# Collectives for which the ranks may pass tensors of different sizes.
WITH_UNEVEN_SIZES = frozenset({"all_to_all_single", "all_to_all", "all_gather"})
REDUCE_SCATTER = "reduce_scatter"  # its outputs may differ in size between ranks, but its inputs may not
VARYING_NUMBER = "?"  # represents a number that varies between the calls of a program
COALESCED_SUFFIX = "_coalesced"  # the suffix of collectives of several tensors; all sizes are equal on all ranks
LOCAL_SHARDS = "_local_shards"  # the attribute of a module with the shards of its parameters by name
SHARD = re.compile(rf"\.{LOCAL_SHARDS}\['([^']*)'\]")  # the end of the origin of a shard, with the parameter's name
# The prefix of the operators that take gradients before a reduction; their second argument lists the parameters.
TAKES_GRADIENTS = "torch.ops.thunder_parallel.take"
DIGEST_BYTES = 4  # bytes of the digest of a list of parameters


@dataclass(frozen=True)
class Collective:
    """A collective operation: its kind, its group, and `facts` that are equal on all ranks of the group.

    `bytes` is the size of the tensors that the collective reads. Point-to-point messages are collectives of two ranks.
    """

    kind: str
    group: str
    facts: tuple[str, ...]
    bytes: int
    source: SourceLine | None = field(default=None, compare=False)

    @property
    def involves_all_ranks(self) -> bool:
        """Whether all ranks of the group take part in the collective."""
        return self.kind not in POINT_TO_POINT

    def __str__(self) -> str:
        return " ".join((self.kind, *self.facts))


def is_same_line(own: str | None, theirs: str | None) -> bool:
    """Whether the texts of two collectives are equal, apart from numbers that vary between calls on either rank."""
    if own is None or theirs is None:
        return own is theirs
    words = zip_longest(own.split(), theirs.split())
    return own == theirs or all(pair[0] == pair[1] or (VARYING_NUMBER in pair and None not in pair) for pair in words)


def first_difference(own: Sequence[str], theirs: Sequence[str]) -> int | None:
    """Return the index of the first collective whose text differs between two ranks; None if all are the same."""
    pairs = zip_longest(own, theirs)
    return next((index for index, pair in enumerate(pairs) if not is_same_line(*pair)), None)


def text_of_bytes(proxy: TensorProxy) -> str:
    """Return the bytes of a tensor in words: `? bytes` for symbolic sizes, which vary between calls."""
    return f"{VARYING_NUMBER if any(map(is_symbolic, proxy.shape)) else proxy.bytes} bytes"


def name_of_operator(bsym: BoundSymbol) -> str:
    """Return an operator's name without namespace and overload: `all_reduce` for `_c10d_functional.all_reduce`."""
    return bsym.symbol.name.removesuffix(".default").rpartition(".")[2].removesuffix("_")


def operators(bsym: BoundSymbol) -> Iterator[BoundSymbol]:
    """Yield the operators with which a bound symbol communicates: the bound symbol itself, or its subsymbols."""
    if bsym.symbol.communicates or bsym.uses_process_group:
        yield bsym
    else:
        for part in bsym.subsymbols:
            yield from operators(part)


def started_collectives(bsym: BoundSymbol) -> list[BoundSymbol]:
    """Return the operators of a bound symbol that start collectives."""
    return [operator for operator in operators(bsym) if not is_wait(operator)] if bsym.communicates else []


def is_wait(operator: BoundSymbol) -> bool:
    """Whether an operator waits for a collective that was started."""
    return operator.symbol.communicates and name_of_operator(operator) in WAIT_NAMES


def sized_tensors(kind: str, operator: BoundSymbol, tensors: list[TensorProxy]) -> list[TensorProxy]:
    """Return those of a collective's tensors whose sizes are equal on all ranks."""
    if kind in WITH_UNEVEN_SIZES:
        return []
    if kind == REDUCE_SCATTER:
        return list(operator.args[1])
    return tensors if kind.endswith(COALESCED_SUFFIX) else tensors[:1]


def collective_of(
    operator: BoundSymbol, source: SourceLine | None, parameters: Mapping[str, Sequence[str]] = MappingProxyType({})
) -> Collective:
    """Return the collective that an operator starts; `parameters` is the result of `parameters_by_tensor`."""
    tensors = [proxy for proxy in operator.inputs if isinstance(proxy, TensorProxy)]
    size = sum(proxy.bytes for proxy in tensors)
    if operator.uses_process_group:
        return Collective(OWN_CODE, "", (operator.symbol.name,), size, source)
    kind = name_of_operator(operator)
    texts = [argument for argument in operator.args if isinstance(argument, str)]
    integers = [argument for argument in operator.args if type(argument) is int or is_symbolic(argument)]
    numbers = [VARYING_NUMBER if is_symbolic(integer) else str(integer) for integer in integers]
    shapes = list(map(text_of_bytes, sized_tensors(kind, operator, tensors)))
    dtypes = sorted({dtype_name(proxy.dtype) for proxy in tensors})
    origins = dict.fromkeys(origin for proxy in tensors for origin in parameters.get(proxy.name, ()))
    facts = (*texts[:-1], *numbers, *dtypes, *shapes, *([text_of_parameters([*origins])] if origins else []))
    return Collective(kind, texts[-1] if texts else "", facts, size, source)


def text_of_parameters(origins: Sequence[str]) -> str:
    """Describe parameters by the first of them; for several, add their number and a digest of all."""
    first = SHARD.sub(r".\1", "_".join(origins[0].split())).removeprefix("module.")
    if len(origins) == 1:
        return f"of {first}"
    digest = blake2s("\n".join(origins).encode(), digest_size=DIGEST_BYTES).hexdigest()
    return f"of {first} and {len(origins) - 1} more ({digest})"


def parameters_by_tensor(trace: Trace) -> dict[str, tuple[str, ...]]:
    """Return, for each tensor that a parallel recipe gathers or reduces, the parameters that the tensor belongs to.

    A parameter is given by its origin, such as `module.layers[0].weight`. The tensors are shards, tensors computed from
    shards only, and gradients.
    """
    made_of: dict[str, tuple[str, ...]] = {
        name: (origin,) for name, origin in trace.origins.items() if LOCAL_SHARDS in origin
    }
    for bsym in trace.bound_symbols:
        parameters: tuple[str, ...] = ()
        if bsym.symbol.name.startswith(TAKES_GRADIENTS):
            parameters = tuple(trace.origins.get(proxy.name, proxy.name) for proxy in bsym.args[1])
        elif not bsym.communicates and all(proxy.name in made_of for proxy in bsym.inputs):
            parameters = tuple(chain.from_iterable(made_of[proxy.name] for proxy in bsym.inputs))
        if parameters:
            made_of |= {proxy.name: parameters for proxy in bsym.outputs}
    return made_of


def collectives_of(trace: Trace) -> tuple[Collective, ...]:
    """Return the collectives that a trace starts, in order."""
    started = [
        (operator, bsym.source) for bsym in nested_bound_symbols(trace) for operator in started_collectives(bsym)
    ]
    parameters = parameters_by_tensor(trace) if started else {}
    return tuple(collective_of(operator, source, parameters) for operator, source in started)


@dataclass(frozen=True)
class Waits:
    """The waits in a sequence of bound symbols, and the collectives that they wait for."""

    bsyms: Sequence[BoundSymbol]

    @cached_property
    def starts(self) -> dict[int, int]:
        """The position of the collective that each wait waits for, by the position of the wait."""
        makers: dict[str, int] = {}
        starts: dict[int, int] = {}
        for index, bsym in enumerate(self.bsyms):
            if not bsym.communicates:
                continue
            if any(map(is_wait, operators(bsym))):
                started = [makers[proxy.name] for proxy in bsym.inputs if proxy.name in makers]
                starts |= {index: started[0]} if started else {}
            makers |= {proxy.name: index for proxy in bsym.outputs}
        return starts

    @cached_property
    def first(self) -> dict[int, int]:
        """The position of the first wait for each collective, by the position of its start.

        After the first wait, all tensors of a coalesced collective are complete.
        """
        firsts: dict[int, int] = {}
        for wait, start in sorted(self.starts.items()):
            firsts.setdefault(start, wait)
        return firsts

    def in_flight(self, index: int) -> tuple[int, ...]:
        """Return the positions of the collectives that start before the position `index` and are awaited after it."""
        return tuple(start for start, wait in sorted(self.first.items()) if start < index < wait)

    def held_inputs(self) -> dict[int, tuple[Proxy, ...]]:
        """Return for the position of each wait the inputs of its collective, whose memory is needed until the wait."""
        return {wait: self.bsyms[start].inputs for wait, start in self.starts.items() if wait != start}


def groups_of(collectives: Iterable[Collective]) -> dict[str, list[Collective]]:
    """Return the collectives that all ranks of a group take part in, in order, by the name of the group."""
    groups: dict[str, list[Collective]] = {}
    for collective in collectives:
        if collective.involves_all_ranks and collective.group:
            groups.setdefault(collective.group, []).append(collective)
    return groups
