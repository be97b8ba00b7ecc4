"""The composition of a recipe: what the recipes and plug-ins of a sum come to, in whatever order they were added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from thunder_core.backend.claiming.executor import Executor, find_executor
from thunder_core.foundation.errors import EnvironmentLacks, RecipeConflict, UnknownName
from thunder_core.passes.recipe.plugin import Composable, ExecutorRank
from thunder_core.passes.recipe.settings import WITHOUT, merged_settings, settings_of
from thunder_core.tracing.extension.arrangement import Arrangement, Member, StatedOrder
from thunder_core.tracing.extension.declaration import returned
from thunder_core.tracing.extension.leaving_out import FALLBACK, remaining, require_parts
from thunder_core.tracing.extension.lookaside import Lookaside, require_distinct
from thunder_core.tracing.extension.requirement import Requirement
from thunder_core.tracing.extension.traits import Part, require_compatible
from thunder_core.tracing.extension.transform import Transform, arranged_transforms, require_known


@dataclass(frozen=True, eq=False)
class ListedExecutor:
    """An executor of a composition, by its name or as an object; its traits where it can be loaded."""

    value: str | Executor
    executor: Executor | None

    @property
    def title(self) -> str:
        """The executor's name."""
        return self.value if isinstance(self.value, str) else self.value.name

    @property
    def labels(self) -> frozenset[str]:
        """The names by which traits call it."""
        return frozenset((self.title,)) if self.executor is None else self.executor.labels

    @property
    def after(self) -> tuple[str, ...]:
        """The executors that it comes after."""
        return () if self.executor is None else self.executor.after

    @property
    def before(self) -> tuple[str, ...]:
        """The executors that it comes before."""
        return () if self.executor is None else self.executor.before

    @property
    def needs(self) -> tuple[str, ...]:
        """The parts that it needs."""
        return () if self.executor is None else self.executor.needs

    @property
    def excludes(self) -> tuple[str, ...]:
        """The parts that it excludes."""
        return () if self.executor is None else self.executor.excludes


