"""The prologue: the text that checks the guards and fetches what the computation and the epilogue need."""

from __future__ import annotations

import itertools
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from thunder_core.frontend.acquire.outside.drawing import Kept
from thunder_core.frontend.acquire.outside.guards import (
    CONDITIONS,
    NO_OTHER_HOOKS,
    OF_NAMESPACE,
    OF_TWO_PATHS,
    SPECIAL_METHODS,
    STATE_OF,
    Guard,
    bound,
)
from thunder_core.frontend.acquire.outside.outside import NUMBERS
from thunder_core.frontend.acquire.outside.paths import COMPUTED, MODULE_TABLES, Path, leads_from_draw, operands_of
from thunder_core.tracing.ir.literal import Code, Scope, literal, unique_name
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.sizes import SymbolicSize, text_of
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.overlap import Overlaps, overlaps
from thunder_core.tracing.library.tensor_guards import PLAIN

PYTHON = Symbol("python.code", exec)
LIBRARY = "thunder_core.tracing.library"
REFUSE = f"{LIBRARY}.objects:refuse"
TENSOR_GUARDS = (f"{LIBRARY}.tensor_guards:tensors_match", f"{LIBRARY}.tensor_guards:remember")
PROXIED = "thunder_core.frontend.interpreter.native:proxied"
OVERLAP = f"{LIBRARY}.overlap:overlap_as"
TRACER = f"{LIBRARY}.tracers:tracer_at_work"
WARNS = f"{LIBRARY}.output:raises_warning"
DECIMALS = f"{LIBRARY}.states:decimal_settings"
NUMPY = f"{LIBRARY}.states:numpy_settings"
GROUP_FACTS = f"{LIBRARY}.collectives:group_facts"
BEGIN_DRAWS = f"{LIBRARY}.draws:begin_draws"
DRAWS = "draws"
NO_TRACER = "tracers and transforms of PyTorch: none was active"
NAME = "prologue"
CALLED_FUNCTIONS = (
    *(REFUSE, *TENSOR_GUARDS, OVERLAP, TRACER, STATE_OF, NO_OTHER_HOOKS, PROXIED, SPECIAL_METHODS, WARNS),
    *(DECIMALS, NUMPY, GROUP_FACTS, BEGIN_DRAWS),
)
# What a query about the process has to import, by the query's prefix.
IMPORTS_OF_QUERIES = {
    "logging.": "logging",
    "gc.": "gc",
    "sys.": "sys",
    "numpy_settings(": NUMPY,
    "raises_warning(": WARNS,
    "decimal_settings(": DECIMALS,
    "group_facts(": GROUP_FACTS,
}
RESERVED = frozenset({NAME, DRAWS, "math", *(name.rpartition(":")[2] for name in CALLED_FUNCTIONS)})


def statement(text: str, output: Proxy | None = None) -> BoundSymbol:
    """Return a statement of plain Python as a bound symbol; its value is assigned to the output's name."""
    return BoundSymbol(symbol=PYTHON, args=(Code(text),), kwargs={}, output=output)


NO_SYMBOLS: Mapping[str, Path] = {}


