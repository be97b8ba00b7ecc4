"""What a program lists of its objects: names of tensors, texts of modules in containers, and cyclic containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay


def test_dir_of_a_tensor_is_the_same_as_in_eager() -> None:
    parameter = nn.Parameter(torch.ones(2))
    parameter.label = 1  # type: ignore[attr-defined]

    def program(x: Tensor) -> tuple[Tensor, Any]:
        return x * 2, (dir(x), dir(x * 2), x.__dir__(), dir(parameter))

    compiled = thunder.jit(program, executors=("torch",))
    x = torch.ones(2)
    assert compiled(x)[1] == program(x)[1]


class Labelled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.label = 1

    def extra_repr(self) -> str:
        return f"label={self.label}"


TEXTS: dict[str, Callable[[nn.Module], str]] = {
    "list": lambda module: repr([module]),
    "dict": lambda module: str({"module": module}),
    "f-string": lambda module: f"{(module,)}",
    "percent": lambda module: "%s" % ([module],),  # noqa: UP031
    "alone": repr,
}


@pytest.mark.parametrize("name", TEXTS)
def test_text_of_a_module_in_a_container_comes_from_each_call(name: str) -> None:
    inner = Labelled()
    module = nn.Sequential(nn.Linear(2, 2), inner)

    def program(x: Tensor) -> tuple[Tensor, str]:
        return x * 2, TEXTS[name](module)

    compiled = thunder.jit(program, executors=("torch",))
    x = torch.ones(2)
    assert compiled(x)[1] == program(x)[1]
    for change in (lambda: setattr(inner, "label", 2), lambda: module.append(nn.ReLU())):
        change()
        assert compiled(x)[1] == program(x)[1]


def in_a_list(x: Tensor) -> Any:
    items: list[Any] = [x * 2]
    items.append(items)
    return items


def in_a_dict(x: Tensor) -> Any:
    items: dict[str, Any] = {"x": x * 2}
    items["inner"] = (items,)
    return items


@pytest.mark.parametrize("program", [in_a_list, in_a_dict])
def test_returning_a_container_that_contains_itself_is_refused(program: Callable[[Tensor], Any]) -> None:
    with pytest.raises(CannotReplay, match="returns a container that contains itself"):
        thunder.jit(program, data_dependent="error")(torch.ones(2))


def test_a_deep_container_that_does_not_contain_itself_is_returned() -> None:
    def program(x: Tensor) -> Any:
        shared = [x * 2]
        return [shared, (shared, shared)]

    first, (second, third) = thunder.jit(program)(torch.ones(2))
    assert first is second is third
