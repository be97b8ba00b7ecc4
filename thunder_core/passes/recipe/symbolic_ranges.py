"""The ranges of a recipe's symbolic arguments, and the check of its named dimensions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from thunder_core.foundation.errors import BadRecipe, BadSymbolicArgument, RecipeConflict
from thunder_core.foundation.options.symbolic_arguments import Given, SymbolicArgument, symbolic_arguments
from thunder_core.tracing.extension.declaration import require_tuple_of


def common_ranges(stated: Iterable[tuple[str, SymbolicArgument]]) -> tuple[SymbolicArgument, ...]:
    """Return each argument once; raise `RecipeConflict` if two parts give an argument different ranges.

    `stated` has pairs: the name of a part, and an argument with the range that this part gives it.
    """
    arguments: dict[str, tuple[str, SymbolicArgument]] = {}
    for owner, argument in stated:
        first_owner, first = arguments.setdefault(argument.name, (owner, argument))
        if argument.has_range and not first.has_range:
            arguments[argument.name] = (owner, argument)
        elif argument.has_range and (argument.lower, argument.upper) != (first.lower, first.upper):
            raise RecipeConflict(
                f"{first_owner} gives {argument.name} the range {first.range_text}, but {owner} gives it the range "
                f"{argument.range_text}",
                fix=f"leave out {first_owner} or {owner}, or pass symbolic= yourself",
            )
    return tuple(argument for _, argument in arguments.values())


def require_dimensions(recipe: str, dimensions: Mapping[str, tuple[str, ...]], symbolic: Given) -> None:
    """Raise `BadRecipe` for invalid dimensions or symbolic arguments of a recipe."""
    try:
        for dimension, names in dimensions.items():
            require_tuple_of(recipe, f"dimensions[{dimension!r}]", names, (str,))
            symbolic_arguments(names)
        symbolic_arguments(symbolic)
    except BadSymbolicArgument as error:
        raise BadRecipe(f"{recipe}: {error.what}", fix=error.fix) from error
    except AttributeError as error:
        raise BadRecipe(
            f"{recipe}: dimensions is {dimensions!r:.80}",
            fix='write the names of each dimension: {"seq": ("input_ids.size(1)",)}',
        ) from error
