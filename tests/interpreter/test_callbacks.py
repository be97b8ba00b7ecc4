"""Python code that C calls is interpreted: an observer sees the globals that it reads."""

import sys
from concurrent.futures import ThreadPoolExecutor
from types import FunctionType

import pytest

from tests.interpreter.callbacks import CALLBACKS, PROBE
from thunder_core.frontend.interpreter import Observer, interpret
from thunder_core.frontend.interpreter.redirection import Redirection


class Probes(Observer):
    """Counts the reads of PROBE and answers 3."""

    def __init__(self):
        self.count = 0

    def on_load_global(self, frame, name, value):
        if name == "PROBE":
            self.count += 1
            return 3
        return value


def outcome(program):
    """Return the result or the error of a program as text."""
    try:
        return repr(program())
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("name", CALLBACKS)
def test_function_that_c_calls_is_interpreted(name, monkeypatch):
    """Every read of the global is observed: the result is that of a world in which PROBE has the observer's value."""
    probes = Probes()
    ours = outcome(interpret(CALLBACKS[name], probes))
    assert probes.count
    monkeypatch.setattr("tests.interpreter.callbacks.PROBE", 3)
    assert ours == outcome(CALLBACKS[name])


def test_functions_have_their_original_code_afterwards():
    """This also holds if the C function raises, and while it runs."""
    seen = []

    class Fragile:
        def __lt__(self, other):
            seen.append(Fragile.__lt__.__code__ is code)
            raise KeyError(PROBE)

    code = Fragile.__lt__.__code__
    with pytest.raises(KeyError):
        interpret(lambda: sorted([Fragile(), Fragile()]), Observer())()
    assert seen == [True]
    assert Fragile.__lt__.__code__ is code


def test_other_threads_are_not_redirected():
    """A function that another thread calls at the same time runs natively there."""
    calls = []

    def key(n):
        if not calls:
            calls.append(None)
            with ThreadPoolExecutor() as pool:
                calls.append(pool.submit(sorted, [2, 1], key=key).result())
        return n

    assert interpret(lambda: sorted([3, 1], key=key), Observer())() == [1, 3]
    assert calls == [None, [1, 2]]


def test_native_code_is_reported_to_an_observer_that_watches():
    class Watching(Observer):
        watches_native_code = True

        def __init__(self):
            self.names = []

        def interprets(self, function):
            return False

        def on_native_code(self, code):
            self.names.append(code.co_qualname)

    watching = Watching()
    interpret(CALLBACKS["list.index"], watching)()
    assert "Value.__eq__" in watching.names
    assert sys.getprofile() is None


def test_replacement_code_that_another_thread_has_entered_runs_after_the_redirection():
    """A thread may enter the replacement code of a function just before the main thread restores the function."""

    class Machine:
        redirection = None

    def function(x, *, y=2):
        return x + y

    redirection = Redirection(Machine())
    redirection.add([function])
    entered = FunctionType(function.__code__, function.__globals__)
    redirection.end()
    assert entered(1, y=5) == 6
