"""The sizes and numbers of a call that the user named as symbolic: their paths and values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.foundation.descriptions import object_of_class
from thunder_core.foundation.errors import BadSymbolicArgument
from thunder_core.foundation.options.symbolic_arguments import WRITE, Attribute, EachItem, Step, SymbolicArgument
from thunder_core.foundation.similar_names import did_you_mean

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NUMBERS = (int, float)


@dataclass(frozen=True)
class NamedValue:
    """A named size or number in a call, with its value and the text of its path, such as `args[0].size(1)`."""

    argument: SymbolicArgument
    path: str
    value: int | float

    @property
    def is_in_range(self) -> bool:
        """Whether the value is in the range of the symbolic argument."""
        return self.argument.includes(self.value)


def parameters_of(subject: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """Return the parameters of a function or of a module's `forward`; None if they are unknown."""
    target = subject.forward if isinstance(subject, torch.nn.Module) else subject
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return None


def require_parameters(subject: Callable[..., Any], arguments: Iterable[SymbolicArgument]) -> None:
    """Raise `BadSymbolicArgument` for a name that no argument of the subject can have."""
    parameters = parameters_of(subject)
    if parameters is None or any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        return
    for argument in arguments:
        if argument.required:
            _require_known(argument, [parameter.name for parameter in parameters])


def _require_known(argument: SymbolicArgument, known_names: Iterable[str]) -> None:
    names = list(known_names)
    name = argument.path.argument
    if name not in names:
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, but no argument is named {name!r}",
            fix=f"{did_you_mean(name, names)}the arguments are: {', '.join(names) or 'none'}",
        )


def named_values(
    arguments: Iterable[SymbolicArgument], subject: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[NamedValue]:
    """Return the named sizes and numbers of a call, except names of arguments that are None or missing.

    An optional name is left out if the call has no such value, or if another name refers to the same value. A name with
    a companion is left out if the companion is not passed.

    Raises `BadSymbolicArgument` for a name without a value, for a dimension that the tensor does not have, for a value
    that is not a number, and for two names of one value.
    """
    argument_list = list(arguments)
    if not argument_list:
        return []
    parameters = parameters_of(subject) or []
    arguments_by_name = dict(_arguments_by_name(parameters, args, kwargs))
    names = (parameter.name for parameter in parameters if parameter.kind is not parameter.VAR_KEYWORD)
    all_names = dict.fromkeys((*arguments_by_name, *names))
    values: dict[str, NamedValue] = {}
    for argument in sorted(argument_list, key=lambda candidate: not candidate.required):
        companion = argument.path.companion
        if companion is not None and arguments_by_name.get(companion, ("", None))[1] is None:
            continue
        for value in _values_of_name(argument, all_names, arguments_by_name):
            if value.path in values and not argument.required:
                continue
            if value.path in values:
                both = f"{values[value.path].argument.name!r} and {argument.name!r}"
                raise BadSymbolicArgument(
                    f"symbolic= names the same value twice: {both}", fix="leave out one of the two names"
                )
            values[value.path] = value
    return list(values.values())


def _values_of_name(
    argument: SymbolicArgument, names: Iterable[str], arguments_by_name: Mapping[str, tuple[str, Any]]
) -> Iterator[NamedValue]:
    """Yield the values of a name in a call. Raise `BadSymbolicArgument` if the name is required and has no value."""
    try:
        _require_known(argument, names)
    except BadSymbolicArgument:
        if argument.required:
            raise
        return
    yield from _values(argument, *arguments_by_name.get(argument.path.argument, ("", None)), argument.path.items)


def _arguments_by_name(
    parameters: list[inspect.Parameter], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[str, Any]]]:
    """Yield the arguments of a call by name, each with the text of its path. `*args` is one tuple."""
    names = [parameter.name for parameter in parameters if parameter.kind in POSITIONAL]
    yield from ((name, (f"args[{index}]", args[index])) for index, name in enumerate(names[: len(args)]))
    rest = next((parameter.name for parameter in parameters if parameter.kind is parameter.VAR_POSITIONAL), None)
    if rest is not None:
        yield rest, ("args", _Rest(args, min(len(names), len(args))))
    yield from ((name, (f"kwargs[{name!r}]", value)) for name, value in kwargs.items())


