"""Plug-ins: bundles of parts that are added to recipes, and the sums of both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from thunder_core.claiming.executor import Executor
from thunder_core.claiming.operator import Operator
from thunder_core.errors import BadRecipe
from thunder_core.extension.declaration import options_of, require_row, require_traits, vet_class
from thunder_core.extension.lookaside import Lookaside
from thunder_core.extension.requirement import Requirement
from thunder_core.extension.transform import Transform

PARTS: Mapping[str, tuple[type, ...]] = {
    "lookasides": (Lookaside,),
    "transforms": (Transform,),
    "executors": (str, Executor),
    "requirements": (Requirement,),
    "operators": (Executor,),
}


class Summand(ABC):
    """A recipe or a plug-in: what can be added to another one. Its methods `setup_...` speak for it alone."""

    lists_executors: ClassVar[bool] = False  # as a whole: what others add may claim before them

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
    def summands(self) -> tuple[Summand, ...]:
        """The recipes and plug-ins that it consists of, in the order of their names."""

    @property
    @abstractmethod
    def rank(self) -> tuple[object, ...]:
        """The key by which it is ordered among the others of a sum."""

    @abstractmethod
    def is_same(self, other: Summand) -> bool:
        """Whether another one is the same; raises `RecipeConflict` for what is not, and cannot stand beside it."""

    @abstractmethod
    def joined(self, others: Sequence[Summand]) -> Summand:
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
        return total((self, as_summand(other)))

    def __radd__(self, other: object) -> Any:
        """Add to something that was given first and has no sum of its own."""
        return self + other


def total(parts: Iterable[Summand]) -> Summand:
    """The sum of recipes and plug-ins, the same in whatever order they are given; one that is given twice counts once.

    Raises `RecipeConflict` for one recipe with different options.
    """
    found: list[Summand] = []
    for one in (inner for part in parts for inner in part.summands):
        if not any(one.is_same(other) for other in found):
            found.append(one)
    if not found:
        raise BadRecipe("a sum of no parts is no recipe", fix="add a recipe or a plug-in")
    first, *others = (one.joined(()) for one in sorted(found, key=lambda one: tuple(map(str, one.rank))))
    return first.joined(others)


@dataclass(frozen=True)
class Plugin(Summand):
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
        """Its name, and what it provides."""
        return frozenset((self.name, *self.provides))

    @property
    def title(self) -> str:
        """Its name."""
        return self.name

    def setup_transforms(self) -> tuple[Transform, ...]:
        """The transforms."""
        return self.transforms

    def setup_lookasides(self) -> tuple[Lookaside, ...]:
        """The lookasides."""
        return self.lookasides

    def setup_executors(self) -> tuple[str | Executor, ...]:
        """The executors."""
        return self.executors

    def setup_operators(self) -> tuple[Executor, ...]:
        """The operators, which may claim before the executors."""
        return self.operators

    def setup_config(self) -> Mapping[str, object]:
        """The settings of `jit` that it asks for."""
        return self.settings

    def setup_requirements(self) -> tuple[tuple[str, Requirement], ...]:
        """The requirements that it has of a machine, with its name."""
        return tuple((self.name, need) for need in self.requirements)

    @property
    def summands(self) -> tuple[Summand, ...]:
        """Itself."""
        return (self,)

    def is_same(self, other: Summand) -> bool:
        """Whether another one has the same name and parts."""
        return self == other

    @property
    def rank(self) -> tuple[object, ...]:
        """Its name, and then its content: plug-ins come after recipes."""
        return 1, self.name, *(f"{name}={value}" for name, value in vars(self).items())

    def joined(self, others: Sequence[Summand]) -> Summand:
        """The plug-in with others as one."""
        return Plugins(" + ".join(one.title for one in (self, *others)), added=(self, *others)) if others else self


@dataclass(frozen=True)
class Plugins(Plugin):
    """Several plug-ins as one."""

    added: tuple[Summand, ...] = ()

    @property
    def summands(self) -> tuple[Summand, ...]:
        """The plug-ins that it consists of."""
        return self.added


def as_summand(part: object) -> Summand:
    """A part that is added to a recipe or a plug-in, as one of these; raises `BadRecipe` for what cannot be."""
    if isinstance(part, Summand):
        return part
    if isinstance(part, Transform):
        return Plugin(f"{part.name}{part.title.removeprefix(type(part).__name__)}", transforms=(part,))
    if isinstance(part, Executor):
        is_operator = isinstance(part, Operator)
        return Plugin(part.name, operators=(part,)) if is_operator else Plugin(part.name, executors=(part,))
    if isinstance(part, Lookaside):
        return Plugin(getattr(part.function, "__qualname__", "lookaside"), lookasides=(part,))
    if isinstance(part, type) and issubclass(part, Summand) and part.lists_executors:
        return part()
    kind = f"the class {part.__name__}" if isinstance(part, type) else f"{part!r:.80}, a {type(part).__name__}"
    raise BadRecipe(
        f"a recipe was to be added to {kind}",
        fix="add recipes, and instances of Plugin, Transform, Executor or Lookaside, one by one: recipe + plugin",
    )
