"""Probes of arguments: tensors with other metadata, and numbers, flags and strings with other values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from thunder_core.backend.claiming.comparison import significant_strides
from thunder_core.workflow.fault_localization.probes.calls import Arguments, SubjectCall, copy_contents
from thunder_core.workflow.fault_localization.probes.probe import Probe

CHANGED_VALUES: Mapping[type, Callable[[Any], Any]] = {
    bool: lambda value: not value,
    int: lambda value: value + 1,
    float: lambda value: 0.75 if value == 0.5 else value / 2 + 0.25,  # a probability stays a probability
    str: lambda value: f"{value}_",
    type(None): lambda _: 1,
    tuple: lambda value: (*value, *value[-1:]),
}
NUMBERS = (bool, int, float)
LONGER_BY_ONE = "with one more element"


def argument_probes(call: SubjectCall, *, each_size: bool = True) -> Iterator[Probe]:
    """Yield probes with each argument changed, with each argument missing, and with additional arguments.

    Tensors with a common size are changed together; if `each_size` is set, also one by one.
    """
    yield from size_probes(call)
    for name, value in call.kwargs.items():
        path = f"kwargs[{name!r}]"
        for what, replacement in nearby_values(value):
            if not each_size and LONGER_BY_ONE in what:
                continue
            yield Probe(f"{name} {what}", with_argument(call, name, replacement), path=path)
    for name in call.kwargs:
        yield Probe(f"no {name}", without_argument(call, name), path="kwargs")
    for name, value in further_arguments(call):
        yield Probe(f"{name}={value!r}", with_argument(call, name, value), path="kwargs")
    yield Probe(
        "one more positional argument", lambda: copy_contents(((*call.args, None), dict(call.kwargs))), path="args"
    )


def further_arguments(call: SubjectCall) -> Iterator[tuple[str, Any]]:
    """Yield values for arguments that the call leaves at their defaults, and for one unknown argument."""
    function = call.subject.forward if isinstance(call.subject, torch.nn.Module) else call.subject
    try:
        parameters = list(inspect.signature(function).parameters.values())[len(call.args) :]
    except (TypeError, ValueError):
        parameters = []
    for parameter in parameters:
        if parameter.name in call.kwargs or parameter.kind not in (
            parameter.KEYWORD_ONLY,
            parameter.POSITIONAL_OR_KEYWORD,
        ):
            continue
        if type(parameter.default) in NUMBERS:
            yield parameter.name, CHANGED_VALUES[type(parameter.default)](parameter.default)
        elif parameter.default is None and "bool" in str(parameter.annotation):
            yield from ((parameter.name, value) for value in (False, True))
    yield "further_argument", 1


def nearby_values(value: object) -> Iterator[tuple[str, Any]]:
    """Yield slightly different values, with the difference in words."""
    if isinstance(value, torch.Tensor) and value.layout is torch.strided:
        kind = torch.nn.Parameter if isinstance(value, torch.nn.Parameter) else None
        for what, replacement in other_tensors(value.detach().requires_grad_(value.requires_grad)):
            yield what, replacement if kind is None else kind(replacement.detach(), replacement.requires_grad)
    elif (change := CHANGED_VALUES.get(type(value))) is not None:
        yield f"now {change(value)!r}", change(value)


def other_tensors(value: torch.Tensor) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors with the same values, where possible, but other metadata."""
    for dim in range(value.ndim):
        if value.shape[dim]:
            yield f"{LONGER_BY_ONE} in dimension {dim}", torch.cat([value, value.narrow(dim, 0, 1)], dim)
    if value.is_floating_point():
        other_dtype = torch.float64 if value.dtype != torch.float64 else torch.float32
        yield f"of {other_dtype}", value.detach().to(other_dtype).requires_grad_(value.requires_grad)
        yield "with another requires_grad", value.detach().clone().requires_grad_(not value.requires_grad)
    elif value.dtype in (torch.int64, torch.int32):
        yield "of another integer dtype", value.to(torch.int32 if value.dtype == torch.int64 else torch.int64)
    if value.ndim > 1 and value.numel() > 1:
        other_layout = value.detach().transpose(0, -1).contiguous().transpose(0, -1)
        if significant_strides(other_layout) != significant_strides(value):
            yield "in another layout", other_layout.clone(memory_format=torch.preserve_format)


def size_probes(call: SubjectCall) -> Iterator[Probe]:
    """Yield a probe for each size that several tensor arguments share: this dimension gets one more element in all."""
    tensors = {
        name: value
        for name, value in call.kwargs.items()
        if isinstance(value, torch.Tensor) and value.layout is torch.strided
        if not isinstance(value, torch.nn.Parameter)
    }
    sizes = dict.fromkeys((dim, size) for value in tensors.values() for dim, size in enumerate(value.shape) if size)
    for dim, size in sizes:
        fitting = {
            name: value.detach() for name, value in tensors.items() if value.ndim > dim and value.shape[dim] == size
        }
        longer = {
            name: torch.cat([value, value.narrow(dim, 0, 1)], dim).requires_grad_(tensors[name].requires_grad)
            for name, value in fitting.items()
        }
        path = f"kwargs[{next(iter(fitting))!r}]"
        yield Probe(f"{', '.join(fitting)} {LONGER_BY_ONE} in dimension {dim}", with_arguments(call, longer), path=path)


def with_arguments(call: SubjectCall, values: Mapping[str, Any]) -> Callable[[], Arguments]:
    """Return a function that returns copies of a call's arguments with some arguments replaced."""
    return lambda: copy_contents((call.args, {**call.kwargs, **values}))


def with_argument(call: SubjectCall, name: str, value: object) -> Callable[[], Arguments]:
    """Return a function that returns copies of a call's arguments with one argument replaced."""
    return lambda: copy_contents((call.args, {**call.kwargs, name: value}))


def without_argument(call: SubjectCall, name: str) -> Callable[[], Arguments]:
    """Return a function that returns copies of a call's arguments without one argument."""
    return lambda: copy_contents((call.args, {key: value for key, value in call.kwargs.items() if key != name}))
