"""Models that are built when they are needed: a call runs an artifact's programs, any other use builds the model."""

from __future__ import annotations

import ast
import copy
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from threading import RLock
from typing import Any

import torch

from thunder_core.backend.runtime.argument_order import AS_PASSED, ArgumentOrder
from thunder_core.backend.runtime.compiled import Specializations
from thunder_core.backend.runtime.tracers import left_alone_by_dynamo
from thunder_core.foundation.errors import ArtifactError
from thunder_core.tracing.ir.printer import Source
from thunder_core.tracing.library.objects import UnexpectedValue
from thunder_core.workflow.artifact.format.constants import ConstantFinder
from thunder_core.workflow.artifact.format.cubins import read_cubins
from thunder_core.workflow.artifact.format.manifest import CONFIG, GENERATION, KERNELS, WeightFacts
from thunder_core.workflow.artifact.format.program_facts import ProgramFacts, executed_stages, stages_with_lines
from thunder_core.workflow.artifact.format.read import Artifact
from thunder_core.workflow.artifact.format.stored import StoredProgram, stored_program
from thunder_core.workflow.artifact.format.weights import read_weights
from thunder_core.workflow.artifact.standalone.separation import SeparatedPrologue
from thunder_core.workflow.artifact.standalone.standalone import is_imported
from thunder_core.workflow.artifact.trust.trust import Trust

NO_PROGRAM = object()  # the result of a call that no program accepts
PROLOGUE, EPILOGUE = "prologue", "epilogue"


@dataclass(frozen=True)
class ArtifactInMemory(Artifact):
    """An artifact whose programs, kernels and config have been read into memory, so that its folder may be removed."""

    contents: Mapping[str, bytes]

    @classmethod
    def of(cls, artifact: Artifact) -> ArtifactInMemory:
        """Read the files that are needed to build an artifact's model."""
        stages = [stage for program in artifact.manifest.programs for stage in executed_stages(program)]
        with_lines = [stage for program in artifact.manifest.programs for stage in stages_with_lines(program).values()]
        files = {*(stage.file for stage in stages), *(stage.lines_file for stage in with_lines)}
        names = {*files, CONFIG, GENERATION} & artifact.manifest.files.keys()
        names |= {name for name in artifact.manifest.files if name.startswith(f"{KERNELS}/")}
        contents = {name: artifact.content(name) for name in names}
        return cls(artifact.folder, artifact.manifest, contents)

    def content(self, name: str) -> bytes:
        """Return the bytes of a file, which were verified when they were read."""
        return self.contents[name]


@dataclass(frozen=True)
class LazyWeights:
    """The weights of a model that is not built yet.

    `tensors` has the tensors that programs read, by name; the built model uses the same objects. `values` has the other
    weights by their facts in the manifest, which are equal for tied weights.
    """

    tensors: Mapping[str, torch.Tensor]
    values: Mapping[WeightFacts, torch.Tensor]

    @classmethod
    def of(cls, artifact: Artifact, are_parameters: Mapping[str, bool]) -> LazyWeights:
        """Read the weights of an artifact.

        `are_parameters` says, for each weight that programs read, whether it is a parameter.
        """
        facts, stored = artifact.manifest.weights, read_weights(artifact)
        tensors_by_facts: dict[WeightFacts, torch.Tensor] = {}
        for name, is_parameter in are_parameters.items():
            if facts[name] not in tensors_by_facts:
                value = stored[name].to(facts[name].device)
                tensors_by_facts[facts[name]] = (
                    torch.nn.Parameter(value, facts[name].requires_grad) if is_parameter else value
                )
        values = {facts[name]: value for name, value in stored.items() if facts[name] not in tensors_by_facts}
        return cls({name: tensors_by_facts[facts[name]] for name in are_parameters}, values)


