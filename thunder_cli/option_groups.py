"""Groups of options: a command function receives the values of many command-line options as one parameter."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from typing import Any, get_args, get_origin

from thunder_cli.options import SETTINGS, parameter_of
from thunder_cli.settings import Settings, settings_of
from thunder_core.foundation.options import Option, options_of

OptionValues = Mapping[str, Any]


@dataclass(frozen=True)
class Group:
    """The command-line options for one parameter of a command function, and the function that builds its value."""

    options: Sequence[Option]
    build: Callable[[OptionValues], object]

    def take_from(self, arguments: dict[str, Any]) -> object:
        """Build the parameter's value from the arguments, and remove the group's options from them."""
        values = {option.name: arguments.pop(option.name.replace("-", "_")) for option in self.options}
        return self.build({name: value for name, value in values.items() if is_specified(value)})


def is_specified(value: object) -> bool:
    """Whether an option was specified. 0 counts as specified; None, False and an empty list do not."""
    return value is not None and value is not False and value != []


def group_of(annotation: object) -> Group | None:
    """Return the group of options for a parameter's annotation; None if the parameter is a single option.

    If the annotation is a dataclass, the group has one option for each field. If the annotation is
    `Annotated[Settings, NAMES]`, the group has the settings with these names.
    """
    if annotation is Settings or (get_origin(annotation) is not None and get_args(annotation)[0] is Settings):
        (names,) = get_args(annotation)[1:]
        return Group([SETTINGS[name] for name in names], settings_of)
    if not (is_dataclass(annotation) and isinstance(annotation, type)):
        return None
    options = {option.name: option for option in options_of(annotation).values()}

    def build(values: OptionValues) -> object:
        return annotation(**{options[name].field: options[name].value_of(value) for name, value in values.items()})

    return Group(list(options.values()), build)


def expand_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command for typer, with each group's parameter replaced by the group's options."""
    signature = inspect.signature(command, eval_str=True)
    groups_or_none = {name: group_of(parameter.annotation) for name, parameter in signature.parameters.items()}
    groups = {name: group for name, group in groups_or_none.items() if group is not None}

    @functools.wraps(command)
    def run(**values: Any) -> None:
        for name, group in groups.items():
            values[name] = group.take_from(values)
        command(**values)

    expanded_parameters = [
        expanded for parameter in signature.parameters.values() for expanded in _expand(parameter, groups)
    ]
    expanded_command: Any = run
    expanded_command.__signature__ = signature.replace(parameters=expanded_parameters)
    expanded_command.__annotations__ = {parameter.name: parameter.annotation for parameter in expanded_parameters}
    return run


def _expand(parameter: inspect.Parameter, groups: Mapping[str, Group]) -> Iterator[inspect.Parameter]:
    if parameter.name not in groups:
        yield parameter
        return
    yield from map(parameter_of, groups[parameter.name].options)
