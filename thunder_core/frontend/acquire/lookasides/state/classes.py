"""Classes: computed tensors and symbolic numbers have the classes that they have in eager PyTorch."""

from __future__ import annotations

import _abc  # type: ignore[import-not-found]
import abc
import types
from collections.abc import Iterator
from typing import Any

from torch._subclasses.fake_tensor import FakeTensor

from thunder_core.frontend.acquire.lookaside_table import lookaside
from thunder_core.frontend.acquire.outside.sharp import is_users_code
from thunder_core.frontend.acquire.run.shown_classes import READ_NODE, shown_class
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.frontend.interpreter.lookup import type_lookup
from thunder_core.frontend.interpreter.observer import NOT_TAKEN, NotTaken
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber
from thunder_core.tracing.capture.torch_facts.autograd_nodes import FROM_OUTSIDE


@lookaside(isinstance)
def is_instance(run: TracedRun, /, *args: Any) -> bool | NotTaken:
    """Answer `isinstance` as in eager PyTorch: symbolic numbers are also Python numbers, and tensors are not fakes."""
    if len(args) != 2:
        return NOT_TAKEN
    value, classes = args
    if issubclass(type(value), SymbolicNumber):  # not isinstance, which reads the value's own `__class__`
        alternatives = [*_alternatives(classes)]
        if any(map(_is_checked_by_user, alternatives)):
            return bool(run.machine.call(isinstance, value.concretize(), classes))
        for alternative in alternatives:
            run.classes.note_abstract(alternative, value.kind)
        return isinstance(value, classes) or isinstance(value.kind(), classes)
    if type(value) is FakeTensor and any(alternative is FakeTensor for alternative in _alternatives(classes)):
        return any(isinstance(value, alternative) for alternative in _other_than_fakes(classes))
    return NOT_TAKEN


@lookaside(type)
def class_of(run: TracedRun, /, *args: Any, **kwargs: Any) -> type | NotTaken:
    """Return the class of the number or tensor that a replacement represents."""
    if args and issubclass(type(args[0]), FROM_OUTSIDE):
        run.leave_to_eager("the program reads a node of a graph from outside", READ_NODE)
    shown = shown_class(args[0]) if len(args) == 1 and not kwargs else None
    return NOT_TAKEN if shown is None else shown


@lookaside(abc.ABCMeta.__instancecheck__, _abc._abc_instancecheck)
def is_instance_of_abstract(run: TracedRun, /, kind: Any, value: Any) -> NotTaken:
    """Guard whether the class of a value is a subclass of an abstract class, and return `NOT_TAKEN`."""
    for claimed in {type(value), run.class_of(value)}:
        run.classes.note_abstract(kind, claimed)
    return NOT_TAKEN


@lookaside(abc.ABCMeta.__subclasscheck__, _abc._abc_subclasscheck)
def is_subclass_of_abstract(run: TracedRun, /, kind: Any, candidate: Any) -> NotTaken:
    """Guard whether a class is a subclass of an abstract class, and return `NOT_TAKEN`."""
    run.classes.note_abstract(kind, candidate)
    return NOT_TAKEN


@lookaside(abc.get_cache_token)
def guard_registrations(run: TracedRun, /) -> NotTaken:
    """Guard the number of classes that were registered with abstract classes; `functools.singledispatch` reads it."""
    run.settings.answers["abc.get_cache_token()"] = abc.get_cache_token()
    return NOT_TAKEN


def _alternatives(classes: object) -> Iterator[Any]:
    """Yield the classes in an argument of `isinstance`, including those in tuples and unions."""
    if not isinstance(classes, tuple | types.UnionType):
        yield classes
        return
    for part in classes.__args__ if isinstance(classes, types.UnionType) else classes:
        yield from _alternatives(part)


def _is_checked_by_user(alternative: object) -> bool:
    """Whether `isinstance` runs code of the user for a class: the `__instancecheck__` of its metaclass."""
    check = type_lookup(type(alternative), "__instancecheck__")
    return isinstance(check, types.FunctionType) and is_users_code(check.__code__)


def _other_than_fakes(classes: object) -> Iterator[Any]:
    return (kind for kind in _alternatives(classes) if kind is not FakeTensor)
