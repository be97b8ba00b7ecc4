"""The replacement of `warnings.warn`: its stack level counts interpreted frames."""

import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from thunder_core.foundation.caller_frames import caller_frame, is_importing
from thunder_core.frontend.interpreter.builtin.introspection import caller
from thunder_core.frontend.interpreter.calls import Arguments, Keywords, replaces

if TYPE_CHECKING:
    from types import FrameType

    from thunder_core.frontend.interpreter.frame import Machine


@dataclass(frozen=True)
class LocatedWarning:
    """A warning with the file and line that it refers to, and the globals of the code there.

    `callers_level` is 0 if the line is in the program, 1 if it is in the caller of the program, and so on.
    """

    message: Any
    category: type[Warning]
    source: Any
    filename: str
    line: int
    names: dict[str, Any]
    callers_level: int

    @property
    def module(self) -> str:
        """The name of the module that the warning refers to."""
        return self.names.get("__name__") or "<string>"


def _warn_arguments(
    message: object, category: object = None, stacklevel: int = 1, source: object = None
) -> tuple[Any, Any, int, Any]:
    """Return the arguments of `warnings.warn` in order."""
    return message, category, stacklevel, source


@replaces(warnings.warn)
def warn(machine: "Machine", function: object, arguments: Arguments, keywords: Keywords) -> Any:
    """Call `warnings.warn(message, category, stacklevel, source)`."""
    arguments, keywords = machine.arguments_for_c(function, arguments, keywords)
    located = locate_warning(machine, arguments, keywords)
    if located is None:
        return machine.call_unreported(function, arguments, keywords)
    registry = located.names.setdefault("__warningregistry__", {})
    return warnings.warn_explicit(
        located.message,
        located.category,
        located.filename,
        located.line,
        located.module,
        registry,
        None,
        located.source,
    )


def locate_warning(machine: "Machine", arguments: Arguments, keywords: Keywords) -> LocatedWarning | None:
    """Return the warning of a call of `warnings.warn`; None if the call must run natively because of its arguments."""
    if "skip_file_prefixes" in keywords or ("message" not in keywords and not arguments):
        return None
    message, category, level, source = _warn_arguments(*arguments, **keywords)
    if isinstance(message, Warning):
        category = type(message)
    elif category is None:
        category = UserWarning
    if not isinstance(level, int) or not (isinstance(category, type) and issubclass(category, Warning)):
        return None
    frame, callers_level = _frame_at_level(machine, level)
    if frame is None:
        return LocatedWarning(message, category, source, "sys", 1, sys.__dict__, callers_level)
    file, line = frame.f_code.co_filename, frame.f_lineno or 1
    return LocatedWarning(message, category, source, file, line, frame.f_globals, callers_level)


def _frame_at_level(machine: "Machine", level: int) -> "tuple[FrameType | None, int]":
    """Return the frame that a warning refers to, and its level as in `LocatedWarning`.

    Frames of the import system are not counted, unless the program itself is part of it.
    """
    frame: FrameType | None = caller(machine).publish()
    counts_all = level <= 0 or frame is None or is_importing(frame)
    while level > 1 and frame is not None:
        frame, level = frame.f_back, level - 1
        while frame is not None and not counts_all and is_importing(frame):
            frame = frame.f_back
        if frame is machine.outside:
            return caller_frame(frame, level), level
    return frame, 0
