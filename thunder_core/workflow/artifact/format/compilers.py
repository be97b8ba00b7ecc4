"""The compiler of an artifact as plain data. It traces inputs that no stored program accepts."""

from __future__ import annotations

from thunder_core.backend.claiming.executor import Executor, find_executor
from thunder_core.backend.claiming.operator import Operator
from thunder_core.compilation.compiler import Compiler, register_operators
from thunder_core.compilation.compiler.for_device import CompilerForDevice
from thunder_core.foundation.errors import ArtifactForeign, EnvironmentLacks, UnknownName, WrongInputs
from thunder_core.passes.recipe import Lookaside, Transform
from thunder_core.workflow.artifact.format.manifest import CompilerFacts
from thunder_core.workflow.artifact.format.parts import part_facts, part_of
from thunder_core.workflow.artifact.trust.trust import Trust


def compiler_facts(compiler: object) -> CompilerFacts:
    """Return a compiler as plain data; raise `WrongInputs` for an object of another class."""
    compiler = compiler.compiler if isinstance(compiler, CompilerForDevice) else compiler
    if not isinstance(compiler, Compiler):
        raise WrongInputs(
            f"the compiler of this object, of class {type(compiler).__name__}, cannot be saved",
            fix="save the result of jit or compile",
        )
    transforms = [(type(transform).__name__, part_facts(transform)) for transform in compiler.transforms]
    lookasides = [(f"for {lookaside.name}", part_facts(lookaside)) for lookaside in compiler.lookasides]
    own_operators = [executor for executor in compiler.executors if isinstance(executor, Operator)]
    operators = [(operator.name, part_facts(operator)) for operator in own_operators]
    reasons = []
    for kind, parts in (("transforms", transforms), ("lookasides", lookasides), ("operators", operators)):
        if unstorable := [name for name, facts in parts if facts is None]:
            reasons.append(f"the {kind} {', '.join(unstorable)} cannot be saved")
    if unregistered := [
        executor.name
        for executor in compiler.executors
        if executor not in own_operators and is_replaced_executor(executor)
    ]:
        reasons.append(f"the executors {', '.join(unregistered)} are not registered under these names")
    return CompilerFacts(
        options=compiler.options,
        executors=tuple(executor.name for executor in compiler.executors),
        transforms=tuple(facts for _, facts in transforms if facts is not None),
        lookasides=tuple(facts for _, facts in lookasides if facts is not None),
        operators=tuple(facts for _, facts in operators if facts is not None),
        no_tracing_reason="; ".join(reasons),
    )


def is_replaced_executor(executor: Executor) -> bool:
    """Whether the name of an executor is registered for another executor."""
    try:
        return find_executor(executor.name) is not executor
    except (UnknownName, EnvironmentLacks):
        return False


def compiler_of(facts: CompilerFacts, trust: Trust) -> Compiler:
    """Return the compiler that `facts` describes; raise `ArtifactForeign` if a part is missing, or `ImportRefused`."""
    if facts.no_tracing_reason:
        raise WrongInputs(
            f"the artifact has no program for these inputs, and none can be traced: {facts.no_tracing_reason}",
            fix="pass inputs like the traced ones",
        )
    parts = (part_of(part, Operator, trust) for part in facts.operators)
    operators = {operator.name: operator for operator in parts}
    register_operators(list(operators.values()))
    return Compiler(
        tuple(part_of(part, Transform, trust) for part in facts.transforms),  # type: ignore[type-abstract]
        tuple(operators.get(name) or _executor(name) for name in facts.executors),
        facts.options,
        lookasides=tuple(part_of(part, Lookaside, trust) for part in facts.lookasides),
    )


def _executor(name: str) -> Executor:
    try:
        return find_executor(name)
    except (UnknownName, EnvironmentLacks) as error:
        raise ArtifactForeign(
            f"the executor {name} of the artifact's recipe is not available: {error.what}",
            fix="before new inputs are traced, register the executor with register_executor, or install its package",
        ) from error
