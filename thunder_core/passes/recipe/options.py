"""Options of recipes: their base class, and the errors for unknown names and invalid values."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from thunder_core.foundation.errors import BadOption, UnknownName
from thunder_core.foundation.similar_names import nearest


class RecipeOptions(BaseModel):
    """The options of a recipe, as typed fields with defaults; `--set name=value` sets an option."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def similar_option_hint(name: str, options: Collection[str]) -> str:
    """Return the question "did you mean ...?" for a misspelled option, or an empty string.

    The recipe's prefix may be omitted: `height` for `alone.height`.
    """
    full_names = {**{option.rpartition(".")[2]: option for option in options}, **{option: option for option in options}}
    near = dict.fromkeys(full_names[match] for match in nearest(name, full_names))
    return f"did you mean {' or '.join(near)}? " if near else ""


def require_option_names(recipe: str, options: Collection[str], names: Iterable[str]) -> None:
    """Raise `UnknownName` for the first name that is not an option of the recipe."""
    for name in names:
        if name not in options:
            fix = (
                f"{similar_option_hint(name, options)}it takes: {', '.join(options)}"
                if options
                else "leave out the option: this recipe has no options"
            )
            raise UnknownName(f"recipe {recipe} has no option {name!r}", fix=fix)


def plain_value(value: object) -> object:
    """Return the value of an option as text that the command line accepts, if the value is an object.

    The text of a dictionary is `name=value,name=value`. The text of a dataclass is its `repr`. The text of a process
    group, of a mesh with one axis, or of a dtype is its name. Other values are returned unchanged.
    """
    if (name := name_of(value)) is not None:
        return name
    if is_dataclass(value) and not isinstance(value, type):
        return text_of(value)
    if not isinstance(value, Mapping):
        return value
    return ",".join(f"{name}={text_of(item)}" for name, item in value.items())


def name_of(value: Any) -> str | None:
    """Return the name of a process group, of the group of a mesh with one axis, or of a dtype; None for other values.

    The classes are not imported, because recipes are also listed without PyTorch.
    """
    kinds = {f"{kind.__module__}.{kind.__name__}" for kind in type(value).__mro__}
    if "torch.dtype" in kinds:
        return str(value).removeprefix("torch.")
    if "torch.distributed.device_mesh.DeviceMesh" in kinds and value.ndim == 1:
        return name_of(value.get_group())
    return str(value.group_name) if "torch.distributed.distributed_c10d.ProcessGroup" in kinds else None


def text_of(item: object) -> str:
    """Return the text of a value: a string itself, the class name of an object with default attributes, or a `repr`."""
    if isinstance(item, str):
        return item
    try:
        is_default = vars(item) == vars(type(item)())
    except TypeError:
        is_default = False
    return type(item).__name__ if is_default else repr(item)


def parse_options(recipe: str, kind: type[RecipeOptions], options: Mapping[str, object]) -> RecipeOptions:
    """Return the parsed options of a recipe; raise `UnknownName` for a name and `BadOption` for an invalid value."""
    require_option_names(recipe, list(kind.model_fields), options)
    try:
        return kind.model_validate({name: plain_value(value) for name, value in options.items()})
    except ValidationError as error:
        first = error.errors()[0]
        option = f"{first['loc'][0]}=" if first["loc"] else ""  # the error of a validator of the class has no location
        refused = f"{option}{first['input']!r}: {first['msg']}"
        raise BadOption(f"recipe {recipe} does not accept {refused}", fix="see `thunder recipes show`") from None


def hyphenate(class_name: str) -> str:
    """Return a class name in lower case with hyphens: `hf-llama3-hopper` for `HFLlama3Hopper`."""
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "-", class_name).lower()
