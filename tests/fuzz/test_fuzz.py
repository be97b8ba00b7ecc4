"""Programs that hypothesis writes do the same inside as in CPython; 200 in every run, `make fuzz` for more."""

import random

from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from tests.fuzz.oracle import difference
from tests.fuzz.programs import written
from tests.fuzz.reduce import reduced


@st.composite
def programs(draw):
    return written(lambda low, high: draw(st.integers(low, high)))


@settings(max_examples=2 * settings.default.max_examples, suppress_health_check=list(HealthCheck))
@given(programs())
def test_program_does_the_same_inside(text):
    try:
        found = difference(text)
    except SyntaxError:
        reject()
    assert found is None, f"{text}\n{found}"


def test_most_texts_are_programs_and_say_something():
    texts = [written(random.Random(number).randint) for number in range(50)]
    assert len(set(texts)) == 50
    refused = 0
    for text in texts:
        try:
            compile(text, "program.py", "exec")
        except SyntaxError:
            refused += 1
    assert refused <= 2


def test_a_difference_is_found_and_cut_down(monkeypatch):
    text = "a = 1\nb = 2\nfor c in range(3):\n    say(c)\n    say(hasattr(fuel, 'gi_frame'))\n"
    wanted = {"for c in range(3):", "    say(c)"}
    monkeypatch.setattr("tests.fuzz.reduce.difference", lambda text: wanted <= set(text.splitlines()) or None)
    assert reduced(text) == "for c in range(3):\n    say(c)\n"


def test_the_oracle_sees_what_differs(monkeypatch):
    monkeypatch.setattr("tests.fuzz.oracle.interpret", lambda function, observer: lambda code, names: None)
    for text in ("say(1)", "a = 1", "raise Oops(1)"):
        assert difference(text) is not None
