"""The machine that runs frames, keeps their stack, and interprets their calls, reads and writes."""

import operator
import sys
from collections.abc import Sequence
from inspect import CO_OPTIMIZED
from types import CodeType, FrameType, FunctionType
from typing import Any

from thunder_core.frontend.interpreter import attributes, calls, operators
from thunder_core.frontend.interpreter import namespaces as names_of
from thunder_core.frontend.interpreter.binding import bind
from thunder_core.frontend.interpreter.decode import ProgramCache, programs
from thunder_core.frontend.interpreter.frame import Arguments, Frame, Keywords, Machine
from thunder_core.frontend.interpreter.generators import make_generator
from thunder_core.frontend.interpreter.native import set_handled_exception
from thunder_core.frontend.interpreter.table import LEAVE
from thunder_core.frontend.interpreter.tracebacks import catch, raise_again

builtins_of = operator.attrgetter("__builtins__")  # typeshed has the attribute only for some versions


class PlainMachine(Machine):
    """A machine that runs Python functions by their bytecode, on real objects, without an observer."""

    def __init__(self, cache: ProgramCache = programs) -> None:
        self.cache = cache
        self.frame: Frame | None = None
        self.outside: FrameType | None = None
        self.depth = 0
        self.limit = sys.getrecursionlimit()

    # Calls

    def invoke(self, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Call any callable: a Python function is interpreted, and other callables are called by their type."""
        if type(function) is FunctionType:
            return self.call_function(function, arguments, keywords)
        return calls.route(self, function, arguments, keywords)

    def invoke_quietly(self, function: object, arguments: Arguments, keywords: Keywords) -> Any:
        """Call the target of an announced callable, without another announcement."""
        if type(function) is FunctionType:
            return self.call_function(function, arguments, keywords)
        return calls.route(self, function, arguments, keywords)

    def next_for_native(self, iterator: object) -> Any:
        """Return the next value of an iterator on behalf of C code."""
        return operators.next_of(self, iterator)

    def call_function(self, function: FunctionType, arguments: Arguments, keywords: Keywords) -> Any:
        """Interpret a Python function. A generator function or coroutine function returns its generator or coroutine.

        Arguments in a list belong to this call: the list and the keywords are cleared, so that only the frame refers to
        them.
        """
        code = function.__code__
        cache = self.cache
        program = cache.programs.get(id(code)) or cache(code)
        if program.is_simple and not keywords and len(arguments) == program.arguments:
            fast = [*arguments, *program.unbound_slots]
        elif program.is_opaque:
            return self.call_native(function, arguments, keywords)
        else:
            fast = bind(function, program, arguments, keywords)
        if type(arguments) is list:
            arguments.clear()
            keywords.clear()
        closure = function.__closure__
        if closure:
            fast[program.first_free :] = closure
        names = None if program.flags & CO_OPTIMIZED else function.__globals__
        frame = Frame(self, program, code, function, function.__globals__, builtins_of(function), fast, names)
        if program.is_resumable:
            return make_generator(frame, function)
        return run(frame)

    def run_code(
        self, code: CodeType, global_names: dict[str, Any], names: Any, closure: Sequence[Any] = (),
        builtins: Any = None, function: FunctionType | None = None,
    ) -> Any:  # fmt: skip
        """Interpret the code of a module, class or `exec` in a namespace."""
        program = self.cache(code)
        fast = list(program.unbound_slots)
        if closure:
            fast[program.first_free :] = closure
        if builtins is None:
            builtins = names_of.builtins_of(global_names)
        frame = Frame(self, program, code, function, global_names, builtins, fast, names)
        if program.is_resumable:
            return make_generator(frame, None)
        return run(frame)

    def resume(self, frame: Frame) -> Any:
        """Run the frame of a generator until it yields or ends. The exception that its caller handles stays visible."""
        value = run(frame)
        if frame.suspended and not frame.handling and sys.exception() is not None:
            set_handled_exception(None)
        return value

    # Reads and writes of the program

    def load_attr(self, owner: object, name: str) -> Any:
        """Return `owner.name`, with getters in Python interpreted."""
        return attributes.load(self, owner, name)

    def store_attr(self, owner: object, name: str, value: object) -> None:
        """Set `owner.name = value`, with setters in Python interpreted."""
        attributes.store(self, owner, name, value)

    def delete_attr(self, owner: object, name: str) -> None:
        """Delete `owner.name`, with deleters in Python interpreted."""
        attributes.delete(self, owner, name)

    def delete_global(self, frame: Frame, name: str) -> None:
        """Delete a global variable."""
        if not dict.__contains__(frame.globals, name):
            names_of.raise_undefined(name)
        dict.__delitem__(frame.globals, name)

    def load_deref(self, frame: Frame, slot: int) -> Any:
        """Return the value of a cell or free variable."""
        return names_of.cell_contents(frame, slot)

    def delete_deref(self, frame: Frame, slot: int) -> None:
        """Delete a cell or free variable."""
        names_of.cell_contents(frame, slot)
        del frame.fast[slot].cell_contents


def run(frame: Frame) -> Any:
    """Run a frame until it returns or suspends. Return its result, or the value that it yields."""
    machine = frame.machine
    levels = 1 + frame.delegators
    depth = machine.depth
    if depth + levels > machine.limit:
        raise RecursionError("maximum recursion depth exceeded")
    caller = frame.caller = machine.frame
    machine.frame = frame
    machine.depth = depth + levels
    if machine.observer is not None and not frame.suspended:
        machine.observer.on_enter(frame)
    frame.suspended = 0
    if frame.delegate is not None:
        frame.delegate.delegator = None
        frame.delegate.delegators = 0
        frame.delegate = None
    steps = frame.program.steps
    pc = frame.resume_at
    try:
        if frame.pending is not None:
            pc = _throw(frame)
        while True:
            try:
                while True:
                    handler, argument = steps[pc]
                    frame.pc = pc
                    target = handler(frame, argument)
                    if target is None:
                        pc += 1
                    elif target >= 0:
                        pc = target
                    else:
                        break
            except BaseException as error:
                pc = catch(frame, error)
                if pc < 0:
                    raise
            else:
                if target == LEAVE:
                    return frame.stack.pop()
                raise_again(frame.stack.pop())
    finally:
        machine.frame = caller
        machine.depth = depth
        if frame.suspended:
            frame.suspend()
        else:
            frame.leave()
            if machine.observer is not None:
                machine.observer.on_exit(frame)
        frame.caller = None


def _throw(frame: Frame) -> int:
    """Raise an exception that was thrown into a suspended frame at its position. Return the step of the handler."""
    error = frame.pending
    frame.pending = None
    assert error is not None
    target = catch(frame, error)
    if target < 0:
        raise_again(error)
    return target
