"""The compiler of inputs that no stored program takes: its transforms and executors by name, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, cast

from thunder_core.artifact.constants import import_path
from thunder_core.artifact.literals import read_literal, write_literal
from thunder_core.artifact.manifest import CompilerFacts, ConstantFacts, TransformFacts
from thunder_core.artifact.trust import Trust
from thunder_core.claiming.executor import Executor, find_executor
from thunder_core.compiler import Compiler
from thunder_core.errors import ArtifactForeign, EnvironmentLacks, UnknownName, WrongInputs
from thunder_core.recipe import Transform


def compiler_facts(compiler: object) -> CompilerFacts:
    """A compiler as plain data; raises `WrongInputs` for what only looks like one."""
    if not isinstance(compiler, Compiler):
        raise WrongInputs(
            f"this was compiled by a {type(compiler).__name__}, which cannot be written down",
            fix="save what jit or compile returned",
        )
    transforms = [transform_facts(transform) for transform in compiler.transforms]
    lacking = [type(t).__name__ for t, facts in zip(compiler.transforms, transforms, strict=True) if facts is None]
    nameless = [executor.name for executor in compiler.executors if is_another(executor)]
    return CompilerFacts(
        options=compiler.options,
        executors=tuple(executor.name for executor in compiler.executors),
        transforms=tuple(facts for facts in transforms if facts is not None),
        lacks="; ".join(
            f"the {kind} {', '.join(names)} {why}"
            for kind, names, why in (
                ("transforms", lacking, "cannot be written down"),
                ("executors", nameless, "are not the ones that have these names"),
            )
            if names
        ),
    )


def is_another(executor: Executor) -> bool:
    """Whether an executor's name stands for another one here; one that stands for none may be registered later."""
    try:
        return find_executor(executor.name) is not executor
    except (UnknownName, EnvironmentLacks):
        return False


def transform_facts(transform: object) -> TransformFacts | None:
    """A transform as its class and options; None where one of them cannot be written down."""
    path = import_path(type(transform))
    if path is None or not dataclasses.is_dataclass(transform) or isinstance(transform, type):
        return None
    values = {field.name: getattr(transform, field.name) for field in dataclasses.fields(transform) if field.init}
    options = {name: _option(value) for name, value in values.items()}
    if any(option is None for option in options.values()):
        return None
    return TransformFacts(path=path, options=cast(dict[str, ConstantFacts], options))


def _option(value: object) -> ConstantFacts | None:
    text, path = write_literal(value), import_path(value)
    if text is not None:
        return ConstantFacts(kind="literal", text=text)
    return ConstantFacts(kind="import", text=path) if path is not None else None


def compiler_of(facts: CompilerFacts, trust: Trust) -> Compiler:
    """The compiler that plain data tells of; `ArtifactForeign` where a part of it is not to be had, `ImportRefused`."""
    if facts.lacks:
        raise WrongInputs(
            f"the artifact holds no program for these inputs, and none can be traced: {facts.lacks}",
            fix="call it with inputs like those that were traced",
        )
    return Compiler(
        tuple(_transform(one, trust) for one in facts.transforms), tuple(map(_executor, facts.executors)), facts.options
    )


def _executor(name: str) -> Executor:
    try:
        return find_executor(name)
    except (UnknownName, EnvironmentLacks) as error:
        raise ArtifactForeign(
            f"the executor {name} of the artifact's recipe is not to be had here: {error.what}",
            fix="register it with register_executor, or install what brings it, before new inputs are traced",
        ) from error


def _transform(facts: TransformFacts, trust: Trust) -> Transform:
    try:
        kind: Any = trust.imported(facts.path)
        if not (isinstance(kind, type) and issubclass(kind, Transform)):
            raise TypeError("it is no transform")
        transform: Transform = kind(
            **{name: READ[option.kind](option.text, trust) for name, option in facts.options.items()}
        )
        return transform
    except (ImportError, AttributeError, TypeError, ValueError, KeyError) as error:
        raise ArtifactForeign(
            f"the transform {facts.path} of the artifact's recipe is not to be had here: {error}",
            fix="install the version of Thunder that the artifact was made with, or make it anew",
        ) from error


READ: dict[str, Callable[[str, Trust], object]] = {
    "literal": lambda text, trust: read_literal(text),
    "import": lambda text, trust: trust.imported(text),
}
