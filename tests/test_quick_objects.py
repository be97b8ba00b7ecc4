"""Quick frozen dataclasses and properties behave as those of Python."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle

import pytest

from thunder_core.foundation.quick_objects import ComputedOnce, with_quick_init


@dataclasses.dataclass(frozen=True)
class Plain:
    first: int
    second: str = "b"
    third: tuple[int, ...] = dataclasses.field(default=(), kw_only=True)


@with_quick_init
@dataclasses.dataclass(frozen=True)
class Quick:
    first: int
    second: str = "b"
    third: tuple[int, ...] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        if self.first < 0:
            raise ValueError("negative")

    @ComputedOnce
    def parts(self) -> list[str]:
        """The parts."""
        return [self.second] * self.first


def test_a_quick_dataclass_is_made_as_a_plain_one() -> None:
    for arguments, keywords in (((1,), {}), ((1, "c"), {"third": (2,)}), ((), {"first": 3})):
        quick, plain = Quick(*arguments, **keywords), Plain(*arguments, **keywords)  # type: ignore[arg-type]
        assert dataclasses.astuple(quick) == dataclasses.astuple(plain)
        assert repr(quick) == repr(plain).replace("Plain", "Quick")
        assert quick == pickle.loads(pickle.dumps(quick)) == copy.deepcopy(quick)
        assert hash(quick) == hash(plain)
    assert list(inspect.signature(Quick).parameters) == list(inspect.signature(Plain).parameters)
    assert dataclasses.replace(Quick(1), second="d") == Quick(1, "d")


def test_a_quick_dataclass_refuses_what_a_plain_one_refuses() -> None:
    for kind in (Quick, Plain):
        with pytest.raises(TypeError, match=f"{kind.__name__}.__init__\\(\\) missing 1 required positional argument"):
            kind()  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="takes from 2 to 3 positional arguments but 4 were given"):
            kind(1, "b", (2,))  # type: ignore[misc]
        with pytest.raises(dataclasses.FrozenInstanceError):
            kind(1).first = 2  # type: ignore[misc]
    with pytest.raises(ValueError, match="negative"):
        Quick(-1)
    with pytest.raises(TypeError, match="Made has fields that a quick"):

        @with_quick_init
        @dataclasses.dataclass(frozen=True)
        class Made:
            values: list[int] = dataclasses.field(default_factory=list)


def test_a_property_is_computed_once() -> None:
    quick = Quick(2)
    assert quick.parts == ["b", "b"]
    assert quick.parts is quick.parts
    assert isinstance(Quick.parts, ComputedOnce)
    assert Quick.parts.__doc__ == "The parts."
    assert quick == Quick(2)
