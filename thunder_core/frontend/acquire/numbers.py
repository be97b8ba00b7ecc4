"""Symbolic numbers from outside, which vary between calls. A number is guarded only if the program reads its value."""

from __future__ import annotations

import functools
import itertools
import operator
import types
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from thunder_core.frontend.acquire.codegen.variables import path_name
from thunder_core.frontend.acquire.outside.call_traits import is_function_of_torch
from thunder_core.frontend.acquire.outside.containers import container_base
from thunder_core.frontend.acquire.outside.guards.values import OfType
from thunder_core.frontend.acquire.outside.paths import Path, computed_path
from thunder_core.frontend.acquire.outside.recording import Recording
from thunder_core.frontend.acquire.outside.reductions import ITERATORS
from thunder_core.frontend.interpreter.callables import callable_attribute, callable_name
from thunder_core.frontend.interpreter.calls import delegates_call
from thunder_core.frontend.interpreter.observer import NOT_TAKEN
from thunder_core.tracing.capture.symbolic.numbers import SymbolicNumber, concrete
from thunder_core.tracing.capture.symbolic.sequences import SEQUENCE_CLASSES, plain_sequence
from thunder_core.tracing.ir.retrace import NeedsNumbers, Retrace
from thunder_core.tracing.ir.tree import leaves, like, replace_leaves, stored_items

ITERTOOLS_NAMES = (
    "accumulate batched combinations compress cycle dropwhile filterfalse groupby islice pairwise permutations product "
    "repeat starmap takewhile tee zip_longest"
)
# Functions in C that accept symbolic numbers: they call a number's own methods, or only store the number.
ACCEPTING_FUNCTIONS: frozenset[object] = frozenset(
    (
        *(
            abs,
            all,
            any,
            bool,
            divmod,
            enumerate,
            filter,
            float,
            format,
            functools.reduce,
            getattr,
            hasattr,
            hash,
            id,
            int,
        ),
        *(
            isinstance,
            iter,
            itertools.chain,
            len,
            map,
            max,
            min,
            next,
            pow,
            print,
            range,
            repr,
            reversed,
            round,
            setattr,
        ),
        *(slice, sorted, str, sum, type, zip),
        *(getattr(itertools, name) for name in ITERTOOLS_NAMES.split() if hasattr(itertools, name)),
        *(OrderedDict, defaultdict, deque, dict, frozenset, functools.partial, list, set, tuple, types.SimpleNamespace),
    )
)
EXTREMES = (max, min)
MUTABLE_CONTAINERS: tuple[Any, ...] = (list, dict, deque)
ACCEPTING_METHODS = frozenset(
    {"__setattr__", "__init__", "__new__", "__call__", "__get__", "__set__", "__setstate__", "send", "throw"}
)
# Modules of classes whose operators accept symbolic numbers, or call their methods.
KNOWN_MODULES = ("builtins", "collections", "torch")


