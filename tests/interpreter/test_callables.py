"""Attributes of callables are read without running Python code."""

from __future__ import annotations

from functools import lru_cache, partial
from types import MethodType
from typing import Any

import pytest
import torch.distributed as dist

from thunder_core.frontend.interpreter.callables import callable_attribute


class Dynamic:
    """A callable whose attributes Python code computes."""

    def __call__(self, *args: Any) -> Any:
        return args

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} was read")


def fail(_: object) -> None:
    raise AssertionError("a getter was called")


class Callable:
    def __call__(self) -> None: ...

    def getter(self, _: object = None) -> None:
        fail(self)

    cached: Any = property(lru_cache(fail))
    partial: Any = property(partial(fail))  # type: ignore[arg-type]
    plain = property(fail)
    stored = 3


Callable.bound = property(Callable().getter)  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["cached", "partial", "plain", "bound"])
def test_properties_with_python_code_are_missing(name: str) -> None:
    function = Callable()
    vars(function)[name] = "hidden by the property"
    assert callable_attribute(function, name, "missing") == "missing"


def test_stored_attributes_are_read() -> None:
    function = Callable()
    assert callable_attribute(function, "stored") == 3
    vars(function)["stored"] = 4
    assert callable_attribute(function, "stored") == 4


def test_methods_of_methods() -> None:
    method = MethodType(MethodType(Dynamic(), 1), 2)
    assert callable_attribute(method, "__name__", "missing") == "missing"
    assert callable_attribute(method, "__self__") == 2
    assert callable_attribute(MethodType(MethodType(fail, 1), 2), "__name__") == "fail"


@pytest.mark.skipif(not dist.is_available(), reason="needs torch.distributed")
def test_getters_of_pybind11_are_called() -> None:
    name = "_device_types"
    assert isinstance(vars(dist.ProcessGroup)[name], property)
    group = dist.ProcessGroup(0, 1)
    assert callable_attribute(group, name, "missing") == group._device_types
