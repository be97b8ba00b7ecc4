"""Values of calls on real tensors, where the recording depends on them: what was recorded is run on the inputs."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from thunder_core.capture.autocast import State, autocast_state, changes
from thunder_core.capture.compiled_call import call_of, is_repeatable
from thunder_core.capture.graph import memory_of
from thunder_core.capture.memo import Made, fresh_fake
from thunder_core.capture.modes import without_recording
from thunder_core.capture.settings import setting_of
from thunder_core.capture.symbols import as_line
from thunder_core.capture.tensors import Tensors, tensors_in
from thunder_core.capture.trial import apart
from thunder_core.ir.evaluate import evaluate
from thunder_core.ir.proxy import Proxy, tensor_proxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.tree import leaves, replace_leaves

# Lines that ask something of autograd for one tensor, and all that do: autograd does not follow what is evaluated.
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
SEEDS = ("torch.Generator", "torch.manual_seed", "torch.random.manual_seed")  # what `apart` puts back
RESEEDS = frozenset({"torch.seed", "torch.random.seed", "torch.Generator.seed"})  # with a number that is new each time
SWITCHES = (torch.set_autocast_enabled, torch.set_autocast_dtype)
NUMBERS = (bool, int, float, complex)


class Unknowable(Exception):
    """A value that the recording cannot know ahead of the call: the reason."""


class Evaluation:
    """The values that bound symbols of a recording have in the call that is recorded.

    `lines` are those so far, and `numbers` the values of inputs that are numbers, by name. What was run once is not
    run again, as long as what is asked for later stands behind it.
    """

    def __init__(self, tensors: Tensors, lines: Sequence[BoundSymbol], numbers: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self._lines = lines
        self._numbers = numbers
        self._ambient = autocast_state()
        self.forget()

    def forget(self) -> None:
        """Begin anew: bound symbols were exchanged."""
        self._known: dict[str, Any] = {}
        self._done: set[int] = set()
        self._apart: set[int] = set()
        self._copying = False
        self._memory: dict[int, torch.UntypedStorage] = {}
        self._random: torch.Tensor | None = None
        self._autocast = self._ambient

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
            given = replace_leaves((args, kwargs), lambda leaf: stand_ins.get(id(leaf), leaf))
            with torch.set_grad_enabled(grad):
                result = function(*given[0], **given[1])
            pairs = list(zip(fakes, reals, strict=True))
            written = [fake for (fake, real), version in zip(pairs, versions, strict=True) if version != real._version]
            if grad and written and any(proxy.requires_grad for proxy in proxies):
                raise Unknowable("it writes to its arguments")
            known_fakes = {id(real): fake for fake, real in pairs}
            made = {id(leaf): fake_like(leaf, reals, fakes, self._tensors) for leaf in tensors_in(result)} | known_fakes
            return tree_map_only(torch.Tensor, lambda leaf: made[id(leaf)], result), written

    def _values(self, wanted: Iterable[Proxy]) -> dict[str, Any]:
        """The values of names, by running the bound symbols that they need and that have not been run."""
        wanted = list(wanted)
        needed, apart = self._needed(wanted)
        new = [place for place in needed if place not in self._done]
        writes = any(self._lines[place].mutates for place in needed)
        late = self._copying and self._done and new and new[0] < max(self._done)
        if (writes and not self._copying) or late or not apart.isdisjoint(self._done - self._apart):
            self.forget()
            self._copying, new = writes, needed
        ran = [line for place in new for line in spelled(self._lines[place], apart=place in apart)]
        self._take_inputs([*wanted, *(proxy for line in ran for proxy in line.inputs)])
        with torch.no_grad():
            self._run(ran)
        self._done.update(new)
        self._apart.update(apart)
        return self._known

    def _run(self, lines: Sequence[BoundSymbol]) -> None:
        ambient = autocast_state()
        if self._random is not None:
            torch.set_rng_state(self._random)
        switch(ambient, self._autocast)
        try:
            for line in lines:
                self._run_line(line)
        finally:
            self._autocast = autocast_state()
            switch(self._autocast, ambient)
            self._random = torch.get_rng_state()

    def _run_line(self, line: BoundSymbol) -> None:
        if call_of(line) is None and "autocast" in line.symbol.name and line.symbol.target not in SWITCHES:
            return
        unknown = [proxy.name for proxy in line.inputs if proxy.name not in self._known]
        if unknown:
            raise Unknowable(f"`{unknown[0]}`, which it hangs on, is not known before the call")
        with nullcontext() if call_of(line) is None else without_recording():
            evaluate([line], self._known)

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
                self._known[proxy.name] = unspoilt(objects[proxy.name])
            elif proxy.name in self._numbers:
                self._known[proxy.name] = self._numbers[proxy.name]

    def _needed(self, wanted: Sequence[Proxy]) -> tuple[list[int], set[int]]:
        """The places of what names need: what makes them or writes to them, and what changes a state.

        Lines that draw random numbers need all that draw before them. Also which of them have to be run apart, as
        what they consist of, for others need what is made on the way.
        """
        memory = self._tensors.memory_of_names()
        found, apart = _behind(self._lines, wanted, memory, draws=False)
        if any(is_drawing(self._lines[place]) for place in found):
            found, apart = _behind(self._lines, wanted, memory, draws=True)
        inputs = self._tensors.input_names()
        lasting = (place for place, line in enumerate(self._lines) if is_lasting(line, inputs))
        for place in (*(place for place in found if is_unknowable(self._lines[place])), *lasting):
            raise Unknowable(f"`{self._lines[place].symbol.name}` stands before it")
        return found, apart


def fake_like(
    real: torch.Tensor, reals: Sequence[torch.Tensor], fakes: Sequence[torch.Tensor], tensors: Tensors
) -> torch.Tensor:
    """A fake for a result, which is a view of a fake where the result is one of what the function was given."""
    storage = memory_of(real)
    base = next((place for place, one in enumerate(reals) if memory_of(one) == storage), None)
    offset = 0 if base is None else fakes[base].storage_offset() + real.storage_offset() - reals[base].storage_offset()
    made = fresh_fake(Made(tensor_proxy("", real), base, int(offset)), list(fakes), tensors.mode)
    return made.requires_grad_(real.requires_grad)


def copied(real: torch.Tensor, memory: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """A copy of a tensor, which shares memory with other copies as the tensor does; `memory` has that of the copies."""
    if real.layout is not torch.strided:
        return real.detach().clone()
    storage = real.untyped_storage()
    if storage._cdata not in memory:
        whole = torch.empty(0, dtype=torch.uint8, device=real.device).set_(storage)
        memory[storage._cdata] = whole.clone().untyped_storage()
    made = torch.empty(0, dtype=real.dtype, device=real.device)
    return made.set_(memory[storage._cdata], real.storage_offset(), real.shape, real.stride())


def switch(before: State, after: State) -> None:
    """Change autocast's state."""
    for line in changes(before, after):
        line.symbol.target(*line.args)


