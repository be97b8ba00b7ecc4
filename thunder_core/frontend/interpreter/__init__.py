"""CPython in Python: executes the bytecode of functions on real objects, and reports events to an observer.

The package needs only the standard library. `interpret(function)` returns a function that behaves as `function` does.
"""

from thunder_core.foundation.own_builtins import own_builtins

with own_builtins(__name__):
    from thunder_core.frontend.interpreter import builtin, opcodes
    from thunder_core.frontend.interpreter.entry import interpret
    from thunder_core.frontend.interpreter.frame import Frame, Machine
    from thunder_core.frontend.interpreter.observer import NOT_TAKEN, Observer

__all__ = ["NOT_TAKEN", "Frame", "Machine", "Observer", "builtin", "interpret", "opcodes"]
