"""Lookasides: functions of the user that replace functions while a program is traced."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.overrides import resolve_name

from thunder_core.foundation.errors import RecipeConflict, WrongInputs


@dataclass(frozen=True)
class Lookaside:
    """A replacement of a function: it is interpreted, with the same arguments, wherever the program calls the function.

    `function` is a function or a class of Python or C (`math.sqrt`, `torch.relu`), or a method of a class
    (`Attention.forward`, `torch.Tensor.relu`), for the calls on all instances. `replacement` is called instead of
    `function`. A call of `function` within `replacement` calls the original. `when` is a function of the same
    arguments: only calls for which `when` returns True are replaced. `replacement` and `when` are interpreted like the
    program, so that their reads are guarded.

    A replacement may change results: `thunder optimize` compares the program with eager PyTorch without the lookaside.
    Raises `WrongInputs` if one of the functions is not callable, or if `function` is not hashable.
    """

    function: Callable[..., Any]
    replacement: Callable[..., Any]
    when: Callable[..., bool] | None = None

    def __post_init__(self) -> None:
        for role in ("function", "replacement", "when"):
            called = getattr(self, role)
            if not callable(called) and not (role == "when" and called is None):
                raise WrongInputs(
                    f"the {role} of a lookaside is {called!r:.60}, which cannot be called",
                    fix="pass functions: Lookaside(module.function, my_function)",
                )
        if not isinstance(self.function, Hashable):
            raise WrongInputs(
                f"a lookaside replaces {self.function!r:.60}, which is not hashable, so its calls cannot be found",
                fix="name the method of its class: Lookaside(Kind.__call__, my_function)",
            )

    @property
    def name(self) -> str:
        """The dotted name of the function that the program calls."""
        return name_of(self.function)

    @property
    def summary(self) -> str:
        """The first line of the replacement's docstring; empty if it has none."""
        documentation = inspect.getdoc(self.replacement) if hasattr(self.replacement, "__name__") else None
        return (documentation or "").partition("\n")[0]


def name_of(function: Callable[..., Any]) -> str:
    """Return the dotted name of a callable: PyTorch's name for its functions, otherwise the name of its definition."""
    if (torch_name := resolve_name(function)) is not None:
        return str(torch_name)
    owner = getattr(function, "__module__", None) or getattr(getattr(function, "__objclass__", None), "__module__", "")
    qualified: str = getattr(function, "__qualname__", type(function).__qualname__)
    name = ".".join(part for part in qualified.split(".") if not part.startswith("pybind11_"))
    return f"{owner}.{name}" if owner else name


def require_distinct(lookasides: Sequence[object]) -> tuple[Lookaside, ...]:
    """Return the lookasides, sorted. Raises `RecipeConflict` if two lookasides replace the same function, and
    `WrongInputs` for an object that is not a lookaside.
    """
    by_function: dict[Callable[..., Any], Lookaside] = {}
    for lookaside in lookasides:
        if not isinstance(lookaside, Lookaside):
            raise WrongInputs(
                f"{lookaside!r:.60} is not a lookaside", fix="write Lookaside(module.function, my_function)"
            )
        first = by_function.setdefault(lookaside.function, lookaside)
        if first != lookaside:
            raise RecipeConflict(
                f"two lookasides replace {lookaside.name}, but only one can run", fix="leave out one of them"
            )
    return tuple(sorted(by_function.values(), key=lambda lookaside: lookaside.name))