@dataclass(frozen=True)
class _Rest:
    """The arguments of a call that belong to `*args`: its positional arguments from `start` on."""

    args: tuple[Any, ...]
    start: int


def _values(argument: SymbolicArgument, path: str, value: object, steps: Sequence[Step]) -> Iterator[NamedValue]:
    """Yield the values to which the remaining steps of a name lead; nothing if an intermediate value is None."""
    try:
        if value is None:
            return
        if not steps:
            yield (
                _named_size(argument, path, value)
                if argument.path.dimension is not None
                else _named_number(argument, path, value)
            )
            return
        reached = [*_step(argument, path, value, steps[0])]
    except BadSymbolicArgument:
        if argument.required:
            raise
        return
    for further, item in reached:
        yield from _values(argument, further, item, steps[1:])


def _step(argument: SymbolicArgument, path: str, value: object, step: Step) -> Iterator[tuple[str, Any]]:
    """Yield the paths and values to which one step leads."""
    if isinstance(step, Attribute):
        yield f"{path}.{step.name}", _attribute(argument, value, step.name)
    elif isinstance(step, EachItem):
        if not isinstance(value, list | tuple | dict):
            raise BadSymbolicArgument(
                f"symbolic= names {argument.name!r}, each item of {object_of_class(type(value))}; only lists, "
                "tuples and dicts have items",
                fix="name one of its attributes, or one item by its key",
            )
        items = value.items() if isinstance(value, dict) else enumerate(value)
        yield from ((f"{path}[{key!r}]", item) for key, item in items)
    else:
        yield _named_item(argument, path, value, step)


def _attribute(argument: SymbolicArgument, value: object, name: str) -> Any:
    """Return an entry of an object's `__dict__`, bypassing the object's own attribute lookup."""
    try:
        return object.__getattribute__(value, "__dict__")[name]
    except (AttributeError, LookupError, TypeError):
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, but {object_of_class(type(value))} has no instance attribute {name!r}",
            fix=WRITE,
        ) from None


def _named_item(argument: SymbolicArgument, path: str, value: Any, item: str | int) -> tuple[str, Any]:
    if isinstance(value, _Rest) and isinstance(item, int) and item >= 0:
        value, item = value.args, item + value.start
    if isinstance(value, list | tuple) and isinstance(item, int) and item < 0:
        item += len(value)
    if not isinstance(value, list | tuple | dict):
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, an item of {object_of_class(type(value))}; only lists, tuples and "
            "dicts have items",
            fix="name an argument, or an attribute with a dot",
        )
    try:
        reached: Any = value
        return f"{path}[{item!r}]", reached[item]
    except (LookupError, TypeError):
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, but the call has no such item: {item!r}", fix=WRITE
        ) from None


def _named_size(argument: SymbolicArgument, path: str, value: object) -> NamedValue:
    dimension = argument.path.dimension or 0
    if not isinstance(value, torch.Tensor):
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, which is {object_of_class(type(value))}, not a tensor", fix=WRITE
        )
    if not -value.dim() <= dimension < value.dim():
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, but the tensor has the shape {list(value.shape)}",
            fix=f"name one of its dimensions, from 0 to {value.dim() - 1}"
            if value.dim()
            else f"leave out {argument.name!r}: the tensor has no dimensions",
        )
    dimension %= value.dim()
    return NamedValue(argument, f"{path}.size({dimension})", value.shape[dimension])


def _named_number(argument: SymbolicArgument, path: str, value: Any) -> NamedValue:
    if isinstance(value, torch.Tensor):
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, which is a tensor",
            fix=f'name one of its sizes, such as "{argument.name}.size(0)"; the values of a tensor are always inputs',
        )
    if type(value) not in NUMBERS:
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, which is {object_of_class(type(value))}; only int and "
            "float can be symbolic",
            fix=f"leave out {argument.name!r}: a guard checks its value",
        )
    if isinstance(value, float) and argument.has_range:
        raise BadSymbolicArgument(
            f"symbolic= gives {argument.name!r} a range, but it is a float; ranges are for integers",
            fix=f"write None instead of the range: {{{argument.name!r}: None}}",
        )
    return NamedValue(argument, path, value)
