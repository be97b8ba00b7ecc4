"""Replacements for C functions that call back into Python: callables and iterables among the arguments are bridged."""

import functools
import itertools
import operator
from dataclasses import dataclass
from typing import Any

from thunder_core.frontend.interpreter import bridges, operators
from thunder_core.frontend.interpreter.calls import REPLACEMENTS, ROUTES, Arguments, Keywords, Route
from thunder_core.frontend.interpreter.frame import Machine


@dataclass(frozen=True)
class BridgedArguments:
    """The arguments of a C function that are callables or iterables.

    With `rest`, all other positional arguments are iterables. With `compares`, the C function hashes, compares, adds or
    tests items.
    """

    callables: tuple[int | str, ...] = ()
    iterables: tuple[int | str, ...] = ()
    rest: bool = False
    compares: bool = False

    def __call__(self, machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Call the C function natively, with bridges for arguments that would run Python code."""
        bridged = [self._argument(machine, position, value) for position, value in enumerate(arguments)]
        named = {name: self._argument(machine, name, value) for name, value in keywords.items()}
        return machine.call_unreported(function, bridged, named)

    def _argument(self, machine: Machine, position: int | str, value: object) -> Any:
        """Return one argument as the C function receives it."""
        if position in self.callables:
            return bridges.callback(machine, value)
        if position in self.iterables or (self.rest and isinstance(position, int)):
            return (bridges.announcing_iterable if self.compares else bridges.iterable)(machine, value)
        return value


_FIRST_IS_ITERABLE = BridgedArguments(iterables=(0,))
_FIRST_IS_COMPARED = BridgedArguments(iterables=(0,), compares=True)
REPLACEMENTS.update(
    {
        all: _FIRST_IS_COMPARED,
        any: _FIRST_IS_COMPARED,
        enumerate: BridgedArguments(iterables=(0, "iterable")),
        frozenset: _FIRST_IS_COMPARED,
        functools.reduce: BridgedArguments(callables=(0,), iterables=(1,)),
        functools.cmp_to_key: BridgedArguments(callables=(0, "mycmp")),
        list: _FIRST_IS_ITERABLE,
        map: BridgedArguments(callables=(0,), rest=True),
        set: _FIRST_IS_COMPARED,
        sorted: BridgedArguments(callables=("key",), iterables=(0,), compares=True),
        sum: _FIRST_IS_COMPARED,
        tuple: _FIRST_IS_ITERABLE,
        zip: BridgedArguments(rest=True),
    }
)


def _call_extremum(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `min` or `max`, with one iterable or with the values themselves."""
    shape = BridgedArguments(callables=("key",), iterables=(0,) if len(arguments) == 1 else (), compares=True)
    return shape(machine, function, arguments, keywords)


REPLACEMENTS.update({min: _call_extremum, max: _call_extremum})


def _call_filter(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `filter(function, iterable)` or `filterfalse`. Under an observer, `bool` replaces the function None."""
    if machine.observer is not None and len(arguments) == 2 and arguments[0] is None:
        arguments = (bool, arguments[1])
    return BridgedArguments(callables=(0,), iterables=(1,))(machine, function, arguments, keywords)


def _call_accumulate(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `itertools.accumulate(iterable[, func])`. The default function is `operator.add`."""
    if len(arguments) < 2 and keywords.get("func") is None:
        keywords = {**keywords, "func": operator.add}
    elif len(arguments) > 1 and arguments[1] is None:
        arguments = (arguments[0], operator.add, *arguments[2:])
    shape = BridgedArguments(callables=(1, "func"), iterables=(0, "iterable"))
    return shape(machine, function, arguments, keywords)


def _call_compress(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `itertools.compress(data, selectors)`, which tests the truth of each selector."""
    operands = dict(zip(("data", "selectors"), arguments, strict=False)) | keywords
    if len(arguments) + len(keywords) != 2 or operands.keys() != {"data", "selectors"}:
        return machine.call_unreported(function, arguments, keywords)
    data, selectors = (bridges.iterable(machine, operands[name]) for name in ("data", "selectors"))
    return machine.call_unreported(function, (data, map(bridges.callback(machine, bool), selectors)), {})


def _call_groupby(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `itertools.groupby(iterable[, key])`, which compares the keys, or the items if there is no key function."""
    shape = BridgedArguments(callables=(1, "key"), iterables=(0, "iterable"))
    if machine.observer is not None and arguments and arguments[1:] in ((), (None,)):
        arguments = (bridges.reporting_iterator(machine, arguments[0]), *arguments[1:])
    return shape(machine, function, arguments, keywords)


def _if_observed(shape: Route) -> Route:
    """Return a replacement that bridges arguments only if there is an observer.

    Without bridges, the program sees no difference when it copies or prints a C iterator.
    """

    def bridge(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        if machine.observer is None:
            return function(*arguments, **keywords)
        return shape(machine, function, arguments, keywords)

    return bridge


def _call_chain_from_iterable(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `itertools.chain.from_iterable(iterables)`."""
    if keywords or len(arguments) != 1 or machine.observer is None:
        return function(*arguments, **keywords)
    outer = bridges.iterable(machine, arguments[0])
    return machine.call_unreported(function, (map(functools.partial(bridges.iterable, machine), outer),), {})


_ITERABLE_ARGUMENT = BridgedArguments(iterables=(0, "iterable"))
_PREDICATE_AND_ITERABLE = BridgedArguments(callables=(0,), iterables=(1,))
# `count` and `repeat` do not iterate over their arguments.
_ITERTOOLS_ROUTES: dict[str, Route] = {
    "accumulate": _call_accumulate,
    "batched": _ITERABLE_ARGUMENT,
    "chain": BridgedArguments(rest=True),
    "combinations": _ITERABLE_ARGUMENT,
    "combinations_with_replacement": _ITERABLE_ARGUMENT,
    "compress": _call_compress,
    "cycle": _ITERABLE_ARGUMENT,
    "dropwhile": _PREDICATE_AND_ITERABLE,
    "filterfalse": _call_filter,
    "islice": _ITERABLE_ARGUMENT,
    "pairwise": _ITERABLE_ARGUMENT,
    "permutations": _ITERABLE_ARGUMENT,
    "product": BridgedArguments(rest=True),
    "takewhile": _PREDICATE_AND_ITERABLE,
    "tee": _ITERABLE_ARGUMENT,
    "zip_longest": BridgedArguments(rest=True),
}
REPLACEMENTS[filter] = _call_filter
REPLACEMENTS.update(
    {
        getattr(itertools, name): _if_observed(shape)
        for name, shape in _ITERTOOLS_ROUTES.items()
        if hasattr(itertools, name)
    }
)
REPLACEMENTS[itertools.groupby] = _call_groupby
REPLACEMENTS[itertools.starmap] = BridgedArguments(callables=(0,), iterables=(1,))
REPLACEMENTS[itertools.chain.from_iterable] = _call_chain_from_iterable


def _call_attrgetter(machine: Machine, getter: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call an `operator.attrgetter`."""
    if keywords or len(arguments) != 1:
        return getter(*arguments, **keywords)
    values = [functools.reduce(machine.load_attr, name.split("."), arguments[0]) for name in getter.__reduce__()[1]]
    return values[0] if len(values) == 1 else tuple(values)


def _call_itemgetter(machine: Machine, getter: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call an `operator.itemgetter`."""
    if keywords or len(arguments) != 1:
        return getter(*arguments, **keywords)
    values = [operators.get_item(machine, arguments[0], key) for key in getter.__reduce__()[1]]
    return values[0] if len(values) == 1 else tuple(values)


def _call_methodcaller(machine: Machine, caller: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call an `operator.methodcaller`."""
    if keywords or len(arguments) != 1:
        return caller(*arguments, **keywords)
    maker, method_args = caller.__reduce__()
    if isinstance(maker, functools.partial):
        return machine.invoke(machine.load_attr(arguments[0], maker.args[0]), method_args, maker.keywords)
    return machine.invoke(machine.load_attr(arguments[0], method_args[0]), method_args[1:], {})


ROUTES.update(
    {
        operator.attrgetter: _call_attrgetter,
        operator.itemgetter: _call_itemgetter,
        operator.methodcaller: _call_methodcaller,
    }
)
