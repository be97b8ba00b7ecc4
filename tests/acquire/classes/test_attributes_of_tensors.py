"""Tests that attributes which a tensor itself gets, and which hide methods, are noticed."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import RecompileWarning

CASES: dict[str, tuple[Callable[[torch.Tensor], Any], str, Any]] = {
    "a number of elements": (lambda x: x.numel() * torch.ones(2), "numel", lambda: 7),
    "an operation": (lambda x: x.relu() + 1, "relu", lambda: torch.ones(2) * 7),
    "a question": (lambda x: x + x.dim(), "dim", lambda: 7),
    "a method in Python": (lambda x: x.split(1)[0] + 1, "split", lambda size: [torch.ones(2) * size * 7]),
    "a method of the class": (lambda x: torch.Tensor.relu(x) + 1, "relu", lambda: torch.ones(2) * 7),
    "a function": (lambda x: torch.relu(x) + 1, "relu", lambda: torch.ones(2) * 7),
    "a new name": (lambda x: x * getattr(x, "scale", 1), "scale", 7),
    "the attributes": (lambda x: x * (len(vars(x)) + 1), "scale", 7),
}


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
@pytest.mark.parametrize("place", ["an argument", "outside", "a parameter"])
def test_attribute_of_tensor_is_noticed(name: str, cache: str, place: str) -> None:
    function, attribute, value = CASES[name]
    tensor = torch.nn.Parameter(torch.ones(2)) if place == "a parameter" else torch.ones(2)
    holder = torch.nn.Module()
    holder.register_parameter("tensor", tensor) if place == "a parameter" else setattr(holder, "tensor", tensor)
    plain: Any = function if place == "an argument" else lambda _: function(holder.tensor)
    compiled = thunder.jit(plain, cache=cache)
    for _ in range(2):
        assert torch.equal(compiled(tensor), plain(tensor))
    setattr(tensor, attribute, value)
    for _ in range(2):
        assert torch.equal(compiled(tensor), plain(tensor))
    delattr(tensor, attribute)
    assert torch.equal(compiled(tensor), plain(tensor))


def test_attribute_of_tensor_calls_the_method_that_it_hides() -> None:
    tensor = torch.ones(2)
    tensor.relu = lambda: torch.Tensor.relu(tensor) * 2  # type: ignore[method-assign]
    compiled = thunder.jit(lambda tensor: tensor.relu() + 1)
    for _ in range(2):
        assert compiled(tensor).tolist() == [3, 3]


class Holder(torch.nn.Module):
    """A module with a submodule, a parameter and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 2)
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.register_buffer("scale", torch.ones(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Use all of them."""
        return self.layer(x) * self.weight + self.scale  # type: ignore[no-any-return]


STORED: dict[str, Any] = {"layer": lambda x: x * 7, "weight": torch.ones(2) * 7, "scale": 7}


@pytest.mark.parametrize("name", STORED)
@pytest.mark.parametrize("cache", ["constant values", "symbolic values"])
def test_attribute_that_hides_a_member_of_a_module_is_noticed(name: str, cache: str) -> None:
    module, x = Holder(), torch.ones(2)
    compiled = thunder.jit(lambda x: module(x), cache=cache)
    assert torch.equal(compiled(x), module(x))
    object.__setattr__(module, name, STORED[name])
    assert torch.equal(compiled(x), module(x))
    del vars(module)[name]
    assert torch.equal(compiled(x), module(x))


def test_dict_of_computed_tensor_is_read_in_eager() -> None:
    def program(x: torch.Tensor) -> Any:
        y = x * 2
        y.tag = 3  # type: ignore[attr-defined]
        y.__dict__["other"] = x
        return y * len(vars(y)), sorted(y.__dict__), hasattr(y, "fake_mode")

    compiled = thunder.jit(program)
    with pytest.warns(RecompileWarning, match="`__dict__` of a computed tensor"):
        results = [compiled(torch.ones(2)), compiled(torch.ones(2))]
    assert repr(results) == repr([program(torch.ones(2))] * 2)
