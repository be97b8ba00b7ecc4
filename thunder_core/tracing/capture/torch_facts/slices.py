"""Backward slices of a recording: the bound symbols that must run to compute the values of some names.

If a program reads a tensor's value at tracing, the bound symbols that the value depends on run on real inputs. These
are not all recorded ones, but the backward slice of the value, computed from reaching definitions as in a compiler.
Bound symbols define and use resources: names, memory (a write defines it), random numbers, and states of the process.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Sequence
from heapq import heappop, heappush
from typing import Any

from thunder_core.tracing.capture.torch_facts.compiled_call import name_of_call_with_effects
from thunder_core.tracing.capture.torch_facts.settings import setting_of
from thunder_core.tracing.capture.torch_facts.switches import switches_autocast
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.backward_hooks import NAMES_OF_REGISTERING

# Calls that only change autograd's state of one tensor. They do not affect values, because evaluation runs without
# autograd.
AUTOGRAD_STATE_CALLS = frozenset(
    {
        "torch.Tensor.requires_grad.__set__",
        "torch.Tensor.requires_grad_",
        "torch.Tensor.retain_grad",
        "torch.Tensor.register_hook",
        "torch.Tensor.register_post_accumulate_grad_hook",
        *NAMES_OF_REGISTERING,
    }
)
REPLACES_DATA = frozenset({"torch.Tensor.data.__set__", "thunder_core.tracing.library.objects.with_data"})
INFERENCE_MODE = frozenset(f"torch.autograd.grad_mode.inference_mode.__{name}__" for name in ("enter", "exit"))
IRRELEVANT_TO_VALUES = AUTOGRAD_STATE_CALLS | INFERENCE_MODE | {"torch._C._set_grad_enabled"}
SEEDS = ("torch.Generator", "torch.manual_seed", "torch.random.manual_seed")  # they change the next random numbers


Resource = tuple[str, Any]  # its kind, and its identity: a name, the memory of a tensor, or a state
RANDOM: Resource = ("random numbers", None)
STATE: Resource = ("state", None)


class Slices:
    """The backward slices of a growing recording, with an index of each bound symbol.

    `memory(name)` returns the identity of a tensor's memory, or None. A slice has the bound symbols that make the names
    or write to their memory, and earlier ones that change a state. Random numbers come from one stream, so a slice has
    all bound symbols that draw before the last draw that it needs.
    """

    def __init__(self, bsyms: Sequence[BoundSymbol], memory: Callable[[str], int | None]) -> None:
        self._bsyms = bsyms
        self._memory = memory
        self.forget()

    def forget(self) -> None:
        """Forget the index, because bound symbols of the recording were replaced."""
        self._indexed = 0
        self._first_effect: str | None = None
        self._switches_autocast = False
        self._autograd_state_calls: list[BoundSymbol] = []
        self._makers_of_inner: dict[Resource, int] = {}
        self._definitions: dict[Resource, list[int]] = defaultdict(list)

    def slice_of(self, proxies: Iterable[Proxy], done: Container[int] = ()) -> tuple[list[int], set[int]]:
        """Return the backward slice of proxies: the positions, in order, of its bound symbols that are not `done` yet.

        Also return the positions of bound symbols whose subsymbols make a value that the slice needs; these must run
        decomposed, and may be `done`. The search ends at positions that are `done`, so it takes time only for new
        positions. It requires that `done` is a union of whole slices.
        """
        self._index()
        indices, decomposed, waiting = set[int](), set[int](), list[int]()

        def require(resources: Sequence[Resource], before: int) -> None:
            inner = {self._makers_of_inner[resource] for resource in resources if resource in self._makers_of_inner}
            decomposed.update(inner)
            reaching = inner.union(*(self._reaching_definition(resource, before) for resource in resources))
            for index in reaching - indices:
                indices.add(index)
                heappush(waiting, -index)

        require([*self._used_resources(proxies), STATE], len(self._bsyms))
        sliced = []
        while waiting:
            index = -heappop(waiting)
            if index not in done:
                sliced.append(index)
                require(
                    [*self._used_resources(self._bsyms[index].inputs), *self._defined_resources(self._bsyms[index])],
                    index,
                )
        return sliced[::-1], decomposed

    def changing_autograd(self, inputs: Container[str]) -> BoundSymbol | None:
        """Return a bound symbol that changes autograd's state of an input, which could not be undone; None if there is
        none.
        """
        self._index()
        bsyms = self._autograd_state_calls
        return next((bsym for bsym in bsyms if any(proxy.name in inputs for proxy in bsym.inputs)), None)

    def first_effect(self) -> str | None:
        """Return the name of the first called compiled function with effects, or None."""
        self._index()
        return self._first_effect

    def maker_of(self, proxy: Proxy) -> BoundSymbol:
        """Return the last bound symbol that has a proxy among its outputs. Raises `KeyError` if there is none."""
        self._index()
        for index in reversed(self._definitions[("name", proxy.name)]):
            if proxy in self._bsyms[index].outputs:
                return self._bsyms[index]
        raise KeyError(proxy.name)

    def first_maker_of(self, proxy: Proxy) -> BoundSymbol | None:
        """Return the bound symbol that made a value, before any write to the value; None for an input."""
        self._index()
        indices = self._definitions.get(("name", proxy.name), ())
        return next((self._bsyms[index] for index in indices if proxy in self._bsyms[index].outputs), None)

    def switches_autocast(self) -> bool:
        """Whether a bound symbol changes autocast's state."""
        self._index()
        return self._switches_autocast

    def memory_of(self, names: Iterable[str]) -> set[int | None]:
        """Return the memory of tensors with these names; None is included if the memory of one is unknown."""
        return {self._memory(name) for name in names}

    def _index(self) -> None:
        """Add the new bound symbols to the index."""
        for index in range(self._indexed, len(self._bsyms)):
            bsym = self._bsyms[index]
            for resource in self._defined_resources(bsym):
                self._definitions[resource].append(index)
            outputs = {proxy.name for proxy in bsym.outputs}
            inner = {proxy.name for part in bsym.subsymbols for proxy in part.defines} - outputs
            self._makers_of_inner |= {("name", name): index for name in inner}
            if bsym.symbol.name in AUTOGRAD_STATE_CALLS:
                self._autograd_state_calls.append(bsym)
            self._first_effect = self._first_effect or name_of_call_with_effects([bsym])
            self._switches_autocast = self._switches_autocast or switches_autocast(bsym)
        self._indexed = len(self._bsyms)

    def _reaching_definition(self, resource: Resource, before: int) -> Sequence[int]:
        """Return the last definition of a resource before a position, as a list of at most one position."""
        indices = self._definitions.get(resource, [])
        number = bisect_left(indices, before)
        return indices[max(number - 1, 0) : number]

    def _used_resources(self, proxies: Iterable[Proxy]) -> list[Resource]:
        """Return the resources that a use of proxies reads: their names, and the memory of tensors."""
        names = {proxy.name for proxy in proxies}
        return [("name", name) for name in names] + self._memories(names)

    def _defined_resources(self, bsym: BoundSymbol) -> list[Resource]:
        """Return the resources that a bound symbol defines: its outputs, the memory that it writes, and states."""
        changed: list[Resource] = [("name", name) for name in {proxy.name for proxy in bsym.outputs}]
        states = ((RANDOM, is_drawing(bsym)), (STATE, bsym.ordered and is_state(bsym)))
        written = written_names(bsym)
        unknown: list[Resource] = [("name", name) for name in written if self._memory(name) is None]
        return changed + unknown + self._memories(written) + [state for state, changes in states if changes]

    def _memories(self, names: Iterable[str]) -> list[Resource]:
        """Return the known memory of tensors as resources."""
        return [("memory", memory) for memory in self.memory_of(names) - {None}]


def written_names(bsym: BoundSymbol) -> tuple[str, ...]:
    """Return the names of tensors that a bound symbol writes to, or whose data it replaces."""
    replaced = bsym.args[:1] if bsym.symbol.name in REPLACES_DATA else ()
    return (*bsym.mutates, *(proxy.name for proxy in replaced if isinstance(proxy, Proxy)))


def is_drawing(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol draws random numbers, or changes the next ones."""
    return bsym.ordered and not _is_thunders(bsym) and (bool(bsym.outputs) or _sets_seed(bsym))


def is_state(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol changes a state, apart from random numbers, that affects the results of later bound
    symbols.
    """
    setting = setting_of(bsym)
    changes_results = setting is None or setting.decisive
    if bsym.symbol.name in IRRELEVANT_TO_VALUES or _is_thunders(bsym) or not changes_results:
        return False
    return not (bsym.outputs or bsym.mutates or _sets_seed(bsym))


def _is_thunders(bsym: BoundSymbol) -> bool:
    return bsym.symbol.name.startswith("thunder_core.")


def _sets_seed(bsym: BoundSymbol) -> bool:
    return bsym.symbol.name.startswith(SEEDS)
