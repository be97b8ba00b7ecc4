"""Functions whose source text runs at their first call."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from thunder_core.foundation.errors import ArtifactForeign
from thunder_core.tracing.library.deferred import deferred_function

TEXT = """ran.append(1)

def double(x, *, by=2):
    return x * by
"""


def define(namespace, text=TEXT):
    exec(compile(text, "<text>", "exec"), namespace)
    return namespace["double"]


def made(text=TEXT):
    namespace = {"ran": []}
    return deferred_function("double", namespace, partial(define, namespace, text)), namespace["ran"]


def test_nothing_runs_before_the_first_call_and_once_then():
    function, ran = made()
    assert (function.__name__, ran) == ("double", [])
    assert [function(2), function(3, by=3), function(x=4)] == [4, 9, 8]
    assert ran == [1]


def test_deferred_function_becomes_the_real_function_after_its_first_call():
    function, _ = made()
    function(1)
    assert function.__code__.co_filename == "<text>"
    assert function.__kwdefaults__ == {"by": 2}


def test_callables_that_are_no_plain_functions_are_called():
    function, ran = made("import functools\nran.append(1)\ndouble = functools.partial(int.__mul__, 2)\n")
    assert [function(2), function(3)] == [4, 6]
    assert ran == [1]


def test_an_error_in_the_text_comes_at_each_call():
    function, ran = made("ran.append(1)\n1 / 0\n")
    for count in (1, 2):
        with pytest.raises(ArtifactForeign, match="`double` cannot be executed: ZeroDivisionError"):
            function(1)
        assert len(ran) == count


def test_several_threads_run_the_text_once():
    function, ran = made()
    threads = [threading.Thread(target=function, args=(1,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert ran == [1]
