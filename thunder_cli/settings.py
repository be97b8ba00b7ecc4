"""What a user has set for a run, in a file or on the command line: the same names, checked in one place."""

from __future__ import annotations

import reprlib
import tomllib
from collections.abc import Mapping, Set
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field
from pydantic import ValidationError as Malformed

from thunder_cli.options import ModelOptions
from thunder_core import plugins
from thunder_core.errors import BadConfigFile, BadOption
from thunder_core.models.request import LARGEST_SEED, ModelRequest
from thunder_core.pipeline import Request

Value = str | bool | int | float
MOST_LETTERS = 1 << 20
MOST_DOTS = 200  # of a line: each part of a dotted key costs as much as all before it


def dashed(name: str) -> str:
    """A field's name as options and files spell it."""
    return name.replace("_", "-")


class Settings(BaseModel):
    """Every setting of `thunder optimize`, by the name of its long option; `None` leaves it at its default."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, alias_generator=dashed)

    model: str | None = None
    recipe: str | None = None
    out: str | None = None
    force: bool | None = None
    sign_key: str | None = None
    strict: bool | None = None
    train: bool | None = None
    dtype: str | None = None
    device: str | None = None
    target: str | None = None
    task: str | None = None
    revision: str | None = None
    random_weights: bool | None = None
    trust_remote_code: bool | None = None
    seed: int | None = Field(default=None, ge=0, le=LARGEST_SEED)
    batch: int | None = Field(default=None, ge=1)
    seq: int | None = Field(default=None, ge=1)
    runs: int | None = Field(default=None, ge=2)
    warmup: int | None = Field(default=None, ge=0)
    include_weights: bool | None = None
    no_validate: bool | None = None
    allow_non_finite: bool | None = None
    no_benchmark: bool | None = None
    require_speedup: float | None = None
    input: str | None = None
    eval: str | None = None
    metric: str | None = None
    set: dict[str, Value] | None = None

    def over(self, other: Settings) -> Settings:
        """These settings, and the other's where these say nothing; options of the recipe are merged one by one."""
        merged = {**_given(other), **_given(self)}
        if self.set or other.set:
            merged["set"] = {**(other.set or {}), **(self.set or {})}
        return Settings.model_validate(merged)

    def request(self) -> Request:
        """The request that these settings make."""
        model = _renamed(self, MODEL_FIELDS)
        rest = _renamed(self, REQUEST_FIELDS)
        return Request(
            model=ModelRequest(**model),
            options=self.set or {},
            out=None if self.out is None else Path(self.out),
            input=None if self.input is None else Path(self.input),
            evaluate=None if self.eval is None else Path(self.eval),
            sign_key=None if self.sign_key is None else Path(self.sign_key).expanduser(),
            validate=not self.no_validate,
            benchmark=not self.no_benchmark,
            **rest,
        )


MODEL_FIELDS = ("model", "dtype", "device", "task", "revision", "random_weights", "trust_remote_code", "seed")
REQUEST_FIELDS = (
    "recipe",
    "force",
    "strict",
    "batch",
    "seq",
    "runs",
    "warmup",
    "include_weights",
    "target",
    "train",
    "allow_non_finite",
    "require_speedup",
    "metric",
)


def _given(settings: Settings) -> dict[str, Any]:
    return settings.model_dump(by_alias=True, exclude_none=True)


def _renamed(settings: Settings, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: value for name in names if (value := getattr(settings, name)) is not None}


def read_settings(path: Path) -> Settings:
    """The settings in a TOML file; raises `BadConfigFile`."""
    try:
        content = tomllib.loads(bounded(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadConfigFile(f"{path} cannot be read: {error.strerror}", fix="name a file that exists") from error
    except (ValueError, RecursionError) as error:
        raise BadConfigFile(
            f"{path} is not TOML: {error}", fix="mend that line; see docs/cli.md for an example"
        ) from error
    try:
        return Settings.model_validate({dashed(key): value for key, value in content.items()})
    except Malformed as error:
        raise BadConfigFile(f"{path}: {_problem(error)}", fix=_remedy(error)) from error


def bounded(text: str) -> str:
    """A text that TOML's reader can be given; ValueError for keys of so many parts that it would take all memory."""
    if len(text) > MOST_LETTERS:
        raise ValueError(f"it has {len(text)} letters, more than settings have")
    for number, line in enumerate(text.splitlines(), 1):
        if line.count(".") > MOST_DOTS:
            raise ValueError(f"line {number} has {line.count('.')} dots, more than a setting has")
    return text


def chosen_settings(options: ModelOptions, **own: object) -> Settings:
    """The settings that a command was given: those that all commands share, and its own; a flag that is off says
    nothing. Raises `BadOption`.
    """
    given = {**asdict(options), **own}
    assignments = parse_assignments(given.pop("assignments") or [])
    return settings_of(
        {**{name: None if value is False else value for name, value in given.items()}, "set": assignments or None}
    )


def require_artifacts_own(settings: Settings, artifact: Path, but: Set[str] = frozenset()) -> None:
    """Raise `BadOption` for settings of a model, which an artifact has already."""
    given = [f"--{name}" for name in _given(settings) if name not in {"model", *but}]
    if given:
        raise BadOption(
            f"{', '.join(given)} is for models, and {artifact} is an artifact, which has its own",
            fix="leave it out, or name the model in place of the artifact",
        )


def settings_of(options: Mapping[str, object]) -> Settings:
    """The settings that were given as options; raises `BadOption`."""
    try:
        return Settings.model_validate({dashed(name): value for name, value in options.items()})
    except Malformed as error:
        raise BadOption(f"--{_problem(error)}", fix=_remedy(error)) from error


def _problem(error: Malformed) -> str:
    detail = error.errors(include_url=False)[0]
    key = str(detail["loc"][0])
    if detail["type"] == "extra_forbidden":
        return f"there is no setting called {key!r:.80}"
    return f"{key} is {_shown(detail['input'])}"


def _shown(value: object) -> str:
    """A value in short, however deep or long it is."""
    if isinstance(value, str):
        return f"{value!r:.80}"
    try:
        return reprlib.repr(value)
    except ValueError:  # Python prints no number of more than some thousand digits
        return "a number of many digits"


def _remedy(error: Malformed) -> str:
    detail = error.errors(include_url=False)[0]
    if detail["type"] != "extra_forbidden":
        return f"use a value that is {detail['msg'].removeprefix('Input should be ').lower()}"
    known = sorted(dashed(name) for name in Settings.model_fields)
    return f"{plugins.meant(str(detail['loc'][0]), known)}known: {', '.join(known)}"


def parse_assignments(assignments: list[str]) -> dict[str, Value]:
    """The options of a recipe from `key=value` texts; raises `BadOption`."""
    parsed: dict[str, Value] = {}
    for assignment in assignments:
        key, equals, value = assignment.partition("=")
        if key.strip() in parsed:
            raise BadOption(f"--set gives {key.strip()} twice", fix="give each option of a recipe once")
        if not equals or not key.strip():
            raise BadOption(f"--set {assignment!r} is not of the form key=value", fix="write it as --set key=value")
        parsed[key.strip()] = value.strip()
    return parsed
