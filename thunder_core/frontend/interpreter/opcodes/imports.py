"""Imports.

Docstrings show the top of the stack before and after an instruction; the last entry is the top.
"""

from thunder_core.frontend.interpreter import imports
from thunder_core.frontend.interpreter.frame import Frame
from thunder_core.frontend.interpreter.table import opcode


@opcode("IMPORT_NAME")
def import_name(frame: Frame, name: str) -> None:
    """[level, names of the from-import or None] -> [module]."""
    from_list, level = frame.stack.pop(), frame.stack.pop()
    frame.stack.append(imports.import_name(frame, name, from_list, level))


@opcode("IMPORT_FROM")
def import_from(frame: Frame, name: str) -> None:
    """[module] -> [module, attribute]."""
    frame.stack.append(imports.import_from(frame.machine, frame.stack[-1], name))


@opcode("IMPORT_STAR")
def import_star(frame: Frame, _argument: object) -> None:
    """[module] -> []; the public names of the module are bound."""
    imports.import_star(frame, frame.stack.pop())
