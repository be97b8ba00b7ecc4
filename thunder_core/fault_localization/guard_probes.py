"""Guard probes: calls that are a little other than the traced one, which a prologue has to refuse or to serve rightly.

Only the prologue runs for most of them. What it lets pass is run, and its results are compared with eager PyTorch's.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.errors import NotComparable
from thunder_core.fault_localization.epilogue import is_close
from thunder_core.fault_localization.judgement import Deadline
from thunder_core.runtime.program import Program
from thunder_core.runtime.selector import found_at
from thunder_core.validation.inside import Fault
from thunder_core.validation.leaves import Leaves, leaves_of, require_same_structure

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
ROOTS = {"module": "subject", "args": "args", "kwargs": "kwargs"}
OTHERS: Mapping[type, Callable[[Any], Any]] = {
    bool: lambda value: not value,
    int: lambda value: value + 1,
    float: lambda value: value / 2 + 0.25,
    str: lambda value: f"{value}_",
}


@dataclass(frozen=True)
class Probe:
    """A call that differs from the traced one: in words, the arguments, and what holds while it runs."""

    what: str
    arguments: Arguments
    changed: AbstractContextManager[Any]


@dataclass(frozen=True)
class Call:
    """A subject with the arguments of a call."""

    subject: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def own_arguments(self) -> Arguments:
        """Copies of the arguments, whose tensors may be written to."""
        return tuple(map(own, self.args)), {name: own(value) for name, value in self.kwargs.items()}


def own(value: Any) -> Any:
    """A copy of a tensor, or of what else may be written to, such as a cache of keys and values."""
    if not isinstance(value, torch.Tensor):
        return copy.deepcopy(value)
    return value.detach().clone().requires_grad_(value.requires_grad)


def probes(program: Program, call: Call) -> Iterator[Probe]:
    """The calls that are to be refused, or served as eager PyTorch does."""
    yield from tensor_probes(call)
    yield from value_probes(call)
    yield from place_probes(program, call)
    if isinstance(call.subject, torch.nn.Module):
        mode = "eval" if call.subject.training else "train"
        yield Probe(f"the model in {mode} mode", call.own_arguments(), other_mode(call.subject))


def tensor_probes(call: Call) -> Iterator[Probe]:
    """Each tensor argument with another dtype, layout or requirement of a gradient; and all of a size with another."""
    yield from size_probes(call)
    for name, value in call.kwargs.items():
        if isinstance(value, torch.Tensor) and value.layout is torch.strided:
            for what, other in other_tensors(value):
                yield Probe(f"{name} {what}", with_argument(call, name, other), nullcontext())


def other_tensors(value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Tensors that differ from one in their metadata alone, as far as that is possible."""
    if value.is_floating_point():
        other = torch.float64 if value.dtype != torch.float64 else torch.float32
        yield f"of {other}", value.to(other)
        yield "with another requirement of a gradient", value.detach().clone().requires_grad_(not value.requires_grad)
    elif value.dtype in (torch.int64, torch.int32):
        yield "of another integer dtype", value.to(torch.int32 if value.dtype == torch.int64 else torch.int64)
    if value.ndim > 1 and value.numel() > 1:
        yield "in another layout", value.transpose(0, -1).contiguous().transpose(0, -1)


def size_probes(call: Call) -> Iterator[Probe]:
    """The tensor arguments that have a size in common in a dimension, with one element more there."""
    tensors = {name: one for name, one in call.kwargs.items() if isinstance(one, torch.Tensor)}
    sizes = dict.fromkeys((dim, size) for one in tensors.values() for dim, size in enumerate(one.shape) if size)
    for dim, size in sizes:
        args, kwargs = call.own_arguments()
        for name, value in tensors.items():
            if value.ndim > dim and value.shape[dim] == size:
                kwargs[name] = torch.cat([value, value.narrow(dim, 0, 1)], dim)
        yield Probe(f"{size + 1} in the place of {size} in dimension {dim} of tensors", (args, kwargs), nullcontext())


