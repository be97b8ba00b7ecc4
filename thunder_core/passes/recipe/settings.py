"""The settings of `jit` that recipes and plug-ins may request in `setup_config`, and the merging of their requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thunder_core.foundation.errors import BadRecipe, RecipeConflict
from thunder_core.foundation.options.compile_options import MAX_PROGRAMS, CompileOptions
from thunder_core.foundation.options.left_out import left_out_texts
from thunder_core.foundation.options.symbolic_arguments import symbolic_arguments
from thunder_core.foundation.similar_names import did_you_mean

# The settings of `thunder.compile` for which its recipe and plug-ins request no value.
DEFAULTS: Mapping[str, object] = {
    "cache": "constant values",
    "sharp_edges": "allow",
    "data_dependent": "error",
    "memory_budget": 1.0,
    "max_programs": MAX_PROGRAMS,
    "without": (),
}
SYMBOLIC = "symbolic"
WITHOUT = "without"  # the setting that names the parts to leave out
SETTINGS = (*DEFAULTS, SYMBOLIC)


def settings_of(part: object) -> Mapping[str, object]:
    """Return the settings that a recipe or plug-in requests in its `setup_config`.

    Raises `BadRecipe` if `setup_config` does not return a mapping, or if the mapping has a name that is not a setting.
    Raises `BadOption` or `BadSymbolicArgument` if a setting has an invalid value.
    """
    owner, requested = type(part).__name__, part.setup_config()  # type: ignore[attr-defined]
    if not isinstance(requested, Mapping):
        raise BadRecipe(f"{owner}: setup_config returns {requested!r:.80}", fix='return a dict: {"memory_budget": 0.5}')
    for name in requested:
        if name not in SETTINGS:
            raise BadRecipe(
                f"{owner}: setup_config has {name!r:.60}, which is not a setting of recipes",
                fix=f"{did_you_mean(str(name), SETTINGS)}known: {', '.join(SETTINGS)}",
            )
    symbolic_arguments(requested.get(SYMBOLIC, ()))
    settings = dict(requested)
    if WITHOUT in settings:
        settings[WITHOUT] = left_out_texts(settings[WITHOUT])
    compile_options({name: value for name, value in settings.items() if name != SYMBOLIC})
    return settings


def merge_settings(requests: Iterable[tuple[str, Mapping[str, object]]]) -> Mapping[str, object]:
    """Return the merged settings of recipes and plug-ins, except `symbolic`.

    `requests` has pairs: the name of a recipe or plug-in, and its settings. The values of `without` are concatenated.
    Raises `RecipeConflict` if another setting has two different values.
    """
    merged: dict[str, tuple[str, object]] = {}
    without: list[str] = []
    for owner, settings in requests:
        for name, value in sorted(settings.items()):
            if name == SYMBOLIC:
                continue
            if name == WITHOUT:
                without += left_out_texts(value)
                continue
            first_owner, first_value = merged.setdefault(name, (owner, value))
            if first_value != value:
                raise RecipeConflict(
                    f"{first_owner} sets {name}={first_value!r}, but {owner} sets {name}={value!r}",
                    fix=f"leave out {first_owner} or {owner}",
                )
    values = {name: value for name, (_, value) in sorted(merged.items())}
    return {**values, **({WITHOUT: left_out_texts(without)} if without else {})}


def compile_options(settings: Mapping[str, object]) -> CompileOptions:
    """Return the compiler options for these settings and the defaults; raise `BadOption` for an invalid value."""
    return CompileOptions(functional=False, symbolic=(), **{**DEFAULTS, **settings})  # type: ignore[arg-type]
