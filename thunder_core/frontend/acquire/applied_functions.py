"""Applications of a `torch.autograd.Function` that autograd tracks, with the reads and writes of its methods.

An application is one bound symbol of the trace. The forward runs with this bound symbol, and the backward after the
program. Neither is interpreted as a part of the program. So a separate run, the probe, interprets the methods first, to
find their reads and writes of outside objects.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from types import FunctionType
from typing import Any, NoReturn, Protocol

import torch
from torch.utils._python_dispatch import _disable_current_modes

from thunder_core.frontend.acquire.given_objects import GivenObjects
from thunder_core.frontend.acquire.handover import Handover
from thunder_core.frontend.acquire.held_objects import reachable_values, refers_to_tensors
from thunder_core.frontend.acquire.inlined_functions import InlinedFunction, KeptContainers
from thunder_core.frontend.acquire.outside.backward_reads import BackwardStart, changeable_paths, reader_of
from thunder_core.frontend.acquire.outside.paths import Path
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.frontend.interpreter import interpret
from thunder_core.frontend.interpreter.callables import callable_attribute
from thunder_core.passes.autodiff.applied.value_readers import note_backward_reads
from thunder_core.passes.autodiff.rules import applied_class, operation_of
from thunder_core.tracing.capture.fakes.tensors import tensors_in
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.modes import without_functions, without_recording
from thunder_core.tracing.capture.torch_facts.symbols import SET_GRAD, symbol_of
from thunder_core.tracing.capture.torch_facts.torch_versions import apply_of
from thunder_core.tracing.ir.constants import BY_IDENTITY, is_constant
from thunder_core.tracing.ir.proxy import TensorProxy, tensor_proxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves, structure
from thunder_core.tracing.library.applied_functions import forward_alone, gradients

Function = type[torch.autograd.Function]
METHODS = ("forward", "setup_context", "backward", "vjp", "vmap", "jvp")  # methods that a user may define
ENTRIES_OF_ALL_CLASSES = ("__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "_backward_cls")
FORWARDS, BACKWARDS = METHODS[:2], METHODS[2:]
BACKWARD_OF_ONE_CALL = "a torch.autograd.Function whose backward closes over values of this call"
FIX_OF_CLASS = "save these values in `ctx`, or define the class outside the compiled program"
FIX = "pass the values that the function reads as arguments, or write to them after the line that applies it"


def is_same_at_each_call(kind: Function, names: Iterable[str], is_created_by_program: Callable[[type], bool]) -> bool:
    """Whether methods of a class that the program creates refer only to constants, functions and classes.

    Methods refer to their free variables, their defaults, and the attributes of classes that the program creates. Later
    calls use the class of the traced call, so it must not refer to other objects of that call.
    """
    waiting: list[Any] = [getattr(kind, name) for name in names if name in own_methods(kind)]
    own_classes = [base for base in kind.__mro__ if base is kind or is_created_by_program(base)]
    entries = itertools.chain.from_iterable(vars(base).items() for base in own_classes)
    waiting += [value for name, value in entries if name not in (*METHODS, *ENTRIES_OF_ALL_CLASSES)]
    seen = {id(kind)}
    while waiting:
        value = waiting.pop()
        value = callable_attribute(value, "__func__", value) if isinstance(value, staticmethod | classmethod) else value
        if id(value) in seen or is_constant(value):
            continue
        seen.add(id(value))
        if type(value) is FunctionType:
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            waiting += [*cells, *(value.__defaults__ or ()), *(value.__kwdefaults__ or {}).values()]
        elif isinstance(value, type) and is_created_by_program(value):
            waiting += [entry for name, entry in vars(value).items() if name not in ENTRIES_OF_ALL_CLASSES]
        elif not isinstance(value, BY_IDENTITY):
            return False
    return True


def own_methods(kind: type[torch.autograd.Function]) -> list[str]:
    """Return the names of the methods that a class overrides."""
    return [name for name in METHODS if getattr(kind, name) is not getattr(torch.autograd.Function, name)]


class ReplacedFunctions(Protocol):
    """The user's lookasides, which are called instead of other functions."""

    were_called: bool

    def note_call(self) -> None:
        """Note that a replacement was called."""


