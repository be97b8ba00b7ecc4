"""Transforms: from trace to trace, with traits that alone decide their order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import RecipeConflict, UnknownName
from thunder_core.tracing.extension.arrangement import Arrangement, Member
from thunder_core.tracing.extension.authorship import checked_return
from thunder_core.tracing.extension.declaration import options_of, require_kinds, require_traits, vet_class
from thunder_core.tracing.extension.traits import RELATIONS, TRAITS, Part, Traits, require_compatible

if TYPE_CHECKING:
    from thunder_core.tracing.ir.trace import Trace

Model = TypeVar("Model", bound="torch.nn.Module")


class Transform(Traits, ABC):
    """A step from one computation to another; subclasses are frozen dataclasses whose fields are their options.

    Traits name other transforms by their files, by their classes or by what they provide, and recipes and plug-ins by
    their names: see `Traits`. Two of one class differ in their options only, which is refused, unless they differ in a
    field that `distinct_by` names, such as the modules that they are for. `operations` are the Python modules that
    define operations of PyTorch which it brings into traces: an artifact imports them before anything of a trace runs.
    """

    distinct_by: ClassVar[tuple[str, ...]] = ()
    cleans_up: ClassVar[bool] = False  # behind the others, where no trait says otherwise
    operations: ClassVar[tuple[str, ...]] = ()

    def __init_subclass__(cls) -> None:
        """Raises `BadRecipe` for what it declares and nobody reads, or declares otherwise than it is read."""
        super().__init_subclass__()
        read = (
            *TRAITS,
            "requirements",
            "distinct_by",
            "cleans_up",
            "operations",
            "prepare",
            "restructure",
            "methods",
            "of_function",
            "before_claiming",
            "before_call",
        )
        vet_class(cls, Transform, read, but=options_of(cls))
        require_traits(cls.__name__, cls, "distinct_by")

    @property
    def name(self) -> str:
        """The short name of its file."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def labels(self) -> frozenset[str]:
        """Its name, the name of its class, and what it provides."""
        return frozenset((self.name, type(self).__name__, *self.provides))

    @property
    def title(self) -> str:
        """The name of its class, with the options that tell it from others of the class."""
        told = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.distinct_by)
        return f"{type(self).__name__}({told})" if told else type(self).__name__

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model that is traced: a transform that changes weights changes them here. By default the same."""
        return model

    def restructure(self, model: torch.nn.Module) -> torch.nn.Module:
        """The model that `prepare` gives, of one whose weights have no values yet: structure, shapes and dtypes alone.

        It is what an artifact, which keeps the prepared weights, puts these into. By default what `prepare` gives.
        """
        return self.prepare(model)

    def methods(self, model: torch.nn.Module) -> Mapping[str, Callable[..., Any]]:  # noqa: ARG002
        """Methods of the compiled module, by name, that are to stand in the place of the model's own. By default none.

        Each is given the module first, and finds the model's own method on the model's class. A module of the compiled
        class with a state of its own has the model's method.
        """
        return {}

    def before_call(self, model: torch.nn.Module) -> Callable[[], None] | None:  # noqa: ARG002
        """A function to run before each call of the compiled module, outside of its programs. By default none."""
        return None

    @abstractmethod
    def __call__(self, trace: Trace) -> Trace:
        """The new trace; the given one stays as it is."""

    def of_function(self, function: Trace) -> Trace:
        """The new trace of a function that a higher-order operator is given, such as a branch of `torch.cond`.

        What it returns has to keep its shapes and dtypes, which the other branch, or the next turn of a loop, has too.
        By default it is transformed like any trace.
        """
        return self(function)

    def before_claiming(self, trace: Trace) -> Trace:
        """The new trace of a computation, a forward or a backward, right before executors claim it.

        By default the trace stays as it is. A transform that schedules operations needs this method, since a backward
        is derived after `__call__`.
        """
        return trace


def rewritten_before_claiming(
    trace: Trace, transforms: Iterable[Transform], checked: Callable[[Transform, Trace], Trace]
) -> Trace:
    """The trace as the transforms rewrite it right before executors claim it; each new trace is `checked`."""
    for transform in transforms:
        changed = transform.before_claiming(trace)
        if changed is not trace:
            trace = checked(transform, changed)
    return trace


def prepared_model(model: Model, transforms: Iterable[Transform]) -> Model:
    """The model that is traced: as the transforms prepare it, one after the other."""
    for transform in transforms:
        model = cast(Model, checked_return(transform, "prepare", transform.prepare(model), torch.nn.Module))
    return model


def order_transforms(transforms: Iterable[Transform]) -> tuple[Transform, ...]:
    """The transforms in the order that their traits demand, the same whatever order they are given in.

    One that is given twice with the same options counts once. Raises `RecipeConflict`, naming the two parties, where
    one excludes another, two differ in their options only, or each must come before the other; `UnknownName` for a
    trait that names nothing, and `BadRecipe` for what is no transform.
    """
    arrangement = arranged_transforms([(transform, ()) for transform in transforms])
    given = [member.part for member in arrangement.members]
    for transform in given:
        require_known(transform, given)
    require_compatible(given)
    return arrangement.ordered()


def arranged_transforms(owned: Sequence[tuple[Transform, tuple[Part, ...]]]) -> Arrangement[Transform]:
    """The order of transforms, each with the parts of the recipe that bring it; raises as `order_transforms` does."""
    given = [transform for transform, _ in owned]
    require_kinds("transforms", "the row", given, (Transform,))
    members: dict[tuple[object, ...], Member[Transform]] = {}
    for transform, owners in owned:
        kind = type(transform)
        key = (kind.cleans_up, transform.name, kind.__name__, transform.title, kind.__module__)
        twin = members.get(key)
        if twin is not None and (type(twin.part) is not type(transform) or twin.part != transform):
            raise RecipeConflict(
                f"{twin.part} and {transform} are the same transform with different options",
                fix=f"leave out one {transform.title}",
            )
        owning = () if twin is None else twin.owners
        members[key] = Member(transform, key, tuple(dict.fromkeys((*owning, *owners))))
    return Arrangement(list(members.values()))


def require_known(part: Part, others: Iterable[Part]) -> None:
    """Raise `UnknownName` for a trait that names nothing: no part, no class, and nothing that can be loaded."""
    for trait in RELATIONS:
        for name in getattr(part, trait):
            if any(name in other.labels for other in others) or any(name == known for known in known_names()):
                continue
            known = {*known_names(), *(label for other in others for label in other.labels)}
            raise UnknownName(
                f"{part.title}: {trait} names {name!r}, but no transform or executor has this name",
                fix=f"{plugins.meant(name, known)}known: {', '.join(sorted(known))}",
            )


def known_names() -> Iterator[str]:
    """The names by which traits may call parts that are not given, those first that are found without reading."""
    for kind in subclasses(Transform):
        yield from (kind.__module__.rpartition(".")[2], kind.__name__, *getattr(kind, "provides", ()))
    yield from (*plugins.names("executors"), *plugins.names("recipes"))
    for file, name in plugins.definitions("transforms", Transform.__name__):
        yield from (file, file.replace("-", "_"), name)
    for group in ("transforms", "executors", "recipes"):
        yield from plugins.provided(group)


def subclasses(kind: type) -> Iterator[type]:
    """The classes that this process has made of one."""
    found: list[type] = type.__subclasses__(kind)
    for inner in found:
        yield from (inner, *subclasses(inner))
