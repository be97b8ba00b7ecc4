"""Native generators, coroutines and asynchronous generators whose body runs an interpreted frame.

Two native functions drive frames: `_drive`, and `_drive_async_generator` for asynchronous generators. Their code is
copied for each kind and name, so that CPython creates an object of the right type. If a frame delegates (`yield from`,
`await`), its driver delegates natively.
"""

import functools
import inspect
import weakref
from collections.abc import AsyncGenerator, Callable, Generator
from types import AsyncGeneratorType, CodeType, CoroutineType, FunctionType, GeneratorType
from typing import Any

from thunder_core.frontend.interpreter.frame import DELEGATED, Frame, Machine
from thunder_core.frontend.interpreter.tracebacks import traceback_below, without_own_entries

# The frames that generators drive, by the identity of the generator.
_frames: weakref.WeakValueDictionary[int, Frame] = weakref.WeakValueDictionary()
_RESUMABLE_FLAGS = (
    inspect.CO_GENERATOR | inspect.CO_COROUTINE | inspect.CO_ASYNC_GENERATOR | inspect.CO_ITERABLE_COROUTINE
)


def _drive(frame: Frame) -> Generator[Any, Any, Any]:
    """Run a frame between its suspensions. While the frame is suspended, no variable refers to a yielded value."""
    try:
        while True:
            results = [frame.machine.resume(frame)]
            if not frame.suspended:
                return results.pop()
            try:
                value = (yield from results.pop()) if frame.suspended == DELEGATED else (yield results.pop())
            except BaseException as error:
                if frame.machine.is_over:
                    raise
                error.__traceback__ = traceback_below(error)
                frame.pending = error
            else:
                frame.stack.append(value)
                del value
    except BaseException as error:
        error.__traceback__ = without_own_entries(traceback_below(error))
        raise


async def _drive_async_generator(frame: Frame) -> AsyncGenerator[Any, Any]:
    """Run the frame of an asynchronous generator between its suspensions: `yield` of a value, `await` to delegate."""
    try:
        while True:
            results = [frame.machine.resume(frame)]
            if not frame.suspended:
                return
            try:
                value = (await _awaitable(results.pop())) if frame.suspended == DELEGATED else (yield results.pop())
            except BaseException as error:
                if frame.machine.is_over:
                    raise
                error.__traceback__ = traceback_below(error)
                frame.pending = error
            else:
                frame.stack.append(value)
                del value
    except BaseException as error:
        error.__traceback__ = without_own_entries(traceback_below(error))
        raise


class _Awaited:
    """An awaitable around an iterator."""

    __slots__ = ("iterator",)

    def __init__(self, iterator: Any) -> None:
        self.iterator = iterator

    def __await__(self) -> Any:
        return self.iterator


def _awaitable(iterator: object) -> Any:
    """Return the object to `await` in order to delegate to an iterator or coroutine."""
    return iterator if is_coroutine(iterator) else _Awaited(iterator)


def is_coroutine(value: Any) -> bool:
    """Whether an object can be awaited itself: a coroutine, or a generator marked by `types.coroutine`."""
    kind = type(value)
    if kind is GeneratorType:
        return bool(value.gi_code.co_flags & inspect.CO_ITERABLE_COROUTINE)
    return kind is CoroutineType


def make_generator(frame: Frame, function: FunctionType | None) -> Any:
    """Return a native generator, coroutine or asynchronous generator that drives the frame of a call."""
    memory = frame.program.memory
    code = memory.get("drive")
    if code is None:
        code = memory["drive"] = _driving_code(frame.code)
    generator = FunctionType(code, _GLOBALS, frame.code.co_name)(frame)
    if function is not None:
        generator.__name__ = function.__name__
        generator.__qualname__ = function.__qualname__
    frame.stack.append(None)
    _frames[id(generator)] = frame
    return generator


def frame_of(generator: object) -> Frame | None:
    """Return the frame that a generator, coroutine or asynchronous generator drives, if it is interpreted."""
    return _frames.get(id(generator))


def delegate(frame: Frame, iterator: object, resume_at: int) -> None:
    """Suspend a frame until the iterator that it delegates to has ended."""
    frame.suspended = DELEGATED
    frame.resume_at = resume_at
    if frame.machine.observer is not None and not isinstance(iterator, _NATIVE_DELEGATES):
        frame.stack[-1] = _relay(frame.machine, iterator)
    inner = frame_of(iterator)
    if inner is None:
        frame.machine.announce_iteration(iterator)
    if inner is not None:
        frame.delegate, inner.delegator, inner.delegators = inner, frame, frame.delegators + 1


_NATIVE_DELEGATES = (GeneratorType, CoroutineType, AsyncGeneratorType)


def _relay(machine: Machine, iterator: object) -> Generator[Any, Any, Any]:
    """Delegate to an iterator as PEP 380 specifies, with each step on the machine, because steps may be in Python."""
    step: Callable[[], Any] = functools.partial(machine.next_for_native, iterator)
    while True:
        try:
            value = step()
        except StopIteration as stop:
            return stop.value
        thrown: BaseException | None = None
        sent: Any = None
        try:
            sent = yield value
        except BaseException as error:
            thrown = error
        # The next step is prepared after the handler, so that no additional exception is being handled during the step.
        step = _next_step(machine, iterator, sent, thrown)
        del thrown


def _next_step(machine: Machine, iterator: object, sent: object, thrown: BaseException | None) -> Callable[[], Any]:
    """Return the iterator's next step for a sent value or a thrown error.

    Raises the error if the iterator has no `throw`. For GeneratorExit, calls `close` and raises the error.
    """
    if isinstance(thrown, GeneratorExit):
        close = getattr(iterator, "close", None)
        if close is not None:
            machine.call_back(close, (), {})
        raise thrown
    if thrown is not None:
        throw = getattr(iterator, "throw", None)
        if throw is None:
            raise thrown
        return functools.partial(machine.call_back, throw, (thrown,), {})
    if sent is not None:
        return functools.partial(machine.call_back, getattr(iterator, "send"), (sent,), {})  # noqa: B009
    return functools.partial(machine.next_for_native, iterator)


def _driving_code(code: CodeType) -> CodeType:
    """Return the driver's code with the name and kind of the user's code."""
    kind = code.co_flags & _RESUMABLE_FLAGS
    driver = _drive_async_generator if kind & inspect.CO_ASYNC_GENERATOR else _drive
    own = driver.__code__
    return own.replace(
        co_flags=own.co_flags & ~_RESUMABLE_FLAGS | kind,
        co_name=code.co_name,
        co_qualname=code.co_qualname,
        co_consts=(*own.co_consts, code),
    )


def user_code(code: CodeType) -> CodeType:
    """Return the user's code behind a driver's code, or the code itself."""
    driven = code.co_consts[-1] if code.co_filename == __file__ and code.co_consts else code
    return driven if isinstance(driven, CodeType) else code


_GLOBALS = globals()
