"""Compute values that a recording depends on, by running recorded bound symbols on the real inputs."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from operator import itemgetter
from typing import Any

import torch
from torch.utils._pytree import tree_map_only

from thunder_core.tracing.capture.fakes.fake import mark
from thunder_core.tracing.capture.fakes.memo import MemoizedResult, fresh_fake
from thunder_core.tracing.capture.fakes.tensors import Tensors, tensors_in
from thunder_core.tracing.capture.fakes.trial import outside_recording
from thunder_core.tracing.capture.torch_facts.autocast import State, autocast_state, changes
from thunder_core.tracing.capture.torch_facts.autograd_nodes import tracked_from_values
from thunder_core.tracing.capture.torch_facts.compiled_call import call_of, is_repeatable
from thunder_core.tracing.capture.torch_facts.graph import memory_of
from thunder_core.tracing.capture.torch_facts.modes import without_recording
from thunder_core.tracing.capture.torch_facts.slices import REPLACES_DATA, Slices, is_state, written_names
from thunder_core.tracing.capture.torch_facts.switches import switches_autocast
from thunder_core.tracing.capture.torch_facts.symbols import as_bound_symbol
from thunder_core.tracing.ir.evaluate import evaluate
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy, tensor_proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves, replace_leaves

RESEEDS = frozenset({"torch.seed", "torch.random.seed", "torch.Generator.seed"})  # the new seed differs each time
SWITCHES = (torch.set_autocast_enabled, torch.set_autocast_dtype)
NUMBERS = (bool, int, float, complex)
CPU = torch.device("cpu")


class Unknowable(Exception):
    """The error for a value that cannot be computed before the call; the message is the reason."""


class TracedValues:
    """The values of a recording's bound symbols in the recorded call.

    `bsyms` are the bound symbols so far, and `numbers` maps the names of input numbers to values. Each bound symbol
    runs only once. If a new bound symbol cannot run after the earlier ones (`_needs_reset`), all run again.
    """

    def __init__(self, tensors: Tensors, bsyms: Sequence[BoundSymbol], numbers: Mapping[str, Any]) -> None:
        self._tensors = tensors
        self._bsyms = bsyms
        self._numbers = numbers
        self._first_autocast_state = autocast_state()
        self._slices = Slices(bsyms, tensors.memory_of_name)
        self.forget()

    def forget(self) -> None:
        """Forget all values, because bound symbols of the recording were replaced."""
        self._slices.forget()
        self._copies_inputs = False
        self._reset()

    def _reset(self) -> None:
        """Forget which bound symbols have run, and their values."""
        self._values_by_name: dict[str, Any] = {}
        self._places_run: set[int] = set()
        self._places_decomposed: set[int] = set()
        self._last_writes: dict[int | None, int] = {}
        self._copied_memory: dict[int, torch.UntypedStorage] = {}
        self._random_state: torch.Tensor | None = None
        self._autocast_states = [(-1, self._first_autocast_state)]  # the states after the switches' positions

    def first_effect(self) -> str | None:
        """Return the name of the first called compiled function with effects, or None."""
        return self._slices.first_effect()

    def maker_of(self, proxy: Proxy) -> BoundSymbol:
        """Return the last bound symbol that has a proxy among its outputs. Raises `KeyError` if there is none."""
        return self._slices.maker_of(proxy)

    def first_maker_of(self, proxy: Proxy) -> BoundSymbol | None:
        """Return the bound symbol that made a value, before any write to the value; None for an input."""
        return self._slices.first_maker_of(proxy)

    def memory_of(self, names: Iterable[str]) -> set[int | None]:
        """Return the memory of the tensors with these names; None represents unknown memory."""
        return self._slices.memory_of(names)

    def bsyms_for(self, proxy: Proxy) -> list[BoundSymbol] | None:
        """Return the bound symbols that compute a value from inputs, or None if the prologue cannot run them.

        It cannot run them if one of them must run as its subsymbols, or if the autocast state of one of them may differ
        from the program's state.
        """
        indices, decomposed = self._slices.slice_of([proxy])
        autocast_changes = autocast_state() != self._first_autocast_state or self._slices.switches_autocast()
        return None if decomposed or autocast_changes else [self._bsyms[index] for index in indices]

    def value(self, proxy: Proxy) -> Any:
        """Return the value of a proxy; raise `Unknowable`, or the errors of the bound symbols that compute it."""
        with outside_recording():
            return self._values([proxy])[proxy.name]

    def call(self, function: Callable[..., Any], args: object, kwargs: object) -> tuple[Any, list[torch.Tensor], bool]:
        """Run a function on the values of its tensors; return its result, the fakes that it writes to, and whether it
        draws.

        Tensors in the result are fakes. The last item is True if the function draws random numbers. Raises the
        function's own errors, and `Unknowable`.
        """
        if any(isinstance(leaf, torch.Generator) for leaf in leaves((args, kwargs))):
            raise Unknowable("it draws from a generator")
        fakes = tensors_in((args, kwargs))
        proxies = [self._tensors.proxy(fake) for fake in fakes]
        grad = torch.is_grad_enabled()
        with outside_recording():
            values, memory = self._values(proxies), dict[int, torch.UntypedStorage]()
            reals = [copy_of(values[proxy.name], memory).requires_grad_(proxy.requires_grad) for proxy in proxies]
            versions = [real._version for real in reals]
            stand_ins = {id(fake): real for fake, real in zip(fakes, reals, strict=True)}
            arguments = self._tensors.in_call(
                replace_leaves((args, kwargs), lambda leaf: stand_ins.get(id(leaf), leaf))
            )
            states = random_states()
            with torch.set_grad_enabled(grad):
                result = function(*arguments[0], **arguments[1])
            draws = not all(map(torch.equal, states, random_states()))
            pairs = list(zip(fakes, reals, strict=True))
            written = [fake for (fake, real), version in zip(pairs, versions, strict=True) if version != real._version]
            if grad and written and any(proxy.requires_grad for proxy in proxies):
                raise Unknowable("it writes to its arguments")
            result_fakes = {id(leaf): fake_like(leaf, reals, fakes, self._tensors) for leaf in tensors_in(result)}
            result_fakes |= {id(real): fake for fake, real in pairs}
            return tree_map_only(torch.Tensor, lambda leaf: result_fakes[id(leaf)], result), written, draws

    def _values(self, proxies: Sequence[Proxy]) -> dict[str, Any]:
        """Return all values computed so far by name, including the values of these proxies.

        Bound symbols that the proxies need and that have not run yet run first.
        """
        new, decomposed = self._backward_slice(proxies)
        if self._needs_reset(new, decomposed):
            copies_inputs = self._copies_inputs or any(written_names(self._bsyms[index]) for index in new)
            self._reset()
            self._copies_inputs = copies_inputs
            new, decomposed = self._backward_slice(proxies)
        to_run = {index: list(operations_of(self._bsyms[index], decomposed=index in decomposed)) for index in new}
        self._take_inputs([*proxies, *(proxy for bsyms in to_run.values() for bsym in bsyms for proxy in bsym.inputs)])
        with torch.no_grad():
            self._run(to_run)
        self._note_run(new)
        self._places_decomposed.update(decomposed)
        return self._values_by_name

    def _needs_reset(self, new: Sequence[int], decomposed: set[int]) -> bool:
        """Whether all bound symbols must run again, because new bound symbols cannot run after the earlier ones.

        There are three cases: a later bound symbol has written to memory that a new bound symbol reads; a new bound
        symbol writes to inputs that were not copied; or the results of subsymbols are needed, but their bound symbol
        ran as one call.
        """
        writes_to_inputs = not self._copies_inputs and any(written_names(self._bsyms[index]) for index in new)
        lacks_inner_results = bool((self._places_run - self._places_decomposed) & decomposed)
        return writes_to_inputs or lacks_inner_results or any(map(self._reads_changed_memory, new))

    def _reads_changed_memory(self, index: int) -> bool:
        """Whether a bound symbol reads memory that a later bound symbol has written to."""
        bsym = self._bsyms[index]
        read = {proxy.name for proxy in bsym.inputs if isinstance(proxy, TensorProxy)}
        changes = [self._last_writes.get(memory, -1) for memory in self._slices.memory_of(read) - {None}]
        unknown = max(self._last_writes.values(), default=-1) if None in self._slices.memory_of(read) else -1
        return index < max((unknown, *changes))

    def _note_run(self, indices: Iterable[int]) -> None:
        """Record that bound symbols have run, and the last bound symbol that wrote to each memory."""
        for index in indices:
            bsym = self._bsyms[index]
            self._places_run.add(index)
            for memory in self._slices.memory_of(written_names(bsym)):
                self._last_writes[memory] = max(index, self._last_writes.get(memory, -1))

    def _run(self, bsyms: Mapping[int, Sequence[BoundSymbol]]) -> None:
        """Run bound symbols, each in the autocast state at its position."""
        ambient = autocast_state()
        if self._random_state is not None:
            torch.set_rng_state(self._random_state)
        try:
            for index, parts in bsyms.items():
                switch(autocast_state(), self._autocast_before(index))
                for bsym in parts:
                    self._run_bsym(bsym)
                if switches_autocast(self._bsyms[index]):
                    self._autocast_states.append((index, autocast_state()))
        finally:
            switch(autocast_state(), ambient)
            self._random_state = torch.get_rng_state()

    def _autocast_before(self, index: int) -> State:
        """Return the autocast state before a position of the recording."""
        return self._autocast_states[bisect_left(self._autocast_states, index, key=itemgetter(0)) - 1][1]

    def _run_bsym(self, bsym: BoundSymbol) -> None:
        """Run a bound symbol on the values of its inputs; raise `Unknowable` if an input has no value."""
        if switches_autocast(bsym) and bsym.symbol.target not in SWITCHES:
            return
        unknown = [proxy.name for proxy in bsym.inputs if proxy.name not in self._values_by_name]
        if unknown:
            raise Unknowable(f"it depends on `{unknown[0]}`, which is not known before the call")
        with nullcontext() if call_of(bsym) is None else without_recording():
            evaluate([bsym], self._values_by_name, call_on_this_machine)

    def _take_inputs(self, proxies: Iterable[Proxy]) -> None:
        """Set the values of the inputs among the proxies; copy the tensors if bound symbols write to inputs."""
        reals = {proxy.name: real for real, proxy in self._tensors.inputs.values()}
        objects = {proxy.name: value for value, proxy in self._tensors.objects.values()}
        for proxy in proxies:
            if proxy.name in self._values_by_name:
                continue
            if proxy.name in reals:
                real = reals[proxy.name]
                self._values_by_name[proxy.name] = copy_of(real, self._copied_memory) if self._copies_inputs else real
            elif proxy.name in objects:
                self._values_by_name[proxy.name] = generator_to_draw_from(objects[proxy.name])
            elif proxy.name in self._numbers:
                self._values_by_name[proxy.name] = self._numbers[proxy.name]
            elif isinstance(proxy, NumberProxy):
                self._values_by_name[proxy.name] = self._tensors.in_call(proxy.value)

    def _backward_slice(self, proxies: Sequence[Proxy]) -> tuple[list[int], set[int]]:
        """Return the positions of the bound symbols in the backward slice of proxies that have not run.

        Also return the positions of the bound symbols that must run as subsymbols, because intermediates are needed.
        Raises `Unknowable` if a bound symbol cannot run before the call.
        """
        indices, decomposed = self._slices.slice_of(proxies, self._places_run)
        bsyms = [self._bsyms[index] for index in indices]
        changing_autograd = self._slices.changing_autograd(self._tensors.input_names())
        if bsym := next(filter(is_unknowable, bsyms), changing_autograd):
            raise Unknowable(f"`{bsym.symbol.name}`, which runs before it, cannot be run while tracing")
        return indices, decomposed


def call_on_this_machine(bsym: BoundSymbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Call the target of a bound symbol. The CPU replaces the GPU of a program that this machine cannot run."""
    args, kwargs = replace_leaves((args, kwargs), lambda leaf: CPU if is_absent_gpu(leaf) else leaf)
    return bsym.symbol.target(*args, **kwargs)


