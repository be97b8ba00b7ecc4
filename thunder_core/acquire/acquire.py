"""Acquisition: one interpreted run of a program on real arguments becomes its prologue, computation and epilogue."""

from __future__ import annotations

import gc
import inspect
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from torch.autograd import forward_ad

from thunder_core import package
from thunder_core.acquire.ahead import checked_ahead
from thunder_core.acquire.detours import Detours
from thunder_core.acquire.epilogue import Epilogue
from thunder_core.acquire.gradients import log_gradients, spelled_out, without_autograd
from thunder_core.acquire.guards import Guard
from thunder_core.acquire.lookasides.compiled import Nested
from thunder_core.acquire.lookasides.output import note_later_writes
from thunder_core.acquire.numbers import NeedsValues
from thunder_core.acquire.observer import Acquisition
from thunder_core.acquire.paths import Path
from thunder_core.acquire.prologue import RESERVED, Prologue, path_name
from thunder_core.acquire.settings import with_chosen_attention
from thunder_core.acquire.sharp import SharpEdge, Surprises, settle, users_line
from thunder_core.analysis.aliasing import names_written_to
from thunder_core.capture.settings import device_contexts
from thunder_core.capture.symbolic_probe import HiddenNumbers
from thunder_core.capture.tensors import tensors_in
from thunder_core.compile_options import SharpEdges
from thunder_core.errors import DataDependent, OperationFailed, ThunderError
from thunder_core.interpreter import interpret
from thunder_core.ir.literal import unique_name
from thunder_core.ir.proxy import Proxy, TensorProxy
from thunder_core.ir.raised import ProgramRaised
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.ir.trace import Trace
from thunder_core.runtime.library.overlap import overlaps


@dataclass(frozen=True)
class Acquired:
    """The three traces of a program; `guards[n]` says in words what the prologue's check number n wants.

    `numbers` are the paths of those checks that want a number to be what it was; `places` the plain ways to what checks
    look at.
    """

    prologue: Trace
    computation: Trace
    epilogue: Trace
    guards: tuple[str, ...]
    sharp_edges: tuple[SharpEdge, ...]
    numbers: Mapping[int, str]
    places: Mapping[int, tuple[tuple[str, Any], ...]]


STATE: tuple[tuple[str, Callable[[], object]], ...] = (
    ("torch.is_grad_enabled()", torch.is_grad_enabled),
    ("torch.is_inference_mode_enabled()", torch.is_inference_mode_enabled),
    ("torch.get_default_dtype()", torch.get_default_dtype),
    ("torch.are_deterministic_algorithms_enabled()", torch.are_deterministic_algorithms_enabled),
    ("torch._C._len_torch_function_stack()", torch._C._len_torch_function_stack),
    ("torch.autograd.forward_ad._current_level", lambda: forward_ad._current_level),
)
DEFAULT_DEVICE = "torch._C._get_function_stack_at({}).device"


def process_state(device: torch.device | None = None) -> dict[str, object]:
    """The state of the process that decides what operations do: how to ask for it, and what it is now.

    A default device is one of the torch function modes. `device` is where the program will run, if not here.
    """
    devices = ("cpu", "cuda") if device is not None or torch.cuda.is_available() else ("cpu",)
    state: dict[str, object] = {query: ask() for query, ask in STATE}
    state |= {DEFAULT_DEVICE.format(place): context.device for place, context in device_contexts().items()}
    state |= {f'torch.is_autocast_enabled("{device}")': torch.is_autocast_enabled(device) for device in devices}
    active = [device for device in devices if torch.is_autocast_enabled(device)]
    return state | {f'torch.get_autocast_dtype("{device}")': torch.get_autocast_dtype(device) for device in active}