class ProbedRecording(Recording, Protocol):
    """The attributes of a run that a probe needs: a separate run that interprets a function."""

    @property
    def replacements(self) -> ReplacedFunctions:
        """The user's lookasides."""

    def build_probe(self, program: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return a separate run for a part of the program."""


class AppliedFunctions:
    """The functions that a program applies while autograd tracks them."""

    def __init__(self, run: ProbedRecording) -> None:
        self._run = run
        self._probed: dict[Hashable, tuple[Any, bool]] = {}  # by call: the arguments, and whether the probe succeeded
        self._live: set[Function] = set()
        self._kept = KeptContainers(lambda value: run.outside.path_of(value) is not None)
        self._read_by_backwards: list[tuple[Function, Handover, tuple[Path, ...]]] = []
        self._probes: list[Any] = []

    def apply(self, kind: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Apply a function as one bound symbol, and make the program guard the reads of its methods.

        The forward is instead inlined into the program if the forward writes to outside objects, draws random numbers
        outside of PyTorch, or reads objects that the program has written to. Eager PyTorch makes the program's call
        if an argument is an object with tensors that cannot be copied.
        """
        self._read_methods(kind)
        if self._run.outside.is_created_by_program(kind):
            if not is_same_at_each_call(kind, BACKWARDS, self._run.outside.is_created_by_program):
                self._run.leave_to_eager(
                    f"the program makes `{kind.__qualname__}`, {BACKWARD_OF_ONE_CALL}", FIX_OF_CLASS
                )
            if not kwargs and not is_same_at_each_call(kind, FORWARDS, self._run.outside.is_created_by_program):
                return InlinedFunction(self._run, kind, args, self._kept, self._refusing_function(kind)).apply()
        with without_functions():
            objects = GivenObjects(self._run.outside, args, kwargs, self._refusing_function(kind))
        if not kwargs and self._must_inline(kind, objects):
            return InlinedFunction(self._run, kind, args, self._kept, self._refusing_function(kind)).apply()
        objects.require_same_objects()
        effects = self._run.outside.effects.effects
        args, kwargs = objects.for_bound_symbol()
        key = (kind, len(effects), structure((args, kwargs)), *(self._key_of(leaf) for leaf in leaves((args, kwargs))))
        if key not in self._probed:
            self._probed[key] = ((args, kwargs), self._guard_methods(kind, objects))
        with without_functions():
            output = self._run.recorder.function(operation_of(kind), args, kwargs)
        if effects and not self._probed[key][1]:
            self._refuse(kind, "may read values that the program has written before, and cannot be traced")
        return output

    def guard_native(self, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
        """Make the program guard the reads of a function that runs natively.

        Later uses of the objects that the function writes to are refused.
        """
        probe, _ = self._probe(function, args, {})
        if probe is not None:
            name = callable_attribute(function, "__qualname__", type(function).__name__)
            handover = self._make_handover(f"`{name}`, a hook of saved_tensors_hooks,", probe)
            handover.require_no_conflict()
            handover.guard()

    def _must_inline(self, kind: Function, arguments: GivenObjects) -> bool:
        """Whether the forward must be inlined into the program.

        A forward that fills a cache of `functools.lru_cache` is inlined, because it would store tensors without data in
        the cache. If autograd refuses the probe, for example because the forward writes to a stand-in of a leaf, the
        forward alone is probed. A forward that cannot be probed is inlined if the program has written before.
        """
        (given, _), _ = self._stand_ins(arguments)
        forward, _ = self._probe(apply_of(kind), given, {})
        if forward is None:
            forward, _ = self._probe(forward_alone, (kind, given), {})
        if forward is None:
            return bool(self._run.outside.effects.effects)
        return forward.cached_calls.has_new_values or self._make_handover(kind, forward).has_conflict()

    def _read_methods(self, kind: Function) -> None:
        """Make the program guard the methods of the function, because its backward is derived before the first call."""
        for name in own_methods(kind):
            self._run.machine.call(getattr, kind, name)

    def _key_of(self, leaf: object) -> Hashable:
        """Return the metadata and the path of a tensor, or the identity of another argument, as a key."""
        if not isinstance(leaf, torch.Tensor):
            return id(leaf)
        fake = self._run.recorder.tensors.fake(leaf)
        with torch._C.DisableTorchFunction():
            return (str(tensor_proxy("", fake)), fake.requires_grad, self._run.outside.path_of(leaf))

    def _guard_methods(self, kind: Function, objects: GivenObjects) -> bool:
        """Make the program guard the reads of the methods. Return whether the probe of the forward succeeded."""
        (stand_in_args, stand_in_kwargs), copies = self._stand_ins(objects)
        forward, output = self._probe(apply_of(kind), stand_in_args, stand_in_kwargs)
        if forward is None:
            self._note_backward_objects(kind, [value for value, _ in copies])
            return False
        handover = self._make_handover(kind, forward)
        handover.require_no_conflict()
        if (written := handover.written_path()) is not None:
            self._refuse(kind, f"writes to {written}")
        handover.guard()
        apply, pick, *rest = arguments_of_backward(kind, stand_in_args, stand_in_kwargs, output)
        start = BackwardStart(pick, self._probes)
        both, _ = self._probe(
            gradients, (apply, kind, own_methods(kind), start, *rest, *stand_in_args), stand_in_kwargs
        )
        backward = None if both is None or both.cached_calls.has_new_values else self._make_handover(kind, both)
        is_writing = backward is None or backward.written_path() is not None
        self._note_backward_objects(kind, objects_kept_by(output, copies), are_written=is_writing)
        self._guard_backward(kind, backward)
        return True

    def _note_backward_objects(self, kind: Function, objects: Iterable[Any], *, are_written: bool = True) -> None:
        """Note the objects of the program that the backward refers to. A later change of these objects is refused.

        Objects that the backward may write to must also be unreachable after the program.
        """
        for value in objects:
            may_be_shared = not are_written and not refers_to_tensors(value)
            self._kept.add(value, self._refusing_function(kind), may_be_shared=may_be_shared)

    def _guard_backward(self, kind: Function, handover: Handover | None) -> None:
        """Guard the reads of a backward that is derived ahead of time; leave a backward with conflicts to autograd.

        The values that the backward reads are read again when it runs. A backward whose values cannot be read again is
        left to autograd, too.
        """
        if handover is None or handover.written_path() is not None:
            self._live.add(kind)
            return
        guards = (handover.inner.later_guards or {}).values()
        readers = {path: reader_of(path) for path in changeable_paths(guards, handover.outer_path)}
        if None in readers.values():
            self._live.add(kind)
            return
        note_backward_reads(kind, {str(path): reader for path, reader in readers.items() if reader is not None})
        self._read_by_backwards.append((kind, handover, tuple(handover.used_paths())))
        if not any(map(handover.is_changed, handover.used_paths())):
            handover.guard()

    @contextmanager
    def without_autograd(self, fakes: tuple[Any, ...]) -> Iterator[None]:
        """Record a forward, which PyTorch runs with autograd off, while the context is active.

        The recording turns autograd off for the forward if the forward reads a tensor that requires a gradient, and no
        argument requires one.
        """
        recorder = self._run.recorder
        start, enabled = len(recorder.bound_symbols), torch.is_grad_enabled()
        yield
        with torch._C.DisableTorchFunction():
            is_tracked = any(tensor.requires_grad for tensor in tensors_in(fakes))
        bsyms = recorder.bound_symbols[start:]
        read = {proxy.name for bsym in bsyms for proxy in bsym.inputs if isinstance(proxy, TensorProxy)}
        if enabled and not is_tracked and any(map(self._requires_grad, read)):
            off, on = (BoundSymbol(symbol_of(SET_GRAD), (mode,), {}, None, ordered=True) for mode in (False, True))
            source, module = bsyms[0].source, bsyms[0].module
            off, on = (replace(switch, source=source, module=module) for switch in (off, on))
            recorder.bound_symbols[start:] = [off, *bsyms, on]

    def _requires_grad(self, name: str) -> bool:
        """Whether autograd tracks the tensor of this name."""
        fake = self._run.recorder.tensors.tensor_named(name)
        with torch._C.DisableTorchFunction():
            return fake is not None and fake.requires_grad

    def require_unshared_containers(self, output: object) -> None:
        """Refuse objects that a backward refers to, and that the program has changed or still refers to at its end."""
        self._kept.require_unshared((output, self._run.outside.effects.written_values()))

    def leave_changed_backwards_to_autograd(self) -> None:
        """At the end of the program, let autograd run each backward that reads a value changed by the program."""
        read = self._read_by_backwards
        live = self._live | {kind for kind, handover, paths in read if any(map(handover.is_changed, paths))}
        bsyms = self._run.recorder.bound_symbols
        if live:
            bsyms[:] = [
                _with_live_backward(bsym) if applied_class(bsym.symbol.target) in live else bsym for bsym in bsyms
            ]

    def release(self) -> None:
        """Release the probes of the functions."""
        for probe in self._probes:
            probe.release()

    def _make_handover(self, called: Function | str, probe: Any) -> Handover:
        line = self._run.location().source
        return Handover(self._run.outside, probe.outside, line, lambda reason: self._refuse(called, reason))

    def _refusing_function(self, called: Function | str) -> Callable[[str], NoReturn]:
        """Return a function that leaves the call to eager PyTorch for a reason, with `called` and the current line."""
        line = self._run.location().source
        if not isinstance(called, str):
            called = f"the forward of `{called.__qualname__}`, a torch.autograd.Function,"

        def refuse(reason: str) -> NoReturn:
            self._run.leave_to_eager(f"{called} {reason}", FIX, line)

        return refuse

    def _refuse(self, called: Function | str, reason: str) -> NoReturn:
        self._refusing_function(called)(reason)

    # ---- running through the methods ------------------------------------------------------------------------

    def _probe(self, program: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, Any]:
        """Interpret a function in a new run; return the run and the function's result. The run is None if it fails."""
        run, output = self._run, None
        with without_recording():
            probe = run.build_probe(program, args, kwargs)
            self._probes.append(probe)
            # The annotation states that the exit of the context suppresses no exception.
            recording: AbstractContextManager[None] = probe.recorder.recording()
            try:
                with recording:
                    output = interpret(program, observer=probe)(*args, **kwargs)
            except Exception:  # the function raises again when it is applied
                probe = None
            finally:
                self._probes[-1].outside.effects.undo()
                if self._probes[-1].replacements.were_called:
                    run.replacements.note_call()
        return probe, output

    def _stand_ins(self, objects: GivenObjects) -> Any:
        """Return the arguments with stand-ins for tensors and numbers, and pairs of objects.

        A pair is an object that the program created, and its copy in the arguments.
        """
        stand_ins = {id(tensor): self._stand_in(tensor) for tensor in tensors_in(objects.for_bound_symbol())}
        return objects.with_changes(lambda leaf: stand_ins[id(leaf)] if id(leaf) in stand_ins else example(leaf))

    def _stand_in(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the tensor if it is an outside tensor, and otherwise a new tensor with the same metadata."""
        if self._run.outside.path_of(tensor) is not None:
            return tensor
        fake = self._run.recorder.tensors.fake(tensor)
        with torch._C.DisableTorchFunction(), _disable_current_modes():
            shape, strides = ([hint_of(size) for size in sizes] for sizes in (fake.shape, fake.stride()))
            stand_in = torch.empty_strided(shape, strides, dtype=fake.dtype, device=fake.device)
            return stand_in.requires_grad_(fake.requires_grad)


def arguments_of_backward(kind: Any, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> tuple[Any, ...]:
    """Return the first arguments of `gradients`, which runs the backward of a function with this output.

    The arguments of the function itself follow these arguments.
    """
    is_tuple = isinstance(output, tuple)
    outputs = output if is_tuple else (output,)
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        indices = [
            index for index, tensor in enumerate(outputs) if isinstance(tensor, torch.Tensor) and tensor.requires_grad
        ]
        cotangents = [torch.ones(outputs[index].shape, dtype=outputs[index].dtype) for index in indices]
        inputs = [tensor for tensor in tensors_in((args, kwargs)) if tensor.requires_grad]
    pick = operator.itemgetter(*indices) if is_tuple and indices else tuple if is_tuple else operator.pos
    return apply_of(kind), pick, torch.autograd.grad, inputs, cotangents


def objects_kept_by(output: object, copies: list[tuple[Any, Any]]) -> list[Any]:
    """Return the objects to whose copies the `ctx` of an output refers.

    If the node of an output is not that of a `torch.autograd.Function`, return all objects.
    """
    with torch._C.DisableTorchFunction():
        nodes = [tensor.grad_fn for tensor in tensors_in(output) if tensor.grad_fn is not None]
    if not all(hasattr(node, "__dict__") for node in nodes):
        return [value for value, _ in copies]
    ids_in_graph = {id(value) for node in nodes for value in reachable_values(vars(node))}
    return [value for value, copy in copies if id(copy) in ids_in_graph]


def example(leaf: object) -> Any:
    """Return the value of a symbolic number in this call, or 2 (as its type) if the number is computed.

    Other values are returned unchanged.
    """
    if not isinstance(leaf, SymbolicNumber):
        return leaf
    return leaf.source.value if leaf.source is not None else leaf.kind(2)


def _with_live_backward(bsym: BoundSymbol) -> BoundSymbol:
    """Return the bound symbol with an operation whose backward autograd runs after the program."""
    kind = applied_class(bsym.symbol.target)
    assert kind is not None
    return replace(bsym, symbol=symbol_of(operation_of(kind, is_live=True)))
