"""Pickling and unpickling in a program: functions that the pickle names run as often as in eager PyTorch."""

from __future__ import annotations

import copyreg
import io
import pickle
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