def _behind(
    lines: Sequence[BoundSymbol], wanted: Iterable[Proxy], memory: Mapping[str, int], draws: bool
) -> tuple[list[int], set[int]]:
    """The places of the bound symbols that names need, in order, and those of them whose inner results are needed."""
    names = {proxy.name for proxy in wanted}
    shared = {memory[name] for name in names if name in memory}
    found, apart = [], set[int]()
    for place in range(len(lines) - 1, -1, -1):
        line = lines[place]
        if any(proxy.name in names for part in line.subsymbols for proxy in part.defines):
            outputs = {proxy.name for proxy in line.outputs}
            inner = {proxy.name for part in line.subsymbols for proxy in part.defines} - outputs
            if not inner.isdisjoint(names):
                apart.add(place)
        writes = line.mutates and not shared.isdisjoint(memory.get(name, 0) for name in line.mutates)
        makes = place in apart or not names.isdisjoint(proxy.name for proxy in line.outputs)
        if writes or makes or (draws and is_drawing(line)) or (line.ordered and is_state(line)):
            found.append(place)
            names.update(proxy.name for proxy in line.inputs)
            shared.update(memory[proxy.name] for proxy in line.inputs if proxy.name in memory)
    return found[::-1], apart


def spelled(line: BoundSymbol, *, apart: bool) -> Iterable[BoundSymbol]:
    """The bound symbol, or what it consists of."""
    return (as_line(part, line) for part in line.subsymbols) if apart else (line,)


def is_drawing(line: BoundSymbol) -> bool:
    """Whether a bound symbol draws random numbers, or changes what the next ones are."""
    return line.ordered and not _is_own(line) and (bool(line.outputs) or _seeds(line))


def is_state(line: BoundSymbol) -> bool:
    """Whether a bound symbol changes how others compute, random numbers apart."""
    setting = setting_of(line)
    idle = line.symbol.name in IRRELEVANT or _is_own(line) or (setting is not None and not setting.decisive)
    return not (idle or line.outputs or line.mutates or _seeds(line))


def is_unknowable(line: BoundSymbol) -> bool:
    """Whether a bound symbol changes a state that cannot be taken back."""
    if call_of(line) is not None:
        return not is_repeatable(line)
    return line.symbol.name in RESEEDS or (line.ordered and is_state(line) and "autocast" not in line.symbol.name)


def is_lasting(line: BoundSymbol, inputs: Container[str]) -> bool:
    """Whether a bound symbol changes what autograd does with an input, which a call that is taken back cannot."""
    return line.symbol.name in OF_ONE_TENSOR and any(proxy.name in inputs for proxy in line.inputs)


def _is_own(line: BoundSymbol) -> bool:
    return line.symbol.name.startswith("thunder_core.")


def _seeds(line: BoundSymbol) -> bool:
    return line.symbol.name.startswith(SEEDS)


def unspoilt(generator: torch.Generator) -> torch.Generator:
    """A generator to draw from in an outside one's place; the default one is put back by `apart`."""
    return generator if generator is torch.default_generator else generator.clone_state()
