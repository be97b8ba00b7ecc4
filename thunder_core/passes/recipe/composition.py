"""The composition of a combined recipe: the parts of its recipes and plug-ins, in any order of addition the same."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from thunder_core.backend.claiming.executor import Executor, find_executor
from thunder_core.foundation.errors import EnvironmentLacks, RecipeConflict, UnknownName
from thunder_core.passes.recipe.plugin import Composable, ExecutorRank
from thunder_core.passes.recipe.settings import WITHOUT, merge_settings, settings_of
from thunder_core.tracing.extension.arrangement import Arrangement, Member, StatedOrder
from thunder_core.tracing.extension.declaration import checked_parts
from thunder_core.tracing.extension.leaving_out import FALLBACK, drop_left_out, require_parts
from thunder_core.tracing.extension.lookaside import Lookaside, require_distinct
from thunder_core.tracing.extension.requirement import Requirement
from thunder_core.tracing.extension.traits import Part, require_compatible
from thunder_core.tracing.extension.transform import Transform, arrange_transforms, require_known


@dataclass(frozen=True, eq=False)
class ListedExecutor:
    """An executor of a composition, given by its name or as an object (`value`).

    `executor` is the loaded executor, which has the traits; None if this machine cannot load it.
    """

    value: str | Executor
    executor: Executor | None

    @property
    def title(self) -> str:
        """The executor's name."""
        return self.value if isinstance(self.value, str) else self.value.name

    @property
    def labels(self) -> frozenset[str]:
        """The names by which traits refer to the executor."""
        return frozenset((self.title,)) if self.executor is None else self.executor.labels

    @property
    def after(self) -> tuple[str, ...]:
        """The names of executors that this executor comes after."""
        return () if self.executor is None else self.executor.after

    @property
    def before(self) -> tuple[str, ...]:
        """The names of executors that this executor comes before."""
        return () if self.executor is None else self.executor.before

    @property
    def needs(self) -> tuple[str, ...]:
        """The names of parts that the executor needs."""
        return () if self.executor is None else self.executor.needs

    @property
    def excludes(self) -> tuple[str, ...]:
        """The names of parts that the executor excludes."""
        return () if self.executor is None else self.executor.excludes