class Prologue:
    """Builds the prologue: it evaluates each path once, owners before what they own, and checks the guards.

    With `writes`, the program writes to its inputs, so that it matters which of them overlap in memory. `descriptions`
    has a text for each check. By the number of a check, `numbers` has the path of a number that must stay equal, and
    `places` the steps to a value that can be looked up without running the user's code.
    """

    def __init__(
        self,
        roots: Sequence[Path],
        state: Mapping[str, object],
        names: Mapping[Path, str],
        writes: bool = False,
        symbols: Mapping[str, Path] = NO_SYMBOLS,
        draws: Sequence[Path] = (),
    ) -> None:
        self._draws = draws
        self._subject = str(roots[0].key)
        self._taken: set[str] = {*RESERVED, *(str(root.key) for root in roots), *names.values()}
        self.scope = Scope({"torch"}, taken=self._taken)
        self.bsyms: list[BoundSymbol] = []
        self.descriptions: list[str] = []
        self.numbers: dict[int, Path] = {}
        self.places: dict[int, tuple[tuple[str, object], ...]] = {}
        self._names = {**names, **{path: name for name, path in symbols.items()}}
        self._counts = [path for path in symbols.values() if path.step == "count"]
        self._symbols = [path for path in symbols.values() if path.step != "count"]
        self._taken |= {name for path in self._counts for name in path.key.names}
        self.number_counting = 0  # of statements at the end, which compute counts
        self._writes = writes
        self._expressions: dict[Path, str] = {root: str(root.key) for root in roots}
        self._uses: dict[Path, int] = {}
        for query, value in state.items():
            self.scope.imports |= {module for prefix, module in IMPORTS_OF_QUERIES.items() if query.startswith(prefix)}
            comparison = "is" if isinstance(value, bool | torch.dtype) else "=="
            self._check(f"{query} {comparison} {literal(value, self.scope)}", f"{query}: was {value}", query)

    def trace(self, guards: Sequence[Guard], output_groups: tuple[Sequence[Path], ...], roots: Sequence[Path]) -> Trace:
        """Return the prologue's trace, whose outputs are a tuple of values for each group of `output_groups`."""
        hooked = [namespace(guard.path) for guard in guards if guard.kind in OF_NAMESPACE]
        for path in [*(guard.path for guard in guards), *hooked, *itertools.chain(*output_groups)]:
            count_use(path, self._uses)
        plain = [guard for guard in guards if is_of_plain_tensor(guard)]
        for path in (*self._symbols, *self._counts, *self._draws):
            count_use(path, self._uses)
        drawn = [guard for guard in guards if self._draws and is_drawn(guard)]
        plain = [guard for guard in plain if guard not in drawn]
        for guard in guards:
            if not is_of_plain_tensor(guard) and guard not in drawn:
                self._check_guard(guard)
        self._draw()
        for guard in drawn:
            self._check_guard(guard)
        tensors = self._check_tensors(plain)
        checked = len(self.bsyms)
        for path in self._counts:
            self._variable(path)
        together = [guard.path for guard in plain]
        outputs = [
            Code(tensors) if group and list(group) == together else tuple(Code(self._variable(path)) for path in group)
            for group in output_groups
        ]
        self.number_counting = len(self.bsyms) - checked if self._counts else 0
        return Trace(
            name=NAME,
            inputs=tuple(Proxy(str(root.key)) for root in roots),
            bound_symbols=tuple(self.bsyms),
            output=tuple(outputs),
            imports=frozenset(self.scope.imports),
            constants=dict(self.scope.constants),
        )

    def _draw(self) -> None:
        """Append the statements that draw, in the order in which the program does."""
        if self._draws:
            self.scope.imports.add(BEGIN_DRAWS)
            self._assign(DRAWS, f"begin_draws({self._subject})")
        for path in self._draws:
            self._expressions[path] = self._assign(
                self._names.get(path) or self._new_name(path_name(path)), self._drawn(path.key)
            )

    def _drawn(self, draw: Any) -> str:
        """Return the call that draws, on variables and constants."""
        first = [] if draw.owner is None else [self._owner_of_draw(draw.owner)]
        called = [] if draw.how == "shuffled" else [self._argument(draw.called)]
        arguments = [self._argument(argument) for argument in draw.args]
        arguments += [f"{key}={self._argument(argument)}" for key, argument in draw.kwargs.items()]
        return f"{DRAWS}.{draw.how}({', '.join([*first, *called, *arguments])})"

    def _owner_of_draw(self, owner: Path | str) -> str:
        """Return the expression of a generator: the way to it, or its name in the process."""
        if isinstance(owner, Path):
            return self._variable(owner)
        return self.scope.importing(owner, owner.rpartition(".")[0])

    def _argument(self, value: Any) -> str:
        """Return the expression of an argument of a draw: a variable, a constant, or a container of such."""
        if isinstance(value, Path):
            return self._variable(value)
        if isinstance(value, Kept):
            return self.scope.constant(value.value, "kept")
        if type(value) is slice:
            return f"slice({', '.join(map(self._argument, (value.start, value.stop, value.step)))})"
        if type(value) is dict:
            return (
                "{" + ", ".join(f"{self._argument(key)}: {self._argument(item)}" for key, item in value.items()) + "}"
            )
        if type(value) in (list, tuple):
            inner = ", ".join(map(self._argument, value))
            return f"[{inner}]" if type(value) is list else f"({inner}{',' if len(value) == 1 else ''})"
        return bound(value, self.scope)

    # ---- guards ---------------------------------------------------------------------------------------------

    def _check_tensors(self, guards: Sequence[Guard]) -> str:
        """Check the guards on plain tensors; return the name of the tuple of these tensors.

        One call into C++ compares them with tensors that have passed; the guards are checked one by one only where it
        fails. Tensors are never remembered under a tracer or transform of PyTorch, so only then is it asked for.
        """
        self.scope.imports.add(TRACER)
        if not guards:
            self._check("tracer_at_work() is None", NO_TRACER, "tracer_at_work()")
            return ""
        self.scope.imports.update(TENSOR_GUARDS)
        members = tuple(Code(self._variable(guard.path)) for guard in guards)
        for path in self._symbols:
            self._variable(path)
        tensors = self._assign(self._new_name("tensors"), literal(members, self.scope))
        passed = self._assign(self._new_name("passed"), f"tensors_match({NAME}, {tensors})")
        self._check(f"{passed} or tracer_at_work() is None", NO_TRACER, "tracer_at_work()")
        for guard in guards:
            self._check_guard(guard, unless=f"{passed} or ")
        self._check_symbolic_strides(guards)
        self._check_overlaps(guards, tensors)
        self.bsyms.append(statement(f"if not {passed}: remember({NAME}, {tensors}{self._symbolic_dimensions(guards)})"))
        return tensors

    def _check_symbolic_strides(self, guards: Sequence[Guard]) -> None:
        """Compare, at each call, the strides of those tensors whose strides are expressions in symbolic sizes."""
        for guard in guards:
            if any(isinstance(stride, SymbolicSize) for stride in guard.expected[1].stride):
                subject = self._variable(guard.path)
                strides = literal(guard.expected[1].stride, self.scope)
                self._check(f"{subject}.stride() == {strides}", f"{guard.path}: had the strides {strides}", subject)

    def _symbolic_dimensions(self, guards: Sequence[Guard]) -> str:
        """Return, as an argument of `remember`, the dimensions of each tensor whose size or stride is symbolic."""
        dimensions_by_tensor = {}
        for number, guard in enumerate(guards):
            proxy = guard.expected[1]
            dimensions = tuple(
                tuple(dimension for dimension, size in enumerate(sizes) if isinstance(size, SymbolicSize))
                for sizes in (proxy.shape, proxy.stride)
            )
            if any(dimensions):
                dimensions_by_tensor[number] = dimensions
        return f", {literal(dimensions_by_tensor, self.scope)}" if dimensions_by_tensor else ""

    def _check_overlaps(self, guards: Sequence[Guard], tensors: str) -> None:
        """Check that the tensors overlap in memory as they did while tracing, if the program writes to its inputs."""
        if len(guards) > 1 and self._writes:
            overlapping = overlaps(tuple(guard.path.value for guard in guards))
            description = f"the tensors that the program uses: {described_overlaps(overlapping, guards)}"
            layouts = ((*guard.expected[1].shape, *guard.expected[1].stride) for guard in guards)
            symbolic = tuple(n for n, sizes in enumerate(layouts) if any(isinstance(s, SymbolicSize) for s in sizes))
            arguments = [NAME, tensors, literal(overlapping, self.scope)]
            if symbolic:
                arguments.append(literal(symbolic, self.scope))
            self.scope.imports.add(OVERLAP)
            self._check(f"overlap_as({', '.join(arguments)})", description, tensors)

    def _check_guard(self, guard: Guard, unless: str = "") -> None:
        """Check a guard on the value at its path; `unless` is what makes the check needless, before an `or`."""
        if guard.kind == "equal" and type(guard.expected) in NUMBERS:
            self.numbers[len(self.descriptions)] = guard.path
        if guard.kind not in OF_NAMESPACE and (place := plain_place(guard.path)) is not None:
            self.places[len(self.descriptions)] = place
        subject = self._operand(guard.path)
        condition = self._condition(guard, subject)
        if condition.count(subject) > 1:
            subject = self._variable(guard.path)
            condition = self._condition(guard, subject)
        self._check(unless + condition, str(guard), subject)

    def _condition(self, guard: Guard, subject: str) -> str:
        if guard.kind in OF_TWO_PATHS:
            return CONDITIONS[guard.kind](subject, self._variable(guard.expected), self.scope)
        if guard.kind in OF_NAMESPACE:
            return guard.condition(self._operand(namespace(guard.path)), self.scope)
        return guard.condition(subject, self.scope)

    def _check(self, condition: str, description: str, subject: str) -> None:
        """Append a statement that refuses the call, with the value of `subject`, where the condition does not hold."""
        self.scope.imports.add(REFUSE)
        self.bsyms.append(statement(f"if not ({condition}): refuse({len(self.descriptions)}, {subject})"))
        self.descriptions.append(description)

    # ---- expressions ----------------------------------------------------------------------------------------

    def _expression(self, path: Path) -> str:
        """Return the expression that reads the value at a path from the variable that holds its parent."""
        if path in self._expressions:
            return self._expressions[path]
        if path.parent is None:
            self._expressions[path] = self._root(path)
            return self._expressions[path]
        if path.step == "computed":
            return self._computed(path)
        if path.step == "count":
            self.bsyms += path.key.bsyms_with(self._variable)
            return str(path.key.expression(self._variable))
        if path.step == "expression":
            expression, sources = path.key
            text = text_of(expression, {symbol: self._variable(source) for symbol, source in sources.items()})
            self.scope.imports.update({"math"} if "math." in text else ())
            return text
        if path.step == "entry":
            return f"{self._operand(namespace(path.parent))}[{literal(path.key, self.scope)}]"
        if path.step == "member":
            return bound(path.value, self.scope)
        if path.step == "keyed item":
            return f"{self._variable(path.parent)}[{self._variable(path.key)}]"
        return STEPS[path.step](path, self._variable(path.parent), self.scope)

    def _computed(self, path: Path) -> str:
        """Return a call of the function that computes a number, on variables and constants."""
        function, operands = path.key
        arguments = [
            self._variable(operand) if isinstance(operand, Path) else literal(operand, self.scope)
            for operand in operands
        ]
        module = "operator" if function.__module__ == "_operator" else function.__module__
        name = function.__name__
        called = name if module == "builtins" else self.scope.importing(f"{module}.{name}", module)
        return f"{called}({', '.join(arguments)})"

    def _operand(self, path: Path) -> str:
        """Return the text that refers to the value at a path: a variable if it is used again, else its expression."""
        return self._variable(path) if self._uses.get(path, 0) > 1 else self._expression(path)

    def _root(self, path: Path) -> str:
        """Return the expression of a root other than the arguments: a class, a module, or the globals of a module."""
        if path.step != "globals":
            return bound(path.value, self.scope)
        if path.key == "?":
            return self.scope.constant(path.value, "globals")
        name = self._new_name(f"{path.key.rpartition('.')[2]}_globals")
        self.scope.imports.add(f"{path.key}:__dict__ as {name}")
        return name

    def _variable(self, path: Path) -> str:
        """Return the name of the variable that holds the value at a path, assigned on first use."""
        if path in self._expressions:
            return self._expressions[path]
        expression = self._expression(path)
        if path in self._expressions:
            return self._expressions[path]
        self._expressions[path] = self._assign(self._names.get(path) or self._new_name(path_name(path)), expression)
        return self._expressions[path]

    def _new_name(self, text: str) -> str:
        """Return a name like the text that nothing else has."""
        name = unique_name(text, self._taken)
        self._taken.add(name)
        return name

    def _assign(self, name: str, expression: str) -> str:
        """Append a statement that assigns an expression's value to a name, and return the name."""
        self.bsyms.append(statement(expression, Proxy(name)))
        return name


