"""Variables of a prologue: statements that read the values at paths, each path once, owners before their members."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from thunder_core.frontend.acquire.outside.guards import GuardScope
from thunder_core.frontend.acquire.outside.namespaces import stored_class
from thunder_core.frontend.acquire.outside.paths import COMPUTED, MODULE_TABLES, Path, namespace, operands_of
from thunder_core.frontend.acquire.written.shared_operations import WrittenOperations
from thunder_core.tracing.capture.subclasses import torch_function_classes
from thunder_core.tracing.ir.constants import bind_constant
from thunder_core.tracing.ir.literal import LibraryFunction, Scope, literal, unique_name
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.sizes import text_of
from thunder_core.tracing.ir.symbol import BoundSymbol, python_statement

QUIETLY = LibraryFunction("thunder_core.tracing.library.tensor_guards", "quietly")
PROXIED = LibraryFunction("thunder_core.frontend.interpreter.native", "proxied_object")


class Variables:
    """The variables for the values at paths, and the `statements` that assign them.

    `roots` are the parameters of the prologue. `names` has the fixed names of some paths, and `used_names` the names
    that no other variable may have.
    """

    def __init__(self, roots: Sequence[Path], names: Mapping[Path, str], used_names: Collection[str]) -> None:
        self._used_names: set[str] = {*used_names, *(str(root.key) for root in roots), *names.values()}
        self.statements: list[BoundSymbol] = []
        self.reads: dict[BoundSymbol, Path] = {}  # the paths whose values statements assign
        self._names = names
        self._expressions: dict[Path, str] = {root: str(root.key) for root in roots}
        self.scope = GuardScope({"torch"}, used_names=self._used_names, variables=self._expressions)
        self._uses: dict[Path, int] = {}
        self._written_operations = WrittenOperations()

    def count_use(self, path: Path) -> None:
        """Count one more use of a path. A path with several uses gets a variable."""
        count_use(path, self._uses)

    def _expression(self, path: Path) -> str:
        """Return the expression that reads the value at a path from its parent's variable."""
        if path in self._expressions:
            return self._expressions[path]
        if path.parent is None:
            self._expressions[path] = self._root(path)
            return self._expressions[path]
        if path.step == "computed":
            return self._computation_call(path)
        if path.step == "count":
            self.statements += path.key.bsyms_with(self.variable, self._written_operations)
            return str(path.key.expression(self.variable))
        if path.step == "expression":
            expression, sources = path.key
            text = text_of(expression, {symbol: self.variable(source) for symbol, source in sources.items()})
            self.scope.imports.update({"math"} if "math." in text else ())
            return text
        if path.step == "entry":
            return f"{self.operand(namespace(path.parent))}[{literal(path.key, self.scope)}]"
        if path.step == "member":
            return bind_constant(path.value, self.scope)
        if path.step == "keyed item":
            return f"{self.variable(path.parent)}[{self.variable(path.key)}]"
        return without_torch_function(
            path.parent, STEPS[path.step](path, self.variable(path.parent), self.scope), self.scope
        )

    def _computation_call(self, path: Path) -> str:
        """Return a call of the function that computes a number, on variables and constants."""
        function, operands = path.key
        arguments = [
            self.variable(operand) if isinstance(operand, Path) else literal(operand, self.scope)
            for operand in operands
        ]
        module = "operator" if function.__module__ == "_operator" else function.__module__
        name = function.__name__
        called = name if module == "builtins" else self.scope.importing(f"{module}.{name}", module)
        return f"{called}({', '.join(arguments)})"

    def operand(self, path: Path) -> str:
        """Return the text for the value at a path: a variable if it has several uses, otherwise its expression."""
        return self.variable(path) if self._uses.get(path, 0) > 1 else self._expression(path)

    def _root(self, path: Path) -> str:
        """Return the expression of a root other than the arguments.

        Such a root is a class, a module, the globals of a module, or an object from the cache of a function.
        """
        if path.step == "cached":
            return self.scope.constant(path.value, path.key)
        if path.step != "globals":
            return bind_constant(path.value, self.scope)
        if path.key == "?":
            return self.scope.constant(path.value, "globals")
        name = self.new_name(f"{path.key.rpartition('.')[2]}_globals")
        self.scope.imports.add(f"{path.key}:__dict__ as {name}")
        return name

    def variable(self, path: Path) -> str:
        """Return the name of the variable with the value at a path, assigned on first use."""
        if path in self._expressions:
            return self._expressions[path]
        expression = self._expression(path)
        if path in self._expressions:
            return self._expressions[path]
        return self.assign_to(path, expression)

    def assign_to(self, path: Path, expression: str) -> str:
        """Append a statement that assigns the value at a path to its variable, and return the variable's name."""
        name = self._names.get(path) or self.new_name(path_name(path))
        self._expressions[path] = self.assign(name, expression)
        self.reads[self.statements[-1]] = path
        return self._expressions[path]

    def new_name(self, text: str) -> str:
        """Return an unused name that resembles the text."""
        name = unique_name(text, self._used_names)
        self._used_names.add(name)
        return name

    def assign(self, name: str, expression: str) -> str:
        """Append a statement that assigns an expression's value to a name, and return the name."""
        self.statements.append(python_statement(expression, Proxy(name)))
        return name