@dataclass(frozen=True, eq=False)
class Composition:
    """The parts of a combined recipe: ordered transforms and executors, lookasides, settings and requirements.

    `components` are the recipes and plug-ins in the order of their names. Raises `BadRecipe` if one of their methods
    returns a value that cannot be a part, and `RecipeConflict` if parts are incompatible.
    """

    components: Sequence[Composable]

    @cached_property
    def owned_transforms(self) -> tuple[tuple[Transform, tuple[Part, ...]], ...]:
        """The transforms, each with the recipe or plug-in that adds it."""
        rows = (
            (component, checked_parts(component, "setup_transforms", (Transform,))) for component in self.components
        )
        return tuple((transform, (component,)) for component, row in rows for transform in row)

    def transforms(self, more: Sequence[Transform] = ()) -> Arrangement[Transform]:
        """Return the ordered transforms without left-out transforms. `more` are the transforms of every program."""
        every = self.every_transform(more)
        return every.restricted_to(drop_left_out(every.parts, self.without))

    def every_transform(self, more: Sequence[Transform] = ()) -> Arrangement[Transform]:
        """Return the ordered transforms, including `more` and left-out transforms."""
        return arrange_transforms((*self.owned_transforms, *((transform, ()) for transform in more)))

    @cached_property
    def lookasides(self) -> tuple[Lookaside, ...]:
        """The lookasides by name; raises `RecipeConflict` for two lookasides of one function."""
        rows = (checked_parts(component, "setup_lookasides", (Lookaside,)) for component in self.components)
        return require_distinct([lookaside for row in rows for lookaside in row])

    @cached_property
    def executors(self) -> Arrangement[ListedExecutor]:
        """The executors in claiming order, without eager PyTorch and without left-out executors.

        If a recipe or plug-in lists two executors, the list decides their order. Otherwise, their traits decide. If
        there is no such trait, operators come first, then executors of plug-ins, and then executors of recipes. Raises
        `RecipeConflict` for two executor objects with the same name, and for contradictory lists.
        """
        return self.every_executor.restricted_to(drop_left_out(self.every_executor.parts, self.without))

    @cached_property
    def every_executor(self) -> Arrangement[ListedExecutor]:
        """The executors in claiming order, including left-out executors, without eager PyTorch."""
        members: dict[str, Member[ListedExecutor]] = {}
        orders = []
        for component in self.components:
            row = checked_parts(component, "setup_executors", (str, Executor))
            operators = checked_parts(component, "setup_operators", (Executor,))
            orders.append(StatedOrder(component, tuple(dict.fromkeys(map(name_of, row)))))
            ranked = [(operator, ExecutorRank.OPERATOR) for operator in operators]
            ranked += [(each, component.executor_rank) for each in row]
            for executor, rank in ranked:
                if (name := name_of(executor)) != FALLBACK:
                    members[name] = merge_executor(members.get(name), executor, rank, component)
        return Arrangement(list(members.values()), orders)

    @cached_property
    def executor_order(self) -> tuple[str | Executor, ...]:
        """The executors in claiming order, eager PyTorch last."""
        rows = [checked_parts(component, "setup_executors", (str, Executor)) for component in self.components]
        objects = [item for row in rows for item in row if name_of(item) == FALLBACK and not isinstance(item, str)]
        if any(item != objects[0] for item in objects):
            raise RecipeConflict(f"two executors have the name {FALLBACK}", fix="leave out one of them, or rename it")
        return (*(listed.value for listed in self.executors.in_order()), next(iter(objects), FALLBACK))

    @cached_property
    def settings(self) -> Mapping[str, object]:
        """The settings of `jit` that the parts request.

        Raises `RecipeConflict` if two parts request different values.
        """
        return merge_settings([(component.title, settings_of(component)) for component in self.components])

    @property
    def without(self) -> tuple[str, ...]:
        """The transforms and executors that are left out, and the executors that are left out of some modules."""
        without: Any = self.settings.get(WITHOUT, ())
        return tuple(without)

    @cached_property
    def requirements(self) -> tuple[tuple[str, Requirement], ...]:
        """The requirements of recipes and plug-ins on the machine, each with the part that has the requirement."""
        return tuple(
            stated
            for component in self.components
            for stated in checked_parts(component, "setup_requirements", (tuple,))
        )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The recipes and plug-ins, and their transforms and executors."""
        return (*self.components, *self.transforms().in_order(), *self.executors.in_order())

    def require_consistent(self, more: Sequence[Transform] = ()) -> None:
        """Raise an error if the traits of parts, or the names in `without`, do not fit the parts.

        Raises `RecipeConflict` for a part that excludes a present part or needs an absent part. Raises `UnknownName`
        for a trait with a name that no part has. Raises the errors of `require_parts` for names in `without`, which
        must name one of these parts or of the transforms of every program (`more`).
        """
        require_parts(self.without, self.every_transform(more).parts, self.every_executor.parts, self.components)
        for part in self.parts:
            require_known(part, self.parts)
        require_compatible(self.parts)


def merge_executor(
    twin: Member[ListedExecutor] | None, executor: str | Executor, rank: ExecutorRank, owner: Composable
) -> Member[ListedExecutor]:
    """Return the member for an executor of a composition, merged with `twin`.

    `twin` is the member if another part has already added the executor, or None. An executor object takes precedence
    over a name. Raises `RecipeConflict` for two different objects with the same name.
    """
    name = name_of(executor)
    first = None if twin is None else twin.part.value
    if isinstance(first, Executor) and not isinstance(executor, str) and first != executor:
        raise RecipeConflict(f"two executors have the name {name}", fix="leave out one of them, or rename it")
    value = first if isinstance(first, Executor) else executor
    known_rank: Any = rank if twin is None else twin.key[0]
    owners = () if twin is None else twin.owners
    return Member(ListedExecutor(value, load_or_none(value)), (max(rank, known_rank), name), (*owners, owner))


def name_of(executor: str | Executor) -> str:
    """Return the name of an executor that is given by name or as an object."""
    return executor if isinstance(executor, str) else executor.name


def load_or_none(executor: str | Executor) -> Executor | None:
    """Return an executor by its name; None if this machine cannot load it."""
    try:
        return find_executor(executor)
    except (UnknownName, EnvironmentLacks):
        return None


def reasons(composition: Composition, more: Sequence[Transform] = ()) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Yield the kind, the name and the reasons for the position of each transform and executor, in order."""
    for placed in composition.transforms(more).placements():
        yield "transform", placed.part.title, placed.reasons
    for listed in composition.executors.placements():
        yield "executor", listed.part.title, listed.reasons
    yield "executor", FALLBACK, ("it runs all operations that no other executor has claimed",)
