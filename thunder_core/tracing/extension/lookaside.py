"""Lookasides: functions of the user's that run in place of those that a program calls."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from torch.overrides import resolve_name

from thunder_core.foundation.errors import RecipeConflict, WrongInputs


@dataclass(frozen=True)
class Lookaside:
    """A function that is interpreted wherever the traced program calls another one, with the same arguments.

    `function` is what the program calls: a function or a class of Python's or of C's (`math.sqrt`, `torch.relu`), or a
    method as its class has it (`Attention.forward`, `torch.Tensor.relu`), for the calls on all its instances.
    `replacement` is called in its place; where it calls `function` itself, it gets the original. With `when`, a
    function of the same arguments, calls for which that is false stay as they are. Both are interpreted like the
    program, so that what they read is guarded.

    A replacement changes what the program means: `thunder optimize` validates it beside eager PyTorch without it.
    Raises `WrongInputs` for what cannot be called, or told from others.
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
                f"a lookaside names {self.function!r:.60}, which is not hashable, so its calls cannot be found",
                fix="name the method of its class: Lookaside(Kind.__call__, my_function)",
            )

    @property
    def name(self) -> str:
        """The dotted name of the function that the program calls."""
        return name_of(self.function)

    @property
    def summary(self) -> str:
        """The first line of the replacement's documentation; empty where it has none of its own."""
        documentation = inspect.getdoc(self.replacement) if hasattr(self.replacement, "__name__") else None
        return (documentation or "").partition("\n")[0]


def name_of(function: Callable[..., Any]) -> str:
    """The dotted name of something that is called: PyTorch's own for its functions, else that of its definition."""
    if (torch_name := resolve_name(function)) is not None:
        return str(torch_name)
    owner = getattr(function, "__module__", None) or getattr(getattr(function, "__objclass__", None), "__module__", "")
    qualified: str = getattr(function, "__qualname__", type(function).__qualname__)
    name = ".".join(part for part in qualified.split(".") if not part.startswith("pybind11_"))
    return f"{owner}.{name}" if owner else name


def require_distinct(lookasides: Sequence[object]) -> tuple[Lookaside, ...]:
    """The lookasides, each once; raises `RecipeConflict` where two are for one function, `WrongInputs` for others."""
    by_function: dict[Callable[..., Any], Lookaside] = {}
    for lookaside in lookasides:
        if not isinstance(lookaside, Lookaside):
            raise WrongInputs(
                f"{lookaside!r:.60} is not a lookaside", fix="write Lookaside(module.function, my_function)"
            )
        other = by_function.setdefault(lookaside.function, lookaside)
        if other != lookaside:
            raise RecipeConflict(
                f"two lookasides replace {lookaside.name}, but only one can run", fix="leave out one of them"
            )
    return tuple(sorted(by_function.values(), key=lambda one: one.name))
