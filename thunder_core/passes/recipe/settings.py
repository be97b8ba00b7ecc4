"""Settings of `jit` that recipes and plug-ins ask for: which there are, and what several of them come to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import BadRecipe, RecipeConflict
from thunder_core.foundation.options.compile_options import MAX_PROGRAMS, CompileOptions
from thunder_core.foundation.options.left_out import left_out_texts
from thunder_core.foundation.options.symbolic_arguments import symbolic_arguments

# What a compiled model has where no part of its recipe asks for something else.
DEFAULTS: Mapping[str, object] = {
    "cache": "constant values",
    "sharp_edges": "allow",
    "data_dependent": "error",
    "memory_budget": 1.0,
    "max_programs": MAX_PROGRAMS,
    "without": (),
}
SYMBOLIC = "symbolic"
WITHOUT = "without"  # of several parts it adds up
SETTINGS = (*DEFAULTS, SYMBOLIC)


def settings_of(part: object) -> Mapping[str, object]:
    """The settings that a recipe or a plug-in asks for.

    Raises `BadRecipe` for what is no mapping, or has a name that `jit` does not know; `BadOption` and
    `BadSymbolicArgument` for a value that it does not take.
    """
    owner, given = type(part).__name__, part.setup_config()  # type: ignore[attr-defined]
    if not isinstance(given, Mapping):
        raise BadRecipe(f"{owner}: setup_config returns {given!r:.80}", fix='return a dict: {"memory_budget": 0.5}')
    for name in given:
        if name not in SETTINGS:
            raise BadRecipe(
                f"{owner}: setup_config has {name!r:.60}, which is not a setting of recipes",
                fix=f"{plugins.meant(str(name), SETTINGS)}known: {', '.join(SETTINGS)}",
            )
    symbolic_arguments(given.get(SYMBOLIC, ()))
    settings = dict(given)
    if WITHOUT in settings:
        settings[WITHOUT] = left_out_texts(settings[WITHOUT])
    compile_options({name: value for name, value in settings.items() if name != SYMBOLIC})
    return settings


def merged_settings(stated: Iterable[tuple[str, Mapping[str, object]]]) -> Mapping[str, object]:
    """The settings of several parts, but for `symbolic`; raises `RecipeConflict` where two want different values.

    What they leave out (`without`) adds up.
    """
    merged: dict[str, tuple[str, object]] = {}
    without: list[str] = []
    for owner, settings in stated:
        for name, value in sorted(settings.items()):
            if name == SYMBOLIC:
                continue
            if name == WITHOUT:
                without += left_out_texts(value)
                continue
            other, wanted = merged.setdefault(name, (owner, value))
            if wanted != value:
                raise RecipeConflict(
                    f"{other} sets {name}={wanted!r}, but {owner} sets {name}={value!r}",
                    fix=f"leave out {other} or {owner}",
                )
    values = {name: value for name, (_, value) in sorted(merged.items())}
    return {**values, **({WITHOUT: left_out_texts(without)} if without else {})}


def compile_options(settings: Mapping[str, object]) -> CompileOptions:
    """The options of a compiler with these settings, and the usual ones; raises `BadOption` for a value."""
    return CompileOptions(functional=False, symbolic=(), **{**DEFAULTS, **settings})  # type: ignore[arg-type]
