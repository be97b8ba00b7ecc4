"""The options of a recipe, found in its source, so that invalid names and values are refused without an import.

The functions read the nested class `Options` of a recipe and of its base classes. If its annotations and bounds are
literals, they make a class with the same fields, and Pydantic validates the values as for the recipe itself. Otherwise,
the source does not determine the options, and the recipe has to be imported.

Why recipes are not imported for this check: an import takes 25 times the CPU time of reading the source, most of it for
PyTorch. A base class `Recipe` that needs no PyTorch would change little, because recipes import their transforms and
PyTorch themselves: 19 of Thunder's 23 recipes do, directly or through their base classes, and so do recipes of users.
An import would also run a user's recipe before all other options are checked.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Optional, Union

import pydantic
from pydantic import create_model

from thunder_core.foundation import plugins
from thunder_core.passes.recipe.module_source import ModuleSource, Undecided, read_module
from thunder_core.passes.recipe.options import RecipeOptions, hyphenate, parse_options, require_option_names

RECIPE_PATHS = frozenset({"thunder_core.Recipe", "thunder_core.recipe.Recipe", "thunder_core.passes.recipe.Recipe"})
OPTIONS_PATHS = frozenset({"thunder_core.recipe.RecipeOptions", "thunder_core.passes.recipe.RecipeOptions"})
# Packages in which only the classes above are recipes.
PACKAGES_WITHOUT_RECIPES = frozenset({"thunder_core", "pydantic", "torch", "transformers"}) | sys.stdlib_module_names
# If a recipe's class binds one of these names, or a special name that is not harmless, its options may have another
# meaning, so they are undecided.
DECISIVE_NAMES = frozenset({"name", "options", "chosen"})
HARMLESS_SPECIAL_NAMES = frozenset({"__doc__", "__slots__", "__module__"})

KNOWN_TYPES: Mapping[str, Any] = {
    **{kind.__name__: kind for kind in (bool, int, float, str)},
    **{
        f"pydantic.{name}": getattr(pydantic, name)
        for name in (
            "PositiveInt", "NonNegativeInt", "NegativeInt", "NonPositiveInt", "PositiveFloat", "NonNegativeFloat",
            "NegativeFloat", "NonPositiveFloat", "StrictBool", "StrictInt", "StrictFloat", "StrictStr",
        )
    },
}  # fmt: skip
FIELD_PATH = "pydantic.Field"
CLASS_VARIABLE_PATHS = ("typing.ClassVar", "typing_extensions.ClassVar")
# Arguments of `pydantic.Field` that are literals and do not rename the field.
FIELD_ARGUMENTS = frozenset(
    {
        "default", "ge", "gt", "le", "lt", "multiple_of", "min_length", "max_length", "pattern", "strict",
        "allow_inf_nan", "title", "description", "examples", "repr", "deprecated",
    }
)  # fmt: skip


@dataclass(frozen=True)
class DeclaredOptions:
    """The names of a recipe's options, and the class that parses their values.

    The class `kind` is None if the source does not determine it.
    """

    names: tuple[str, ...] = ()
    kind: type[RecipeOptions] | None = RecipeOptions


@dataclass(frozen=True)
class DeclaredRecipe:
    """A recipe as its source declares it: its name and its options."""

    name: str
    options: DeclaredOptions


def refuse_options(name: str, options: Mapping[str, object]) -> None:
    """Raise `UnknownName` or `BadOption` if the recipe's source shows that the recipe refuses these options.

    The source of an imported recipe is not read, because the caller can check the recipe itself.
    """
    module, _ = plugins.source_of("recipes", name)
    declared = None if plugins.is_loaded(module) else declared_recipe(name)
    if declared is None:
        return
    require_option_names(declared.name, declared.options.names, options)
    if declared.options.kind is not None:
        parse_options(declared.name, declared.options.kind, options)


def declared_recipe(name: str) -> DeclaredRecipe | None:
    """Return the recipe with a name as its source declares it; None if the source does not determine it."""
    module, file = plugins.source_of("recipes", name)
    try:
        source = read_module(module, file)
        own = [node for node in source.classes.values() if is_recipe(source, node)]
        if len(own) != 1:
            return None
        return DeclaredRecipe(hyphenate(own[0].name), options_of_recipe(source, own[0]))
    except (Undecided, RecursionError):
        return None


def is_recipe(source: ModuleSource, node: ast.ClassDef) -> bool:
    """Whether a class derives from `Recipe`; raises `Undecided` if one of its bases cannot be read."""
    paths = [source.path_of(base) for base in node.bases]
    derives = any(
        path in RECIPE_PATHS or (path.partition(".")[0] not in PACKAGES_WITHOUT_RECIPES and is_recipe(*class_at(path)))
        for path in paths
    )
    if derives and source.paths[node.name] is None:
        raise Undecided(node.name)
    return derives


def class_at(path: str) -> tuple[ModuleSource, ast.ClassDef]:
    """Return the module and the class at a dotted path; raises `Undecided`."""
    module, _, name = path.rpartition(".")
    file = plugins.file_of(module) if module else None
    source = None if file is None else read_module(module, file)
    if source is None or name not in source.classes or source.paths[name] is None:
        raise Undecided(path)
    return source, source.classes[name]


def options_of_recipe(source: ModuleSource, node: ast.ClassDef) -> DeclaredOptions:
    """Return the options of a recipe's class; without own options, those of its base. Raises `Undecided`."""
    if len(node.bases) != 1 or node.keywords:
        raise Undecided(node.name)
    nested: ast.ClassDef | None = None
    for inner in node.body:
        for name in bound_names(inner):
            if name == "Options" and isinstance(inner, ast.ClassDef) and nested is None:
                nested = inner
            elif name in (*DECISIVE_NAMES, "Options") or (name.startswith("__") and name not in HARMLESS_SPECIAL_NAMES):
                raise Undecided(f"{node.name}.{name}")
    if nested is not None:
        return options_of_class(source, nested)
    base = source.path_of(node.bases[0])
    return DeclaredOptions() if base in RECIPE_PATHS else options_of_recipe(*class_at(base))