def without_torch_function(path: Path, expression: str, scope: Scope) -> str:
    """Return an expression that reads the value at a path without calling the value's own `__torch_function__`."""
    kind = type(path.value)
    if not issubclass(kind, torch.Tensor) or not torch_function_classes((kind,)):
        return expression
    return f"{scope.function(QUIETLY)}(lambda: {expression})"


def _item(path: Path, owner: str, scope: Scope) -> str:
    return f"{owner}[{literal(path.key, scope)}]"


def _referent(path: Path, owner: str, scope: Scope) -> str:
    """Return a dereference of a weak reference, bypassing a `__call__` of its class."""
    if path.parent is not None and type(path.parent.value) is weakref.ref:
        return f"{owner}()"
    return f"{scope.importing('weakref.ref', 'weakref')}.__call__({owner})"


def _reference(path: Path, owner: str, scope: Scope) -> str:
    return f"{scope.importing('weakref.ref', 'weakref')}({owner})"


def _proxy_text(path: Path, owner: str, scope: Scope) -> str:
    return f"{scope.function(PROXIED)}({owner})"


def _call_text(path: Path, owner: str, scope: Scope) -> str:
    method, arguments = path.key
    return f"{owner}.{method}({', '.join(literal(argument, scope) for argument in arguments)})"


def _keys(path: Path, owner: str, scope: Scope) -> str:
    plain = path.parent is not None and type(path.parent.value) is path.key
    return f"tuple({owner})" if plain else f"tuple({bind_constant(path.key, scope)}.keys({owner}))"


def _stored_item(path: Path, owner: str, scope: Scope) -> str:
    base = bind_constant(stored_class(path.parent.value), scope) if path.parent is not None else "tuple"
    return f"{base}.__getitem__({owner}, {literal(path.key, scope)})"


# For each kind of step, the expression that applies the step to the variable of its parent.
STEPS: dict[str, Callable[[Path, str, Scope], str]] = {
    "item": _item,
    "stored item": _stored_item,
    "attribute": lambda path, owner, scope: f"{owner}.{path.key}",
    "size": lambda path, owner, scope: f"{owner}.size({path.key})",
    "stride": lambda path, owner, scope: f"{owner}.stride({path.key})",
    "closure": lambda path, owner, scope: f"{owner}.__closure__[{path.key[0]}]",
    "tensor": lambda path, owner, scope: f"torch.from_numpy({owner})",
    "referent": _referent,
    "reference": _reference,
    "proxied": _proxy_text,
    "keys": _keys,
    "called": _call_text,
}


def holder(path: Path) -> Path | None:
    """Return the path that a path is read from: its parent, or for an entry its parent's `__dict__`."""
    return namespace(path.parent) if path.parent is not None and path.step == "entry" else path.parent


def count_use(path: Path, uses: dict[Path, int]) -> None:
    """Count one more use of a path. Its first use counts as a use of the paths that it is read from."""
    step: Path | None = path
    while step is not None:
        uses[step] = uses.get(step, 0) + 1
        for operand in operands_of(step) if uses[step] == 1 else ():
            count_use(operand, uses)
        step = holder(step) if uses[step] == 1 else None


NAME_IN_KEY = {"closure": 1, "called": 0}  # the index of the name in the key of a step


def path_name(path: Path) -> str:
    """Return a short readable name: the keys of the path without its root and without a module's tables."""
    parts: list[str] = []
    for step in path.lineage():
        if step.alias:
            parts = [step.alias]
        elif (
            step.parent is not None and (step is path or step.key not in MODULE_TABLES) and step.key != "cell_contents"
        ):
            parts.append(step_name(step))
    return "_".join(parts) or str(path.key)


def step_name(step: Path) -> str:
    """Return the key of a step as a part of a name. A value computed from several paths is named after its kind."""
    if step.step in COMPUTED:
        return step.step
    key = step.key[NAME_IN_KEY[step.step]] if step.step in NAME_IN_KEY else step.key
    key = path_name(key) if isinstance(key, Path) else key
    return "state" if key == "__dict__" else str(key)
