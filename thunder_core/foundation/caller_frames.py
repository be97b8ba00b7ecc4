"""The frames of the callers of a compiled function, without the frames of Thunder."""

from __future__ import annotations

import os
from pathlib import Path
from types import FrameType

from thunder_core.foundation.package import FOLDER

OWN_FILES = (FOLDER + os.sep, "<thunder ")  # the package, and printed programs

DISPATCH = ("call", str(Path(FOLDER, "backend", "runtime", "compiled.py")))  # `Specializations.call`


def caller_frame(frame: FrameType | None, level: int) -> FrameType | None:
    """Return the frame of a caller of a compiled function; None if there is none.

    `level` is 1 for the frame that calls the compiled function. While a program is traced, the interpreter's frames are
    inside the call of the compiled function, with frames of libraries in between.
    """
    frame = _without_own(_call_of_compiled_function(frame) or frame)
    while level > 1 and frame is not None:
        frame, level = _without_own(frame.f_back), level - 1
    return frame


def _call_of_compiled_function(frame: FrameType | None) -> FrameType | None:
    """Return the innermost frame that dispatches a call of a compiled function; None outside of such a call."""
    while frame is not None and (frame.f_code.co_name, frame.f_code.co_filename) != DISPATCH:
        frame = frame.f_back
    return frame


def _without_own(frame: FrameType | None) -> FrameType | None:
    """Return a frame, or its innermost caller that belongs neither to Thunder nor to the import system."""
    while frame is not None and (frame.f_code.co_filename.startswith(OWN_FILES) or is_importing(frame)):
        frame = frame.f_back
    return frame


def is_importing(frame: FrameType) -> bool:
    """Whether a frame belongs to the import system."""
    name = frame.f_code.co_filename
    return "importlib" in name and "_bootstrap" in name