def bound_names(node: ast.stmt) -> tuple[str, ...]:
    """Return the names that a statement of a class's body binds; raise `Undecided` if the statement may do more."""
    if isinstance(node, ast.Pass) or (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
        return ()
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return (node.name,)
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    if not targets or not all(isinstance(target, ast.Name) for target in targets):
        raise Undecided(ast.unparse(node))
    return tuple(target.id for target in targets if isinstance(target, ast.Name))


def options_of_class(source: ModuleSource, node: ast.ClassDef) -> DeclaredOptions:
    """Return the options that a class declares, after the options of its base; raises `Undecided`."""
    if len(node.bases) != 1 or node.keywords or node.decorator_list:
        raise Undecided(node.name)
    base = options_at(source.path_of(node.bases[0]))
    fields: dict[str, tuple[Any, Any] | None] = {}
    for inner in node.body:
        if isinstance(inner, ast.AnnAssign) and isinstance(inner.target, ast.Name):
            if is_field(source, inner):
                fields[inner.target.id] = field_of(source, inner)
        elif bound := bound_names(inner):  # a validator or a pydantic setting has an unknown effect on values
            if isinstance(inner, ast.Assign) and bound != ("model_config",):
                raise Undecided(ast.unparse(inner))
            base = DeclaredOptions(base.names, None)
    return DeclaredOptions(
        tuple(dict.fromkeys((*base.names, *fields))), extend(node.name, base.kind, fields) if fields else base.kind
    )


def options_at(path: str) -> DeclaredOptions:
    """Return the options of the class at a dotted path, which may be nested in a recipe; raises `Undecided`."""
    if path in OPTIONS_PATHS:
        return DeclaredOptions()
    recipe, _, last = path.rpartition(".")
    if last == "Options":
        return DeclaredOptions() if recipe in RECIPE_PATHS else options_of_recipe(*class_at(recipe))
    return options_of_class(*class_at(path))


def extend(
    name: str, base: type[RecipeOptions] | None, fields: Mapping[str, tuple[Any, Any] | None]
) -> type[RecipeOptions] | None:
    """Return a class with the options of `base`, followed by `fields`; None if a field is undecided."""
    decided = {field: value for field, value in fields.items() if value is not None}
    if base is None or len(decided) < len(fields):
        return None
    try:
        with warnings.catch_warnings(action="ignore"):  # an import of the recipe would issue the same warnings
            return create_model(name, __base__=base, **decided)  # type: ignore[call-overload, no-any-return]
    except (TypeError, ValueError, NameError, pydantic.errors.PydanticUserError):
        return None


def is_field(source: ModuleSource, node: ast.AnnAssign) -> bool:
    """Whether an annotated assignment in a class of options declares a field; raises `Undecided`."""
    assert isinstance(node.target, ast.Name)
    if node.target.id == "model_config" or isinstance(node.annotation, ast.Constant):
        raise Undecided(node.target.id)
    head = node.annotation.value if isinstance(node.annotation, ast.Subscript) else node.annotation
    path = "" if isinstance(head, ast.BinOp) else source.path_of(head)
    if path.endswith(".Final"):  # pydantic treats only some names annotated with Final as fields
        raise Undecided(path)
    return not node.target.id.startswith("_") and path not in CLASS_VARIABLE_PATHS


def field_of(source: ModuleSource, node: ast.AnnAssign) -> tuple[Any, Any] | None:
    """Return the type and the default of a field for `pydantic.create_model`; None if they are not literals."""
    try:
        return type_of(source, node.annotation), ... if node.value is None else value_of(source, node.value)
    except (Undecided, TypeError, ValueError):
        return None


def type_of(source: ModuleSource, node: ast.expr) -> Any:
    """Return the type that an annotation names; raises `Undecided`."""
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        return Union[type_of(source, node.left), type_of(source, node.right)]  # noqa: UP007 - of two computed types
    if isinstance(node, ast.Subscript):
        return subscripted_type(source, source.path_of(node.value), arguments(node.slice))
    path = source.path_of(node)
    if path not in KNOWN_TYPES:
        raise Undecided(path)
    return KNOWN_TYPES[path]


def subscripted_type(source: ModuleSource, path: str, arguments: list[ast.expr]) -> Any:
    """Return the type at a dotted path with these type arguments; raises `Undecided`."""
    if path not in SUBSCRIPTED_TYPES:
        raise Undecided(path)
    return SUBSCRIPTED_TYPES[path](source, arguments)


def literal_type(_: ModuleSource, arguments: list[ast.expr]) -> Any:
    """Return the type `Literal` with these values."""
    return Literal[tuple(ast.literal_eval(value) for value in arguments)]


def optional_type(source: ModuleSource, arguments: list[ast.expr]) -> Any:
    """Return the type `Optional` of the argument."""
    return Optional[type_of(source, arguments[0])]  # noqa: UP045 - of a computed type


def annotated_type(source: ModuleSource, arguments: list[ast.expr]) -> Any:
    """Return the type `Annotated` of the first argument, with the bounds that the other arguments (`Field`) declare."""
    return Annotated[(type_of(source, arguments[0]), *(bounds_of(source, bound) for bound in arguments[1:]))]


SUBSCRIPTED_TYPES: Mapping[str, Callable[[ModuleSource, list[ast.expr]], Any]] = {
    f"{module}.{name}": read
    for module in ("typing", "typing_extensions")
    for name, read in (("Literal", literal_type), ("Optional", optional_type), ("Annotated", annotated_type))
}


def arguments(node: ast.expr) -> list[ast.expr]:
    """Return the arguments of a subscription."""
    return list(node.elts) if isinstance(node, ast.Tuple) else [node]


def value_of(source: ModuleSource, node: ast.expr) -> Any:
    """Return the default of a field: a literal, or the value that `Field` declares.

    Raises `Undecided` or ValueError.
    """
    return bounds_of(source, node) if isinstance(node, ast.Call) else ast.literal_eval(node)


def bounds_of(source: ModuleSource, node: ast.expr) -> Any:
    """Return the `Field` of a call with literal arguments; raises `Undecided` or ValueError."""
    if not isinstance(node, ast.Call) or source.path_of(node.func) != FIELD_PATH or len(node.args) > 1:
        raise Undecided(ast.unparse(node))
    options = {str(keyword.arg): ast.literal_eval(keyword.value) for keyword in node.keywords}
    if not options.keys() <= FIELD_ARGUMENTS:
        raise Undecided(ast.unparse(node))
    return pydantic.Field(*(ast.literal_eval(argument) for argument in node.args), **options)
