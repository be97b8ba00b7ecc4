"""Backward slices of a recording that grows: the bound symbols that the values of names hang on."""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from thunder_core.capture.compiled_call import acts_before, call_of
from thunder_core.capture.settings import setting_of
from thunder_core.ir.proxy import Proxy
from thunder_core.ir.symbol import BoundSymbol

# Calls that ask something of autograd for one tensor; IRRELEVANT has all, for autograd follows no evaluation.
OF_ONE_TENSOR = frozenset(
    {
        "torch.Tensor.requires_grad.__set__",
        "torch.Tensor.requires_grad_",
        "torch.Tensor.retain_grad",
        "torch.Tensor.register_hook",
        "torch.Tensor.register_post_accumulate_grad_hook",
    }
)
IRRELEVANT = OF_ONE_TENSOR | {"torch._C._set_grad_enabled"}
SEEDS = ("torch.Generator", "torch.manual_seed", "torch.random.manual_seed")  # they change what is drawn next


Resource = tuple[str, Any]  # a name, the memory of a tensor, or a state: what bound symbols change, one after the other
RANDOM: Resource = ("random numbers", None)
STATE: Resource = ("state", None)


class Slices:
    """The backward slices of a recording, by an index that each bound symbol enters once.

    `memory(name)` is the identity of the memory that a tensor lies in, or None. A slice has what makes names or
    writes to their memory, and what changes a state. Of what draws random numbers it has all before the last one that
    it needs.
    """

    def __init__(self, bsyms: Sequence[BoundSymbol], memory: Callable[[str], int | None]) -> None:
        self._bsyms = bsyms
        self._memory = memory
        self.forget()

    def forget(self) -> None:
        """Index anew: bound symbols were exchanged."""
        self._indexed = 0
        self._first_effect: str | None = None
        self._of_one_tensor: list[BoundSymbol] = []
        self._inside: dict[Resource, int] = {}
        self._changes: dict[Resource, list[int]] = defaultdict(list)

    def behind(self, wanted: Iterable[Proxy], done: Container[int] = ()) -> tuple[list[int], set[int]]:
        """The places, in order, of the bound symbols in the slice of these names without those that are `done`.

        Also those places, done ones among them, whose inner results are needed. What is done must be the union of
        whole slices: what these hang on is not looked for. So none is visited but those that are new.
        """
        self._index()
        places, apart, waiting = set[int](), set[int](), list[int]()

        def need(resources: Sequence[Resource], before: int) -> None:
            inner = {self._inside[resource] for resource in resources if resource in self._inside}
            apart.update(inner)
            for place in inner.union(*(self._last_change(resource, before) for resource in resources)) - places:
                places.add(place)
                heappush(waiting, -place)

        need([*self._read(wanted), STATE], len(self._bsyms))
        reached = []
        while waiting:
            place = -heappop(waiting)
            if place not in done:
                reached.append(place)
                need([*self._read(self._bsyms[place].inputs), *self._changed(self._bsyms[place])], place)
        return reached[::-1], apart

    def changing_autograd(self, inputs: Container[str]) -> BoundSymbol | None:
        """A bound symbol that changes what autograd does with an input, which a call that is taken back cannot."""
        self._index()
        bsyms = self._of_one_tensor
        return next((bsym for bsym in bsyms if any(proxy.name in inputs for proxy in bsym.inputs)), None)

    def first_effect(self) -> str | None:
        """The name of the first compiled function with effects that is called, if one is."""
        self._index()
        return self._first_effect

    def memory_of(self, names: Iterable[str]) -> set[int | None]:
        """The memory of tensors with these names; None among it where that of one is unknown."""
        return {self._memory(name) for name in names}

    def _index(self) -> None:
        """Enter the bound symbols that are new."""
        for place in range(self._indexed, len(self._bsyms)):
            bsym = self._bsyms[place]
            for resource in self._changed(bsym):
                self._changes[resource].append(place)
            outputs = {proxy.name for proxy in bsym.outputs}
            inner = {proxy.name for part in bsym.subsymbols for proxy in part.defines} - outputs
            self._inside |= {("name", name): place for name in inner}
            if bsym.symbol.name in OF_ONE_TENSOR:
                self._of_one_tensor.append(bsym)
            self._first_effect = self._first_effect or acts_before([bsym])
        self._indexed = len(self._bsyms)

    def _last_change(self, resource: Resource, before: int) -> Sequence[int]:
        """The place, if any, of the last change of a resource before another place; it needs those before itself."""
        places = self._changes.get(resource, [])
        number = bisect_left(places, before)
        return places[max(number - 1, 0) : number]

    def _read(self, proxies: Iterable[Proxy]) -> list[Resource]:
        names = {proxy.name for proxy in proxies}
        return [("name", name) for name in names] + self._memories(names)

    def _changed(self, bsym: BoundSymbol) -> list[Resource]:
        changed: list[Resource] = [("name", name) for name in {proxy.name for proxy in bsym.outputs}]
        states = ((RANDOM, is_drawing(bsym)), (STATE, bsym.ordered and is_state(bsym)))
        unknown: list[Resource] = [("name", name) for name in bsym.mutates if self._memory(name) is None]
        return changed + unknown + self._memories(bsym.mutates) + [state for state, changes in states if changes]

    def _memories(self, names: Iterable[str]) -> list[Resource]:
        return [("memory", memory) for memory in self.memory_of(names) - {None}]


def is_drawing(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol draws random numbers, or changes what the next ones are."""
    return bsym.ordered and not _is_own(bsym) and (bool(bsym.outputs) or _seeds(bsym))


def is_state(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol changes how others compute, random numbers apart."""
    setting = setting_of(bsym)
    idle = bsym.symbol.name in IRRELEVANT or _is_own(bsym) or (setting is not None and not setting.decisive)
    return not (idle or bsym.outputs or bsym.mutates or _seeds(bsym))


def switches_autocast(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol changes autocast's state."""
    return call_of(bsym) is None and "autocast" in bsym.symbol.name


def _is_own(bsym: BoundSymbol) -> bool:
    return bsym.symbol.name.startswith("thunder_core.")


def _seeds(bsym: BoundSymbol) -> bool:
    return bsym.symbol.name.startswith(SEEDS)
