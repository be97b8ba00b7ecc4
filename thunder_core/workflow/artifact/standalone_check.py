"""The check that an artifact's guards on its model hold for the model that class and config build.

When an artifact is written, `standalone.py` runs this module in a new process, where no user's code has changed the
model's library.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TypeGuard

import torch

from thunder_core.backend.runtime.generate import executable
from thunder_core.tracing.ir.printer import Source
from thunder_core.workflow.artifact.format.code import fingerprint_of
from thunder_core.workflow.artifact.format.constants import ConstantFinder
from thunder_core.workflow.artifact.format.manifest import WeightFacts
from thunder_core.workflow.artifact.format.packages import PRESENT_PACKAGES, package_of
from thunder_core.workflow.artifact.format.program_facts import running_stages
from thunder_core.workflow.artifact.format.read import Artifact, open_artifact
from thunder_core.workflow.artifact.loading import empty_model_of
from thunder_core.workflow.artifact.standalone.replaced_outputs import is_read_alike
from thunder_core.workflow.artifact.standalone.separation import SeparatedPrologue
from thunder_core.workflow.artifact.standalone.standalone import StandaloneFacts, candidates, is_imported
from thunder_core.workflow.artifact.trust.trust import trust_in
from thunder_core.workflow.models.loading.fingerprint import weights_of

CHECK, REQUIRE_OWN = "check", "require_own"
# Immutable values: it does not matter if several modules share one.
IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, torch.dtype, torch.device)


def main() -> None:
    """Check the artifact in the folder `argv[1]`; write the facts to the file `argv[2]`, or exit with status 1."""
    folder, out = map(Path, sys.argv[1:])
    facts = check_guards(open_artifact(folder))
    if facts is None:
        raise SystemExit(1)
    out.write_text(facts.model_dump_json())


def check_guards(artifact: Artifact) -> StandaloneFacts | None:
    """Build the model, and return the facts of the programs whose guards on the model hold, or None if none hold.

    An error from building the model is raised.
    """
    prologues = candidates(artifact)
    packages = frozenset().union(*(prologue.packages for prologue in prologues.values()))
    facts = artifact.manifest.empty_model
    if is_imported(packages) or facts is None:
        return None
    shared = objects_in_shared_modules()
    with torch.device("meta"):
        model = empty_model_of(artifact, facts, trust_remote_code=False)
    if fingerprint_of(model) != artifact.manifest.fingerprint or not can_become(type(model)):
        return None
    if not has_same_ties(artifact, model):
        return None
    passed = [number for number, prologue in prologues.items() if holds(artifact, number, prologue, model, shared)]
    return StandaloneFacts.here(packages, passed) if passed else None


def objects_in_shared_modules() -> dict[int, object]:
    """Return the mutable objects in the namespaces of torch and other modules outside the model's library, by id.

    The result keeps these objects alive; otherwise, an object of the model could get the id of an object that a module
    has dropped.
    """
    modules = [module for name, module in list(sys.modules.items()) if package_of(name) in PRESENT_PACKAGES]
    spaces = [getattr(module, "__dict__", {}) for module in modules]
    values = [value for space in spaces for value in (space, *space.values())]
    return {id(value): value for value in values if not issubclass(type(value), IMMUTABLE)}


def can_become(kind: type[torch.nn.Module]) -> bool:
    """Whether an instance of another module class can become an instance of this class, by assignment of `__class__`.

    A loaded artifact assigns `__class__` when its model is built. Python looks special methods up in the class, so a
    class with additional special methods would behave differently before the assignment.
    """
    blank = type("Blank", (torch.nn.Module,), {})
    try:
        object.__setattr__(object.__new__(blank), "__class__", kind)
    except TypeError:
        return False
    special_methods = {name for name in dir(kind) if name.startswith("__") and callable(getattr(kind, name))}
    return special_methods <= {*dir(torch.nn.Module)}


def has_same_ties(artifact: Artifact, model: torch.nn.Module) -> bool:
    """Whether the model's weights have the names in the artifact, and the same weights are tied.

    Tied weights are one object in the model, and have equal facts in the artifact.
    """
    ids: dict[WeightFacts, set[int]] = defaultdict(set)
    weights = dict(weights_of(model))
    if weights.keys() != artifact.manifest.weights.keys():
        return False
    for name, facts in artifact.manifest.weights.items():
        ids[facts].add(id(weights[name]))
    are_distinct = len(set.union(set(), *ids.values())) == len(ids)
    return are_distinct and all(len(group) == 1 for group in ids.values())


def holds(
    artifact: Artifact, number: int, prologue: SeparatedPrologue, model: torch.nn.Module, shared: Mapping[int, object]
) -> bool:
    """Whether the guards of program `number` on the model hold, and read none of the `shared` objects (given by id)."""
    stage = running_stages(artifact.manifest.programs[number].stages)["prologue"]
    finder = ConstantFinder(model, {}, artifact.content, trust_in(model))
    weights = dict(weights_of(model))
    if {name: isinstance(weights[name], torch.nn.Parameter) for name in prologue.weights} != prologue.weights:
        return False
    if not all(map(is_read_alike, prologue.outputs)):
        return False

    def require_own(*values: object) -> None:
        if not shared.keys().isdisjoint(map(id, values)):
            raise LookupError("a module outside the library also has this object")

    constants = {name: finder.value(name, facts) for name, facts in stage.constants.items()}
    check = executable(Source(source_of_check(prologue), {**constants, REQUIRE_OWN: require_own}), CHECK)
    try:
        check(model)
    except Exception:  # a path may run the library's code, which may raise any error
        return False
    return True


def source_of_check(prologue: SeparatedPrologue) -> str:
    """Return the source of the function `check(module)`, which runs the guards of a prologue on the model.

    Before each statement, it passes the values that the statement reads to `require_own`.
    """
    imports = [node for node in prologue.invariants if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = [ast.unparse(node) for node in imports] + [f"def {CHECK}(module):"]
    for statement in prologue.invariants:
        if statement not in imports:
            values = ", ".join(map(ast.unparse, values_read(statement, prologue.absent)))
            lines += [f"    {REQUIRE_OWN}({values})", f"    {ast.unparse(statement)}".replace("\n", "\n    ")]
    return "\n".join(lines) + "\n"


def values_read(statement: ast.stmt, absent: frozenset[str]) -> Iterator[ast.expr]:
    """Yield the expressions whose values a statement reads from the variables in `absent`.

    A value that is only compared by identity or class, or assigned to a variable, is left out.
    """
    compared_or_assigned: set[ast.expr] = set()
    excluded: set[ast.AST] = set()  # nodes with their own scope, and arguments of `refuse`
    for node in ast.walk(statement):
        match node:
            case ast.Compare(left=left, ops=[ast.Is()], comparators=[right]):
                compared_or_assigned |= {left, right}
            case ast.Call(func=ast.Name(id="type"), args=[operand]):
                compared_or_assigned.add(operand)
            case ast.Assign(value=value):
                compared_or_assigned.add(value)
            case ast.Call(func=ast.Name(id="refuse"), args=operands):
                excluded |= {part for operand in operands for part in ast.walk(operand)}
            case ast.ListComp() | ast.GeneratorExp():
                excluded |= {*ast.walk(node)}
    for node in ast.walk(statement):
        if is_read(node) and node not in compared_or_assigned | excluded and root_name(node) in absent:
            yield node


def is_read(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether an expression is a name, an attribute or an item whose value is read."""
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load)


def root_name(node: ast.expr) -> str:
    """Return the variable that an expression such as `a.b[0]` starts with; empty if it starts with none."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
