"""The origins of code: PyTorch, a library that wraps calls, or the program. Errors and traces show program lines."""

from __future__ import annotations

import contextlib
import functools
import types
import warnings

import torch
import typing_extensions

from thunder_core.foundation import package
from thunder_core.foundation.errors import SourceLine
from thunder_core.frontend.acquire.lookaside_table import is_native_code
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.tracing.capture.location import GENERATED_LOCATIONS, Location, generated_location
from thunder_core.tracing.capture.torch_facts.symbols import is_pytorchs_code, operations

# Files whose functions only wrap a function of the program: context managers and deprecated functions.
FILES_OF_WRAPPERS = frozenset({contextlib.__file__, typing_extensions.__file__, warnings.__file__})
TORCH_FOLDER = torch.__path__[0]
PARALLEL_FOLDER = f"{package.FOLDER}/backend/parallel/"  # properties of modules that gather parameters
CONTAINERS = torch.nn.modules.container.__file__  # containers of modules and parameters, whose items C code reads
COLLECTIVES = f"{TORCH_FOLDER}/distributed/nn/functional.py"  # autograd functions that communicate
INTERPRETED_FILES = frozenset({CONTAINERS, COLLECTIVES})
INTERPRETED_CODES = frozenset({torch.nn.Module.__repr__.__code__})  # reads the attributes of all inner modules


class CodeOrigins:
    """Distinguishes PyTorch's code from the program's. The result for a code object is stored."""

    def __init__(self) -> None:
        # By identity, because Python computes the hash of a code object from all its constants each time. The codes are
        # kept alive.
        self._codes: dict[int, types.CodeType] = {}
        self._library_code: dict[int, bool] = {}
        self._passed_code: dict[int, bool] = {}
        self._interpreted: dict[int, bool] = {}
        self._operations = operations()

    def users_line(self, frame: Frame | None) -> SourceLine | None:
        """Return the innermost line, from a frame outward, that is neither in PyTorch nor in code that wraps calls."""
        while frame is not None and self._is_passed(frame.code):
            frame = frame.back
        if frame is None:
            return None
        code, lineno = frame.code, frame.lineno
        generated = generated_location(code.co_filename, lineno)
        return generated.source if generated else SourceLine(code.co_filename, lineno, code.co_qualname)

    def _is_passed(self, code: types.CodeType) -> bool:
        """Whether code has no line of the program: it is in PyTorch, or wraps calls."""
        is_passed = self._passed_code.get(id(code))
        if is_passed is None:
            is_passed = self._passed_code[id(code)] = self.is_library(code) or is_wrapper(code.co_filename)
        return is_passed

    def users_location(self, frame: Frame | None, module: str) -> Location:
        """Return the user's line and the innermost module.

        For code that Thunder generated from a program, both are those of the program.
        """
        if frame is not None and frame.code.co_filename in GENERATED_LOCATIONS:
            generated = generated_location(frame.code.co_filename, frame.lineno)
            if generated is not None:
                return generated
        return Location(self.users_line(frame), module)

    def is_operation(self, function: types.FunctionType) -> bool:
        """Whether a function is an operation of PyTorch, which is recorded."""
        return function in self._operations

    def interprets(self, function: types.FunctionType) -> bool:
        """Whether a function is interpreted when C code calls it. Most of PyTorch's own functions are not."""
        code = function.__code__
        interpreted = self._interpreted.get(id(code))
        if interpreted is None:
            is_interpreted = code.co_filename in INTERPRETED_FILES or code in INTERPRETED_CODES
            runs_natively = (self.is_library(code) and not is_interpreted) or is_native_code(function)
            interpreted = self._interpreted[id(code)] = not runs_natively
            self._codes[id(code)] = code
        return interpreted

    def is_library(self, code: types.CodeType) -> bool:
        """Whether code belongs to PyTorch."""
        is_library = self._library_code.get(id(code))
        if is_library is None:
            is_library = self._library_code[id(code)] = is_pytorchs_code(code)
            self._codes[id(code)] = code
        return is_library


def is_wrapper(filename: str) -> bool:
    """Whether the code of a file only wraps the program's: deprecated functions, or modules on several ranks."""
    return filename in FILES_OF_WRAPPERS or filename.startswith(PARALLEL_FOLDER)


def has_line(code: types.CodeType, lines: frozenset[SourceLine]) -> bool:
    """Whether the code of a function, or of a function nested in it, contains one of these lines."""
    within = {line.lineno for line in lines if line.filename == code.co_filename}
    return bool(within) and not within.isdisjoint(lines_of(code))


@functools.cache
def lines_of(code: types.CodeType) -> frozenset[int]:
    """Return the line numbers of a function's code, and of the code of the functions nested in it."""
    own = {line for *_, line in code.co_lines() if line is not None}
    return frozenset(
        own.union(*(lines_of(constant) for constant in code.co_consts if isinstance(constant, types.CodeType)))
    )