def _item(path: Path, owner: str, scope: Scope) -> str:
    return f"{owner}[{literal(path.key, scope)}]"


def _referent(path: Path, owner: str, scope: Scope) -> str:
    """A call of a weak reference, past a `__call__` of its class."""
    if path.parent is not None and type(path.parent.value) is weakref.ref:
        return f"{owner}()"
    return f"{scope.importing('weakref.ref', 'weakref')}.__call__({owner})"


def _reference(path: Path, owner: str, scope: Scope) -> str:
    return f"{scope.importing('weakref.ref', 'weakref')}({owner})"


def _proxied(path: Path, owner: str, scope: Scope) -> str:
    scope.imports.add(PROXIED)
    return f"proxied({owner})"


def _called(path: Path, owner: str, scope: Scope) -> str:
    method, arguments = path.key
    return f"{owner}.{method}({', '.join(literal(argument, scope) for argument in arguments)})"


def _keys(path: Path, owner: str, scope: Scope) -> str:
    plain = path.parent is not None and type(path.parent.value) is path.key
    return f"tuple({owner})" if plain else f"tuple({bound(path.key, scope)}.keys({owner}))"


def _stored_item(path: Path, owner: str, scope: Scope) -> str:
    return f"{stored_base(path)}.__getitem__({owner}, {literal(path.key, scope)})"


