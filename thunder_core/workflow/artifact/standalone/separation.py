"""Split a stored prologue into guards on the call and guards on the model.

An artifact can run before it builds its model from class and config, and before it imports the model's library. Until
the model is built, nobody can have changed the model or the library. Guards on the model and the library are therefore
checked once, in a new process, when the artifact is written (`standalone_check.py`). All other guards are checked at
every call; in these guards, `weights[name]` replaces the model's tensors.

The parts are found in the syntax tree of the source, because an artifact stores a prologue as Python source only. Data
about each statement would repeat the source in the manifest.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

import torch

from thunder_core.workflow.artifact.format.packages import PRESENT_PACKAGES, imports_of, package_of
from thunder_core.workflow.artifact.format.program_facts import ConstantFacts

PARAMETERS, BUFFERS = "_parameters", "_buffers"
WEIGHTS = "weights"  # the parameter that replaces the model in the part that is checked at each call
MODEL, INSTANCE_DICT = "module", "__dict__"
ARGUMENTS = ("args", "kwargs")
REFUSE = "refuse"  # the function that a prologue calls if a guard fails
INDENT = "    "
IMMUTABLE_TYPES = (torch.dtype, torch.layout, torch.memory_format)
# Classes written in C: their attributes cannot be changed, so reading an attribute does not depend on the call.
NATIVE_CLASSES = frozenset({"collections:OrderedDict"})
# Attributes of torch that are assumed never to be replaced: reading one does not depend on the call.
CONSTANT_TORCH_NAMES = frozenset(
    {"device", "Size"} | {name for name, value in vars(torch).items() if isinstance(value, IMMUTABLE_TYPES)}
)

Keys = tuple[str, ...]


class NotSeparable(Exception):
    """Raised, with the reason, for a prologue that cannot be split.

    An example is a statement that reads both the model and the arguments of the call.
    """


@dataclass(frozen=True)
class SeparatedPrologue:
    """The two parts of a prologue.

    `checked` is the source of a function `prologue(weights, args, kwargs)` that runs at each call. `invariants` are the
    statements about `module` that the new process runs. Both refer to constants by name. `weights` has the names of the
    model's tensors that `checked` reads; the value is True for a parameter.

    The program runs without the model only while none of the `packages` is imported. `absent` are the variables that do
    not exist without the model: their values are the model, a part of it, or objects of the packages. `epilogue` is the
    source that replaces the stored epilogue, and `outputs` are the output classes, as `module:name`, that the new
    epilogue replaces by Thunder's `ModelOutput`; both are empty if the outputs need no library.
    """

    checked: str
    invariants: tuple[ast.stmt, ...]
    weights: Mapping[str, bool]
    packages: frozenset[str]
    absent: frozenset[str]
    epilogue: str = ""
    outputs: frozenset[str] = frozenset()


def separate_prologue(text: str, constants: Mapping[str, ConstantFacts], names: Collection[str]) -> SeparatedPrologue:
    """Separate the prologue of a model whose tensors have these names, or raise `NotSeparable`."""
    return Separation(text, constants, names).result()


@dataclass
class Separation:
    """The state while one prologue is split.

    - `live`: names whose values depend on the call or may change between calls, such as the arguments, and the function
    `prologue` itself, whose attributes store tensors.
    - `fixed`: names whose values never change: builtins, constants that need no library, imports from Thunder, and
      names that a guard has compared with such a constant by `is`.
    - `native`: constants that are immutable classes.
    - `absent`: names that depend on the model or its library, with the keys that lead from the model to their values,
    if known.
    """

    text: str
    constants: Mapping[str, ConstantFacts]
    names: Collection[str]
    live: set[str] = field(default_factory=lambda: {*ARGUMENTS, WEIGHTS, "prologue"})
    fixed: set[str] = field(default_factory=lambda: {*vars(builtins), REFUSE})
    native: set[str] = field(default_factory=set)
    absent: dict[str, Keys | None] = field(default_factory=lambda: {MODEL: ()})
    packages: set[str] = field(default_factory=set)
    weights: dict[str, bool] = field(default_factory=dict)
    checked: list[str] = field(default_factory=list)
    invariants: list[ast.stmt] = field(default_factory=list)

    def result(self) -> SeparatedPrologue:
        """Return the parts of the prologue, or raise `NotSeparable`."""
        *head, function = ast.parse(self.text).body
        if not isinstance(function, ast.FunctionDef):
            raise NotSeparable("it defines no function")
        if [argument.arg for argument in function.args.args] != [MODEL, *ARGUMENTS]:
            raise NotSeparable("it is not a prologue of a module")
        for name, facts in self.constants.items():
            self.note_constant(name, facts)
        for node in head:
            self.note_import(node)
        self.checked.append(f"def prologue({WEIGHTS}, {', '.join(ARGUMENTS)}):")
        for node in function.body:
            self.classify_statement(WeightNames(self).visit(node))
        return SeparatedPrologue(
            checked="\n".join(self.checked) + "\n",
            invariants=tuple(self.invariants),
            weights=self.weights,
            packages=frozenset(self.packages),
            absent=frozenset(self.absent),
        )

    def note_constant(self, name: str, facts: ConstantFacts) -> None:
        """Classify a constant by its origin: fixed, or absent without the model's library."""
        package = package_of(facts.text) if facts.kind == "import" else ""
        if facts.kind == "literal" or (facts.kind == "import" and package in PRESENT_PACKAGES):
            self.fixed.add(name)
            self.native |= {name} if facts.text in NATIVE_CLASSES else set()
        elif facts.kind in ("import", "path"):
            self.absent[name] = None
            self.packages |= {package} - {""}
        else:
            raise NotSeparable(f"it has a constant of kind {facts.kind}, {name}")

    def note_import(self, node: ast.stmt) -> None:
        """Classify the names that an import binds: fixed for Thunder's modules.

        Live for others, whose names may change.
        """
        for module, name in imports_of(node):
            if package_of(module) in PRESENT_PACKAGES:
                is_own_module = module.startswith("thunder_core.")
                (self.fixed if is_own_module else self.live).add(name)
                self.checked.append(ast.unparse(node))
            else:
                self.absent[name] = None
                self.packages.add(package_of(module))
            self.invariants.append(node)

    def classify_statement(self, node: ast.stmt) -> None:
        """Add a statement to the checks of each call or to the invariants, depending on the names that it uses."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self.classify_assignment(node, name, value)
            case ast.If(test=ast.UnaryOp(op=ast.Not(), operand=condition), body=[ast.Expr(value=effect)], orelse=[]):
                self.classify_guard(node, condition, effect)
            case ast.Return():
                self.run_at_each_call(node)
            case _:
                raise NotSeparable(f"this statement is no assignment, guard or return: {ast.unparse(node)}")

    def classify_assignment(self, node: ast.stmt, name: str, value: ast.expr) -> None:
        """Add an assignment to the checks of each call or to the invariants, and classify its name."""
        if self.is_absent(node, value):
            self.invariants.append(node)
            self.absent[name] = self.keys_of(value)
        else:
            self.checked.append(indent(node))
            self.live.add(name)

    def classify_guard(self, node: ast.stmt, condition: ast.expr, effect: ast.expr) -> None:
        """Add a guard to the checks of each call or to the invariants.

        After a guard `name is constant`, the name is fixed, and both parts define it.
        """
        if not (isinstance(effect, ast.Call) and isinstance(effect.func, ast.Name)):
            raise NotSeparable(f"this statement is no guard: {ast.unparse(node)}")
        aliases = self.constant_alias(condition)
        if effect.func.id != REFUSE or not self.is_absent(node, condition):
            self.run_at_each_call(node)
            self.invariants += [ast.parse(f"{name} = {constant}").body[0] for name, constant in aliases.items()]
        else:
            self.invariants.append(node)
            self.checked += [f"{INDENT}{name} = {constant}" for name, constant in aliases.items()]
        for name in aliases:
            self.absent.pop(name, None)
            self.live.discard(name)
            self.fixed.add(name)

    def constant_alias(self, condition: ast.expr) -> dict[str, str]:
        """Return `{name: constant}` for a guard `name is constant` with a fixed constant; empty for other guards."""
        match condition:
            case ast.Compare(left=ast.Name(id=name), ops=[ast.Is()], comparators=[ast.Name(id=constant)]):
                return {name: constant} if constant in self.fixed and name not in self.fixed else {}
        return {}

    def run_at_each_call(self, node: ast.stmt) -> None:
        """Add a statement to the checks of each call; raise `NotSeparable` if it needs the model."""
        if self.is_absent(node, node):
            raise NotSeparable(f"the call needs the model: {ast.unparse(node)}")
        self.checked.append(indent(node))

    def is_absent(self, node: ast.stmt, part: ast.AST) -> bool:
        """Whether a part of a statement uses an absent name; raise `NotSeparable` if it also depends on the call."""
        names = {expression.id for expression in ast.walk(part) if isinstance(expression, ast.Name)}
        if unknown := names - self.live - self.fixed - self.absent.keys():
            raise NotSeparable(f"it uses the unknown name {min(unknown)}")
        absent = not names.isdisjoint(self.absent)
        if absent and any(map(self.is_live, ast.walk(part))):
            raise NotSeparable(f"it is about the model and the call at once: {ast.unparse(node)}")
        return absent

    def is_live(self, node: ast.AST) -> bool:
        """Whether an expression reads a value that may differ between calls."""
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr=name):
                return name not in CONSTANT_TORCH_NAMES
            # An attribute of a constant may change between calls, unless the constant is a native class.
            case ast.Attribute(value=ast.Name(id=name)) | ast.Subscript(value=ast.Name(id=name)):
                return name in self.fixed - self.native
            case ast.Name(id=name):
                return name in self.live and name != "torch"
        return False

    def keys_of(self, value: ast.expr) -> Keys | None:
        """Return the keys that lead from the model to a value; None if the value is not read by such keys."""
        match value:
            case ast.Name(id=name):
                return self.absent.get(name)
            case ast.Attribute(value=owner, attr="__dict__"):
                key = INSTANCE_DICT
            case ast.Subscript(value=owner, slice=ast.Constant(value=str(key))):
                pass
            case _:
                return None
        keys = self.keys_of(owner)
        return None if keys is None else (*keys, key)


class WeightNames(ast.NodeTransformer):
    """Replaces expressions that read a tensor of the model by `weights[name]`."""

    def __init__(self, separation: Separation) -> None:
        self.separation = separation

    def visit_Subscript(self, node: ast.Subscript) -> ast.expr:
        """Replace a lookup of one of the model's tensors by `weights[name]`."""
        keys = self.separation.keys_of(node)
        name = None if keys is None else weight_at(keys)
        if keys is None or name is None or name not in self.separation.names:
            self.generic_visit(node)
            return node
        self.separation.weights[name] = keys[-2] == PARAMETERS
        new = ast.Subscript(ast.Name(WEIGHTS, ast.Load()), ast.Constant(name), ast.Load())
        return ast.copy_location(ast.fix_missing_locations(new), node)


def indent(node: ast.stmt) -> str:
    """Return the text of a statement, indented for a function's body."""
    return f"{INDENT}{ast.unparse(node)}".replace("\n", f"\n{INDENT}")


def weight_at(keys: Keys) -> str | None:
    """Return the name of the parameter or buffer that keys lead to from the model; None for other keys."""
    if len(keys) < 3 or keys[-3] != INSTANCE_DICT or keys[-2] not in (PARAMETERS, BUFFERS):
        return None
    path = keys[:-3]
    steps = [path[index : index + 3] for index in range(0, len(path), 3)]
    if any(len(step) != 3 or step[:2] != (INSTANCE_DICT, "_modules") for step in steps):
        return None
    return ".".join([*(step[2] for step in steps), keys[-1]])