class OutsideNumbers:
    """The symbolic numbers of one run that come from outside, by path.

    `are_needed` is set if the program must be traced again with the values of the numbers. It is checked at the end of
    the run, because the program may catch the `Retrace`.
    """

    def __init__(self, run: Recording) -> None:
        self.run = run
        self.are_needed = False
        self._numbers: dict[Path, SymbolicNumber] = {}

    def at(self, path: Path) -> SymbolicNumber:
        """Return the symbolic number at a path, which is an input of the program."""
        if path not in self._numbers:
            self.run.outside.guard(OfType(path, type(path.value)))
            self._numbers[path] = self.run.recorder.numbers.number_at_source(path, path.value)
        return self._numbers[path]

    def at_random_draw(self, path: Path) -> SymbolicNumber:
        """Return the symbolic number at a path to a random draw of the prologue.

        The number is not used as a symbol of expressions, even if sizes are symbolic.
        """
        self.run.outside.guard(OfType(path, type(path.value)))
        return self.run.recorder.numbers.number_at_source(path, path.value, drawn=True)

    def values(self, tree: Any) -> Any:
        """Return nested values, with symbolic numbers replaced by their values in this call.

        A number without a source from outside, or with an expression of symbolic sizes, is guarded.
        """
        outside_values = self.run.recorder.numbers.outside_values

        def value(leaf: Any) -> Any:
            return outside_values[leaf.proxy.name] if is_outside(leaf) and leaf.size is None else concrete(leaf)

        return replace_leaves(tree, value)

    def compute(self, function: Callable[..., Any], operands: tuple[Any, ...], value: object) -> Path:
        """Return the path to a number that the prologue computes as a function of numbers at other paths."""
        path = computed_path(function, operands, value)
        path.alias = path_name(path.lineage()[-2])
        if function is operator.pow:  # `2 ** n` is an int or a float
            self.run.outside.guard(OfType(path, type(value)))
        return path

    def guard(self, source: Path) -> None:
        """Guard the number, or the result of a condition, at a path: each call must have the same value."""
        self.run.outside.read(source, source.value)

    def name(self, source: Path) -> str:
        """Return the name of a number as an input of the trace."""
        return self.run.name_number(source)

    def call_native(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call a function that accepts only Python's numbers, with the guarded values of symbolic numbers.

        Returns `NOT_TAKEN` if the function accepts symbolic numbers, or if the arguments have none from outside. Raises
        `Retrace` if a symbolic number is within an argument.
        """
        numbers = self.run.recorder.numbers
        if not numbers.has_symbolic:
            return NOT_TAKEN
        if function in EXTREMES and not kwargs and numbers.is_expression(function, args):
            return numbers.compute(function, args)
        if delegates_call(function) or accepts_symbolic(function):
            return NOT_TAKEN
        outside_numbers = [leaf for leaf in leaves((args, kwargs)) if is_outside(leaf)]
        if not outside_numbers:
            return NOT_TAKEN
        if any(not any(leaf is arg for arg in (*args, *kwargs.values())) for leaf in outside_numbers):
            self.run.draws.require_no_drawing_function()
            self.are_needed = True
            raise Retrace(NeedsNumbers())  # the number is in a container, to which other objects may refer
        if isinstance(function, functools._lru_cache_wrapper):  # the cached function is interpreted
            return self.run.machine.call_cached(function, *plain_arguments(args, kwargs))
        plain_args, plain_kwargs = plain_arguments(args, kwargs)
        if type(function) is types.FunctionType:  # the caller has guarded all contents of the arguments
            return function(*plain_args, **plain_kwargs)
        return self.run.machine.call_unreported(function, plain_args, plain_kwargs)


def arguments_for_c(function: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    """Return the arguments for C code, with plain guarded numbers if the code does not accept symbolic numbers."""
    if function is object.__init__:  # it ignores its arguments
        return args, kwargs
    if callable_attribute(function, "__self__") is OPERATORS or type(function) is types.WrapperDescriptorType:
        return (args if all(map(combines_with_symbolic, args)) else with_plain_numbers(tuple(args), set())), kwargs
    if delegates_call(function):
        return args, kwargs
    if accepts_symbolic(function):
        if is_function_of_torch(function) and any(type(leaf) in SEQUENCE_CLASSES for leaf in leaves((args, kwargs))):
            args, kwargs = replace_leaves((args, kwargs), plain_sequence)
        return args, kwargs
    return plain_arguments(args, kwargs)


def plain_arguments(args: Iterable[Any], kwargs: Mapping[str, Any]) -> tuple[Any, Any]:
    """Return arguments with plain guarded numbers in place of symbolic numbers.

    Lists and dicts are changed in place.
    """
    return with_plain_numbers(tuple(args), set()), with_plain_numbers(dict(kwargs), set())


def combines_with_symbolic(operand: object) -> bool:
    """Whether the class of a C operator's operand accepts a symbolic number as the other operand."""
    return isinstance(operand, SymbolicNumber) or type(operand).__module__.partition(".")[0] in KNOWN_MODULES


def with_plain_numbers(tree: Any, visited: set[int]) -> Any:
    """Return a tree with plain guarded numbers in place of symbolic numbers.

    Lists, deques and dicts are changed in place. The methods that their subclasses override do not run.
    """
    if isinstance(tree, SymbolicNumber):
        return tree.concretize()
    if type(tree) in SEQUENCE_CLASSES:
        return with_plain_numbers(tree.real(), visited)
    kind = type(tree)
    if kind is slice:
        return slice(*(with_plain_numbers(part, visited) for part in (tree.start, tree.stop, tree.step)))
    if issubclass(kind, tuple):
        items = [with_plain_numbers(item, visited) for item in stored_items(tree)]
        return tree if all(map(operator.is_, items, stored_items(tree))) else like(tree, items)
    base = next((base for base in MUTABLE_CONTAINERS if issubclass(kind, base)), None)
    if base is not None and id(tree) not in visited:
        visited.add(id(tree))
        for key, item in list(dict.items(tree) if base is dict else enumerate(base.__iter__(tree))):
            if (read := with_plain_numbers(item, visited)) is not item:
                base.__setitem__(tree, key, read)
    return tree


def is_outside(value: object) -> bool:
    """Whether a value is a symbolic number from outside, or computed from such numbers."""
    return isinstance(value, SymbolicNumber) and value.source is not None


def accepts_symbolic(function: object) -> bool:
    """Whether a function that runs natively accepts symbolic numbers.

    These are methods of symbolic numbers, functions of PyTorch, operators, and functions that only store arguments.
    """
    if (
        is_function_of_torch(function)
        or str(callable_attribute(function, "__module__", "")).partition(".")[0] == "thunder_core"
    ):
        return True
    if isinstance(function, type) and (issubclass(function, BaseException) or function in ITERATORS):
        return True
    try:
        if function in ACCEPTING_FUNCTIONS or callable_name(function) in ACCEPTING_METHODS:
            return True
    except TypeError:  # an unhashable callable
        return False
    owner = callable_attribute(function, "__self__")
    if owner is None:
        owner = callable_attribute(function, "__objclass__")
    if isinstance(owner, types.ModuleType):
        return owner is OPERATORS or owner.__name__.startswith("torch.")
    return isinstance(owner, SymbolicNumber) or container_base(owner) is not None


OPERATORS = operator.add.__self__  # type: ignore[attr-defined]  # the C module
