"""The import statement."""

import sys
from typing import TYPE_CHECKING, Any

from thunder_core.interpreter import operators
from thunder_core.interpreter.frame import Frame

if TYPE_CHECKING:
    from thunder_core.interpreter.machine import Machine


def import_name(frame: Frame, name: str, wanted: Any, level: int) -> Any:
    """Call `__import__` as the import statement does."""
    importer = frame.builtins.get("__import__", frame)
    if importer is frame:
        raise ImportError("__import__ not found")
    return frame.machine.invoke(importer, (name, frame.globals, frame.names, wanted, level), {})


def import_from(machine: "Machine", module: Any, name: str) -> Any:
    """`from module import name`."""
    try:
        return machine.load_attr(module, name)
    except AttributeError:
        pass
    package = getattr(module, "__name__", None)
    if isinstance(package, str):
        found = sys.modules.get(f"{package}.{name}", machine)
        if found is not machine:
            return found
    shown = package if isinstance(package, str) else "<unknown module name>"
    path = getattr(module, "__file__", None)
    raise ImportError(_refusal(module, name, shown, path), name=shown, path=path if isinstance(path, str) else None)


def _refusal(module: Any, name: str, shown: str, path: Any) -> str:
    """Why a name cannot be imported."""
    if not isinstance(path, str):
        return f"cannot import name {name!r} from {shown!r} (unknown location)"
    if getattr(getattr(module, "__spec__", None), "_initializing", False):
        return (
            f"cannot import name {name!r} from partially initialized module {shown!r} "
            f"(most likely due to a circular import) ({path})"
        )
    return f"cannot import name {name!r} from {shown!r} ({path})"


def import_star(frame: Frame, module: Any) -> None:
    """`from module import *`."""
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
    for name in names:
        if not isinstance(name, str):
            _refuse_name(module, name, listed)
        if listed or not name.startswith("_"):
            operators.set_item(machine, frame.names, name, machine.load_attr(module, name))


def _refuse_name(module: Any, name: Any, listed: bool) -> None:
    """A name that is no text cannot be imported."""
    kind = type(name).__name__
    where, what = ("Item", "__all__") if listed else ("Key", "__dict__")
    raise TypeError(f"{where} in {module.__name__}.{what} must be str, not {kind}")
