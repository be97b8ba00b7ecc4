"""A pytest plugin that compiles the body of each test method of PyTorch's own suites with `thunder_core.jit`.

    python -m pytest -p tests.pytorch_suites --noconftest PYTORCH/test/test_torch.py

PYTORCH is a source tree of PyTorch; its version may differ from the installed one, so compare with a run without the
plugin. Each test runs twice, on new test objects: the first run traces the body, and the second run finds its program.
Comparisons with tensors (`assertEqual(x, y)`) are side effects of the program, and are made after it has run. A test
that calls `gradcheck` is not compiled, but its differentiated functions are.

The environment variable `THUNDER_SUITE_EXECUTORS` lists the executors, separated by commas; by default, `torch` alone.
The end of the report counts the tests whose second run found a program, and the reasons of those left to eager PyTorch.
"""

from __future__ import annotations

import os
import unittest
from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.testing._internal import common_utils
from torch.utils._pytree import tree_any, tree_map

import thunder_core as thunder
from tests.pytorch_tests import add_missing_helpers

EXECUTORS = tuple(os.environ.get("THUNDER_SUITE_EXECUTORS", "torch").split(","))
CHECKS = "thunder_checks"  # the attribute of a test object with the comparisons of the current run
DEFERRED = ("assertEqual", "assertNotEqual", "assertTrue", "assertFalse", "assertEqualIgnoreType")
GRADCHECKS = frozenset({"gradcheck", "gradgradcheck"})

outcomes: Counter[str] = Counter()


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor."""
    return isinstance(value, torch.Tensor)


def copied(leaf: Any) -> Any:
    """Return a copy of a tensor or of an array, and any other object itself."""
    if isinstance(leaf, torch.Tensor):
        return leaf.detach().clone()
    return leaf.copy() if isinstance(leaf, np.ndarray) else leaf


def deferred(name: str, method: Callable[..., None]) -> Callable[..., None]:
    """Return an assertion that a compiled test stores if it compares tensors."""

    def check(test: Any, *args: Any, **kwargs: Any) -> None:
        """Store the comparison, with copies of the tensors, because the program may write to them later."""
        checks = test.__dict__.get(CHECKS)
        if checks is None or not tree_any(is_tensor, args):
            method(test, *args, **kwargs)
        else:
            checks.append((name, tree_map(copied, args), kwargs))

    return check


def compiled(function: Callable[..., Any]) -> Any:
    """Compile a function for the executors of this run."""
    return thunder.jit(function, executors=EXECUTORS)


def call_test_method(test: Any, method: Callable[[], None]) -> None:
    """Compile the body of a test, and run it on the test object and on a new one."""
    body = getattr(type(test), test._testMethodName)
    if not names_used_by(body).isdisjoint(GRADCHECKS):
        method()
        return
    fast = compiled(body)
    try:
        run_and_check(fast, test)
        again = type(test)(test._testMethodName)
        again.setUp()
        try:
            run_and_check(fast, again)
        except unittest.SkipTest:
            raise
        except Exception as error:
            error.add_note("in the second run of the test")
            raise
        finally:
            again.tearDown()
            again.doCleanups()
    finally:
        note_outcome(fast)


def run_and_check(fast: Callable[..., Any], test: Any) -> None:
    """Run a compiled test on a test object, and make its comparisons."""
    checks = test.__dict__[CHECKS] = []
    try:
        fast(test)
    finally:
        del test.__dict__[CHECKS]
    for name, args, kwargs in checks:
        getattr(test, name)(*args, **kwargs)


def names_used_by(body: Any) -> set[str]:
    """Return the names that the code of a test uses, and the code of functions that its decorators wrap."""
    names: set[str] = set()
    pending = [getattr(body, "__code__", None)]
    while pending:
        code = pending.pop()
        names |= set(getattr(code, "co_names", ()))
        pending += [constant for constant in getattr(code, "co_consts", ()) if hasattr(constant, "co_names")]
    wrapped = getattr(body, "__wrapped__", None)
    return names if wrapped is None else names | names_used_by(wrapped)


def of_compiled(check: Callable[..., Any]) -> Callable[..., Any]:
    """Return `gradcheck` or `gradgradcheck` for the compiled function instead of the function."""

    def check_compiled(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """Check the derivatives of the compiled function; eager PyTorch's for those in forward mode."""
        if kwargs.get("check_forward_ad"):
            return check(function, *args, **kwargs)
        return check(compiled(lambda *inputs: function(*inputs)), *args, **kwargs)

    return check_compiled


def note_outcome(fast: Any) -> None:
    """Count what became of a compiled test."""
    reasons = thunder.recompile_reasons(fast)
    if has_program(fast):
        outcomes["compiled" if thunder.cache_misses(fast) == 1 else "compiled, traced again in the second run"] += 1
    elif reasons:
        outcomes["in eager, since " + str(reasons[-1]).partition(" since ")[2]] += 1
    else:
        outcomes["skipped, or raises"] += 1


def has_program(fast: Any) -> bool:
    """Whether a compiled function has a program."""
    try:
        return bool(thunder.last_program(fast))
    except thunder.ThunderError:
        return False


def pytest_configure() -> None:
    """Replace the call of test methods, and the comparisons of tensors, before the tests are imported."""
    case: Any = common_utils.TestCase
    case._callTestMethod = call_test_method
    for name in DEFERRED:
        setattr(case, name, deferred(name, getattr(case, name)))
    for name in GRADCHECKS:
        setattr(common_utils, name, of_compiled(getattr(common_utils, name)))
    add_missing_helpers()


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Write how many tests were compiled."""
    for outcome, count in outcomes.most_common():
        terminalreporter.write_line(f"{count:6} {outcome}")
