"""The parts of a prologue that calls skip: while the module is unchanged, and between two tokens of a generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.library.changes.module_state import ReadStep
from thunder_core.tracing.library.tensor_guards import Free


@dataclass(frozen=True)
class TensorChecks:
    """The checks of a prologue's plain tensors: `statements` run only if the variable `passed` is false.

    `tensors` is the variable of the tuple of these tensors, and `given` are the variables of tensors that do not come
    from the module, with their `symbolic_dimensions`. Without tensors, all names are empty.
    """

    statements: frozenset[BoundSymbol] = frozenset()
    passed: str = ""
    tensors: str = ""
    given: tuple[str, ...] = ()
    symbolic_dimensions: Free = field(default_factory=dict)

    def sets_passed(self, bsym: BoundSymbol) -> bool:
        """Whether a statement assigns the variable `passed`."""
        return bool(self.passed) and isinstance(bsym.output, Proxy) and bsym.output.name == self.passed


@dataclass(frozen=True, eq=False)
class ModuleReads:
    """The reads and checks of a prologue that depend only on its module and on libraries, and run no user's code.

    Objects have indices: the module has index 0, and step `i` reads the object with index `i + 1`. `roots` are the
    classes and the globals of modules at which steps begin. `variables` maps variables of the prologue to the indices
    of their objects. `statements` are the reads and checks. `runs_user_code` is True if another statement of the
    prologue may run the user's code, which may change the module.

    `without_arguments` are the reads and checks that depend on no argument of the call. If nothing but the program and
    code of libraries runs between two calls, the second call can skip them. They are empty for a program that changes
    an object that is neither an argument nor a part of one.
    """

    steps: tuple[ReadStep, ...]
    roots: tuple[Any, ...]
    variables: Mapping[str, int]
    statements: frozenset[BoundSymbol]
    tensor_checks: TensorChecks
    runs_user_code: bool
    without_arguments: frozenset[BoundSymbol] = frozenset()
