"""A user's `torch.autograd.Function` that autograd follows: what its methods read and write of the outside.

It is one bound symbol, whose forward runs where its line stands, and whose backward runs behind the program. The
program writes to the outside when its last line has run. So what the methods meet is found before the function is
applied, by an acquisition of its own that runs through them.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any, NoReturn, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.frontend.acquire.given_objects import GivenObjects
from thunder_core.frontend.acquire.handover import Handover
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.frontend.interpreter import interpret
from thunder_core.passes.autodiff.rules import applied, applied_class
from thunder_core.tracing.capture.fakes.tensors import tensors_in
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.modes import without_functions, without_recording
from thunder_core.tracing.capture.torch_facts.symbols import SET_GRAD, symbol_of
from thunder_core.tracing.capture.torch_facts.torch_versions import apply_of
from thunder_core.tracing.ir.proxy import TensorProxy, tensor_proxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves, replace_leaves, structure
from thunder_core.tracing.library.applied_functions import gradients

Function = type[torch.autograd.Function]
METHODS = ("forward", "setup_context", "backward", "vjp", "vmap", "jvp")  # which a user may define
FIX = "pass the values that the function reads as arguments, or write to them after the line that applies it"


def own_methods(kind: Any) -> list[str]:
    """The names of the methods that a class defines in place of those of `torch.autograd.Function`."""
    return [name for name in METHODS if getattr(kind, name) is not getattr(torch.autograd.Function, name)]


class ProbedRecording(Recording, Protocol):
    """The part of an acquisition that goes over to one which runs through a function."""

    runs_through_functions: bool
    nested: Any
    replacements: Any


class AppliedFunctions:
    """The functions that a program applies where autograd follows them."""

    def __init__(self, acquisition: ProbedRecording) -> None:
        self._acquisition = acquisition
        self._met: dict[Hashable, tuple[Any, bool]] = {}  # calls, with their arguments, and whether they were probed
        self._live: set[Function] = set()
        self._read_by_backwards: list[tuple[Function, Handover, tuple[Path, ...]]] = []
        self._probes: list[Any] = []

    def apply(self, kind: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply a function as one bound symbol, and have the program guard what its methods read.

        Raises `CannotReplay` for a forward that reads what the program has written, or writes to what was there before
        the program, and for an argument that holds tensors which the program computes where a trace has no names.
        """
        self._settle(kind, args, kwargs)
        self._read_methods(kind)
        effects = self._acquisition.outside.effects.effects
        key = (kind, len(effects), structure((args, kwargs)), *(self._facts(leaf) for leaf in leaves((args, kwargs))))
        if key not in self._met:
            self._met[key] = ((args, kwargs), self._meet(kind, args, kwargs))
        with without_functions():
            output = self._acquisition.recorder.function(applied(kind), args, kwargs)
        if effects and not self._met[key][1]:
            self._refuse(kind, "may read values that the program has written before, and cannot be traced")
        return output

    def meet_native(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Have the program guard what a function reads that runs natively, and keep it from what that writes to."""
        probe, _ = self._probe(function, args, {})
        if probe is not None:
            name = getattr(function, "__qualname__", type(function).__name__)
            handover = self._handover(f"`{name}`, a hook of saved_tensors_hooks,", probe)
            handover.check()
            handover.guard()

    def _settle(self, kind: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Have objects that the program makes and gives to a function be the same at each call."""
        outside, recorder = self._acquisition.outside, self._acquisition.recorder
        given = GivenObjects(
            lambda value: outside.path_of(value) is not None,
            lambda tensor: recorder.knows(tensor) and id(tensor) not in recorder.inputs,
            lambda what: self._refuse(kind, what),
        )
        with without_functions():
            given.settle_arguments((args, kwargs))

    def _read_methods(self, kind: Function) -> None:
        """Have the program guard which methods the function has: a backward that is derived ahead stays what it was."""
        for name in own_methods(kind):
            self._acquisition.machine.call(getattr, kind, name)

    def _facts(self, leaf: Any) -> Hashable:
        if not isinstance(leaf, torch.Tensor):
            return id(leaf)
        fake = self._acquisition.recorder.tensors.fake(leaf)
        with torch._C.DisableTorchFunction():
            return (str(tensor_proxy("", fake)), fake.requires_grad, self._acquisition.outside.path_of(leaf))

    def _meet(self, kind: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Hand over what the methods read; whether the forward was run through."""
        stand_ins = {id(tensor): self._stand_in(tensor) for tensor in tensors_in((args, kwargs))}
        given, named = replace_leaves((tuple(args), kwargs), lambda leaf: stand_ins.get(id(leaf), example(leaf)))
        forward, output = self._probe(apply_of(kind), given, named)
        if forward is None:
            return False
        handover = self._handover(kind, forward)
        handover.check()
        if (written := handover.written()) is not None:
            self._refuse(kind, f"writes to {written}")
        handover.guard()
        both, _ = self._probe(gradients, (*arguments_of_backward(kind, given, named, output), *given), named)
        self._meet_backward(kind, None if both is None else self._handover(kind, both))
        return True

    def _meet_backward(self, kind: Function, handover: Handover | None) -> None:
        """Have the program guard what a backward reads, which is derived ahead; one that writes is left to autograd."""
        if handover is None or handover.written() is not None:
            self._live.add(kind)
            return
        self._read_by_backwards.append((kind, handover, tuple(handover.met())))
        if not any(map(handover.is_changed, handover.met())):
            handover.guard()

    @contextmanager
    def unfollowed(self, fakes: tuple[Any, ...]) -> Iterator[None]:
        """While this lasts, a forward is recorded, which PyTorch runs with autograd off.

        That is written down where it reads a tensor that requires a gradient, though no argument does.
        """
        recorder = self._acquisition.recorder
        start, enabled = len(recorder.bound_symbols), torch.is_grad_enabled()
        yield
        with torch._C.DisableTorchFunction():
            is_followed = any(tensor.requires_grad for tensor in tensors_in(fakes))
        bsyms = recorder.bound_symbols[start:]
        read = {proxy for bsym in bsyms for proxy in bsym.inputs if isinstance(proxy, TensorProxy)}
        if enabled and not is_followed and any(proxy.requires_grad for proxy in read):
            off, on = (BoundSymbol(symbol_of(SET_GRAD), (mode,), {}, None, ordered=True) for mode in (False, True))
            source, module = bsyms[0].source, bsyms[0].module
            off, on = (replace(switch, source=source, module=module) for switch in (off, on))
            recorder.bound_symbols[start:] = [off, *bsyms, on]

    def settle(self) -> None:
        """Leave the backwards to autograd that read what the program, which has ended, writes."""
        read = self._read_by_backwards
        live = self._live | {kind for kind, handover, paths in read if any(map(handover.is_changed, paths))}
        bsyms = self._acquisition.recorder.bound_symbols
        if live:
            bsyms[:] = [_live(bsym) if applied_class(bsym.symbol.target) in live else bsym for bsym in bsyms]

    def release(self) -> None:
        """Let go of what was met while the functions were run through."""
        for probe in self._probes:
            probe.release()

    def _handover(self, called: Function | str, probe: Any) -> Handover:
        line = self._acquisition.place().source
        return Handover(self._acquisition.outside, probe.outside, line, lambda what: self._refuse(called, what))

    def _refuse(self, called: Function | str, what: str) -> NoReturn:
        refuse: Callable[[str, str], NoReturn] = self._acquisition.refuse
        if not isinstance(called, str):
            called = f"the forward of `{called.__qualname__}`, a torch.autograd.Function,"
        refuse(f"{called} {what}", FIX)

    # ---- running through the methods ------------------------------------------------------------------------

    def _probe(self, program: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, Any]:
        """An acquisition that has run through a program, and the result; None where that fails."""
        acquisition, output = self._acquisition, None
        kind: Any = type(acquisition)
        with without_recording():
            probe: Any = kind(program, args, kwargs, acquisition.device)
            probe.runs_through_functions = True
            probe.nested, probe.replacements = acquisition.nested, acquisition.replacements
            self._probes.append(probe)
            recording: AbstractContextManager[None] = probe.recorder.recording()  # which lets exceptions pass
            try:
                with recording:
                    output = interpret(program, observer=probe)(*args, **kwargs)
            except Exception:  # what the function raises, it raises again when it is applied
                probe = None
            finally:
                self._probes[-1].outside.effects.undo()
        return probe, output

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor that is the program's by a path, or one with the metadata of a tensor that it has computed."""
        if self._acquisition.outside.path_of(tensor) is not None:
            return tensor
        fake = self._acquisition.recorder.tensors.fake(tensor)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            shape, strides = ([hint_of(size) for size in sizes] for sizes in (fake.shape, fake.stride()))
            stand_in = torch.empty_strided(shape, strides, dtype=fake.dtype, device=fake.device)
            return stand_in.requires_grad_(fake.requires_grad)


def arguments_of_backward(kind: Any, args: Any, kwargs: Any, output: Any) -> tuple[Any, ...]:
    """The arguments of `gradients` for a function with this output, ahead of those of the function."""
    is_tuple = isinstance(output, tuple)
    outputs = output if is_tuple else (output,)
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        places = [place for place, one in enumerate(outputs) if isinstance(one, torch.Tensor) and one.requires_grad]
        cotangents = [torch.ones(outputs[place].shape, dtype=outputs[place].dtype) for place in places]
        inputs = [one for one in tensors_in((args, kwargs)) if one.requires_grad]
    pick = operator.itemgetter(*places) if is_tuple and places else tuple if is_tuple else operator.pos
    return apply_of(kind), pick, torch.autograd.grad, inputs, cotangents


def example(leaf: Any) -> Any:
    """The value of a symbolic number in this call, or one of its kind for a number that is computed."""
    if not isinstance(leaf, SymbolicNumber):
        return leaf
    return leaf.source.value if leaf.source is not None else leaf.kind(2)


def _live(bsym: BoundSymbol) -> BoundSymbol:
    kind = applied_class(bsym.symbol.target)
    assert kind is not None
    return replace(bsym, symbol=symbol_of(applied(kind, is_live=True)))
