"""The settings of a run, from a TOML file or the command line, with the checks that both share."""

from __future__ import annotations

import math
import reprlib
import tomllib
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from thunder_cli.options import FORMER_NAMES, SETTINGS
from thunder_core.foundation.errors import BadConfigFile, BadOption, ThunderError
from thunder_core.foundation.options import Option, options_of
from thunder_core.foundation.similar_names import did_you_mean
from thunder_core.foundation.storage.plain_file import read_plain, reason_of
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.search_request import SearchRequest

Value = str | bool | int | float
NONEMPTY_SETTINGS = {"recipe"}  # settings that must not be an empty list
MAX_LETTERS = 1 << 20
MAX_BYTES = 4 * MAX_LETTERS  # a character has up to four bytes
MAX_DOTS = 200  # in a line: the TOML parser takes quadratic time and memory for a key with many dots


@dataclass(frozen=True)
class Settings:
    """The settings that the user specified, by the names of their long options; others have their defaults."""

    values: Mapping[str, Any] = field(default_factory=dict)

    def get(self, name: str) -> Any:
        """Return the value of a setting; None if it was not specified."""
        return self.values.get(name)

    def with_model(self, model: str | None) -> Settings:
        """Return a copy of these settings that names a model; without a name, return these settings."""
        return self if model is None else Settings({**self.values, "model": model})

    def with_defaults(self, other: Settings) -> Settings:
        """Return these settings plus those of `other` that are missing here; mappings are merged."""
        merged = {**other.values, **self.values}
        for name in merged:
            if SETTINGS[name].kind is dict:
                merged[name] = {**(other.get(name) or {}), **(self.get(name) or {})}
        return Settings(merged)

    def request(self) -> Request:
        """Return the request for these settings."""
        return Request(model=ModelRequest(**self._fields_of(ModelRequest)), **self._fields_of(Request))

    def search_request(self) -> SearchRequest:
        """Return the request for a search; without the setting `search`, it requests no search."""
        return SearchRequest(**self._fields_of(SearchRequest))

    def _fields_of(self, request: type) -> dict[str, Any]:
        options = options_of(request).values()
        values = {
            definition.field: definition.value_of(self.values[definition.name])
            for definition in options
            if definition.name in self.values
        }
        return {name: value.expanduser() if isinstance(value, Path) else value for name, value in values.items()}


class UnsuitableValue(Exception):
    """A value that a setting does not accept, and a description of the accepted values."""

    def __init__(self, value: object, accepted: str) -> None:
        """Store the value, and the description of accepted values."""
        super().__init__(accepted)
        self.value, self.accepted = value, accepted


ACCEPTED_TYPES: Mapping[type, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a valid string"),
    Path: ((str, Path), "a valid string"),
    bool: ((bool,), "a valid boolean"),
    int: ((int,), "a valid integer"),
    float: ((int, float), "a valid number"),
    dict: ((dict,), "a valid dictionary"),
}


def require_type(option: Option, value: object) -> None:
    """Raise `UnsuitableValue` for a value of another type than the option's, or outside its bounds."""
    types, accepted = ACCEPTED_TYPES[option.kind]
    if option.repeats and isinstance(value, list | tuple):
        if not value and option.name in NONEMPTY_SETTINGS:
            raise UnsuitableValue(value, "a name, or a list with at least one name")
        for item in value:
            require_type(replace(option, repeats=False), item)
        return
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise UnsuitableValue(value, accepted)
    if isinstance(value, float) and not math.isfinite(value):
        raise UnsuitableValue(value, "a finite number")
    if isinstance(value, dict):
        for item in value.values():
            if not isinstance(item, Value):
                raise UnsuitableValue(item, "a valid string, boolean or number")
    for bound, words, holds in _bounds(option):
        if not holds(value):
            raise UnsuitableValue(value, f"{words} {bound}")


def _bounds(option: Option) -> Iterator[tuple[float, str, Callable[[Any], bool]]]:
    minimum, maximum = option.minimum, option.maximum
    if minimum is not None:
        yield minimum, "greater than or equal to", lambda value: value >= minimum
    if maximum is not None:
        yield maximum, "less than or equal to", lambda value: value <= maximum


