"""The prologue: the text that checks the guards and fetches what the computation and the epilogue need."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence

from thunder_core.acquire.guards import CONDITIONS, Guard, bound
from thunder_core.acquire.paths import MODULE_TABLES, Path
from thunder_core.ir.literal import Code, Scope, followed, literal, unique_name
from thunder_core.ir.proxy import Proxy
from thunder_core.ir.symbol import BoundSymbol, Symbol
from thunder_core.ir.trace import Trace

PYTHON = Symbol("python.code", exec)
REFUSE = "thunder_core.ir.objects:refuse"


def line(text: str, output: Proxy | None = None) -> BoundSymbol:
    """A line of plain Python; what it evaluates to is given to the output's name."""
    return BoundSymbol(symbol=PYTHON, args=(Code(text),), kwargs={}, output=output)


class Prologue:
    """Builds the prologue: each path is evaluated once, owners before what they own."""

    def __init__(self, roots: Sequence[Path], state: Mapping[str, object], names: Mapping[Path, str]) -> None:
        self._taken: set[str] = {str(root.key) for root in roots} | set(names.values())
        self.scope = Scope({"torch"}, taken=self._taken)
        self.lines: list[BoundSymbol] = []
        self.refusals: list[str] = []
        self._names = names
        self._expressions: dict[Path, str] = {root: str(root.key) for root in roots}
        for query, value in state.items():
            same = "==" if type(value) is int else "is"
            self._check(f"{query} {same} {literal(value, self.scope)}", f"{query}: was {value}", query)

    def trace(self, guards: Sequence[Guard], wanted: tuple[Sequence[Path], ...], roots: Sequence[Path]) -> Trace:
        """The whole prologue; it returns the values at the wanted paths, in groups."""
        uses: dict[Path, int] = {}
        for path in [*(guard.path for guard in guards), *itertools.chain(*wanted)]:
            count_use(path, uses)
        for guard in guards:
            self._guard(guard, uses)
        outputs = [tuple(Code(self._variable(path)) for path in group) for group in wanted]
        return Trace(
            name="prologue",
            inputs=tuple(Proxy(str(root.key)) for root in roots),
            bound_symbols=tuple(self.lines),
            output=tuple(outputs),
            imports=frozenset(self.scope.imports),
            constants=dict(self.scope.constants),
        )

    # ---- guards ---------------------------------------------------------------------------------------------

    def _guard(self, guard: Guard, uses: dict[Path, int]) -> None:
        subject = self._variable(guard.path) if uses[guard.path] > 1 else self._expression(guard.path)
        if guard.kind == "same as":
            condition = CONDITIONS["same as"](subject, self._variable(guard.expected), self.scope)
        else:
            condition = guard.condition(subject, self.scope)
        self._check(condition, str(guard), subject)

    def _check(self, condition: str, reason: str, subject: str) -> None:
        self.scope.imports.add(REFUSE)
        self.lines.append(line(f"if not ({condition}): refuse({len(self.refusals)}, {subject})"))
        self.refusals.append(reason)

    # ---- expressions ----------------------------------------------------------------------------------------

    def _expression(self, path: Path) -> str:
        """How to compute a path from a variable that holds its parent."""
        if path in self._expressions:
            return self._expressions[path]
        if path.parent is None:
            self._expressions[path] = self._root(path)
            return self._expressions[path]
        if path.step == "closure":
            return f"{self._variable(path.parent)}.__closure__[{path.key[0]}]"
        owner = self._variable(path.parent)
        if path.step == "attribute":
            return f"{owner}.{path.key}"
        if path.step == "stored item":
            return f"{stored_base(path)}.__getitem__({owner}, {literal(path.key, self.scope)})"
        table = f"{owner}.__dict__" if path.step == "entry" else owner
        return f"{table}[{literal(path.key, self.scope)}]"

    def _root(self, path: Path) -> str:
        """A root other than the arguments: a class, a module, or the globals of a module."""
        if path.step != "globals":
            return bound(path.value, self.scope)
        if getattr(followed(path.key), "__dict__", None) is not path.value:
            return self.scope.constant(path.value, "globals")
        return self.scope.importing(f"{path.key}.__dict__", path.key)

    def _variable(self, path: Path) -> str:
        """A name that holds the value at the path, assigned on first use."""
        if path in self._expressions:
            return self._expressions[path]
        expression = self._expression(path)
        if path in self._expressions:
            return self._expressions[path]
        name = self._names.get(path) or unique_name(path_name(path), self._taken)
        self._taken.add(name)
        self.lines.append(line(expression, Proxy(name)))
        self._expressions[path] = name
        return name


def stored_base(path: Path) -> str:
    """The builtin container that holds an item."""
    container = path.parent.value if path.parent else None
    return next(base.__name__ for base in (dict, list, tuple) if isinstance(container, base))


def count_use(path: Path, uses: dict[Path, int]) -> None:
    """One more use of a path; a path that is used for the first time uses its parent."""
    step: Path | None = path
    while step is not None:
        uses[step] = uses.get(step, 0) + 1
        step = step.parent if uses[step] == 1 else None


def path_name(path: Path) -> str:
    """A short readable name: the keys of the path without its root and without a module's tables."""
    parts: list[str] = []
    for step in path.lineage():
        if step.alias:
            parts = [step.alias]
        elif (
            step.parent is not None and (step is path or step.key not in MODULE_TABLES) and step.key != "cell_contents"
        ):
            parts.append(str(step.key[1] if step.step == "closure" else step.key))
    return "_".join(parts) or str(path.key)