def is_absent_gpu(leaf: object) -> bool:
    """Whether an argument is a GPU, although this machine has none."""
    return isinstance(leaf, torch.device) and leaf.type == "cuda" and not torch.cuda.is_available()


def random_states() -> list[torch.Tensor]:
    """Return the states of PyTorch's default generators."""
    return [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if torch.cuda.is_initialized() else ())]  # type: ignore[no-untyped-call]


def fake_like(
    real: torch.Tensor, reals: Sequence[torch.Tensor], fakes: Sequence[torch.Tensor], tensors: Tensors
) -> torch.Tensor:
    """Return a fake for a result; it is a view of an argument's fake if the result is a view of that argument."""
    storage = memory_of(real)
    base = next((index for index, argument in enumerate(reals) if memory_of(argument) == storage), None)
    offset = 0 if base is None else fakes[base].storage_offset() + real.storage_offset() - reals[base].storage_offset()
    fake = fresh_fake(MemoizedResult(tensor_proxy("", real), base, int(offset)), list(fakes), tensors.mode)
    if real.grad_fn is not None:
        return tracked_from_values(fake, real.grad_fn.name())
    return fake.requires_grad_(real.requires_grad)


def copy_of(real: torch.Tensor, memory: dict[int, torch.UntypedStorage]) -> torch.Tensor:
    """Return a copy of a tensor; copies share memory with each other as the originals do.

    `memory` maps the identity of an original storage to the storage of its copy.
    """
    if real.layout is not torch.strided:
        return real.detach().clone()
    storage = real.untyped_storage()
    if storage._cdata not in memory:
        storage_bytes = torch.empty(0, dtype=torch.uint8, device=real.device).set_(storage)
        memory[storage._cdata] = storage_bytes.clone().untyped_storage()
    copy = torch.empty(0, dtype=real.dtype, device=real.device)
    copy.set_(memory[storage._cdata], real.storage_offset(), real.shape, real.stride())
    return mark(copy, is_conj=real.is_conj(), is_neg=real.is_neg())


def switch(before: State, after: State) -> None:
    """Change the autocast state from `before` to `after`."""
    for bsym in changes(before, after):
        bsym.symbol.target(*bsym.args)


def operations_of(bsym: BoundSymbol, *, decomposed: bool) -> Iterable[BoundSymbol]:
    """Yield the bound symbol itself, or its subsymbols if `decomposed`."""
    return (as_bound_symbol(part, bsym) for part in bsym.subsymbols) if decomposed else (bsym,)


def is_unknowable(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol changes a state that cannot be restored, or communicates with other processes."""
    if bsym.communicates:
        return True
    if bsym.symbol.name in REPLACES_DATA:  # the call changes copies of inputs, and programs put the data back
        return False
    if call_of(bsym) is not None:
        return not is_repeatable(bsym)
    return bsym.symbol.name in RESEEDS or (bsym.ordered and is_state(bsym) and not switches_autocast(bsym))


def generator_to_draw_from(generator: torch.Generator) -> torch.Generator:
    """Return a clone of a generator, or the default generator itself, whose state `outside_recording` restores."""
    return generator if generator is torch.default_generator else generator.clone_state()
