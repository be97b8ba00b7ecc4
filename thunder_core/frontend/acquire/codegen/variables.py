"""Variables of a prologue: statements that read the value at each path once, owners before their members."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Mapping, Sequence

import torch

from thunder_core.frontend.acquire.codegen.shared_operations import WrittenOperations
from thunder_core.frontend.acquire.outside.guards.guard import GuardScope
from thunder_core.frontend.acquire.outside.namespaces import stored_class
from thunder_core.frontend.acquire.outside.paths import (
    ASSIGNMENT,
    COMPUTED,
    MODULE_TABLES,
    Path,
    namespace,
    operands_of,
)
from thunder_core.tracing.capture.subclasses import torch_function_classes
from thunder_core.tracing.ir.constants import bind_constant
from thunder_core.tracing.ir.literal import LibraryFunction, Scope, add_unique_name, attribute_of, literal
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.retrace import ReadsAssignment, Retrace
from thunder_core.tracing.ir.sizes import text_of
from thunder_core.tracing.ir.symbol import BoundSymbol, python_statement

READ_WITHOUT_TORCH_FUNCTION = LibraryFunction(
    "thunder_core.tracing.library.tensor_guards", "read_without_torch_function"
)
PROXIED_OBJECT = LibraryFunction("thunder_core.frontend.interpreter.native", "proxied_object")
STEPS_WITH_OPERANDS = (*COMPUTED, "draw", "keyed item")


class Variables:
    """The variables for the values at paths, and the `statements` that assign them.

    `roots` are the parameters of the prologue. `names` maps some paths to the names of their variables. `used_names`
    are names that no variable may have. `reads` maps a statement to the path whose value the statement assigns.
    """

    def __init__(self, roots: Sequence[Path], names: Mapping[Path, str], used_names: Collection[str]) -> None:
        self._used_names: set[str] = {*used_names, *(str(root.key) for root in roots), *names.values()}
        self.statements: list[BoundSymbol] = []
        self.reads: dict[BoundSymbol, Path] = {}
        self._names = names
        self._expressions: dict[Path, str] = {root: str(root.key) for root in roots}
        self._proxies = {root: Proxy(str(root.key)) for root in roots}
        self.scope = GuardScope({"torch"}, used_names=self._used_names, variables=self._expressions)
        self._uses: dict[Path, int] = {}
        self._written_operations = WrittenOperations()

    def count_use(self, path: Path) -> None:
        """Count a use of a path. A path with several uses gets a variable."""
        count_use(path, self._uses)

    def _expression(self, path: Path) -> str:
        """Return the expression that reads the value at a path.

        First append the statements that the expression needs, such as an assignment of the parent.
        """
        if path in self._expressions:
            return self._expressions[path]
        if path.parent is None:
            self._expressions[path] = self._root_expression(path)
            return self._expressions[path]
        if path.step == "computed":
            return self._computation_call(path)
        if path.step == "count":
            self.statements += path.key.bsyms_with(self.variable, self._written_operations)
            return str(path.key.expression(self.variable).text)
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
            path.parent, STEP_EXPRESSIONS[path.step](path, self.variable(path.parent), self.scope), self.scope
        )

    def _computation_call(self, path: Path) -> str:
        """Return the call that computes the value at a path, with variables and constants as arguments."""
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
        """Return the variable of a path that has several uses; otherwise return the path's expression."""
        return self.variable(path) if self._uses.get(path, 0) > 1 else self._expression(path)

    def _root_expression(self, path: Path) -> str:
        """Return the expression of a root other than the arguments.

        Such a root is a class, a module, the globals of a module, or an object from the cache of a function. Raises
        `Retrace` for an array of indices from SciPy's `linear_sum_assignment`, which the prologue cannot compute.
        """
        if path.step == ASSIGNMENT:
            raise Retrace(ReadsAssignment())
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
        """Return the variable for the value at a path. The first call appends the statement that assigns it."""
        if path in self._expressions:
            return self._expressions[path]
        expression = self._expression(path)
        if path in self._expressions:
            return self._expressions[path]
        return self.assign_to(path, expression)

    def assign_to(self, path: Path, expression: str, *others: Proxy) -> str:
        """Append a statement that assigns the value at a path to its variable, and return the variable's name.

        `others` are variables for values at no path that the expression reads.
        """
        name = self._names.get(path) or self.new_name(path_name(path))
        self._expressions[path] = self.assign(name, expression, (*others, *self.read_by(path)))
        self._proxies[path] = Proxy(name)
        self.reads[self.statements[-1]] = path
        return name

    def read_by(self, *paths: Path) -> tuple[Proxy, ...]:
        """Return the variables that the expressions of paths read."""
        proxies = dict[str, Proxy]()
        for path in paths:
            self._add_read_by(path, proxies)
        return tuple(proxies.values())

    def _add_read_by(self, path: Path, proxies: dict[str, Proxy]) -> None:
        proxy = self._proxies.get(path)
        if proxy is not None:
            proxies[proxy.name] = proxy
        elif path.step == "count":
            proxies |= {proxy.name: proxy for proxy in path.key.expression(self.variable).reads}
        else:
            source = source_path(path)
            if source is not None:
                self._add_read_by(source, proxies)
            for operand in operands_of(path) if path.step in STEPS_WITH_OPERANDS else ():
                self._add_read_by(operand, proxies)

    def new_name(self, text: str) -> str:
        """Return an unused name that resembles the text."""
        return add_unique_name(text, self._used_names)

    def assign(self, name: str, expression: str, reads: tuple[Proxy, ...]) -> str:
        """Append a statement that assigns an expression's value to a name, and return the name."""
        self.statements.append(python_statement(expression, Proxy(name), reads))
        return name


