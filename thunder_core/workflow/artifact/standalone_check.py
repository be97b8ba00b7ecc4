"""Checks in a new process whether the guards on a model hold for a model that is built from its class and config.

`standalone.py` starts the process when an artifact is written. No other code has changed the model's library in that
process.
"""

from __future__ import annotations

import ast
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import TypeGuard

import torch

from thunder_core.backend.runtime.generate import executable
from thunder_core.tracing.ir.printer import Source
from thunder_core.workflow.artifact.format.code import fingerprint_of
from thunder_core.workflow.artifact.format.constants import ConstantFinder
from thunder_core.workflow.artifact.format.manifest import WeightFacts, running
from thunder_core.workflow.artifact.format.packages import PRESENT, package_of
from thunder_core.workflow.artifact.format.read import Artifact, open_artifact
from thunder_core.workflow.artifact.format.weights import weights_of
from thunder_core.workflow.artifact.loading import empty_model_of
from thunder_core.workflow.artifact.standalone.replaced_outputs import is_read_alike
from thunder_core.workflow.artifact.standalone.separation import SeparatedPrologue
from thunder_core.workflow.artifact.standalone.standalone import StandaloneFacts, candidates, is_imported
from thunder_core.workflow.artifact.trust.trust import trust_in

CHECK, REQUIRE_OWN = "check", "require_own"
# Immutable values: other modules may share them.
IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, torch.dtype, torch.device)


def main() -> None:
    """Check the artifact of the first argument; write the facts to the file of the second, or exit with 1."""
    folder, out = map(Path, sys.argv[1:])
    facts = finding(open_artifact(folder))
    if facts is None:
        raise SystemExit(1)
    out.write_text(facts.model_dump_json())


def finding(artifact: Artifact) -> StandaloneFacts | None:
    """Return the programs whose guards on the model hold here, or None; raise any error from building the model."""
    parts = candidates(artifact)
    packages = frozenset().union(*(part.packages for part in parts.values()))
    facts = artifact.manifest.shell
    if is_imported(packages) or facts is None:
        return None
    shared = objects_of_modules()
    with torch.device("meta"):
        model = empty_model_of(artifact, facts, trust_remote_code=False)
    if fingerprint_of(model) != artifact.manifest.fingerprint or not takes_its_place(model):
        return None
    if not are_tied_alike(artifact, model):
        return None
    holding = [number for number, part in parts.items() if holds(artifact, number, part, model, shared)]
    return StandaloneFacts.here(packages, holding) if holding else None


def objects_of_modules() -> set[int]:
    """Return the ids of the mutable objects in modules that are present on every machine."""
    modules = [module for name, module in list(sys.modules.items()) if package_of(name) in PRESENT]
    spaces = [getattr(module, "__dict__", {}) for module in modules]
    values = [value for space in spaces for value in (space, *space.values())]
    return {id(value) for value in values if not issubclass(type(value), IMMUTABLE)}


def takes_its_place(model: torch.nn.Module) -> bool:
    """Whether a module without state can take the class of a model, which must add no special methods."""
    blank = type("Blank", (torch.nn.Module,), {})
    try:
        object.__setattr__(object.__new__(blank), "__class__", type(model))
    except TypeError:
        return False
    kind = type(model)
    special_methods = {name for name in dir(kind) if name.startswith("__") and callable(getattr(kind, name))}
    return special_methods <= {*dir(torch.nn.Module)}


def are_tied_alike(artifact: Artifact, model: torch.nn.Module) -> bool:
    """Whether the model has the same names of weights as the artifact, and the same weights are tied."""
    groups: dict[WeightFacts, set[int]] = defaultdict(set)
    weights = dict(weights_of(model))
    if weights.keys() != artifact.manifest.weights.keys():
        return False
    for name, facts in artifact.manifest.weights.items():
        groups[facts].add(id(weights[name]))
    places = [place for group in groups.values() for place in group]
    return all(len(group) == 1 for group in groups.values()) and len(set(places)) == len(places)


def holds(artifact: Artifact, number: int, parts: SeparatedPrologue, model: torch.nn.Module, shared: set[int]) -> bool:
    """Whether a program's guards on the model hold, and read only objects that no other module shares."""
    stage = running(artifact.manifest.programs[number].stages)["prologue"]
    finder = ConstantFinder(model, {}, artifact.content, trust_in(model))
    weights = dict(weights_of(model))
    if any(isinstance(weights[name], torch.nn.Parameter) is not kind for name, kind in parts.weights.items()):
        return False
    if not all(map(is_read_alike, parts.outputs)):
        return False

    def require_own(*values: object) -> None:
        if not shared.isdisjoint(map(id, values)):
            raise LookupError("several modules define this name")

    constants = {name: finder.value(name, facts) for name, facts in stage.constants.items()}
    check = executable(Source(text_of(parts), {**constants, REQUIRE_OWN: require_own}), CHECK)
    try:
        check(model)
    except Exception:  # a path may run the library's code, which may raise any error
        return False
    return True


def text_of(parts: SeparatedPrologue) -> str:
    """Return the source of a function that checks a prologue's guards on the model, and values by `REQUIRE_OWN`."""
    imports = [node for node in parts.invariants if isinstance(node, ast.Import | ast.ImportFrom)]
    lines = [ast.unparse(node) for node in imports] + [f"def {CHECK}(module):"]
    for statement in parts.invariants:
        if statement not in imports:
            values = ", ".join(map(ast.unparse, values_read(statement, parts.absent)))
            lines += [f"    {REQUIRE_OWN}({values})", f"    {ast.unparse(statement)}".replace("\n", "\n    ")]
    return "\n".join(lines) + "\n"


def values_read(statement: ast.stmt, absent: frozenset[str]) -> Iterator[ast.expr]:
    """Yield the values that a statement reads, except values that are only compared by identity or class."""
    compared: set[ast.expr] = set()
    inner: set[ast.AST] = set()  # nodes with their own scope, and arguments of `refuse`
    for node in ast.walk(statement):
        match node:
            case ast.Compare(left=left, ops=[ast.Is()], comparators=[right]):
                compared |= {left, right}
            case ast.Call(func=ast.Name(id="type"), args=[operand]):
                compared.add(operand)
            case ast.Assign(value=value):
                compared.add(value)
            case ast.Call(func=ast.Name(id="refuse"), args=operands):
                inner |= {part for operand in operands for part in ast.walk(operand)}
            case ast.ListComp() | ast.GeneratorExp():
                inner |= {*ast.walk(node)}
    for node in ast.walk(statement):
        if is_read(node) and node not in compared | inner and root(node) in absent:
            yield node


def is_read(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether an expression is a name, an attribute or an item whose value is read."""
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load)


def root(node: ast.expr) -> str:
    """Return the name at the start of an expression."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
