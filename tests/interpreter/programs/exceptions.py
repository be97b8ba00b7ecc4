"""Programs that raise, catch and chain exceptions."""

# The programs are odd on purpose.
# ruff: noqa: B011, B028, B030, B904, PLE0643, PLE0704, SIM105

import sys
import warnings

COUNT = 0


def program_unbound_local():
    if COUNT < 0:
        x = 1
    return x


def program_raise_chain():
    def low():
        raise KeyError("low")

    try:
        try:
            low()
        except KeyError as error:
            raise ValueError("high") from error
    except ValueError as error:
        error.add_note("a note")
        raise RuntimeError("higher")


def program_reraise():
    def f():
        try:
            1 / 0
        except ZeroDivisionError:
            try:
                [][1]
            except IndexError:
                pass
            raise

    try:
        f()
    except ZeroDivisionError as error:
        again = error
    raise again


def program_finally_order():
    order = []

    def f(n):
        for i in range(n):
            try:
                order.append(i)
                if i == 1:
                    continue
                if i == 3:
                    return "returned"
            finally:
                order.append(-i)
        return "ended"

    return f(2), f(9), order


def program_exception_state():
    seen = []

    def generator():
        try:
            yield sys.exc_info()[0]
            raise KeyError(1)
        except KeyError:
            yield sys.exc_info()[0]
        yield sys.exc_info()[0]

    g = generator()
    seen.append(next(g))
    try:
        raise ValueError
    except ValueError:
        seen.append(next(g))
        seen.append(sys.exc_info()[0])
        seen.append(next(g))
    seen.append(sys.exc_info())
    return seen


def program_bare_raise():
    raise


def program_except_not_a_class():
    try:
        1 / 0
    except (ValueError, 3):
        pass


def program_except_star():
    seen = []
    try:
        try:
            raise ExceptionGroup("g", [ValueError(1), TypeError(2), ExceptionGroup("h", [KeyError(3), ValueError(4)])])
        except* ValueError as group:
            seen.append(repr(group))
            raise RuntimeError("new")
        except* TypeError as group:
            seen.append(repr(group))
    except BaseExceptionGroup as rest:
        seen.append(repr(rest))
    try:
        raise ValueError("naked")
    except* ValueError as group:
        seen.append(repr(group))
    print(seen)
    try:
        raise ExceptionGroup("left", [OSError(1), ValueError(2)])
    except* OSError:
        raise


def program_warnings():
    def deep():
        warnings.warn("deep", UserWarning, stacklevel=2)

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        deep()
        warnings.warn("here")
    return [(str(w.message), w.category.__name__, w.lineno, w.filename) for w in caught]


def program_assert():
    assert 1 + 1 == 2
    assert False, "message"


def program_deep_traceback():
    class A:
        def __init__(self):
            self.x

        def __getattr__(self, name):
            return next(iter([self.fail(z) for z in (0,)]))

        def fail(self, z):
            def g():
                yield 1
                yield 1 / z

            return sum(g(), start=sorted([0], key=lambda v: v)[0])

    A()


def program_naked_error_in_except_star():
    try:
        1 // 0
    except* ZeroDivisionError as group:
        found = group.__traceback__ is None, group.message, [type(exception).__name__ for exception in group.exceptions]
    return found


def program_naked_error_in_except_star_as_context():
    try:
        [][1]
    except* LookupError:
        raise KeyError("after")