def read_settings(path: Path) -> Settings:
    """Read the settings in a TOML file; raise `BadConfigFile`."""
    try:
        content = tomllib.loads(bounded_text(read_plain(path, MAX_BYTES).decode("utf-8-sig")))
    except OSError as error:
        raise BadConfigFile(f"{path} {reason_of(error)}", fix="name a TOML file that can be read") from error
    except (ValueError, RecursionError) as error:
        raise BadConfigFile(
            f"{path} is not TOML: {error}", fix="correct the line; docs/cli.md has an example"
        ) from error
    return _check(content, BadConfigFile, f"{path}: ")


def bounded_text(text: str) -> str:
    """Return a string unchanged; raise ValueError if the TOML parser would need too much memory for the string."""
    if len(text) > MAX_LETTERS:
        raise ValueError(f"the file has {len(text)} characters, which is too many for a configuration")
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > MAX_DOTS:
            raise ValueError(f"line {number} has {line.count('.')} dots, which is too many for a key")
    return text


def refuse_model_settings(settings: Settings, artifact: Path, allowed: Set[str] = frozenset()) -> None:
    """Raise `BadOption` for settings of a model, except `allowed` ones, because an artifact has its own settings."""
    model_options = [f"--{name}" for name in settings.values if name not in {"model", *allowed}]
    if model_options:
        verb = "needs" if len(model_options) == 1 else "need"
        raise BadOption(
            f"{', '.join(model_options)} {verb} a model, but {artifact} is an artifact with its own settings",
            fix=f"leave out {', '.join(model_options)}, or name the model instead of the artifact",
        )


def settings_of(values: Mapping[str, object]) -> Settings:
    """Return the settings that were passed as options; raise `BadOption`."""
    assignments = {
        name: value for name, value in values.items() if isinstance(value, list) and SETTINGS[name].kind is dict
    }
    parsed = {name: parse_assignments(SETTINGS[name], value) for name, value in assignments.items()}
    return _check({**values, **parsed}, BadOption, "--")


def _check(named_values: Mapping[str, object], kind: type[ThunderError], before: str) -> Settings:
    """Return the settings with these names and values; raise an error of this class for an invalid setting."""
    spelled = {name.replace("_", "-"): value for name, value in named_values.items()}
    values = {FORMER_NAMES.get(name, name): value for name, value in spelled.items()}
    if len(values) < len(spelled):
        former, name = next(pair for pair in FORMER_NAMES.items() if set(pair) <= spelled.keys())
        raise kind(f"{before}{name} is given twice, once by its former name {former}", fix=f"leave out {former}")
    for name, value in values.items():
        if name not in SETTINGS:
            setting_names = sorted(SETTINGS)
            fix = f"{did_you_mean(name, setting_names)}known: {', '.join(setting_names)}"
            raise kind(f"{before}there is no setting named {name!r:.80}", fix=fix)
        try:
            require_type(SETTINGS[name], value)
        except UnsuitableValue as error:
            raise kind(
                f"{before}{name} is {_short_form(error.value)}", fix=f"use a value that is {error.accepted}"
            ) from error
    return Settings(values)


def _short_form(value: object) -> str:
    """Return a short form of a value, even if it is deep or long."""
    if isinstance(value, str):
        return f"{value!r:.80}"
    try:
        return reprlib.repr(value)
    except ValueError:  # Python refuses to print numbers with more than a few thousand digits
        return "a number of many digits"


def parse_assignments(option: Option, assignments: list[str]) -> dict[str, Value]:
    """Return the values of an option with `key=value` arguments; raise `BadOption`."""
    parsed: dict[str, Value] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if key.strip() in parsed:
            raise BadOption(f"{option.flag} gives {key.strip()} twice", fix="give each name once")
        if not equals or not key.strip():
            form = option.metavar.lower()
            raise BadOption(
                f"{option.flag} {assignment!r} is not of the form {form}", fix=f"write it as {option.flag} {form}"
            )
        parsed[key.strip()] = value.strip()
    return parsed