def with_argument(call: Call, name: str, value: object) -> Arguments:
    """The arguments of a call with another one of a name."""
    args, kwargs = call.own_arguments()
    return args, {**kwargs, name: value}


def value_probes(call: Call) -> Iterator[Probe]:
    """Each number, flag and text among the arguments with another value, and each argument left out."""
    for name, value in call.kwargs.items():
        if (change := OTHERS.get(type(value))) is not None:
            yield Probe(f"{name}={change(value)!r}", with_argument(call, name, change(value)), nullcontext())
        args, kwargs = call.own_arguments()
        del kwargs[name]
        yield Probe(f"no {name}", (args, kwargs), nullcontext())


def place_probes(program: Program, call: Call) -> Iterator[Probe]:
    """Each flag, number and text that a guard looks at in the subject or what it holds, with another value."""
    for number, place in program.places.items():
        (kind, root), (step, key) = place[0], place[-1]
        if kind != "root" or root not in ROOTS or len(place) == 1:
            continue
        owner = getattr(call, ROOTS[root])
        holder = found_at(place[:-1], owner)
        entries: Any = getattr(holder, "__dict__", None) if step == "entry" else holder
        if not isinstance(entries, dict) or key not in entries:
            continue
        value = entries[key]
        if (change := OTHERS.get(type(value))) is not None and number < len(program.guards):
            what = f"{program.guards[number]}, now {change(value)!r}"
            yield Probe(what, call.own_arguments(), changed_entry(entries, key, change(value)))


@contextmanager
def changed_entry(entries: Any, key: Any, value: object) -> Iterator[None]:
    """An entry of a dict or list with another value, until the block ends."""
    before = entries[key]
    entries[key] = value
    try:
        yield
    finally:
        entries[key] = before


@contextmanager
def other_mode(model: torch.nn.Module) -> Iterator[None]:
    """A model in eval mode where it was in training mode, or the other way round, until the block ends."""
    modes = [(module, module.training) for module in model.modules()]
    model.train(not model.training)
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def wrong_guards(program: Program, call: Call, deadline: Deadline, seed: int = 0) -> Iterator[Fault]:
    """A fault for each probe that the prologue lets pass and the program serves otherwise than eager PyTorch."""
    for probe in probes(program, call):
        if deadline.is_over:
            return
        with probe.changed, torch.random.fork_rng(devices=[]):
            difference = difference_of(program, call, probe.arguments, seed)
        if difference:
            yield Fault(
                kind="guard",
                by="acquire",
                trace="prologue",
                line=f"a call with {probe.what}" if " was " not in probe.what else f"guard {probe.what}",
                difference=difference,
            )


def difference_of(program: Program, call: Call, arguments: Arguments, seed: int) -> str:
    """The difference of a call served by the program from eager PyTorch; empty where it is refused, or right."""
    args, kwargs = arguments
    eager_args, eager_kwargs = Call(call.subject, args, kwargs).own_arguments()
    try:
        prepared = program.prepare(call.subject, args, dict(kwargs))
    except Exception:  # refused, whatever a path raised
        return ""
    ours, theirs = (
        outcome(run, seed)
        for run in (
            lambda: program.run(*prepared),
            lambda: call.subject(*eager_args, **eager_kwargs),
        )
    )
    if isinstance(theirs, str):
        return "" if isinstance(ours, str) else f"it is served, and eager PyTorch raises {theirs}"
    return f"it raises {ours}, and eager PyTorch does not" if isinstance(ours, str) else first_unequal(ours, theirs)


def outcome(run: Callable[[], Any], seed: int) -> Leaves | str:
    """The tensors and structure that a call returns, or the class of what it raises."""
    torch.manual_seed(seed)
    try:
        return leaves_of(run())
    except Exception as error:
        return type(error).__name__


def first_unequal(ours: Leaves, theirs: Leaves) -> str:
    """The first part of a result that is not eager PyTorch's; empty where all are."""
    try:
        require_same_structure(ours, theirs)
    except NotComparable as error:
        return error.what
    for path, value in theirs.tensors.items():
        if not is_close(ours.tensors[path], value):
            return f"`{path}` has other values than in eager PyTorch"
    return ""
