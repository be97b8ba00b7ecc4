"""Transforms: functions from trace to trace. Their traits alone determine their order."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import torch

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import RecipeConflict, UnknownName
from thunder_core.foundation.similar_names import did_you_mean
from thunder_core.tracing.extension.arrangement import Arrangement, Member
from thunder_core.tracing.extension.authorship import require_return_type
from thunder_core.tracing.extension.declaration import check_attributes, options_of, require_kinds, require_traits
from thunder_core.tracing.extension.traits import RELATIONS, TRAITS, Part, Traits, require_compatible

if TYPE_CHECKING:
    from thunder_core.tracing.ir.trace import Trace

Model = TypeVar("Model", bound="torch.nn.Module")


class Transform(Traits, ABC):
    """A function from one trace to another; subclasses are frozen dataclasses whose fields are their options.

    Traits refer to another transform by its file, its class or a name in its `provides`, and to a recipe or a plug-in
    by its name (see `Traits`). Two transforms of one class with different options are refused, unless they differ in a
    field that `distinct_by` names, such as the modules that they apply to. `operations` are the Python modules that
    define operators of PyTorch for the traces of this transform; an artifact imports them before a trace runs.

    If `is_parallel` is set, the programs communicate with other ranks. Eager PyTorch cannot run the prepared module, or
    computes another result, so no call of the compiled module runs in eager PyTorch.
    """

    distinct_by: ClassVar[tuple[str, ...]] = ()
    cleans_up: ClassVar[bool] = False  # whether it runs after the other transforms, unless a trait says otherwise
    operations: ClassVar[tuple[str, ...]] = ()
    is_parallel: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        """Raise `BadRecipe` if the class declares an attribute that Thunder never reads, or a trait of a wrong type."""
        super().__init_subclass__()
        read = (
            *TRAITS,
            "requirements",
            "distinct_by",
            "cleans_up",
            "operations",
            "is_parallel",
            "prepare",
            "restructure",
            "methods",
            "of_function",
            "before_claiming",
            "before_call",
            "prepares_by_data",
        )
        check_attributes(cls, Transform, read, allowed=options_of(cls))
        require_traits(cls.__name__, cls, "distinct_by")

    @property
    def name(self) -> str:
        """The name of the transform: the name of its file."""
        return type(self).__module__.rpartition(".")[2]

    @property
    def labels(self) -> frozenset[str]:
        """The name of the transform, the name of its class, and the names that it provides."""
        return frozenset((self.name, type(self).__name__, *self.provides))

    @property
    def title(self) -> str:
        """The name of the class, with the options that distinguish this transform from others of the class."""
        options = ", ".join(f"{name}={getattr(self, name)!r}" for name in self.distinct_by)
        return f"{type(self).__name__}({options})" if options else type(self).__name__

    def prepare(self, model: torch.nn.Module) -> torch.nn.Module:
        """Return the model to trace.

        Transforms that change weights override this method; by default, nothing changes.
        """
        return model

    @property
    def prepares_by_data(self) -> bool:
        """Whether `prepare` uses data that is not among the options, such as a calibration, so artifacts lack it."""
        return False

    def restructure(self, model: torch.nn.Module) -> torch.nn.Module:
        """Apply `prepare` to a model whose weights have no values: change only structure, shapes and dtypes.

        An artifact stores the prepared weights, and loads them into this model. By default, this method calls
        `prepare`.
        """
        return self.prepare(model)

    def methods(self, model: torch.nn.Module) -> Mapping[str, Callable[..., Any]]:  # noqa: ARG002
        """Return the methods of the compiled module, by name, that replace the model's own methods; by default none.

        The first argument of each method is the module. Such a method finds the method that it replaces in the model's
        class. A copy of the compiled module that has another state uses the model's own method.
        """
        return {}

    def before_call(self, model: torch.nn.Module) -> Callable[[], None] | None:  # noqa: ARG002
        """Return a function to run before each call of the compiled module, outside of its programs, or None."""
        return None

    @abstractmethod
    def __call__(self, trace: Trace) -> Trace:
        """Return the new trace; the input trace is not changed."""

    def of_function(self, function: Trace) -> Trace:
        """Return the new trace of a function that is passed to a higher-order operator, such as a `torch.cond` branch.

        The shapes and dtypes of the results must not change, because the other branch or the next iteration has the
        same. By default, the function is transformed like any trace.
        """
        return self(function)

    def before_claiming(self, trace: Trace) -> Trace:
        """Return the new trace of a computation, a forward or a backward, right before executors claim it.

        By default, the trace is not changed. Transforms that schedule operations override this method, because a
        backward does not exist yet when `__call__` runs.
        """
        return trace


def rewrite_before_claiming(
    trace: Trace, transforms: Iterable[Transform], checked: Callable[[Transform, Trace], Trace]
) -> Trace:
    """Apply `before_claiming` of the transforms in sequence; `checked` checks and returns each new trace."""
    for transform in transforms:
        changed = transform.before_claiming(trace)
        if changed is not trace:
            trace = checked(transform, changed)
    return trace


def prepare_model(model: Model, transforms: Iterable[Transform]) -> Model:
    """Return the model to trace, prepared by the transforms in sequence."""
    for transform in transforms:
        model = cast(Model, require_return_type(transform, "prepare", transform.prepare(model), torch.nn.Module))
    return model


def order_transforms(transforms: Iterable[Transform]) -> tuple[Transform, ...]:
    """Return the transforms in the order of their traits, which does not depend on the order of the input.

    A transform that is passed twice with the same options counts once. Raises `RecipeConflict`, which names two
    transforms, if one excludes the other, if they differ only in their options, or if each must come before the other.
    Raises `UnknownName` for a trait with an unknown name, and `BadRecipe` for an object that is not a transform.
    """
    arrangement = arrange_transforms([(transform, ()) for transform in transforms])
    members = [member.part for member in arrangement.members]
    for transform in members:
        require_known(transform, members)
    require_compatible(members)
    return arrangement.in_order()


def arrange_transforms(owned: Sequence[tuple[Transform, tuple[Part, ...]]]) -> Arrangement[Transform]:
    """Return the arrangement of transforms with their owners; raise the errors of `order_transforms`."""
    parts = [transform for transform, _ in owned]
    require_kinds("transforms", "the row", parts, (Transform,))
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
    """Raise `UnknownName` if a trait contains a name that no part, class or plug-in has."""
    for trait in RELATIONS:
        for name in getattr(part, trait):
            if any(name in listed.labels for listed in others) or any(
                name == known_name for known_name in known_names()
            ):
                continue
            all_names = {*known_names(), *(label for listed in others for label in listed.labels)}
            raise UnknownName(
                f"{part.title}: {trait} names {name!r}, but no transform or executor has this name",
                fix=f"{did_you_mean(name, all_names)}known: {', '.join(sorted(all_names))}",
            )


def known_names() -> Iterator[str]:
    """Yield the names of absent parts that traits may use; names that need no reading of files come first."""
    for kind in subclasses(Transform):
        yield from (kind.__module__.rpartition(".")[2], kind.__name__, *getattr(kind, "provides", ()))
    yield from (*plugins.names("executors"), *plugins.names("recipes"))
    for file, name in plugins.definitions("transforms", Transform.__name__):
        yield from (file, file.replace("-", "_"), name)
    for group in ("transforms", "executors", "recipes"):
        yield from plugins.provided_names(group)


def subclasses(kind: type) -> Iterator[type]:
    """Yield all direct and indirect subclasses of a class."""
    direct: list[type] = type.__subclasses__(kind)
    for inner in direct:
        yield from (inner, *subclasses(inner))
