"""The import statement."""

import contextlib
import ctypes
import itertools
import sys
from collections.abc import Iterator
from types import FunctionType, ModuleType, SimpleNamespace
from typing import Any

from thunder_core.frontend.interpreter import operators
from thunder_core.frontend.interpreter.frame import Frame, Machine
from thunder_core.frontend.interpreter.lookup import type_name

MISSING = object()
_item = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.py_object, ctypes.c_ssize_t)(
    ("PySequence_GetItem", ctypes.pythonapi)
)


def import_name(frame: Frame, name: str, from_list: object, level: int) -> Any:
    """Call `__import__` as the import statement does."""
    try:
        importer = frame.builtins["__import__"]
    except KeyError:
        importer = MISSING
    if importer is MISSING:  # raised here, so that the error has no context
        raise ImportError("__import__ not found")
    return frame.machine.invoke(importer, (name, frame.globals, frame.names, from_list, level), {})


def import_from(machine: Machine, module: object, name: str) -> Any:
    """Return the value of `from module import name`."""
    try:
        return machine.load_attr(module, name)
    except AttributeError:
        pass
    package = getattr(module, "__name__", None)
    if isinstance(package, str):
        submodule = sys.modules.get(f"{package}.{name}", MISSING)
        if submodule is not MISSING:
            return submodule
    raise _import_error(module, name)


# Attributes of a module that C code reads for the error about a missing name.
_READ_FOR_ERRORS = ("__name__", "__spec__", "__file__")
_IMPORT = compile("from module import attribute", __file__, "exec")


def _import_error(module: object, name: str) -> BaseException:
    """Return the ImportError that CPython raises for a missing name.

    CPython imports the name from an empty module, which has only the attributes that the message needs.
    """
    stand_in = ModuleType("") if isinstance(module, ModuleType) else SimpleNamespace()
    vars(stand_in).clear()
    for read in _READ_FOR_ERRORS:
        with contextlib.suppress(AttributeError):
            vars(stand_in)[read] = getattr(module, read)
    importer = {"__import__": lambda *_: stand_in}
    try:
        FunctionType(_IMPORT.replace(co_names=("module", name)), {"__builtins__": importer})()
    except Exception as error:
        return error.with_traceback(None)
    raise AssertionError(name)


def import_star(frame: Frame, module: object) -> None:
    """Run `from module import *`."""
    machine = frame.machine
    listed = True
    try:
        names = machine.load_attr(module, "__all__")
    except AttributeError:
        listed = False
    if not listed:
        try:
            names = list(machine.load_attr(module, "__dict__"))
        except AttributeError:
            names = None
        if names is None:
            raise ImportError("from-import-* object has no __dict__ and no __all__")
    for name in _items(names):
        if not isinstance(name, str):
            _refuse_name(module, name, listed)
        if listed or not name.startswith("_"):
            operators.set_item(machine, frame.names, name, machine.load_attr(module, name))


def _items(names: Any) -> Iterator[Any]:
    """Yield the items of `__all__` by their indices, as CPython does; raise TypeError for an object without indices."""
    for index in itertools.count():
        try:
            item = _item(names, index)
        except IndexError:
            return
        yield item


def _refuse_name(module: Any, name: Any, listed: bool) -> None:
    """Raise TypeError for a name that is not a string: an item of `__all__` if `listed`, else a key of `__dict__`."""
    kind = type_name(type(name))
    if not isinstance(module.__name__, str):
        raise TypeError(f"module __name__ must be a string, not {type_name(type(module.__name__))}")
    where, what = ("Item", "__all__") if listed else ("Key", "__dict__")
    raise TypeError(f"{where} in {module.__name__}.{what} must be str, not {kind}")