class Run(Acquisition):
    """An acquisition with its roots: the subject (a module or function), `args` and `kwargs`.

    With a `device`, the subject's parameters and buffers and the tensors of the arguments are taken to be on it.
    """

    def __init__(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        device: torch.device | None = None,
        evaluates: bool = False,
    ) -> None:
        named = subject.named_modules() if isinstance(subject, torch.nn.Module) else ()
        super().__init__({id(module): name for name, module in named}, evaluates)
        self.subject, self.args, self.kwargs = subject, args, kwargs
        self.output: Any = None
        self.device = device
        self._moved = {} if device is None else {id(tensor): tensor for tensor in moving(subject, (args, kwargs))}
        self.roots = [
            self.outside.root("root", "module" if isinstance(subject, torch.nn.Module) else "function", subject),
            self.outside.root("root", "args", args),
            self.outside.root("root", "kwargs", kwargs),
        ]
        self._taken = {*RESERVED, *(str(root.key) for root in self.roots)}
        if isinstance(subject, types.MethodType):
            self.outside.read(self.roots[0].attribute("__self__", subject.__self__), subject.__self__)
        self.outside.expand(args)
        self.outside.expand(kwargs)
        for index, alias in enumerate(positional_names(subject)[: len(args)]):
            self.roots[1].item(index, args[index]).alias = alias

    def edges(self) -> tuple[SharpEdge, ...]:
        """The sharp edges that were met."""
        surprises = self.outside.surprises.edges.values() if self.outside.surprises else ()
        for bsym in self.recorder.data_dependent.asking:
            what = f"`{bsym.symbol.name}` asks for the value of a tensor; the program is for the one that it got"
            self.sharp_edges.setdefault(what, bsym.source)
        note_later_writes(self)
        met = self.sharp_edges.items()
        return (*surprises, *(SharpEdge(what, where, what in self.loud_edges) for what, where in met))

    def release(self) -> None:
        """Let go of all that was met: the parts of a run hold each other, and with them the user's tensors.

        Without this these would live until the garbage collector comes, which may be long after the call.
        """
        for path in (*self.roots, *self.outside.paths.values()):
            path.forget_children()
        for part in (self.recorder.tensors, self.recorder, self.outside, self):
            vars(part).clear()

    def device_of(self, tensor: torch.Tensor) -> torch.device:
        """The device that the program is for, where the tensor would be brought there and can be found there."""
        moves = id(tensor) in self._moved and self.outside.path_of(tensor) is not None
        return self.device if self.device is not None and moves else tensor.device

    def has_freed_graph(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of the program has a graph of autograd that a backward pass of the program has freed."""
        return self.recorder.gradients.has_freed_graph(tensor)

    def name_input(self, value: torch.Tensor | torch.Generator) -> str:
        """An input's name is made from its path; a tensor without one is a constant of the trace."""
        path = self.outside.path_of(value)
        if path is None:
            what = f"a tensor of shape {list(value.shape)}" if isinstance(value, torch.Tensor) else "a generator"
            self.note_edge(f"{what} that no path leads to became a constant")
        return self._name("constant" if path is None else path_name(path))

    def name_number(self, path: Path) -> str:
        """The name of a number from outside is made from its path."""
        return self._name(path_name(path))

    def _name(self, text: str) -> str:
        name = unique_name(text, self._taken)
        self._taken.add(name)
        return name


def moving(subject: Callable[..., Any], arguments: Any) -> Iterator[torch.Tensor]:
    """The tensors that would be brought to the device of a program: those of the model and of its inputs."""
    if isinstance(subject, torch.nn.Module):
        yield from torch.nn.Module.parameters(subject)
        yield from torch.nn.Module.buffers(subject)
    yield from tensors_in(arguments)


def positional_names(subject: Callable[..., Any]) -> list[str]:
    """The names of the parameters that can be given by position, for naming inputs."""
    target = subject.forward if isinstance(subject, torch.nn.Module) else subject
    try:
        parameters = inspect.signature(target).parameters.values()
    except (TypeError, ValueError):
        return []
    return [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]


@contextmanager
def collection_paused() -> Iterator[None]:
    """No garbage collection while this lasts: what a trace allocates stays, and looking through it costs a fifth."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def acquire(
    subject: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    *,
    sharp_edges: SharpEdges = "allow",
    functional: bool = False,
    device: torch.device | None = None,
    evaluates: bool = False,
    changing: frozenset[str] = frozenset(),
    nested: Nested | None = None,
) -> Acquired:
    """Run the program once without touching data, and return its traces.

    With a `device`, which need not be here, the traces are those of the same program with its model and its arguments
    on that device. A `functional` program takes nothing but its arguments: what else it reads is a sharp edge, and not
    guarded. A program that `evaluates` may ask for the values of tensors, and checks at each call that they are the
    same. Where a value cannot be had, the program is traced once more, and told that it is being compiled where it last
    asked for that: there libraries go around values. Numbers at the paths `changing` are told at each call and not
    guarded, where the program does not ask for their values.
    No object of the user's is changed when this returns or raises. Raises `ProgramRaised` where the program raises
    (with a `device`, what it raises), `DataDependent`, `OperationFailed` or `CannotReplay` where a trace cannot hold
    what the program does, and `SharpEdgeError` if it has sharp edges and they are errors.
    """

    def on_fakes(changes: frozenset[str]) -> Acquired:
        detours, is_differentiating = Detours(), False
        while True:
            run = Run(subject, args, kwargs, device, evaluates and device is None)
            run.recorder.is_differentiating = is_differentiating
            run.outside.changes = changes
            run.nested = nested
            run.detours = detours
            try:
                return traced(run, sharp_edges, functional)
            except HiddenNumbers:
                is_differentiating = True
            except DataDependent:
                further = detours.further()
                if further is None:
                    raise
                detours = further
            finally:
                run.release()

    if changing:
        with suppress(NeedsValues, Exception):  # what raises without unknown numbers too is raised below
            return on_fakes(changing)
    return on_fakes(frozenset())


def traced(run: Run, sharp_edges: SharpEdges, functional: bool) -> Acquired:
    """The traces of a run, whose result is its `output` then; no object of the user's is changed.

    Who made the run releases it when nothing of it is needed any more.
    """
    run.watches = sharp_edges != "allow"
    if functional:
        run.outside.surprises = Surprises(lambda: run.place().source)
    state = process_state(run.device)
    try:
        output = run.output = _interpreted(run, state, sharp_edges)
        require_recorded(run)
        run.recorder.follow_autocast()
        if (failure := run.recorder.failure or run.outside.failure) is not None:
            raise failure
        edges = run.edges()
        settle(sharp_edges, edges)
        log_gradients(run)
        with collection_paused():
            return _traces(run, state | run.settings.asked, output, edges)
    except Exception:
        if run.recorder.failure is not None:
            raise run.recorder.failure from None
        raise
    finally:
        run.outside.effects.undo()


def require_recorded(run: Run) -> None:
    """Raise what asks for another recording, in case the program has swallowed it."""
    if run.numbers.are_needed:
        raise NeedsValues
    if run.recorder.hides_numbers:
        raise HiddenNumbers


def _interpreted(run: Run, state: dict[str, object], sharp_edges: SharpEdges) -> Any:
    """Interpret the program and return its result; `ProgramRaised` where it raises, after its sharp edges are told."""
    try:
        with collection_paused(), torch.set_grad_enabled(torch.is_grad_enabled()), run.recorder.recording():
            return interpret(run.subject, observer=run)(*run.args, **run.kwargs)
    except (HiddenNumbers, NeedsValues, ThunderError):
        raise
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt) and error is not run.interrupt:  # the user's, not the program's
            raise
        if run.recorder.failure is not None:
            raise run.recorder.failure from None
        if run.device is not None:
            raise
        edges = run.edges()
        settle(sharp_edges, edges)
        raised = _raised(run, state | run.settings.asked, error, sharp=bool(edges))
    try:
        raise raised
    finally:
        del raised  # it has the program's error, whose traceback holds this frame


def _raised(run: Run, state: Mapping[str, object], error: BaseException, *, sharp: bool) -> ProgramRaised:
    """The error of a program, with its own part of the traceback and the guards under which it was raised."""
    entry = error.__traceback__
    while entry is not None and entry.tb_frame.f_code.co_filename.startswith(package.FOLDER):
        entry = entry.tb_next
    error.__traceback__ = entry
    _guard_tensors(run, _inputs(run))
    run.classes.guard_special()
    trace = Prologue(run.roots, state, {}).trace(list(_lasting(run)), ((), ()), run.roots)
    return ProgramRaised(error, users_line(error), trace, sharp=sharp)


def _inputs(run: Run) -> list[tuple[torch.Tensor, TensorProxy, Path | None]]:
    """The tensors from outside that met an operation, each with its proxy and the way to it."""
    return [(tensor, proxy, run.outside.path_of(tensor)) for tensor, proxy in run.recorder.inputs.values()]


def _traces(run: Run, state: Mapping[str, object], output: Any, edges: tuple[SharpEdge, ...]) -> Acquired:
    run.outside.effects.require_kept()
    inputs = _inputs(run)
    results = _results(run)
    run.recorder.data.require_unwritten()
    epilogue = Epilogue(run.outside.path_of, results, run.has_freed_graph, run.recorder)
    epilogue_trace = epilogue.trace(run.outside.effects.effects, output)
    bsyms = computed(run, epilogue)
    overlapping = overlaps(tuple(tensor for tensor, _, _ in inputs))
    aliases = tuple(tuple(inputs[place][1].name for place, _ in group) for group in overlapping)
    bsyms = checked_ahead(bsyms, [proxy for _, proxy, _ in inputs], aliases, run.recorder.tensors.next_name)
    require_defined(run, bsyms)
    _guard_tensors(run, inputs)
    run.classes.guard_special()
    roots = run.roots
    objects = [(value, proxy, run.outside.path_of(value)) for value, proxy in run.recorder.tensors.objects.values()]
    given: list[tuple[Proxy, Path]] = [(proxy, path) for _, proxy, path in (*inputs, *objects) if path is not None]
    read = {proxy.name for bsym in bsyms for proxy in bsym.inputs}
    outside = run.recorder.numbers.from_outside
    given += [(number.proxy, number.source) for name, number in outside.items() if name in read]
    computation = Trace(
        name="computation",
        inputs=tuple(proxy for proxy, _ in given),
        bound_symbols=bsyms,
        output=tuple(epilogue.results.values()),
        origins={proxy.name: str(path) for proxy, path in given},
        constants={proxy.name: value for value, proxy, path in (*inputs, *objects) if path is None},
        aliases=aliases,
        blocks=blocks_of(run),
    )
    prologue = Prologue(roots, state, {path: proxy.name for proxy, path in given}, writes_inputs(computation))
    wanted = [path for _, path in given]
    prologue_trace = prologue.trace(list(_lasting(run)), (wanted, list(epilogue.wanted)), roots)
    numbers = {number: str(path) for number, path in prologue.numbers.items()}
    return Acquired(
        prologue_trace, computation, epilogue_trace, tuple(prologue.refusals), edges, numbers, prologue.places
    )


def blocks_of(run: Run) -> dict[str, int]:
    """The names made in each checkpointed function, by the number of its call; of nested calls the outer one."""
    found: dict[str, int] = {}
    for number, places in enumerate(run.checkpointed):
        bsyms = run.recorder.bound_symbols[places.start : places.stop]
        found |= {proxy.name: number for bsym in bsyms for proxy in bsym.defines}
    return found


def writes_inputs(computation: Trace) -> bool:
    """Whether a bound symbol may write to the memory of an input, so that it matters which inputs overlap."""
    written = names_written_to(computation)
    return any(proxy.name in written for proxy in computation.inputs)


def computed(run: Run, epilogue: Epilogue) -> tuple[BoundSymbol, ...]:
    """The bound symbols of the computation.

    Autograd records none of them where the program runs its backward passes itself, and nothing that it leaves behind
    could be asked for another one.
    """
    bsyms = spelled_out(with_chosen_attention(run.recorder.bound_symbols), epilogue.results.values())
    kept = [tensor for tensor, _ in run.recorder.inputs.values() if run.recorder.tensors.fake(tensor).grad_fn]
    if not run.recorder.gradients.passes or not all(map(run.has_freed_graph, (*kept, *epilogue.followed))):
        return bsyms
    return without_autograd(bsyms, torch.is_grad_enabled())


def require_defined(run: Run, bsyms: Iterable[BoundSymbol]) -> None:
    """Raise `OperationFailed` where a bound symbol reads a tensor that was made out of the recorder's sight.

    Higher-order operators do that: they run the functions that they are given under modes of their own.
    """
    defined = {proxy.name for _, proxy in (*run.recorder.inputs.values(), *run.recorder.tensors.objects.values())}
    defined |= run.recorder.numbers.from_outside.keys()
    for bsym in bsyms:
        if not all(proxy.name in defined for proxy in bsym.inputs):
            raise OperationFailed(
                "the program uses an operation that hides what it does (a higher-order operator, or code that was "
                "compiled already)",
                fix="leave that part uncompiled, or write it with ordinary operations",
                where=bsym.source,
            )
        defined |= {proxy.name for proxy in bsym.outputs}


def _lasting(run: Run) -> Iterator[Guard]:
    """The guards that are checked at each call: a functional program's only look at its arguments."""
    for guard in run.outside.guards.values():
        if run.outside.surprises is None or guard.path.lineage()[0] in run.roots[1:]:
            yield guard


def _results(run: Run) -> Callable[[torch.Tensor], TensorProxy | None]:
    """For a tensor of the program: its proxy if the computation makes it, None if it comes from outside."""

    def result(tensor: torch.Tensor) -> TensorProxy | None:
        if id(tensor) in run.recorder.inputs:
            return None if run.outside.path_of(tensor) is not None else run.recorder.inputs[id(tensor)][1]
        return run.recorder.proxy_of(tensor) if run.recorder.knows(tensor) else None

    return result


def _guard_tensors(run: Run, inputs: list[tuple[torch.Tensor, TensorProxy, Path | None]]) -> None:
    """Tensors that met an operation are guarded by their metadata, the others by their class."""
    used: Mapping[int, Any] = run.recorder.inputs
    for tensor, proxy, path in inputs:
        if path is not None:
            kind = "tensor" if tensor.layout is torch.strided else "sparse tensor"
            run.outside.guard(kind, path, (type(tensor), proxy, tensor.layout))
    for path in list(run.outside.paths.values()):
        if issubclass(type(path.value), torch.Tensor) and id(path.value) not in used:
            run.outside.guard("type", path, type(path.value))


__all__ = ["Acquired", "Run", "SharpEdge", "acquire", "collection_paused", "process_state", "traced"]