# For each kind of step, the expression that takes it from a variable that holds the step's parent.
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
    "proxied": _proxied,
    "keys": _keys,
    "called": _called,
}


def described_overlaps(overlapping: Overlaps, guards: Sequence[Guard]) -> str:
    """Return, in words, which guarded tensors overlap."""
    groups = [" and ".join(str(guards[place].path) for place, _ in group) for group in overlapping]
    return f"{'; '.join(groups) or 'none'} overlapped in memory"


def is_of_plain_tensor(guard: Guard) -> bool:
    """Whether a guard is on the metadata of a tensor of a class that has no Python code of its own to report it."""
    return guard.kind == "tensor" and guard.expected[0] in PLAIN


def is_drawn(guard: Guard) -> bool:
    """Whether a guard is on what the prologue draws, or on what is computed of that."""
    paths = [guard.path, *([guard.expected] if isinstance(guard.expected, Path) else [])]
    return any(map(leads_from_draw, paths))


ROOTS = ("root", "globals")
PLAIN_STEPS = ("item", "entry")


def plain_place(path: Path) -> tuple[tuple[str, object], ...] | None:
    """Return the steps of a path where following them runs no code of the user's: a root, then items and entries."""
    root, *steps = path.lineage()
    if root.step not in ROOTS or any(step.step not in PLAIN_STEPS for step in steps):
        return None
    if root.step == "globals" and (root.key == "?" or type(root.value) is not dict):
        return None
    return ((root.step, str(root.key)), *((step.step, step.key) for step in steps))


