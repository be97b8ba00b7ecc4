"""Plug-ins: bundles of parts that are added to recipes, and the composition of both by `+`.

A `Plugin` here is a bundle of parts; `thunder_core.foundation.plugins` finds the modules of installed packages.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Any, ClassVar

from thunder_core.backend.claiming.executor import Executor
from thunder_core.backend.claiming.operator import Operator
from thunder_core.foundation.errors import BadRecipe, RecipeConflict
from thunder_core.tracing.extension.declaration import check_attributes, options_of, require_traits, require_tuple_of
from thunder_core.tracing.extension.lookaside import Lookaside
from thunder_core.tracing.extension.requirement import Requirement
from thunder_core.tracing.extension.transform import Transform

PART_TYPES: Mapping[str, tuple[type, ...]] = {
    "lookasides": (Lookaside,),
    "transforms": (Transform,),
    "executors": (str, Executor),
    "requirements": (Requirement,),
    "operators": (Executor,),
}


class ExecutorRank(IntEnum):
    """The claiming order of executors by their origin. It decides if neither a list nor a trait does."""

    OPERATOR = 0
    PLUGIN = 1
    RECIPE = 2


class Composable(ABC):
    """A recipe or a plug-in: a part that is combined with other parts by `+`.

    The methods `setup_...` describe only this part, not the parts that were added to it.
    """

    executor_rank: ClassVar[ExecutorRank] = ExecutorRank.PLUGIN

    @property
    def after(self) -> tuple[str, ...]:
        """The names of parts that this part comes after."""
        return ()

    @property
    def before(self) -> tuple[str, ...]:
        """The names of parts that this part comes before."""
        return ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of parts that must be present."""
        return ()

    @property
    def excludes(self) -> tuple[str, ...]:
        """The names of parts that must not be present."""
        return ()

    @property
    @abstractmethod
    def title(self) -> str:
        """The name of the part in messages."""

    @property
    @abstractmethod
    def labels(self) -> frozenset[str]:
        """The names by which the traits of other parts refer to this part."""

    @property
    @abstractmethod
    def components(self) -> tuple[Composable, ...]:
        """The recipes and plug-ins that the part consists of, in the order of their names."""

    @property
    @abstractmethod
    def rank(self) -> tuple[object, ...]:
        """The sort key of the part among combined parts."""

    @abstractmethod
    def is_same(self, other: Composable) -> bool:
        """Whether another part equals this part. Raises `RecipeConflict` for the same recipe with other options."""

    @abstractmethod
    def combined_with(self, others: Sequence[Composable]) -> Composable:
        """Return a copy of the part without its added parts, with `others` added in the order of their names."""

    @abstractmethod
    def setup_transforms(self) -> tuple[Transform, ...]:
        """Return the transforms, in any order; their traits decide the order."""

    @abstractmethod
    def setup_lookasides(self) -> tuple[Lookaside, ...]:
        """Return the lookasides: functions that replace other functions wherever the model calls them."""

    @abstractmethod
    def setup_executors(self) -> tuple[str | Executor, ...]:
        """Return the executors in claiming order; eager PyTorch always comes last."""

    @abstractmethod
    def setup_operators(self) -> tuple[Executor, ...]:
        """Return the operators: executors that each replace one function of PyTorch, and may claim first."""

    @abstractmethod
    def setup_config(self) -> Mapping[str, object]:
        """Return the requested settings of `jit`: `cache`, `memory_budget`, `symbolic` and others."""

    @abstractmethod
    def setup_requirements(self) -> tuple[tuple[str, Requirement], ...]:
        """Return the requirements on the machine, each with the part that has the requirement."""

    def __add__(self, other: object) -> Composable:
        """Return the combination with a recipe, plug-in, transform, executor or lookaside.

        The combination is a recipe if one of its parts is a recipe, and a plug-in otherwise.
        """
        return compose((self, as_composable(other)))

    def __radd__(self, other: object) -> Any:
        """Return the combination with an object on the left of `+`, whose class does not support `+`."""
        return self + other


def compose(parts: Iterable[Composable]) -> Composable:
    """Return the combination of recipes and plug-ins; their order does not matter.

    A part that is given twice is used once. Raises `RecipeConflict` for a recipe that is given twice with different
    options. Also raises `RecipeConflict` for two plug-ins with the same name that differ only in functions: nothing
    would decide the order of the two.
    """
    distinct: list[Composable] = []
    for component in (inner for part in parts for inner in part.components):
        if not any(component.is_same(earlier) for earlier in distinct):
            distinct.append(component)
    if not distinct:
        raise BadRecipe("a combined recipe needs at least one part", fix="add a recipe or a plug-in")
    ordered = sorted(distinct, key=order_key)
    for earlier, later in pairwise(ordered):
        if order_key(earlier) == order_key(later):
            raise RecipeConflict(f"two plug-ins have the name {earlier.title}", fix="rename one of them: Plugin(name=)")
    first, *others = (component.combined_with(()) for component in ordered)
    return first.combined_with(others)


