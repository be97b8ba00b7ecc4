"""Python code that C calls is interpreted: an observer hears of the globals that it reads."""

import pytest

from tests.interpreter.callbacks import CALLBACKS
from thunder_core.interpreter import Observer, interpret


class Probes(Observer):
    """Counts the reads of PROBE and says that it is 3."""

    def __init__(self):
        self.count = 0

    def on_load_global(self, frame, name, value):
        if name == "PROBE":
            self.count += 1
            return 3
        return value


def outcome(program):
    """What a program gives or raises, as text."""
    try:
        return repr(program())
    except Exception as error:
        return repr(error)


@pytest.mark.parametrize("name", CALLBACKS)
def test_what_c_calls_is_interpreted(name, monkeypatch):
    """Every read of the global is seen: the answer is that of a world in which it has the observer's value."""
    probes = Probes()
    ours = outcome(interpret(CALLBACKS[name], probes))
    assert probes.count
    monkeypatch.setattr("tests.interpreter.callbacks.PROBE", 3)
    assert ours == outcome(CALLBACKS[name])
