"""Properties and descriptors of modules that the program sets or deletes: their code is part of the program."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import thunder_core as thunder


class Stored:
    """A descriptor that stores its value under another name, and logs it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = f"_{name}"

    def __get__(self, owner: Any, kind: type | None = None) -> Any:
        return getattr(owner, self.name, 0)

    def __set__(self, owner: Any, value: Any) -> None:
        owner.log.append(value)
        setattr(owner, self.name, value)

    def __delete__(self, owner: Any) -> None:
        owner.log.append("deleted")
        delattr(owner, self.name)


class Logging(torch.nn.Module):
    """A module that logs the arguments of its setters."""

    def __init__(self) -> None:
        super().__init__()
        self.log: list[Any] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        result = x * self.count
        if self.count == 2:
            del self.count
        return result


class WithDescriptor(Logging):
    """Counts in a descriptor."""

    count = Stored()


class WithProperty(Logging):
    """Counts in a property."""

    @property
    def count(self) -> int:
        return getattr(self, "_count", 0)

    @count.setter
    def count(self, value: int) -> None:
        self._count = value
        self.log.append(value)

    @count.deleter
    def count(self) -> None:
        self.log.append("deleted")
        del self._count


class WithSubclass(Logging):
    """Counts in an instance of a subclass of `property`."""

    class Own(property):
        """A property of one's own."""

    count = Own(lambda self: getattr(self, "_count", 0), lambda self, value: self.store(value))

    def store(self, value: int) -> None:
        self._count = value
        self.log.append(value)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + 1
        return x * self.count


class WithTensor(Logging):
    """Sets a property to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(2))

    @property
    def count(self) -> torch.Tensor:
        return self.total

    @count.setter
    def count(self, value: torch.Tensor) -> None:
        self.log.append(len(self.log))
        self.total = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count = self.count + x
        return self.count * 2


@pytest.mark.parametrize("kind", [WithDescriptor, WithProperty, WithSubclass, WithTensor])
def test_a_setter_of_a_module_runs_once_a_call(kind: type[Logging]) -> None:
    ours, theirs = kind(), kind()
    compiled = thunder.jit(ours)
    for step in range(5):
        x = torch.ones(2) * step
        torch.testing.assert_close(compiled(x), theirs(x))
        assert ours.log == theirs.log
