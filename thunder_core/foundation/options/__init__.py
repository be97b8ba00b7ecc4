"""Options: each is stated once, on the field of the request that it sets, with its type, its bounds and its help.

From these come the long options of the command line, the keys of a settings file, the checks of a request, and
docs/cli.md.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, replace
from typing import Any

from thunder_core.foundation.errors import BadOption

METADATA = "option"


@dataclass(frozen=True)
class Option:
    """The way in which users give one field of a request, and the values that it takes.

    `name` is that of the long option, without dashes before it, and of the key in a settings file; of a flag that is
    `negative` the field is the opposite. `default_text` is the default in words. Values are numbers from `least` to
    `most`, or what `check(option, value)` raises nothing for; `parse(option, text)` reads a value that is written as a
    text of its own. `completion` names the list that shells offer.
    """

    name: str
    kind: type
    help: str
    metavar: str = ""
    short: str = ""
    panel: str = ""
    default_text: str = ""
    least: float | None = None
    most: float | None = None
    negative: bool = False
    repeats: bool = False
    completion: str = ""
    check: Callable[[str, Any], object] | None = None
    parse: Callable[[str, str], Any] | None = None
    field: str = ""

    @property
    def flag(self) -> str:
        """The option as it is written on the command line."""
        return f"--{self.name}"

    def value_of(self, given: Any) -> Any:
        """The value of the field for what was given on the command line or in a file."""
        if self.parse is not None:
            return self.parse(self.flag, given)
        if self.repeats:
            return dict(given) if self.kind is dict else tuple([given] if isinstance(given, str) else given)
        return not given if self.negative else self.kind(given)

    def require(self, value: Any) -> None:
        """Raise for a value that the field does not take: `BadOption` where it is out of bounds."""
        if (self.least is not None and value < self.least) or (self.most is not None and value > self.most):
            bounds = (
                f"a number of {self.least} or more"
                if self.most is None
                else f"a number from {self.least} to {self.most}"
            )
            raise BadOption(f"{self.flag} is {value}", fix=f"set {self.flag} to {bounds}")
        if self.check is not None:
            self.check(self.flag, value)


def option(
    default: Any = MISSING,
    kind: type = str,
    help: str = "",  # noqa: A002 - what it is called on the command line
    *,
    factory: Any = MISSING,
    name: str = "",
    **rest: Any,
) -> Any:
    """A dataclass field that users set by an option; the option's name is the field's, unless another is given."""
    stated = Option(name, kind, help, **rest)
    if factory is not MISSING:
        return field(default_factory=factory, metadata={METADATA: stated})
    shown = str(default) if isinstance(default, str | int) and not isinstance(default, bool) else ""
    return field(default=default, metadata={METADATA: replace(stated, default_text=stated.default_text or shown)})


def same_option(request: type, field_name: str, *, starts: Any = MISSING, **changes: Any) -> Any:
    """A dataclass field that is set by the same option as one of another request, and `starts` with its default."""
    found = next(one for one in dataclasses.fields(request) if one.name == field_name)
    stated = replace(options_of(request)[field_name], **changes)
    return field(default=found.default if starts is MISSING else starts, metadata={METADATA: stated})


def options_of(request: type) -> Mapping[str, Option]:
    """The options of a request, by the names of its fields, in their order."""
    stated = ((one.name, one.metadata[METADATA]) for one in dataclasses.fields(request) if METADATA in one.metadata)
    return {name: replace(one, field=name, name=one.name or name.replace("_", "-")) for name, one in stated}


def require_values(request: Any) -> None:
    """Raise for the first field of a request that has a value which its option does not take."""
    for name, stated in options_of(type(request)).items():
        value = getattr(request, name)
        for one in value if isinstance(value, tuple) else (value,):
            if one is not None:
                stated.require(one)
