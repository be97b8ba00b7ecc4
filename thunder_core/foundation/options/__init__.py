"""Options: the definition of a field of a request also defines the option that sets it: its type, bounds and help.

The long options of the command line, the keys of a settings file, the checks of a request, and docs/cli.md are
generated from these definitions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, replace
from typing import Any

from thunder_core.foundation.errors import BadOption

METADATA = "option"  # the key of the option in the metadata of a dataclass field


@dataclass(frozen=True)
class Option:
    """The command-line option of one field of a request, and the values that the field accepts.

    `name` is the name of the long option without dashes, and the key in a settings file. `panel` is the heading of the
    option in the help. `default_text` is the default as the help shows it. A flag that is `negative` sets the field to
    False. An option that `repeats` may be given several times. The option accepts numbers from `minimum` to `maximum`,
    and values for which `check(option, value)` does not raise. `parse(option, text)` converts a string into the value.
    `completion` is the name of the list that shells offer for completion. `field` is the name of the dataclass field.
    `former_name` is the name of the option in an earlier release, which is still accepted.
    """

    name: str
    kind: type
    help: str
    metavar: str = ""
    short: str = ""
    panel: str = ""
    default_text: str = ""
    minimum: float | None = None
    maximum: float | None = None
    negative: bool = False
    repeats: bool = False
    completion: str = ""
    check: Callable[[str, Any], object] | None = None
    parse: Callable[[str, str], Any] | None = None
    field: str = ""
    former_name: str = ""

    @property
    def flag(self) -> str:
        """The option as it is written on the command line."""
        return f"--{self.name}"

    def value_of(self, value: Any) -> Any:
        """Return the value of the field for a value from the command line or from a settings file."""
        if self.parse is not None:
            return self.parse(self.flag, value)
        if self.repeats:
            return dict(value) if self.kind is dict else tuple([value] if isinstance(value, str) else value)
        return not value if self.negative else self.kind(value)

    def require(self, value: Any) -> None:
        """Raise `BadOption` if a value is out of bounds, and the errors of the option's `check`."""
        if (self.minimum is not None and value < self.minimum) or (self.maximum is not None and value > self.maximum):
            bounds = (
                f"a number of {self.minimum} or more"
                if self.maximum is None
                else f"a number from {self.minimum} to {self.maximum}"
            )
            raise BadOption(f"{self.flag} is {value}", fix=f"set {self.flag} to {bounds}")
        if self.check is not None:
            self.check(self.flag, value)


def option(
    default: Any = MISSING,
    kind: type = str,
    help: str = "",  # noqa: A002 - the name on the command line
    *,
    factory: Any = MISSING,
    name: str = "",
    **rest: Any,
) -> Any:
    """Return a dataclass field that users set by an option. `rest` are other attributes of `Option`.

    The option has the name of the field unless `name` is given.
    """
    option_of_field = Option(name, kind, help, **rest)
    if factory is not MISSING:
        return field(default_factory=factory, metadata={METADATA: option_of_field})
    shown = str(default) if isinstance(default, str | int) and not isinstance(default, bool) else ""
    return field(
        default=default,
        metadata={METADATA: replace(option_of_field, default_text=option_of_field.default_text or shown)},
    )


def same_option(request: type, field_name: str, *, default: object = MISSING, **changes: Any) -> Any:
    """Return a dataclass field with the same option as the field `field_name` of another request.

    The default is `default` if given, and otherwise the default of the other field. `changes` replace attributes of the
    option.
    """
    other_field = next(candidate for candidate in dataclasses.fields(request) if candidate.name == field_name)
    option_of_field = replace(options_of(request)[field_name], **changes)
    return field(default=other_field.default if default is MISSING else default, metadata={METADATA: option_of_field})


def options_of(request: type) -> Mapping[str, Option]:
    """Return the options of a class of requests by field name, in the order of the fields."""
    options: dict[str, Option] = {}
    for definition in dataclasses.fields(request):
        if METADATA in definition.metadata:
            original: Option = definition.metadata[METADATA]
            name = original.name or definition.name.replace("_", "-")
            options[definition.name] = replace(original, field=definition.name, name=name)
    return options


def require_values(request: object) -> None:
    """Raise an error for the first field of a request whose value its option does not accept."""
    for name, option in options_of(type(request)).items():
        value = getattr(request, name)
        for item in value if isinstance(value, tuple) else (value,):
            if item is not None:
                option.require(item)


def changed_options(request: object) -> list[str]:
    """Return the flags of the options of a request whose values differ from the defaults."""
    kind: type = type(request)
    defaults = {
        definition.name: definition.default if definition.default_factory is MISSING else definition.default_factory()
        for definition in dataclasses.fields(kind)
    }
    options = options_of(kind)
    return [option.flag for name, option in options.items() if getattr(request, name) != defaults[name]]
