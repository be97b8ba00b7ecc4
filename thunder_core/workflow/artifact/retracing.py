"""Trace or refuse the inputs that no program of an artifact accepts.

The modules for tracing and compiling are imported only when they are needed: the import takes seconds, and stored
programs run without them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from thunder_core.backend.runtime.observed_values import ObservedValues
from thunder_core.backend.runtime.program import Program
from thunder_core.backend.runtime.refusals import refusal_reason
from thunder_core.foundation import plugins
from thunder_core.foundation.errors import WrongInputs
from thunder_core.foundation.options.generation_lengths import GenerationLengths
from thunder_core.foundation.options.symbolic_arguments import ranges_in_words
from thunder_core.workflow.artifact.format.manifest import CompilerFacts
from thunder_core.workflow.artifact.trust.trust import Trust

GENERATION_FIX = (
    "use fewer or shorter prompts or fewer new tokens, or make the artifact again with a larger --batch, "
    "--prompt-length or --new-tokens; without strict=True, Thunder traces such a call"
)
TRACED_INPUTS_FIX = "pass inputs like the traced ones, or load the artifact without strict=True"
GRAD_MODE_REASON = "torch.is_grad_enabled(): was False"
NO_GRAD_FIX = "call the model within `torch.no_grad()`, or load the artifact without strict=True"
COMPILER = "thunder_core.workflow.artifact.format.compilers:compiler_of"
METHODS = "thunder_core.workflow.artifact.format.parts:methods_of"
BEFORE_CALL = "thunder_core.workflow.artifact.format.parts:before_call_of"


def compiler_from_facts(facts: CompilerFacts, trust: Trust) -> Any:
    """Return the compiler that `facts` describes; raise the errors of `compiler_of`."""
    compiler_of: Any = plugins.import_object(COMPILER)
    return compiler_of(facts, trust)


def recipe_methods(facts: CompilerFacts, model: object, trust: Trust) -> dict[str, Callable[..., Any]]:
    """Return the recipe's methods for a compiled module, by name; raise `ArtifactForeign` or `ImportRefused`."""
    if not any(transform.methods for transform in facts.transforms):
        return {}
    methods_of: Any = plugins.import_object(METHODS)
    methods: dict[str, Callable[..., Any]] = methods_of(facts, model, trust)
    return methods


def functions_before_call(facts: CompilerFacts, model: object, trust: Trust) -> list[Callable[[], None]]:
    """Return the functions that the recipe runs before each call; raise `ArtifactForeign` or `ImportRefused`."""
    if not any(transform.before_call for transform in facts.transforms):
        return []
    before_call_of: Any = plugins.import_object(BEFORE_CALL)
    functions: list[Callable[[], None]] = before_call_of(facts, model, trust)
    return functions


class StoredCompiler:
    """The settings of the compiler with which the programs of an artifact were compiled."""

    facts: CompilerFacts
    trust: Trust

    @property
    def settings(self) -> Any:
        """The compiler that the programs were compiled with."""
        return compiler_from_facts(self.facts, self.trust)

    @property
    def differs_from_eager(self) -> bool:
        """Whether programs may compute other values than eager PyTorch: with lookasides or a parallel transform."""
        return self.facts.differs_from_eager


@dataclass(frozen=True)
class Retracer(StoredCompiler):
    """Traces inputs that no stored program accepts, with the artifact's recipe."""

    facts: CompilerFacts
    trust: Trust

    def __call__(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        observed: ObservedValues | None = None,
    ) -> Program:
        """Return a new program for these inputs."""
        program: Program = self.settings(subject, args, kwargs, observed)
        return program

    @property
    def leaves_to_eager(self) -> bool:
        """Whether calls that no trace can represent run in eager PyTorch."""
        leaves_to_eager: bool = self.settings.leaves_to_eager
        return leaves_to_eager


@dataclass(frozen=True, eq=False)
class RefusingCompiler(StoredCompiler):
    """Refuses inputs that no stored program accepts, and reports the reason for each program.

    `dynamic` has the ranges of sizes that the programs support. `generation` has the lengths that the programs generate
    for, or is None.
    """

    folder: Path
    programs: tuple[Program, ...]
    facts: CompilerFacts
    trust: Trust
    dynamic: Mapping[str, tuple[int, int]]
    generation: GenerationLengths | None = None

    @property
    def leaves_to_eager(self) -> bool:
        """Whether calls that no trace can represent run in eager PyTorch: False, because such calls are refused."""
        return False

    def __call__(
        self,
        subject: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        observed: ObservedValues | None = None,  # noqa: ARG002
    ) -> Program:
        """Raise `WrongInputs`."""
        reasons = dict.fromkeys(refusal(program, subject, args, kwargs) for program in self.programs)
        causes = "; ".join(reasons) or "the programs are for calls of the module, not of `forward`"
        if self.generation is not None:
            raise WrongInputs(
                f"{self.folder} generates for {self.generation}, and none of its programs accepts this call: {causes}",
                fix=GENERATION_FIX,
            )
        serves = f", which serves {ranges_in_words(self.dynamic)}," if self.dynamic else ""
        needs_no_grad = bool(reasons) and all(reason.startswith(GRAD_MODE_REASON) for reason in reasons)
        raise WrongInputs(
            f"no program of {self.folder}{serves} accepts these inputs: {causes}",
            fix=NO_GRAD_FIX if needs_no_grad else TRACED_INPUTS_FIX,
        )


def refusal(program: Program, subject: object, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return the reason why a program does not accept these inputs."""
    try:
        program.prepare(subject, args, kwargs)
    except Exception as error:  # a path may run the user's code
        return refusal_reason(program, error)
    return (
        "values of tensors differ from the traced ones, and the program branches on them or catches an error that "
        "depends on them"
    )
