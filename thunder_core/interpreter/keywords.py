"""`f(*arguments, **keywords)`: merging what is unpacked, with CPython's errors."""

from typing import TYPE_CHECKING, Any, NoReturn

from thunder_core.interpreter import operators
from thunder_core.interpreter.frame import NULL, Frame
from thunder_core.interpreter.lookup import ABSENT, python_method, type_lookup

if TYPE_CHECKING:
    from thunder_core.interpreter.machine import Machine


def function_text(function: Any) -> str:
    """How CPython names a callable in these errors."""
    qualname = getattr(function, "__qualname__", None)
    if qualname is None:
        return str(function)
    module = getattr(function, "__module__", None)
    return f"{qualname}()" if module in (None, "builtins") else f"{module}.{qualname}()"


def merge_keywords(frame: Frame, target: dict[Any, Any], mapping: Any, function: Any) -> None:
    """Add a mapping to the keywords of a call; a repeated key is an error."""
    if type(mapping) is not dict or frame.machine.observer is not None:
        mapping = as_dict(frame.machine, mapping, function)
    repeated = [key for key in mapping if key in target] if target else []
    if repeated:
        _refuse_repeated(function, repeated[0])
    target.update(mapping)


def _refuse_repeated(function: Any, key: Any) -> NoReturn:
    """A keyword may be given once."""
    raise TypeError(f"{function_text(function)} got multiple values for keyword argument '{key}'")


def as_dict(machine: "Machine", mapping: Any, function: Any) -> dict[Any, Any]:
    """A mapping that is unpacked with `**`, as a dictionary."""
    kind = type(mapping)
    machine.announce_iteration(mapping)
    if issubclass(kind, dict) and type_lookup(kind, "__iter__") is dict.__iter__:
        return dict(mapping)
    if type_lookup(kind, "keys") is ABSENT and not hasattr(mapping, "keys"):
        raise TypeError(f"{function_text(function)} argument after ** must be a mapping, not {kind.__name__}")
    found: dict[Any, Any] = {}
    iterator = operators.iterate(machine, machine.invoke(machine.load_attr(mapping, "keys"), (), {}))
    while (key := operators.advance(machine, iterator, NULL)) is not NULL:
        if key in found:
            _refuse_repeated(function, key)
        found[key] = operators.get_item(machine, mapping, key)
    return found


def as_arguments(machine: "Machine", iterable: Any, function: Any) -> tuple[Any, ...]:
    """What is unpacked with `*`, as a tuple."""
    kind = type(iterable)
    if kind is tuple:
        machine.announce_iteration(iterable)
        return iterable  # type: ignore[no-any-return]
    if type_lookup(kind, "__iter__") is ABSENT and type_lookup(kind, "__getitem__") is ABSENT:
        raise TypeError(f"{function_text(function)} argument after * must be an iterable, not {kind.__name__}")
    if python_method(kind, "__iter__") is None and python_method(kind, "__next__") is None:
        machine.announce_iteration(iterable)
        return tuple(iterable)
    iterator = operators.iterate(machine, iterable)
    items: list[Any] = []
    while (item := operators.advance(machine, iterator, NULL)) is not NULL:
        items.append(item)
    return tuple(items)
