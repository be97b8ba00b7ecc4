"""Options of recipes: their base class, and the errors for a name or a value that a recipe does not take."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping

from pydantic import BaseModel, ConfigDict, ValidationError

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadOption, UnknownName


class RecipeOptions(BaseModel):
    """The options of a recipe, as typed fields with defaults; `--set name=value` sets one."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def meant_option(name: str, known: Collection[str]) -> str:
    """The question whether an option was meant; the part of a recipe may be left out: `height` for `alone.height`."""
    full_names = {**{one.rpartition(".")[2]: one for one in known}, **{one: one for one in known}}
    near = dict.fromkeys(full_names[one] for one in plugins.nearest(name, full_names))
    return f"did you mean {' or '.join(near)}? " if near else ""


def require_option_names(recipe: str, known: Collection[str], names: Iterable[str]) -> None:
    """Raise `UnknownName` for the first name that is none of the options of a recipe."""
    for name in names:
        if name not in known:
            fix = (
                f"{meant_option(name, known)}it takes: {', '.join(known)}"
                if known
                else "leave out the option: this recipe has no options"
            )
            raise UnknownName(f"recipe {recipe} has no option {name!r}", fix=fix)


def plain_value(value: object) -> object:
    """A dictionary as the text `name=value,name=value`, as the command line has it; any other value as it is."""
    if not isinstance(value, Mapping):
        return value
    return ",".join(f"{name}={text_of(item)}" for name, item in value.items())


def text_of(item: object) -> str:
    """A string itself, the name of the class of an object that was made without arguments, or what Python prints."""
    if isinstance(item, str):
        return item
    try:
        is_default = vars(item) == vars(type(item)())
    except TypeError:
        is_default = False
    return type(item).__name__ if is_default else repr(item)


def parsed_options(recipe: str, kind: type[RecipeOptions], options: Mapping[str, object]) -> RecipeOptions:
    """The options of a recipe, parsed; raises `UnknownName` for a name and `BadOption` for a value it cannot take."""
    require_option_names(recipe, list(kind.model_fields), options)
    try:
        return kind.model_validate({name: plain_value(value) for name, value in options.items()})
    except ValidationError as error:
        first = error.errors()[0]
        option = f"{first['loc'][0]}=" if first["loc"] else ""  # a validator of the whole class names none
        refused = f"{option}{first['input']!r}: {first['msg']}"
        raise BadOption(f"recipe {recipe} does not accept {refused}", fix="see `thunder recipes show`") from None


def hyphenated(class_name: str) -> str:
    """`HFLlama3Hopper` as `hf-llama3-hopper`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", class_name).lower()