def stored_base(path: Path) -> str:
    """Return the name of the builtin class whose storage holds an item: that of its container, or a base of it."""
    container = path.parent.value if path.parent else None
    return next(base.__name__ for base in (dict, list, tuple) if isinstance(container, base))


def namespace(path: Path) -> Path:
    """Return the path to the `__dict__` of the value at a path."""
    return path.attribute("__dict__", None)


def holder(path: Path) -> Path | None:
    """Return the path that a path is read from: its parent, or for an entry its parent's `__dict__`."""
    return namespace(path.parent) if path.parent is not None and path.step == "entry" else path.parent


def count_use(path: Path, uses: dict[Path, int]) -> None:
    """Count one more use of a path; a path that is used for the first time uses what it is read from."""
    step: Path | None = path
    while step is not None:
        uses[step] = uses.get(step, 0) + 1
        for operand in operands_of(step) if uses[step] == 1 else ():
            count_use(operand, uses)
        step = holder(step) if uses[step] == 1 else None


NAME_IN_KEY = {"closure": 1, "called": 0}  # where the name stands in the key of a step


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
    """The key of a step as a part of a name; what is computed of several paths has the name of its kind."""
    if step.step in COMPUTED:
        return step.step
    key = step.key[NAME_IN_KEY[step.step]] if step.step in NAME_IN_KEY else step.key
    key = path_name(key) if isinstance(key, Path) else key
    return "state" if key == "__dict__" else str(key)
