"""The sizes and numbers of a call that were named as symbolic: where they are in it, and which values they have."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from thunder_core.errors import BadSymbolicArgument
from thunder_core.options.symbolic_arguments import WRITE, SymbolicArgument
from thunder_core.plugins import meant

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
NUMBERS = (int, float)


@dataclass(frozen=True)
class NamedValue:
    """A named size or number in a call: the text of the path to it, as `acquire.paths` has it, and its value."""

    argument: SymbolicArgument
    path: str
    value: int | float

    @property
    def is_in_range(self) -> bool:
        """Whether the value is one that the name was given for."""
        return self.argument.includes(self.value)


def parameters_of(subject: Callable[..., Any]) -> list[inspect.Parameter] | None:
    """The parameters of a function or of a module's `forward`; None where they cannot be told."""
    target = subject.forward if isinstance(subject, torch.nn.Module) else subject
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return None


def require_parameters(subject: Callable[..., Any], arguments: Iterable[SymbolicArgument]) -> None:
    """Raise `BadSymbolicArgument` for a name that no argument of the subject can have."""
    parameters = parameters_of(subject)
    if parameters is None or any(one.kind is one.VAR_KEYWORD for one in parameters):
        return
    for argument in arguments:
        if argument.required:
            _require_known(argument, [one.name for one in parameters])


def _require_known(argument: SymbolicArgument, known: Iterable[str]) -> None:
    names = list(known)
    name = argument.path.argument
    if name not in names:
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, and no argument is called {name!r}",
            fix=f"{meant(name, names)}the arguments are: {', '.join(names) or 'none'}",
        )


def named_values(
    arguments: Iterable[SymbolicArgument], subject: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[NamedValue]:
    """The named sizes and numbers that a call has; an argument that is None, or is not given, has none.

    What is not required counts where it is there and nothing before it is of the same thing.
    Raises `BadSymbolicArgument` for a name that leads nowhere, to a dimension that the tensor does not have, to what is
    no number, and for two names of one thing.
    """
    wanted = list(arguments)
    if not wanted:
        return []
    parameters = parameters_of(subject) or []
    given = dict(_given(parameters, args, kwargs))
    known = dict.fromkeys((*given, *(one.name for one in parameters if one.kind is not one.VAR_KEYWORD)))
    found: dict[str, NamedValue] = {}
    for argument in sorted(wanted, key=lambda one: not one.required):
        try:
            _require_known(argument, known)
            value = _value(argument, *given.get(argument.path.argument, ("", None)))
        except BadSymbolicArgument:
            if argument.required:
                raise
            continue
        if value is None or (value.path in found and not argument.required):
            continue
        if value.path in found:
            both = f"{found[value.path].argument.name!r} and {argument.name!r}"
            raise BadSymbolicArgument(f"symbolic= names one thing twice: {both}", fix="leave one of them out")
        found[value.path] = value
    return list(found.values())


def _given(
    parameters: list[inspect.Parameter], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Iterator[tuple[str, tuple[str, Any]]]:
    """The arguments of a call by name, each with the text of its path; those of `*args` are items of their tuple."""
    names = [one.name for one in parameters if one.kind in POSITIONAL]
    yield from ((name, (f"args[{place}]", args[place])) for place, name in enumerate(names[: len(args)]))
    rest = next((one.name for one in parameters if one.kind is one.VAR_POSITIONAL), None)
    if rest is not None:
        yield rest, ("args", _Rest(args, min(len(names), len(args))))
    yield from ((name, (f"kwargs[{name!r}]", value)) for name, value in kwargs.items())


@dataclass(frozen=True)
class _Rest:
    """The arguments of a call that `*args` takes: those of its positional arguments from `start` on."""

    args: tuple[Any, ...]
    start: int


def _value(argument: SymbolicArgument, path: str, value: Any) -> NamedValue | None:
    """The value that a name leads to in a call, from its argument on; None where that is None."""
    for item in argument.path.items:
        path, value = _item(argument, path, value, item)
    if value is None:
        return None
    return _size(argument, path, value) if argument.path.dimension is not None else _number(argument, path, value)


def _item(argument: SymbolicArgument, path: str, value: Any, item: str | int) -> tuple[str, Any]:
    if value is None:
        return path, None
    if isinstance(value, _Rest) and isinstance(item, int) and item >= 0:
        value, item = value.args, item + value.start
    if isinstance(value, list | tuple) and isinstance(item, int) and item < 0:
        item += len(value)
    if not isinstance(value, list | tuple | dict):
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, an item of {_a(value)}: items are named of lists, tuples and dicts",
            fix="name arguments that are given one by one",
        )
    try:
        found: Any = value
        return f"{path}[{item!r}]", found[item]
    except (LookupError, TypeError):
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, and the call has no such item: {item!r}", fix=WRITE
        ) from None


def _size(argument: SymbolicArgument, path: str, value: Any) -> NamedValue:
    dimension = argument.path.dimension or 0
    if not isinstance(value, torch.Tensor):
        raise BadSymbolicArgument(f"symbolic= names {argument.name!r}, which is no tensor but {_a(value)}", fix=WRITE)
    if not -value.dim() <= dimension < value.dim():
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, and the tensor has the shape {list(value.shape)}",
            fix=f"name one of its dimensions, from 0 to {value.dim() - 1}"
            if value.dim()
            else "leave it out: it has no sizes",
        )
    dimension %= value.dim()
    return NamedValue(argument, f"{path}.size({dimension})", value.shape[dimension])


def _number(argument: SymbolicArgument, path: str, value: Any) -> NamedValue:
    if isinstance(value, torch.Tensor):
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, which is a tensor",
            fix=f'name one of its sizes, as "{argument.name}.size(0)"; the values of a tensor are inputs anyhow',
        )
    if type(value) not in NUMBERS:
        raise BadSymbolicArgument(
            f"symbolic= names {argument.name!r}, which is {_a(value)}, and int and float alone can be symbolic",
            fix="leave it out: it is guarded by what it is",
        )
    if isinstance(value, float) and argument.has_range:
        raise BadSymbolicArgument(
            f"symbolic= gives {argument.name!r} a range, and it is a float, of which none is checked",
            fix=f"write None in place of the range: {{{argument.name!r}: None}}",
        )
    return NamedValue(argument, path, value)


def _a(value: object) -> str:
    return f"a {type(value).__name__}"
