"""Values of calls on real tensors, where the recording depends on them: what was recorded is run on the inputs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from operator import itemgetter
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from thunder_core.capture.autocast import State, autocast_state, changes
from thunder_core.capture.compiled_call import call_of, is_repeatable
from thunder_core.capture.fake import marked
from thunder_core.capture.graph import memory_of
from thunder_core.capture.memo import Made, fresh_fake
from thunder_core.capture.modes import without_recording
from thunder_core.capture.slices import Slices, is_state
from thunder_core.capture.switches import switches_autocast
from thunder_core.capture.symbols import as_bound_symbol
from thunder_core.capture.tensors import Tensors, tensors_in
from thunder_core.capture.trial import apart
from thunder_core.ir.evaluate import evaluate
from thunder_core.ir.proxy import NumberProxy, Proxy, TensorProxy, tensor_proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves, replace_leaves

RESEEDS = frozenset({"torch.seed", "torch.random.seed", "torch.Generator.seed"})  # with a number that is new each time
SWITCHES = (torch.set_autocast_enabled, torch.set_autocast_dtype)
NUMBERS = (bool, int, float, complex)


class Unknowable(Exception):
    """A value that the recording cannot know ahead of the call: the reason."""


class Evaluation:
    """The values that bound symbols of a recording have in the call that is recorded.

    `bsyms` are those so far, and `numbers` the values of inputs that are numbers, by name. What was run once is not
    run again, as long as what is asked for later stands behind it.
    """

    def __init__(self, tensors: Tensors, bsyms: Sequence[BoundSymbol], numbers: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self._bsyms = bsyms
        self._numbers = numbers
        self._ambient = autocast_state()
        self._slices = Slices(bsyms, tensors.memory_of_name)
        self.forget()

    def forget(self) -> None:
        """Begin anew: bound symbols were exchanged."""
        self._slices.forget()
        self._copying = False
        self._begin_anew()

    def _begin_anew(self) -> None:
        """Forget what was run."""
        self._known: dict[str, Any] = {}
        self._done: set[int] = set()
        self._decomposed: set[int] = set()
        self._written: dict[int | None, int] = {}
        self._memory: dict[int, torch.UntypedStorage] = {}
        self._random: torch.Tensor | None = None
        self._autocast = [(-1, self._ambient)]  # the states behind the places that switch it

    def first_effect(self) -> str | None:
        """The name of the first compiled function with effects that is called, if one is."""
        return self._slices.first_effect()

    def value(self, proxy: Proxy) -> Any:
        """The value of a proxy; raises `Unknowable`, and what is raised on the way to it."""
        with apart():
            return self._values([proxy])[proxy.name]

    def call(self, function: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, list[torch.Tensor]]:
        """The result of a function on the values that its tensors have here, with fakes for the tensors among it.

        Also the fakes that it writes to. Raises what the function raises, and `Unknowable`.
        """
        if any(isinstance(leaf, torch.Generator) for leaf in leaves((args, kwargs))):
            raise Unknowable("it draws from a generator")
        fakes = tensors_in((args, kwargs))
        proxies = [self._tensors.proxy(fake) for fake in fakes]
        grad = torch.is_grad_enabled()
        with apart():
            known, memory = self._values(proxies), dict[int, torch.UntypedStorage]()
            reals = [copied(known[proxy.name], memory).requires_grad_(proxy.requires_grad) for proxy in proxies]
            versions = [real._version for real in reals]
            stand_ins = {id(fake): real for fake, real in zip(fakes, reals, strict=True)}
            arguments = self._tensors.in_call(
                replace_leaves((args, kwargs), lambda leaf: stand_ins.get(id(leaf), leaf))
            )
            with torch.set_grad_enabled(grad):
                result = function(*arguments[0], **arguments[1])
            pairs = list(zip(fakes, reals, strict=True))
            written = [fake for (fake, real), version in zip(pairs, versions, strict=True) if version != real._version]
            if grad and written and any(proxy.requires_grad for proxy in proxies):
                raise Unknowable("it writes to its arguments")
            known_fakes = {id(real): fake for fake, real in pairs}
            new_fakes = {id(leaf): fake_like(leaf, reals, fakes, self._tensors) for leaf in tensors_in(result)}
            new_fakes |= known_fakes
            return tree_map_only(torch.Tensor, lambda leaf: new_fakes[id(leaf)], result), written

    def _values(self, wanted: Iterable[Proxy]) -> dict[str, Any]:
        """The values of names, by running the bound symbols that they need and that have not been run."""
        wanted = list(wanted)
        new, decomposed = self._needed(wanted)
        if self._is_too_late(new, decomposed):
            copying = self._copying or any(self._bsyms[place].mutates for place in new)
            self._begin_anew()
            self._copying = copying
            new, decomposed = self._needed(wanted)
        ran = {place: list(operations_of(self._bsyms[place], decomposed=place in decomposed)) for place in new}
        self._take_inputs([*wanted, *(proxy for bsyms in ran.values() for bsym in bsyms for proxy in bsym.inputs)])
        with torch.no_grad():
            self._run(ran)
        self._remember(new)
        self._decomposed.update(decomposed)
        return self._known

    def _is_too_late(self, new: Sequence[int], decomposed: set[int]) -> bool:
        """Whether bound symbols cannot be run behind those that were run, as they can in most places.

        They cannot where others have written to what they read since, or now write to the inputs themselves; nor where
        one was run whole whose inner results are needed.
        """
        writes = not self._copying and any(self._bsyms[place].mutates for place in new)
        return writes or bool((self._done - self._decomposed) & decomposed) or any(map(self._is_passed, new))

    def _is_passed(self, place: int) -> bool:
        """Whether what a bound symbol reads was changed by one that stands behind it and was run."""
        bsym = self._bsyms[place]
        read = {proxy.name for proxy in bsym.inputs if isinstance(proxy, TensorProxy)}
        changes = [self._written.get(memory, -1) for memory in self._slices.memory_of(read) - {None}]
        unknown = max(self._written.values(), default=-1) if None in self._slices.memory_of(read) else -1
        return place < max((unknown, *changes))

    def _remember(self, places: Iterable[int]) -> None:
        """Remember that bound symbols were run, and the last one that wrote to some memory."""
        for place in places:
            bsym = self._bsyms[place]
            self._done.add(place)
            for memory in self._slices.memory_of(bsym.mutates):
                self._written[memory] = max(place, self._written.get(memory, -1))

    def _run(self, bsyms: Mapping[int, Sequence[BoundSymbol]]) -> None:
        """Run bound symbols by their places, each in the state of autocast that there is at its place."""
        ambient = autocast_state()
        if self._random is not None:
            torch.set_rng_state(self._random)
        try:
            for place, parts in bsyms.items():
                switch(autocast_state(), self._autocast_before(place))
                for bsym in parts:
                    self._run_bsym(bsym)
                if switches_autocast(self._bsyms[place]):
                    self._autocast.append((place, autocast_state()))
        finally:
            switch(autocast_state(), ambient)
            self._random = torch.get_rng_state()

    def _autocast_before(self, place: int) -> State:
        return self._autocast[bisect_left(self._autocast, place, key=itemgetter(0)) - 1][1]

    def _run_bsym(self, bsym: BoundSymbol) -> None:
        if switches_autocast(bsym) and bsym.symbol.target not in SWITCHES:
            return
        unknown = [proxy.name for proxy in bsym.inputs if proxy.name not in self._known]
        if unknown:
            raise Unknowable(f"`{unknown[0]}`, which it hangs on, is not known before the call")
        with nullcontext() if call_of(bsym) is None else without_recording():
            evaluate([bsym], self._known)

    def _take_inputs(self, proxies: Iterable[Proxy]) -> None:
        """Know the inputs among these; copies of them where bound symbols write to some."""
        reals = {proxy.name: real for real, proxy in self._tensors.inputs.values()}
        objects = {proxy.name: one for one, proxy in self._tensors.objects.values()}
        for proxy in proxies:
            if proxy.name in self._known:
                continue
            if proxy.name in reals:
                real = reals[proxy.name]
                self._known[proxy.name] = copied(real, self._memory) if self._copying else real
            elif proxy.name in objects:
                self._known[proxy.name] = spare_generator(objects[proxy.name])
            elif proxy.name in self._numbers:
                self._known[proxy.name] = self._numbers[proxy.name]
            elif isinstance(proxy, NumberProxy):
                self._known[proxy.name] = self._tensors.in_call(proxy.value)

    def _needed(self, wanted: Sequence[Proxy]) -> tuple[list[int], set[int]]:
        """The places of what names need and what was not run, as the slices have them.

        Also which have to be run apart, as what they consist of, for others need what is made on the way.
        """
        places, decomposed = self._slices.slice_of(wanted, self._done)
        bsyms = [self._bsyms[place] for place in places]
        lasting = self._slices.changing_autograd(self._tensors.input_names())
        if bsym := next(filter(is_unknowable, bsyms), lasting):
            raise Unknowable(f"`{bsym.symbol.name}` stands before it")
        return places, decomposed


def fake_like(
    real: torch.Tensor, reals: Sequence[torch.Tensor], fakes: Sequence[torch.Tensor], tensors: Tensors
) -> torch.Tensor:
    """A fake for a result, which is a view of a fake where the result is one of what the function was given."""
    storage = memory_of(real)
    base = next((place for place, one in enumerate(reals) if memory_of(one) == storage), None)
    offset = 0 if base is None else fakes[base].storage_offset() + real.storage_offset() - reals[base].storage_offset()
    fake = fresh_fake(Made(tensor_proxy("", real), base, int(offset)), list(fakes), tensors.mode)
    return fake.requires_grad_(real.requires_grad)


def copied(real: torch.Tensor, memory: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """A copy of a tensor, which shares memory with other copies as the tensor does; `memory` has that of the copies."""
    if real.layout is not torch.strided:
        return real.detach().clone()
    storage = real.untyped_storage()
    if storage._cdata not in memory:
        storage_bytes = torch.empty(0, dtype=torch.uint8, device=real.device).set_(storage)
        memory[storage._cdata] = storage_bytes.clone().untyped_storage()
    copy = torch.empty(0, dtype=real.dtype, device=real.device)
    copy.set_(memory[storage._cdata], real.storage_offset(), real.shape, real.stride())
    return marked(copy, is_conj=real.is_conj(), is_neg=real.is_neg())


def switch(before: State, after: State) -> None:
    """Change autocast's state."""
    for bsym in changes(before, after):
        bsym.symbol.target(*bsym.args)


def operations_of(bsym: BoundSymbol, *, decomposed: bool) -> Iterable[BoundSymbol]:
    """The bound symbol, or what it consists of."""
    return (as_bound_symbol(part, bsym) for part in bsym.subsymbols) if decomposed else (bsym,)


def is_unknowable(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol changes a state that cannot be taken back."""
    if call_of(bsym) is not None:
        return not is_repeatable(bsym)
    return bsym.symbol.name in RESEEDS or (bsym.ordered and is_state(bsym) and not switches_autocast(bsym))


def spare_generator(generator: torch.Generator) -> torch.Generator:
    """A generator to draw from in an outside one's place; the default one is put back by `apart`."""
    return generator if generator is torch.default_generator else generator.clone_state()
