"""Pickling and unpickling in a program: functions that the pickle names run as often as in eager PyTorch."""

from __future__ import annotations

import copyreg
import io
import pickle
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning

X = torch.ones(2)
LOG: list[Any] = []


@pytest.fixture(autouse=True)
def eager_kernels(without_kernels: None) -> None:
    """Run programs in eager operations; pickling does not depend on the executor."""


class WithState:
    def __init__(self, v: int) -> None:
        self.v = v

    def __setstate__(self, state: dict[str, int]) -> None:
        LOG.append("set")
        self.v = state["v"] + 1


def make(v: int) -> Any:
    LOG.append("make")
    return Reduced(v)


class Reduced:
    def __init__(self, v: int) -> None:
        self.v = v

    def __reduce__(self) -> Any:
        LOG.append("reduce")
        return make, (self.v,)


class WithNew:
    def __new__(cls, v: int) -> Any:
        LOG.append("new")
        return super().__new__(cls)

    def __init__(self, v: int) -> None:
        self.v = v

    def __getnewargs__(self) -> Any:
        return (self.v,)


class Registered:
    def __init__(self, v: int) -> None:
        self.v = v


def reduce_registered(one: Registered) -> Any:
    LOG.append("registered")
    return Registered, (one.v + 1,)


copyreg.pickle(Registered, reduce_registered)


class Loader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        LOG.append(name)
        return super().find_class(module, name)


def by_bytes(one: Any) -> Any:
    return pickle.loads(pickle.dumps(one))


def by_file(one: Any) -> Any:
    file = io.BytesIO()
    pickle.Pickler(file).dump([one])
    file.seek(0)
    return Loader(file).load()[0]


@pytest.mark.parametrize("through", [by_bytes, by_file])
@pytest.mark.parametrize("kind", [WithState, Reduced, WithNew, Registered])
def test_code_that_pickle_calls(kind: Callable[[int], Any], through: Callable[[Any], Any]) -> None:
    def outcomes(function: Callable[..., Any]) -> Any:
        LOG.clear()
        one = kind(1)
        program = function(lambda x: x * through(one).v)
        results = []
        for value in (1, 1, 5):
            one.v = value
            results.append((program(X).tolist(), list(LOG)))
        return results

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecompileWarning)
        ours = outcomes(thunder.jit)
    assert ours == outcomes(lambda program: program)


def test_plain_data_is_traced() -> None:
    config = {"scale": 2, "names": ["a", ("b", None)]}
    compiled = thunder.jit(lambda x: x * by_bytes(config)["scale"], data_dependent="error")
    assert compiled(X).tolist() == [2.0, 2.0]
    config["scale"] = 3
    assert compiled(X).tolist() == [3.0, 3.0]


def test_code_that_pickle_calls_under_a_profiler() -> None:
    blob = pickle.dumps(WithState(2))
    compiled = thunder.jit(lambda x: x * pickle.loads(blob).v)
    LOG.clear()
    sys.setprofile(lambda *_event: None)
    try:
        with pytest.warns(RecompileWarning, match="pickles or unpickles under a profiler"):
            results = [compiled(X).tolist() for _ in range(2)]
    finally:
        sys.setprofile(None)
    assert (results, LOG) == ([[3.0, 3.0]] * 2, ["set"] * 2)


class Dying:
    def __del__(self) -> None:
        LOG.append("dies")


def test_object_that_dies_while_it_is_unpickled() -> None:
    """Python ignores errors of a `__del__`, even the request that eager PyTorch makes the call."""
    dies = b"c" + __name__.encode() + b"\nDying\n)\x810N."  # makes an object, removes it, and returns None
    compiled = thunder.jit(lambda x: x * (pickle.loads(dies) is None))
    LOG.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = [compiled(X).tolist() for _ in range(3)]
    assert (results, LOG) == ([[1.0, 1.0]] * 3, ["dies"] * 3)