def without_torch_function(path: Path, expression: str, scope: Scope) -> str:
    """Return the expression, extended so that it does not call a `__torch_function__` of the value at the path."""
    kind = type(path.value)
    if not issubclass(kind, torch.Tensor) or not torch_function_classes((kind,)):
        return expression
    return f"{scope.function(READ_WITHOUT_TORCH_FUNCTION)}(lambda: {expression})"


def _item_text(path: Path, owner: str, scope: Scope) -> str:
    return f"{owner}[{literal(path.key, scope)}]"


def _referent_text(path: Path, owner: str, scope: Scope) -> str:
    """Return a dereference of a weak reference, bypassing a `__call__` of its class."""
    if path.parent is not None and type(path.parent.value) is weakref.ref:
        return f"{owner}()"
    return f"{scope.importing('weakref.ref', 'weakref')}.__call__({owner})"


def _reference_text(path: Path, owner: str, scope: Scope) -> str:
    return f"{scope.importing('weakref.ref', 'weakref')}({owner})"


def _proxy_text(path: Path, owner: str, scope: Scope) -> str:
    return f"{scope.function(PROXIED_OBJECT)}({owner})"


def _method_call_text(path: Path, owner: str, scope: Scope) -> str:
    method, arguments = path.key
    return f"{owner}.{method}({', '.join(literal(argument, scope) for argument in arguments)})"


def _keys_text(path: Path, owner: str, scope: Scope) -> str:
    plain = path.parent is not None and type(path.parent.value) is path.key
    return f"tuple({owner})" if plain else f"tuple({bind_constant(path.key, scope)}.keys({owner}))"


def _stored_item_text(path: Path, owner: str, scope: Scope) -> str:
    base = bind_constant(stored_class(path.parent.value), scope) if path.parent is not None else "tuple"
    return f"{base}.__getitem__({owner}, {literal(path.key, scope)})"


# For each kind of step, a function of a path, the expression of its owner and the scope: it returns the expression of
# the value at the path.
STEP_EXPRESSIONS: dict[str, Callable[[Path, str, Scope], str]] = {
    "item": _item_text,
    "stored item": _stored_item_text,
    "attribute": lambda path, owner, scope: attribute_of(owner, path.key),
    "size": lambda path, owner, scope: f"{owner}.size({path.key})",
    "stride": lambda path, owner, scope: f"{owner}.stride({path.key})",
    "closure": lambda path, owner, scope: f"{owner}.__closure__[{path.key[0]}]",
    "tensor": lambda path, owner, scope: f"torch.from_numpy({owner})",
    "referent": _referent_text,
    "reference": _reference_text,
    "proxied": _proxy_text,
    "keys": _keys_text,
    "called": _method_call_text,
}


def source_path(path: Path) -> Path | None:
    """Return the path from which a path is read: its parent or, for an entry, the `__dict__` of its parent."""
    return namespace(path.parent) if path.parent is not None and path.step == "entry" else path.parent


def count_use(path: Path, uses: dict[Path, int]) -> None:
    """Count a use of a path. The first use of a path is also a use of the paths from which it is read."""
    step: Path | None = path
    while step is not None:
        uses[step] = uses.get(step, 0) + 1
        for operand in operands_of(step) if uses[step] == 1 else ():
            count_use(operand, uses)
        step = source_path(step) if uses[step] == 1 else None


NAME_IN_KEY = {"closure": 1, "called": 0}  # the index of the name in the key of a step


def path_name(path: Path) -> str:
    """Return a short name for the value at a path: `module.layers[0].weight` becomes `layers_0_weight`.

    The name consists of the keys after the root, or after the last alias. Contents of closure cells, and tables of a
    module within the path, add nothing.
    """
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
    """Return what a step adds to a name: its key or the name in its key, `state` for `__dict__`, or the kind of a step
    that is computed from several paths.
    """
    if step.step in COMPUTED:
        return step.step
    key = step.key[NAME_IN_KEY[step.step]] if step.step in NAME_IN_KEY else step.key
    key = path_name(key) if isinstance(key, Path) else key
    return "state" if key == "__dict__" else str(key)
