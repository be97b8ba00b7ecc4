"""The options of `jit` as plain data, without torch. The manifests of artifacts contain them unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from thunder_core.foundation.errors import BadOption
from thunder_core.foundation.options.left_out import left_out_texts
from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument

CacheMode = Literal["constant values", "symbolic values", "same input", "no caching"]
SharpEdges = Literal["allow", "warn", "error"]
DataDependence = Literal["guard", "retrace", "error"]

MAX_PROGRAMS = 64  # the default of `jit`, for each compiled function or module

CHOICES: Mapping[str, tuple[object, ...]] = {
    "cache": get_args(CacheMode),
    "sharp_edges": get_args(SharpEdges),
    "functional": (False, True),
    "data_dependent": get_args(DataDependence),
}


@dataclass(frozen=True, kw_only=True)
class CompileOptions:
    """The options of `jit`, except the subject, the transforms and the executors; the docstring of `jit` explains each.

    No field has a default, so every caller passes every option, and a manifest contains all options.

    Raises `BadOption` if an option has an invalid value.
    """

    cache: CacheMode
    sharp_edges: SharpEdges
    functional: bool
    data_dependent: DataDependence
    memory_budget: int | float
    max_programs: int
    symbolic: tuple[SymbolicArgument, ...]
    without: tuple[str, ...]

    def __post_init__(self) -> None:
        for name, choices in CHOICES.items():
            require_choice(name, getattr(self, name), choices)
        require_budget(self.memory_budget)
        require_max_programs(self.max_programs)
        require_symbolic(self.symbolic)
        require_without(self.without)


def require_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise `BadOption` if a value is not one of the choices of its option."""
    if not any(value == choice and type(value) is type(choice) for choice in choices):
        raise BadOption(f"{name}={value!r:.80} is not known", fix=f"use one of: {', '.join(map(repr, choices))}")


def require_budget(budget: float) -> None:
    """Raise `BadOption` if a budget is neither a fraction from 0.0 to 1.0 nor a number of bytes."""
    number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if not number or not (0 <= budget <= 1 or (isinstance(budget, int) and budget > 1)):
        raise BadOption(
            f"memory_budget={budget!r} is neither a fraction nor a number of bytes",
            fix="use a fraction of the saved bytes from 0.0 to 1.0, or an integer number of bytes above 1",
        )


def require_max_programs(limit: int) -> None:
    """Raise `BadOption` if a limit is not a positive number of programs."""
    if isinstance(limit, bool) or not isinstance(limit, int) or limit < 1:
        raise BadOption(f"max_programs={limit!r:.80} is not a number of programs", fix="use an integer of 1 or more")


def require_symbolic(symbolic: object) -> None:
    """Raise `BadOption` if `symbolic` is not a tuple of symbolic arguments, as `symbolic_arguments` returns it."""
    if not isinstance(symbolic, tuple) or not all(isinstance(argument, SymbolicArgument) for argument in symbolic):
        raise BadOption(f"symbolic={symbolic!r:.80} are not symbolic arguments", fix="use symbolic_arguments(names)")


def require_without(without: object) -> None:
    """Raise `BadOption` if `without` is not a tuple of unique sorted names, as `left_out_texts` returns it."""
    if not isinstance(without, tuple) or left_out_texts(without) != without:
        raise BadOption(f"without={without!r:.80} is not normalized", fix="use left_out_texts(without)")
