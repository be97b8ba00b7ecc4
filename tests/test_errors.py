"""Errors survive pickling and copying, so that a worker process can raise them in its parent."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NoReturn

import pytest

from thunder_core.foundation import errors
from thunder_core.foundation.errors import BadOption, OutOfTolerance, SourceLine, ThunderError, ValidationError

CLASSES = [member for member in vars(errors).values() if inspect.isclass(member) and issubclass(member, ThunderError)]
WHERE = SourceLine("model.py", 3, "forward")
COPIES: dict[str, Callable[[Any], Any]] = {
    **{
        f"pickle {protocol}": lambda error, protocol=protocol: pickle.loads(pickle.dumps(error, protocol))
        for protocol in range(pickle.HIGHEST_PROTOCOL + 1)
    },
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
}


class Counted(BadOption):
    """An error with a constructor and attributes of its own."""

    def __init__(self, count: int) -> None:
        super().__init__(f"{count} is too large", fix="use 1")
        self.count = count


def described(error: ThunderError) -> tuple[Any, ...]:
    return type(error), str(error), error.args, error.as_dict(), error.where, vars(error)


@pytest.mark.parametrize("name", COPIES)
@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_copy_of_an_error_is_equal(kind: type[ThunderError], name: str) -> None:
    error = kind("a \x1b message", fix="do\nthis", where=WHERE)
    error.add_note("a note")
    if isinstance(error, ValidationError):
        error.faults = ("one", "two")
    for attribute in ("report", "rows"):
        if hasattr(error, attribute):
            setattr(error, attribute, (1, "two"))
    copied = COPIES[name](error)
    assert described(copied) == described(error)
    assert copied is not error
    assert getattr(copied, "faults", None) == getattr(error, "faults", None)


@pytest.mark.parametrize("name", COPIES)
def test_copy_of_an_error_with_another_constructor_is_equal(name: str) -> None:
    error = Counted(3)
    copied = COPIES[name](error)
    assert described(copied) == described(error)
    assert copied.count == 3


def fail() -> NoReturn:
    error = OutOfTolerance("too far", fix="look", where=WHERE)
    error.faults = (1,)
    raise error


def test_error_of_a_worker_process_reaches_the_parent() -> None:
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        with pytest.raises(OutOfTolerance, match="too far") as caught:
            pool.submit(fail).result()
        assert (caught.value.faults, caught.value.where) == ((1,), WHERE)
        assert pool.submit(len, "the pool still works").result() == 20
