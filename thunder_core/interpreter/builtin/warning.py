"""`warnings.warn`: the stack level counts interpreted frames."""

import sys
import warnings
from typing import TYPE_CHECKING, Any

from thunder_core.interpreter.builtin.introspection import caller
from thunder_core.interpreter.calls import Arguments, Keywords, replaces

if TYPE_CHECKING:
    from types import FrameType

    from thunder_core.interpreter.frame import Machine


def _warn(message: Any, category: Any = None, stacklevel: int = 1, source: Any = None) -> tuple[Any, Any, int, Any]:
    """The parameters of `warnings.warn`."""
    return message, category, stacklevel, source


@replaces(warnings.warn)
def warn(machine: "Machine", function: Any, arguments: Arguments, keywords: Keywords) -> Any:
    """`warnings.warn(message, category, stacklevel, source)`."""
    if "skip_file_prefixes" in keywords or ("message" not in keywords and not arguments):
        return machine.natively(function, arguments, keywords)
    arguments, keywords = machine.for_native(function, arguments, keywords)
    message, category, level, source = _warn(*arguments, **keywords)
    if isinstance(message, Warning):
        category = type(message)
    elif category is None:
        category = UserWarning
    if not isinstance(level, int) or not (isinstance(category, type) and issubclass(category, Warning)):
        return machine.natively(function, arguments, keywords)
    frame = _at(caller(machine).publish(), level)
    names: dict[str, Any] = sys.__dict__ if frame is None else frame.f_globals
    filename, line = ("sys", 1) if frame is None else (frame.f_code.co_filename, frame.f_lineno)
    registry = names.setdefault("__warningregistry__", {})
    module = names.get("__name__") or "<string>"
    return warnings.warn_explicit(message, category, filename, line or 1, module, registry, None, source)


def _at(frame: "FrameType | None", level: int) -> "FrameType | None":
    """The frame that a warning is about; the import system's are not counted."""
    if level <= 0 or frame is None or _is_internal(frame):
        while level > 1 and frame is not None:
            frame, level = frame.f_back, level - 1
        return frame
    while level > 1 and frame is not None:
        frame, level = frame.f_back, level - 1
        while frame is not None and _is_internal(frame):
            frame = frame.f_back
    return frame


def _is_internal(frame: "FrameType") -> bool:
    """Whether a frame belongs to the import system."""
    name = frame.f_code.co_filename
    return "importlib" in name and "_bootstrap" in name
