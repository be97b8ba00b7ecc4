"""Run one module of tests, natively or in the interpreter, and print one JSON line for each test.

Each test method is interpreted; unittest's machinery and the body of the module run natively.
"""

import argparse
import faulthandler
import functools
import importlib
import inspect
import io
import json
import signal
import sys
import traceback
import unittest
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr, redirect_stdout
from typing import Any

SECONDS = 120
NATIVE_SECONDS = 60


def tests_in(suite: unittest.TestSuite) -> Iterator[Any]:
    """Yield the test cases of a nested suite."""
    for test in suite:
        if isinstance(test, unittest.TestSuite):
            yield from tests_in(test)
        else:
            yield test


def interpret_method(method: Callable[..., Any]) -> Callable[..., Any]:
    """Return a test method that runs in the interpreter."""
    from thunder_core.frontend.interpreter import interpret

    inside = interpret(method)
    if not inspect.iscoroutinefunction(method):
        return inside

    @functools.wraps(method)
    async def asynchronous(*arguments: Any) -> Any:
        return await inside(*arguments)

    return asynchronous


def outcome(test: Any) -> tuple[str, str]:
    """Run one test; return its outcome and, if it did not pass, the reason."""
    result = unittest.TestResult()
    signal.alarm(SECONDS)
    try:
        test.run(result)
    except BaseException:
        return "error", traceback.format_exc()
    finally:
        signal.alarm(0)
    for bad in (result.errors, result.failures):
        if bad:
            return "fail", bad[0][1]
    if result.unexpectedSuccesses:
        return "fail", "unexpected success"
    return ("skip", result.skipped[0][1]) if result.skipped else ("pass", "")


def identifiers(tests: list[Any]) -> list[str]:
    """Return a name for each test; equal names are numbered."""
    seen: dict[str, int] = {}
    names: list[str] = []
    for test in tests:
        name = test.id()
        seen[name] = seen.get(name, 0) + 1
        names.append(name if seen[name] == 1 else f"{name}#{seen[name]}")
    return names


def _alarm(*_: Any) -> None:
    raise TimeoutError(f"more than {SECONDS} seconds")


def main() -> None:
    """Run the tests of one module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("module")
    parser.add_argument("--inside", action="store_true")
    parser.add_argument("--skip", nargs="*", default=[], help="tests not to run")
    parser.add_argument("--only", help="run only tests whose name contains this")
    options = parser.parse_args()
    faulthandler.enable()
    signal.signal(signal.SIGALRM, _alarm)
    out = sys.__stdout__
    assert out is not None
    module = importlib.import_module(f"test.{options.module}")
    setup, teardown = (getattr(module, name, lambda: None) for name in ("setUpModule", "tearDownModule"))
    tests = list(tests_in(unittest.defaultTestLoader.loadTestsFromModule(module)))
    setup()
    started: set[type] = set()
    for name, test in zip(identifiers(tests), tests, strict=True):
        if name in options.skip or (options.only and options.only not in name):
            continue
        kind = type(test)
        if kind not in started:
            started.add(kind)
            getattr(kind, "setUpClass", lambda: None)()
        if options.inside and hasattr(test, "_testMethodName"):
            method = getattr(test, test._testMethodName)
            setattr(test, test._testMethodName, interpret_method(method))
        print(json.dumps({"start": name}), file=out, flush=True)
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            what, why = outcome(test)
        print(json.dumps({"test": name, "outcome": what, "why": why[-6000:]}), file=out, flush=True)
    teardown()


if __name__ == "__main__":
    main()