def order_key(part: Composable) -> tuple[str, ...]:
    """Return the sort key of a recipe or plug-in as strings that do not depend on the process."""
    return tuple(map(str, part.rank))


def without_addresses(value: object) -> str:
    """Return the string of a value, without the memory addresses in the `repr` of functions and objects."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@dataclass(frozen=True)
class Plugin(Composable):
    """A bundle of lookasides, transforms, executors, operators and settings of `jit` that is added with `+`.

    A plug-in is added to a recipe or to another plug-in. `Traits` describes its traits (`after`, `before`, `needs`,
    `excludes`, `provides`).
    """

    name: str
    lookasides: tuple[Lookaside, ...] = ()
    transforms: tuple[Transform, ...] = ()
    executors: tuple[str | Executor, ...] = ()
    requirements: tuple[Requirement, ...] = ()
    operators: tuple[Executor, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict, hash=False)
    after: tuple[str, ...] = ()
    before: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    provides: tuple[str, ...] = ()

    def __init_subclass__(cls) -> None:
        """Raise `BadRecipe` for attributes of the class that Thunder does not read."""
        super().__init_subclass__()
        check_attributes(cls, Plugin, PART_TYPES, allowed=options_of(cls))

    def __post_init__(self) -> None:
        for name, kinds in PART_TYPES.items():
            require_tuple_of(self.name, name, getattr(self, name), kinds)
        require_traits(self.name, self)

    @property
    def labels(self) -> frozenset[str]:
        """The plug-in's name, and the labels that it provides."""
        return frozenset((self.name, *self.provides))

    @property
    def title(self) -> str:
        """The plug-in's name."""
        return self.name

    def setup_transforms(self) -> tuple[Transform, ...]:
        """Return the transforms."""
        return self.transforms

    def setup_lookasides(self) -> tuple[Lookaside, ...]:
        """Return the lookasides."""
        return self.lookasides

    def setup_executors(self) -> tuple[str | Executor, ...]:
        """Return the executors."""
        return self.executors

    def setup_operators(self) -> tuple[Executor, ...]:
        """Return the operators, which may claim before the executors."""
        return self.operators

    def setup_config(self) -> Mapping[str, object]:
        """Return the settings of `jit` that the plug-in requests."""
        return self.settings

    def setup_requirements(self) -> tuple[tuple[str, Requirement], ...]:
        """Return the plug-in's requirements on the machine, each with the plug-in's name."""
        return tuple((self.name, need) for need in self.requirements)

    @property
    def components(self) -> tuple[Composable, ...]:
        """The plug-in only."""
        return (self,)

    def is_same(self, other: Composable) -> bool:
        """Whether another part has the same name and parts."""
        return self == other

    @property
    def rank(self) -> tuple[object, ...]:
        """The sort key: plug-ins come after recipes, by their names and then by their content."""
        return 1, self.name, *(f"{name}={without_addresses(value)}" for name, value in vars(self).items())

    def combined_with(self, others: Sequence[Composable]) -> Composable:
        """Return one plug-in that consists of this plug-in and `others`."""
        return Plugins(" + ".join(part.title for part in (self, *others)), added=(self, *others)) if others else self


@dataclass(frozen=True)
class Plugins(Plugin):
    """Several plug-ins as one plug-in."""

    added: tuple[Composable, ...] = ()

    @property
    def components(self) -> tuple[Composable, ...]:
        """The plug-ins in this plug-in."""
        return self.added


def as_composable(part: object) -> Composable:
    """Convert an operand of `+` to a recipe or plug-in; raise `BadRecipe` for an object that cannot be a part."""
    if isinstance(part, Composable):
        return part
    if isinstance(part, Transform):
        return Plugin(f"{part.name}{part.title.removeprefix(type(part).__name__)}", transforms=(part,))
    if isinstance(part, Executor):
        is_operator = isinstance(part, Operator)
        return Plugin(part.name, operators=(part,)) if is_operator else Plugin(part.name, executors=(part,))
    if isinstance(part, Lookaside):
        return Plugin(getattr(part.function, "__qualname__", "lookaside"), lookasides=(part,))
    if isinstance(part, type) and issubclass(part, Composable) and part.executor_rank is ExecutorRank.RECIPE:
        return part()
    kind = f"the class {part.__name__}" if isinstance(part, type) else f"{part!r:.80}, of class {type(part).__name__}"
    raise BadRecipe(
        f"a recipe cannot be added to {kind}",
        fix="add recipes and instances of Plugin, Transform, Executor or Lookaside one by one: recipe + plugin",
    )
