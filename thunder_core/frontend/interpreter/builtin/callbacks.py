"""C functions that call Python back: their callables and iterables are bridged, and the rest runs natively."""

import functools
import itertools
import operator
from dataclasses import dataclass
from typing import Any

from thunder_core.frontend.interpreter import bridges, operators
from thunder_core.frontend.interpreter.calls import REPLACED, ROUTES, Arguments, Keywords, Route
from thunder_core.frontend.interpreter.frame import Machine


@dataclass(frozen=True)
class Bridged:
    """The arguments of a C function that are callables or iterables.

    With `rest`, all other positional ones are iterables. With `compares`, the function hashes, compares or adds items.
    """

    callables: tuple[int | str, ...] = ()
    iterables: tuple[int | str, ...] = ()
    rest: bool = False
    compares: bool = False

    def __call__(self, machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Call the C function natively, with bridges for arguments that would run Python code."""
        bridged = [self._argument(machine, position, value) for position, value in enumerate(arguments)]
        named = {name: self._argument(machine, name, value) for name, value in keywords.items()}
        return machine.natively(function, bridged, named)

    def _argument(self, machine: Machine, position: int | str, value: object) -> Any:
        """Return one argument as the C function receives it."""
        if position in self.callables:
            return bridges.callback(machine, value)
        if position in self.iterables or (self.rest and isinstance(position, int)):
            return (bridges.compared if self.compares else bridges.iterable)(machine, value)
        return value


_ITERABLE = Bridged(iterables=(0,))
_COMPARED = Bridged(iterables=(0,), compares=True)
REPLACED.update(
    {
        all: _COMPARED,
        any: _COMPARED,
        enumerate: Bridged(iterables=(0, "iterable")),
        frozenset: _COMPARED,
        functools.reduce: Bridged(callables=(0,), iterables=(1,)),
        functools.cmp_to_key: Bridged(callables=(0, "mycmp")),
        list: _ITERABLE,
        map: Bridged(callables=(0,), rest=True),
        set: _COMPARED,
        sorted: Bridged(callables=("key",), iterables=(0,), compares=True),
        sum: _COMPARED,
        tuple: _ITERABLE,
        zip: Bridged(rest=True),
    }
)


def _extreme(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `min` or `max`, with one iterable or with the values themselves."""
    shape = Bridged(callables=("key",), iterables=(0,) if len(arguments) == 1 else (), compares=True)
    return shape(machine, function, arguments, keywords)


REPLACED.update({min: _extreme, max: _extreme})


def _filter(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `filter(function, iterable)` or `filterfalse`; None as the function tests the truth of each item."""
    if machine.observer is not None and len(arguments) == 2 and arguments[0] is None:
        arguments = (bool, arguments[1])
    return Bridged(callables=(0,), iterables=(1,))(machine, function, arguments, keywords)


def _accumulate(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `itertools.accumulate(iterable[, func])`, which adds if there is no function."""
    if len(arguments) < 2 and keywords.get("func") is None:
        keywords = {**keywords, "func": operator.add}
    elif len(arguments) > 1 and arguments[1] is None:
        arguments = (arguments[0], operator.add, *arguments[2:])
    shape = Bridged(callables=(1, "func"), iterables=(0, "iterable"))
    return shape(machine, function, arguments, keywords)


def _compress(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `itertools.compress(data, selectors)`, which tests the truth of each selector."""
    operands = dict(zip(("data", "selectors"), arguments, strict=False)) | keywords
    if len(arguments) + len(keywords) != 2 or operands.keys() != {"data", "selectors"}:
        return machine.natively(function, arguments, keywords)
    data, selectors = (bridges.iterable(machine, operands[name]) for name in ("data", "selectors"))
    return machine.natively(function, (data, map(bridges.callback(machine, bool), selectors)), {})


def _groupby(machine: Machine, function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `itertools.groupby(iterable[, key])`, which compares the keys, or the items if there is no key function."""
    shape = Bridged(callables=(1, "key"), iterables=(0, "iterable"))
    if machine.observer is not None and arguments and arguments[1:] in ((), (None,)):
        arguments = (bridges.steps(machine, arguments[0]), *arguments[1:])
    return shape(machine, function, arguments, keywords)


def _if_observed(shape: Route) -> Route:
    """Return a replacement that bridges only if there is an observer, because C iterators can be copied and printed."""

    def bridge(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
        if machine.observer is None:
            return function(*arguments, **keywords)
        return shape(machine, function, arguments, keywords)

    return bridge


def _chain_from(machine: Machine, function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `itertools.chain.from_iterable(iterables)`."""
    if keywords or len(arguments) != 1 or machine.observer is None:
        return function(*arguments, **keywords)
    outer = bridges.iterable(machine, arguments[0])
    return machine.natively(function, (map(functools.partial(bridges.iterable, machine), outer),), {})


_FIRST = Bridged(iterables=(0, "iterable"))
_CONDITION = Bridged(callables=(0,), iterables=(1,))
# `count` and `repeat` do not iterate over their arguments.
_OF_ITERTOOLS: dict[str, Route] = {
    "accumulate": _accumulate,
    "batched": _FIRST,
    "chain": Bridged(rest=True),
    "combinations": _FIRST,
    "combinations_with_replacement": _FIRST,
    "compress": _compress,
    "cycle": _FIRST,
    "dropwhile": _CONDITION,
    "filterfalse": _filter,
    "islice": _FIRST,
    "pairwise": _FIRST,
    "permutations": _FIRST,
    "product": Bridged(rest=True),
    "takewhile": _CONDITION,
    "tee": _FIRST,
    "zip_longest": Bridged(rest=True),
}
REPLACED[filter] = _filter
REPLACED.update(
    {getattr(itertools, name): _if_observed(shape) for name, shape in _OF_ITERTOOLS.items() if hasattr(itertools, name)}
)
REPLACED[itertools.groupby] = _groupby
REPLACED[itertools.starmap] = Bridged(callables=(0,), iterables=(1,))
REPLACED[itertools.chain.from_iterable] = _chain_from


def _attributes(machine: Machine, getter: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call an `operator.attrgetter`."""
    if keywords or len(arguments) != 1:
        return getter(*arguments, **keywords)
    values = [functools.reduce(machine.load_attr, name.split("."), arguments[0]) for name in getter.__reduce__()[1]]
    return values[0] if len(values) == 1 else tuple(values)


def _items(machine: Machine, getter: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call an `operator.itemgetter`."""
    if keywords or len(arguments) != 1:
        return getter(*arguments, **keywords)
    values = [operators.get_item(machine, arguments[0], key) for key in getter.__reduce__()[1]]
    return values[0] if len(values) == 1 else tuple(values)


def _method(machine: Machine, caller: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """Call an `operator.methodcaller`."""
    if keywords or len(arguments) != 1:
        return caller(*arguments, **keywords)
    maker, method_args = caller.__reduce__()
    if isinstance(maker, functools.partial):
        return machine.invoke(machine.load_attr(arguments[0], maker.args[0]), method_args, maker.keywords)
    return machine.invoke(machine.load_attr(arguments[0], method_args[0]), method_args[1:], {})


ROUTES.update({operator.attrgetter: _attributes, operator.itemgetter: _items, operator.methodcaller: _method})
