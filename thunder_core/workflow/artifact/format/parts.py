"""Transforms, lookasides and operators of an artifact's recipe as plain data: their classes and fields."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch

from thunder_core.backend.claiming.operator import Operator
from thunder_core.foundation.errors import ArtifactForeign, WrongInputs
from thunder_core.passes.recipe import Lookaside, Transform
from thunder_core.workflow.artifact.format.constants import import_path
from thunder_core.workflow.artifact.format.literals import read_literal, write_literal
from thunder_core.workflow.artifact.format.manifest import CompilerFacts, PartFacts
from thunder_core.workflow.artifact.format.program_facts import ConstantFacts
from thunder_core.workflow.artifact.trust.trust import Trust

Part = TypeVar("Part", bound=Transform | Lookaside | Operator)


def part_facts(part: object) -> PartFacts | None:
    """Return a transform, a lookaside or an operator as plain data; None if it cannot be saved."""
    path = import_path(type(part))
    if path is None or not dataclasses.is_dataclass(part) or isinstance(part, type):
        return None
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init}
    options = {name: _option(value) for name, value in values.items()}
    if any(option is None for option in options.values()):
        return None
    methods = isinstance(part, Transform) and type(part).methods is not Transform.methods
    prepares = isinstance(part, Transform) and type(part).prepare is not Transform.prepare
    before_call = isinstance(part, Transform) and type(part).before_call is not Transform.before_call
    return PartFacts(
        path=path,
        options=cast(dict[str, ConstantFacts], options),
        methods=methods,
        prepares=prepares,
        prepares_by_data=prepares and cast(Transform, part).prepares_by_data,
        before_call=before_call,
        is_parallel=isinstance(part, Transform) and part.is_parallel,
        operations=type(part).operations if isinstance(part, Transform) else (),
    )


def _option(value: object) -> ConstantFacts | None:
    text, path = write_literal(value), import_path(value)
    if text is not None:
        return ConstantFacts(kind="literal", text=text)
    return ConstantFacts(kind="import", text=path) if path is not None else None


def methods_of(facts: CompilerFacts, model: torch.nn.Module, trust: Trust) -> dict[str, Callable[..., Any]]:
    """Return the methods that an artifact's transforms add to a compiled module; raise the errors of `part_of`."""
    with_methods = [part for part in facts.transforms if part.methods]
    transforms = [part_of(part, Transform, trust) for part in with_methods]  # type: ignore[type-abstract]
    return {name: method for transform in transforms for name, method in transform.methods(model).items()}


def before_call_of(facts: CompilerFacts, model: torch.nn.Module, trust: Trust) -> list[Callable[[], None]]:
    """Return the functions that an artifact's transforms run before each call; raise the errors of `part_of`."""
    with_functions = [part for part in facts.transforms if part.before_call]
    transforms = [part_of(part, Transform, trust) for part in with_functions]  # type: ignore[type-abstract]
    return [function for transform in transforms if (function := transform.before_call(model)) is not None]


def prepare_with(facts: CompilerFacts, model: torch.nn.Module, trust: Trust, *, has_values: bool) -> torch.nn.Module:
    """Prepare a model with an artifact's transforms; raise the errors of `part_of`.

    If `has_values` is False, the weights of the returned model have no values; the caller loads the artifact's weights.
    """
    for part in facts.transforms:
        if part.prepares:
            if has_values and part.prepares_by_data:
                raise unprepared_weights_error(part)
            transform = part_of(part, Transform, trust)  # type: ignore[type-abstract]
            model = transform.prepare(model) if has_values else transform.restructure(model)
    return model


def unprepared_weights_error(part: PartFacts) -> WrongInputs:
    """Return the error for a model whose weights cannot be prepared as those of the artifact."""
    return WrongInputs(
        f"{part.path.rpartition(':')[2]} prepared the artifact's weights with data that the artifact lacks, such as a "
        "calibration, so it cannot prepare the weights of this model in the same way",
        fix="load the artifact's own weights (weights=True) if it was made with them, or pass the prepared model",
    )


def part_of(facts: PartFacts, base: type[Part], trust: Trust) -> Part:
    """Return the transform, lookaside or operator that `facts` describes; raise `ArtifactForeign` if it is missing."""
    try:
        kind: Any = trust.import_object(facts.path)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise TypeError(f"it is not a subclass of {base.__name__}")
        fields: Any = {name: READERS[option.kind](option.text, trust) for name, option in facts.options.items()}
        part: Part = kind(**fields)
        return part
    except (ImportError, AttributeError, TypeError, ValueError, KeyError) as error:
        raise ArtifactForeign(
            f"the {base.__name__.lower()} {facts.path} of the artifact's recipe is not available: {error}",
            fix="install the version of Thunder that the artifact was made with, or make the artifact again",
        ) from error


READERS: dict[str, Callable[[str, Trust], object]] = {
    "literal": lambda text, trust: read_literal(text),
    "import": lambda text, trust: trust.import_object(text),
}