@dataclass(eq=False)
class LazyModel:
    """The model of an artifact before it is built: `build` returns the compiled module with the `weights`.

    `programs` are pairs of a program's number in the manifest and the program. They no longer run after one of the
    `packages` has been imported. `hits` is the number of calls of programs, `last` the number of the program that ran
    last, and `lock` ensures that the model is built once. If every program refuses a call, the programs are tried again
    with the arguments in the `argument_order`.
    """

    weights: LazyWeights
    packages: frozenset[str]
    programs: list[tuple[int, StoredProgram]]
    build: Callable[[LazyWeights], torch.nn.Module]
    argument_order: ArgumentOrder = AS_PASSED
    hits: int = 0
    last: int | None = None
    lock: Any = field(default_factory=RLock)

    def call(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a program that accepts the arguments, in the order of the call or in the order of the example.

        If no program accepts them, or if the model's library has been imported, build the model and call it.
        """
        if not is_imported(self.packages):
            result = self.run_program(module, args, kwargs)
            if result is NO_PROGRAM and (named := self.argument_order.as_in_example(args, kwargs)) is not None:
                result = self.run_program(module, (), named)
            if result is not NO_PROGRAM:
                return result
        return self.become_built(module)(*args, **kwargs)

    def run_program(self, module: torch.nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run a program that accepts the arguments; return `NO_PROGRAM` if there is none."""
        for number, program in self.programs:
            try:
                inputs, outside = program.prepare(self.weights.tensors, args, kwargs)
            except ArtifactError:  # the program's text cannot be executed
                raise
            except Exception:  # noqa: S112 (a path may run the user's code, which may raise any error)
                continue
            try:
                result = program.run(inputs, outside)
            except UnexpectedValue:
                continue
            except ArtifactError:
                raise
            except Exception as error:
                failure = error
            else:
                self.hits, self.last = self.hits + 1, number
                return result
            try:
                raising = specializations(self.become_built(module)).raising
                return raising.call_after_failure(program, failure, args, kwargs)
            finally:
                del failure  # the traceback refers to this frame
        return NO_PROGRAM

    def become_built(self, module: torch.nn.Module) -> torch.nn.Module:
        """Build the model, if it is not built yet, and turn the placeholder into the compiled module, in place."""
        with self.lock:
            if type(module).__dict__.get("_unbuilt") is self:
                compiled_model = self.build(self.weights)
                compiled = specializations(compiled_model)
                compiled.hits += self.hits
                compiled.last = None if self.last is None else list(compiled.programs)[self.last]
                object.__setattr__(module, "__dict__", compiled_model.__dict__)
                object.__setattr__(module, "__class__", type(compiled_model))
        return module


def specializations(compiled_model: torch.nn.Module) -> Specializations:
    """Return the programs of a compiled module."""
    compiled: Specializations = compiled_model._thunder  # type: ignore[assignment]
    return compiled


def lazy_module(lazy: LazyModel, name: str) -> torch.nn.Module:
    """Return a placeholder module: a call runs a program, and any other use turns it into the compiled module.

    The placeholder becomes the compiled module in place, so that references to it stay valid.
    """

    @left_alone_by_dynamo
    def run(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        return lazy.call(self, args, kwargs)

    members = {
        "__call__": run,
        "__getattribute__": lambda self, name: getattr(lazy.become_built(self), name),
        "__setattr__": lambda self, name, value: setattr(lazy.become_built(self), name, value),
        "__delattr__": lambda self, name: delattr(lazy.become_built(self), name),
        "__dir__": lambda self: dir(lazy.become_built(self)),
        "__repr__": lambda self: repr(lazy.become_built(self)),
        "__copy__": lambda self: copy.copy(lazy.become_built(self)),
        "_unbuilt": lazy,
    }
    module: torch.nn.Module = object.__new__(type(name, (torch.nn.Module,), members))
    return module


def unbuilt_programs(
    artifact: Artifact, separated: Mapping[int, SeparatedPrologue], trust: Trust, *, strict: bool
) -> list[tuple[int, StoredProgram]]:
    """Return the programs that run without the model, with their numbers."""
    finder, cubins = ConstantFinder(None, {}, artifact.content, trust), read_cubins(artifact)

    def program(facts: ProgramFacts, parts: SeparatedPrologue) -> StoredProgram:
        stored = stored_program(artifact, reduce_facts(facts, parts), finder, cubins, strict=strict)
        texts = {PROLOGUE: parts.checked, **({EPILOGUE: parts.epilogue} if parts.epilogue else {})}
        new = {name: Source(text, stored.sources[name].constants) for name, text in texts.items()}
        return replace(stored, sources={**stored.sources, **new}, read_prologue=None, skipped=None)

    return [(number, program(artifact.manifest.programs[number], parts)) for number, parts in separated.items()]


def reduce_facts(facts: ProgramFacts, parts: SeparatedPrologue) -> ProgramFacts:
    """Return a program's facts in which the prologue has only the constants that are checked at each call."""
    names = {node.id for node in ast.walk(ast.parse(parts.checked)) if isinstance(node, ast.Name)}
    stages = tuple(
        stage.model_copy(
            update={"constants": {name: constant for name, constant in stage.constants.items() if name in names}}
        )
        if stage.trace == PROLOGUE and stage.runs
        else stage
        for stage in facts.stages
    )
    return facts.model_copy(update={"stages": stages})
