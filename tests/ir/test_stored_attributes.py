"""Attributes in slots are read by the names under which Python stores them."""

from __future__ import annotations

import pytest

from thunder_core.tracing.ir.stored_attributes import attributes_of


class Private:
    __slots__ = ("__x", "b", "a", "__y__")  # noqa: RUF023 - the order is tested

    def __init__(self) -> None:
        self.__x, self.b, self.a, self.__y__ = 1, 2, 3, 4


class _:
    """A class whose name Python does not add to private names."""

    __slots__ = ("__x",)

    def __init__(self) -> None:
        self.__x = 1


class Renamed:
    __slots__ = ("__x",)

    def __init__(self) -> None:
        self.__x = 1


Renamed.__name__ = "Other"


class FromIterator:
    __slots__ = (name for name in ("a", "b"))  # type: ignore[var-annotated]

    def __init__(self) -> None:
        self.a = 1


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (Private(), {"_Private__x": 1, "b": 2, "a": 3, "__y__": 4}),
        (_(), {"__x": 1}),
        (Renamed(), {"_Renamed__x": 1}),
        (FromIterator(), {"a": 1}),
    ],
)
def test_slots_are_read_by_the_names_that_python_gives_them(value: object, expected: dict[str, int]) -> None:
    attributes = attributes_of(value)
    assert attributes == expected
    assert [*attributes] == [*expected]
