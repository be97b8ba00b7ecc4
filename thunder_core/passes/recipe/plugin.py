"""Plug-ins: bundles of parts that are added to recipes, and the composition of both by `+`.

A `Plugin` is a bundle of parts here; `thunder_core.foundation.plugins` finds the modules of installed packages.
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
from thunder_core.tracing.extension.declaration import options_of, require_row, require_traits, vet_class
from thunder_core.tracing.extension.lookaside import Lookaside
from thunder_core.tracing.extension.requirement import Requirement
from thunder_core.tracing.extension.transform import Transform

PARTS: Mapping[str, tuple[type, ...]] = {
    "lookasides": (Lookaside,),
    "transforms": (Transform,),
    "executors": (str, Executor),
    "requirements": (Requirement,),
    "operators": (Executor,),
}


class ExecutorRank(IntEnum):
    """The order in which executors of different origins may claim, where neither a list nor a trait decides."""

    OPERATOR = 0
    PLUGIN = 1
    RECIPE = 2


class Composable(ABC):
    """A recipe or a plug-in: what can be added to another one. Its methods `setup_...` speak for it alone."""

    executor_rank: ClassVar[ExecutorRank] = ExecutorRank.PLUGIN

    @property
    def after(self) -> tuple[str, ...]:
        """The names of parts that it comes after; this, and the like, is declared by its class, or given."""
        return ()

    @property
    def before(self) -> tuple[str, ...]:
        """The names of parts that it comes before."""
        return ()

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of parts that have to be there."""
        return ()

    @property
    def excludes(self) -> tuple[str, ...]:
        """The names of parts that it cannot stand together with."""
        return ()

    @property
    @abstractmethod
    def title(self) -> str:
        """The name by which messages call it."""

    @property
    @abstractmethod
    def labels(self) -> frozenset[str]:
        """The names by which the traits of others call it."""

    @property
    @abstractmethod
    def components(self) -> tuple[Composable, ...]:
        """The recipes and plug-ins that it consists of, in the order of their names."""

    @property
    @abstractmethod
    def rank(self) -> tuple[object, ...]:
        """The key by which it is ordered among the others of a sum."""

    @abstractmethod
    def is_same(self, other: Composable) -> bool:
        """Whether another one is the same; raises `RecipeConflict` for what is not, and cannot stand beside it."""

    @abstractmethod
    def combined_with(self, others: Sequence[Composable]) -> Composable:
        """By itself, and with others that come behind it in the order of their names."""

    @abstractmethod
    def setup_transforms(self) -> tuple[Transform, ...]:
        """The transforms, in any order: their traits decide."""

    @abstractmethod
    def setup_lookasides(self) -> tuple[Lookaside, ...]:
        """The lookasides: functions that are called in place of others, wherever the model calls these."""

    @abstractmethod
    def setup_executors(self) -> tuple[str | Executor, ...]:
        """The executors in the order in which they may claim; eager PyTorch comes last in any case."""

    @abstractmethod
    def setup_operators(self) -> tuple[Executor, ...]:
        """The operators: executors that each have a function for one of PyTorch's, and may claim first."""

    @abstractmethod
    def setup_config(self) -> Mapping[str, object]:
        """The settings of `jit` that it asks for: `cache`, `memory_budget` and the like, and `symbolic`."""

    @abstractmethod
    def setup_requirements(self) -> tuple[tuple[str, Requirement], ...]:
        """The requirements that it has of a machine, each with the part of it that has it."""

    def __add__(self, other: object) -> Any:
        """Add a recipe, a plug-in, a transform, an executor or a lookaside: a recipe, or a plug-in if there is none."""
        return composed((self, as_composable(other)))

    def __radd__(self, other: object) -> Any:
        """Add to something that was given first and has no sum of its own."""
        return self + other


def composed(parts: Iterable[Composable]) -> Composable:
    """Return the sum of recipes and plug-ins, the same in whatever order they are given.

    One that is given twice counts once. Raises `RecipeConflict` for one recipe with different options, and for two
    plug-ins of one name that differ in functions alone, which nothing puts in an order.
    """
    found: list[Composable] = []
    for one in (inner for part in parts for inner in part.components):
        if not any(one.is_same(other) for other in found):
            found.append(one)
    if not found:
        raise BadRecipe("a combined recipe needs at least one part", fix="add a recipe or a plug-in")
    ordered = sorted(found, key=order_key)
    for one, other in pairwise(ordered):
        if order_key(one) == order_key(other):
            raise RecipeConflict(f"two plug-ins have the name {one.title}", fix="rename one of them: Plugin(name=)")
    first, *others = (one.combined_with(()) for one in ordered)
    return first.combined_with(others)


def order_key(part: Composable) -> tuple[str, ...]:
    """Return the texts by which a recipe or a plug-in is ordered among others, the same in every process."""
    return tuple(map(str, part.rank))


def without_addresses(value: object) -> str:
    """Return the text of a value, without the addresses by which Python tells functions and objects apart."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))


@dataclass(frozen=True)
class Plugin(Composable):
    """A bundle of lookasides, transforms, executors, operators and settings of `jit` that is added with `+`.

    It is added to a recipe, or to another plug-in. Its traits, the tuples of names behind, are those of `Traits`.
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
        """Raises `BadRecipe` for what it declares and nobody reads."""
        super().__init_subclass__()
        vet_class(cls, Plugin, PARTS, but=options_of(cls))

    def __post_init__(self) -> None:
        for name, kinds in PARTS.items():
            require_row(self.name, name, getattr(self, name), kinds)
        require_traits(self.name, self)

    @property
    def labels(self) -> frozenset[str]:
        """Return its name, and the words that it provides."""
        return frozenset((self.name, *self.provides))

    @property
    def title(self) -> str:
        """Return its name."""
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
        """Return the settings of `jit` that it asks for."""
        return self.settings

    def setup_requirements(self) -> tuple[tuple[str, Requirement], ...]:
        """Return the requirements that it has of a machine, with its name."""
        return tuple((self.name, need) for need in self.requirements)

    @property
    def components(self) -> tuple[Composable, ...]:
        """Return the plug-in alone."""
        return (self,)

    def is_same(self, other: Composable) -> bool:
        """Whether another one has the same name and parts."""
        return self == other

    @property
    def rank(self) -> tuple[object, ...]:
        """The key of the order: plug-ins come after recipes, by their names and then by their content."""
        return 1, self.name, *(f"{name}={without_addresses(value)}" for name, value in vars(self).items())

    def combined_with(self, others: Sequence[Composable]) -> Composable:
        """Return the plug-in and others as one."""
        return Plugins(" + ".join(one.title for one in (self, *others)), added=(self, *others)) if others else self


@dataclass(frozen=True)
class Plugins(Plugin):
    """Several plug-ins as one."""

    added: tuple[Composable, ...] = ()

    @property
    def components(self) -> tuple[Composable, ...]:
        """Return the plug-ins that it consists of."""
        return self.added


def as_composable(part: object) -> Composable:
    """A part that is added to a recipe or a plug-in, as one of these; raises `BadRecipe` for what cannot be."""
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
    kind = f"the class {part.__name__}" if isinstance(part, type) else f"{part!r:.80}, a {type(part).__name__}"
    raise BadRecipe(
        f"a recipe cannot be added to {kind}",
        fix="add recipes and instances of Plugin, Transform, Executor or Lookaside one by one: recipe + plugin",
    )
