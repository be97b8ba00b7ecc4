"""The check of a fresh process whether the guards on a model hold for one that is built from its class and config.

`standalone.py` starts it where an artifact is written: there, nobody has changed anything of the model's library.
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
from thunder_core.workflow.artifact.format.constants import Finder
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
# Values that cannot be changed, so that it does not matter who else has them.
IMMUTABLE = (type(None), bool, int, float, complex, str, bytes, tuple, frozenset, torch.dtype, torch.device)


def main() -> None:
    """Write the finding on the artifact of the first argument to the file of the second; a status of 1 is none."""
    folder, out = map(Path, sys.argv[1:])
    facts = finding(open_artifact(folder))
    if facts is None:
        raise SystemExit(1)
    out.write_text(facts.model_dump_json())


def finding(artifact: Artifact) -> StandaloneFacts | None:
    """The programs whose guards on the model hold, and where; raises whatever building the model raises."""
    parts = candidates(artifact)
    packages = frozenset().union(*(one.packages for one in parts.values()))
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
    holding = [number for number, one in parts.items() if holds(artifact, number, one, model, shared)]
    return StandaloneFacts.here(packages, holding) if holding else None


def objects_of_modules() -> set[int]:
    """The ids of the objects that modules hold which everybody has."""
    modules = [module for name, module in list(sys.modules.items()) if package_of(name) in PRESENT]
    spaces = [getattr(module, "__dict__", {}) for module in modules]
    values = [value for space in spaces for value in (space, *space.values())]
    return {id(value) for value in values if not issubclass(type(value), IMMUTABLE)}


def takes_its_place(model: torch.nn.Module) -> bool:
    """Whether a module without state can become this one, and stands for it in all that Python asks a class for."""
    blank = type("Blank", (torch.nn.Module,), {})
    try:
        object.__setattr__(object.__new__(blank), "__class__", type(model))
    except TypeError:
        return False
    asked = {name for name in dir(type(model)) if name.startswith("__") and callable(getattr(type(model), name))}
    return asked <= {*dir(torch.nn.Module)}


def are_tied_alike(artifact: Artifact, model: torch.nn.Module) -> bool:
    """Whether just those weights are one tensor in the model that the artifact has as one, and none is missing."""
    groups: dict[WeightFacts, set[int]] = defaultdict(set)
    mine = dict(weights_of(model))
    if mine.keys() != artifact.manifest.weights.keys():
        return False
    for name, facts in artifact.manifest.weights.items():
        groups[facts].add(id(mine[name]))
    places = [place for group in groups.values() for place in group]
    return all(len(group) == 1 for group in groups.values()) and len(set(places)) == len(places)


def holds(artifact: Artifact, number: int, parts: SeparatedPrologue, model: torch.nn.Module, shared: set[int]) -> bool:
    """Whether all that a program's prologue asks of the model is so, and is of objects that nobody else has."""
    stage = running(artifact.manifest.programs[number].stages)["prologue"]
    finder = Finder(model, {}, artifact.content, trust_in(model))
    mine = dict(weights_of(model))
    if any(isinstance(mine[name], torch.nn.Parameter) is not kind for name, kind in parts.weights.items()):
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
    except Exception:  # a path may run the library's code: whatever it raises, it leads nowhere
        return False
    return True


def text_of(parts: SeparatedPrologue) -> str:
    """The function that checks what a prologue asks of a model, and that nobody else has what it reads on the way."""
    imports = [one for one in parts.invariants if isinstance(one, ast.Import | ast.ImportFrom)]
    lines = [ast.unparse(one) for one in imports] + [f"def {CHECK}(module):"]
    for statement in parts.invariants:
        if statement not in imports:
            values = ", ".join(map(ast.unparse, values_read(statement, parts.absent)))
            lines += [f"    {REQUIRE_OWN}({values})", f"    {ast.unparse(statement)}".replace("\n", "\n    ")]
    return "\n".join(lines) + "\n"


def values_read(statement: ast.stmt, absent: frozenset[str]) -> Iterator[ast.expr]:
    """The values of which a statement reads what may change: all but those that it asks for their identity or class."""
    asked: set[ast.expr] = set()
    inner: set[ast.AST] = set()  # what has names of its own
    for node in ast.walk(statement):
        match node:
            case ast.Compare(left=left, ops=[ast.Is()], comparators=[right]):
                asked |= {left, right}
            case ast.Call(func=ast.Name(id="type"), args=[operand]):
                asked.add(operand)
            case ast.Assign(value=value):
                asked.add(value)
            case ast.Call(func=ast.Name(id="refuse"), args=operands):
                inner |= {part for operand in operands for part in ast.walk(operand)}
            case ast.ListComp() | ast.GeneratorExp():
                inner |= {*ast.walk(node)}
    for node in ast.walk(statement):
        if is_read(node) and node not in asked | inner and root(node) in absent:
            yield node


def is_read(node: ast.AST) -> TypeGuard[ast.expr]:
    """Whether an expression is a name, or a step from one, whose value is read."""
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript) and isinstance(node.ctx, ast.Load)


def root(node: ast.expr) -> str:
    """The name with which an expression begins."""
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""
