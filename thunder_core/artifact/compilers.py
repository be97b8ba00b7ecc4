"""The compiler of inputs that no stored program takes: its transforms, lookasides and executors by name, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, TypeVar, cast

from thunder_core.artifact.constants import import_path
from thunder_core.artifact.literals import read_literal, write_literal
from thunder_core.artifact.manifest import CompilerFacts, ConstantFacts, PartFacts
from thunder_core.artifact.trust import Trust
from thunder_core.claiming.executor import Executor, find_executor
from thunder_core.compiler import Compiler
from thunder_core.errors import ArtifactForeign, EnvironmentLacks, UnknownName, WrongInputs
from thunder_core.recipe import Lookaside, Transform

Part = TypeVar("Part", bound=Transform | Lookaside)


def compiler_facts(compiler: object) -> CompilerFacts:
    """A compiler as plain data; raises `WrongInputs` for what only looks like one."""
    if not isinstance(compiler, Compiler):
        raise WrongInputs(
            f"this was compiled by a {type(compiler).__name__}, which cannot be written down",
            fix="save what jit or compile returned",
        )
    transforms = [(type(transform).__name__, part_facts(transform)) for transform in compiler.transforms]
    lookasides = [(f"for {lookaside.name}", part_facts(lookaside)) for lookaside in compiler.lookasides]
    nameless = [executor.name for executor in compiler.executors if is_another(executor)]
    return CompilerFacts(
        options=compiler.options,
        executors=tuple(executor.name for executor in compiler.executors),
        transforms=tuple(facts for _, facts in transforms if facts is not None),
        lookasides=tuple(facts for _, facts in lookasides if facts is not None),
        lacks="; ".join(
            f"the {kind} {', '.join(names)} {why}"
            for kind, names, why in (
                ("transforms", [name for name, facts in transforms if facts is None], "cannot be written down"),
                ("lookasides", [name for name, facts in lookasides if facts is None], "cannot be written down"),
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


def part_facts(part: object) -> PartFacts | None:
    """A transform or a lookaside as its class and fields; None where one of them cannot be written down."""
    path = import_path(type(part))
    if path is None or not dataclasses.is_dataclass(part) or isinstance(part, type):
        return None
    values = {field.name: getattr(part, field.name) for field in dataclasses.fields(part) if field.init}
    options = {name: _option(value) for name, value in values.items()}
    if any(option is None for option in options.values()):
        return None
    return PartFacts(path=path, options=cast(dict[str, ConstantFacts], options))


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
        tuple(_part(one, Transform, trust) for one in facts.transforms),  # type: ignore[type-abstract]
        tuple(map(_executor, facts.executors)),
        facts.options,
        lookasides=tuple(_part(one, Lookaside, trust) for one in facts.lookasides),
    )


def _executor(name: str) -> Executor:
    try:
        return find_executor(name)
    except (UnknownName, EnvironmentLacks) as error:
        raise ArtifactForeign(
            f"the executor {name} of the artifact's recipe is not to be had here: {error.what}",
            fix="register it with register_executor, or install what brings it, before new inputs are traced",
        ) from error


def _part(facts: PartFacts, base: type[Part], trust: Trust) -> Part:
    """The transform or lookaside that plain data tells of; `ArtifactForeign` where it is not to be had."""
    try:
        kind: Any = trust.imported(facts.path)
        if not (isinstance(kind, type) and issubclass(kind, base)):
            raise TypeError(f"it is no {base.__name__.lower()}")
        fields: Any = {name: READ[option.kind](option.text, trust) for name, option in facts.options.items()}
        part: Part = kind(**fields)
        return part
    except (ImportError, AttributeError, TypeError, ValueError, KeyError) as error:
        raise ArtifactForeign(
            f"the {base.__name__.lower()} {facts.path} of the artifact's recipe is not to be had here: {error}",
            fix="install the version of Thunder that the artifact was made with, or make it anew",
        ) from error


READ: dict[str, Callable[[str, Trust], object]] = {
    "literal": lambda text, trust: read_literal(text),
    "import": lambda text, trust: trust.imported(text),
}