@dataclass(frozen=True, eq=False)
class Composition:
    """The parts of a sum together: transforms and executors in their one order, lookasides, settings, requirements.

    `components` are the recipes and plug-ins in the order of their names. Raises `BadRecipe` for what a method of
    theirs returns and cannot be a part, and `RecipeConflict` where parts cannot stand together.
    """

    components: Sequence[Composable]

    @cached_property
    def owned_transforms(self) -> tuple[tuple[Transform, tuple[Part, ...]], ...]:
        """The transforms, each with the recipe or the plug-in that brings it."""
        rows = ((one, returned(one, "setup_transforms", (Transform,))) for one in self.components)
        return tuple((transform, (one,)) for one, row in rows for transform in row)

    def transforms(self, more: Sequence[Transform] = ()) -> Arrangement[Transform]:
        """The transforms in their order, with others that come with every program, but for those that are left out."""
        every = self.every_transform(more)
        return every.keeping(remaining(every.parts, self.without))

    def every_transform(self, more: Sequence[Transform] = ()) -> Arrangement[Transform]:
        """The transforms in their order, those that are left out among them."""
        return arranged_transforms((*self.owned_transforms, *((transform, ()) for transform in more)))

    @cached_property
    def lookasides(self) -> tuple[Lookaside, ...]:
        """The lookasides by name; raises `RecipeConflict` for two that are for one function."""
        rows = (returned(one, "setup_lookasides", (Lookaside,)) for one in self.components)
        return require_distinct([lookaside for row in rows for lookaside in row])

    @cached_property
    def executors(self) -> Arrangement[ListedExecutor]:
        """The executors in the order in which they may claim, but for eager PyTorch and those that are left out.

        Where a recipe or a plug-in lists two, its row decides, and else their traits; where these leave a choice,
        operators come first, then what plug-ins list, then what recipes list. Raises `RecipeConflict` for two objects
        of one name, and for rows that differ.
        """
        return self.every_executor.keeping(remaining(self.every_executor.parts, self.without))

    @cached_property
    def every_executor(self) -> Arrangement[ListedExecutor]:
        """The executors but for eager PyTorch, which comes last, those that are left out among them."""
        members: dict[str, Member[ListedExecutor]] = {}
        orders = []
        for one in self.components:
            row = returned(one, "setup_executors", (str, Executor))
            operators = returned(one, "setup_operators", (Executor,))
            orders.append(StatedOrder(one, tuple(dict.fromkeys(map(name_of, row)))))
            ranked = [(operator, ExecutorRank.OPERATOR) for operator in operators]
            ranked += [(each, one.executor_rank) for each in row]
            for executor, rank in ranked:
                if (name := name_of(executor)) != FALLBACK:
                    members[name] = merged_member(members.get(name), executor, rank, one)
        return Arrangement(list(members.values()), orders)

    @cached_property
    def executor_row(self) -> tuple[str | Executor, ...]:
        """The executors in the order in which they may claim, eager PyTorch last."""
        rows = [returned(one, "setup_executors", (str, Executor)) for one in self.components]
        objects = [one for row in rows for one in row if name_of(one) == FALLBACK and not isinstance(one, str)]
        if any(one != objects[0] for one in objects):
            raise RecipeConflict(f"two executors have the name {FALLBACK}", fix="leave out one of them, or rename it")
        return (*(one.value for one in self.executors.ordered()), next(iter(objects), FALLBACK))

    @cached_property
    def settings(self) -> Mapping[str, object]:
        """The settings of `jit` that the parts ask for; raises `RecipeConflict` where two ask for different values."""
        return merged_settings([(one.title, settings_of(one)) for one in self.components])

    @property
    def without(self) -> tuple[str, ...]:
        """The transforms and executors that are left out, and the executors that are left out of some modules."""
        without: Any = self.settings.get(WITHOUT, ())
        return tuple(without)

    @cached_property
    def requirements(self) -> tuple[tuple[str, Requirement], ...]:
        """The requirements that recipes and plug-ins have of the machine, each with the part that does."""
        return tuple(stated for one in self.components for stated in returned(one, "setup_requirements", (tuple,)))

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """The recipes and plug-ins, and their transforms and executors."""
        return (*self.components, *self.transforms().ordered(), *self.executors.ordered())

    def require_whole(self, more: Sequence[Transform] = ()) -> None:
        """Raise `RecipeConflict` for parts that exclude or lack others, `UnknownName` for traits that name nothing.

        Raises as `require_parts` does for what is left out of these, and of the transforms that come with each program.
        """
        require_parts(self.without, self.every_transform(more).parts, self.every_executor.parts, self.components)
        for part in self.parts:
            require_known(part, self.parts)
        require_compatible(self.parts)


def merged_member(
    twin: Member[ListedExecutor] | None, executor: str | Executor, rank: ExecutorRank, owner: Composable
) -> Member[ListedExecutor]:
    """An executor that another part may bring as well, by its name or as an object, of which the object counts.

    Raises `RecipeConflict` for two objects of one name, of which only one could claim.
    """
    name = name_of(executor)
    known = None if twin is None else twin.part.value
    if isinstance(known, Executor) and not isinstance(executor, str) and known != executor:
        raise RecipeConflict(f"two executors have the name {name}", fix="leave out one of them, or rename it")
    value = known if isinstance(known, Executor) else executor
    known_rank: Any = rank if twin is None else twin.key[0]
    owners = () if twin is None else twin.owners
    return Member(ListedExecutor(value, loaded_or_none(value)), (max(rank, known_rank), name), (*owners, owner))


def name_of(executor: str | Executor) -> str:
    """The name of an executor that is named, or an object."""
    return executor if isinstance(executor, str) else executor.name


def loaded_or_none(executor: str | Executor) -> Executor | None:
    """The executor of a name; None where this machine cannot load it, which its candidates tell."""
    try:
        return find_executor(executor)
    except (UnknownName, EnvironmentLacks):
        return None


def reasons(composition: Composition, more: Sequence[Transform] = ()) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Each step of a composition in its order: its kind, its name, and why it stands where it does."""
    for placed in composition.transforms(more).placements():
        yield "transform", placed.part.title, placed.reasons
    for listed in composition.executors.placements():
        yield "executor", listed.part.title, listed.reasons
    yield "executor", FALLBACK, ("it runs all operations that no other executor has claimed",)
