"""Warnings of compiled programs, compared with eager Python, under the filters of each call."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import thunder_core as thunder

ACTIONS = ("always", "default", "once", "module", "ignore", "error")


def plain(x: Tensor) -> Tensor:
    """Warn with a custom class by default."""
    warnings.warn("of a plain text", stacklevel=1)
    return x * 2


def of_shapes(x: Tensor) -> Tensor:
    """Warn about a shape, with a stack level of two."""

    def inner() -> None:
        warnings.warn(f"of {tuple(x.shape)}", DeprecationWarning, stacklevel=2)

    inner()
    return x * 2


def of_values(x: Tensor) -> Tensor:
    """Warn about the values of a tensor."""
    warnings.warn(f"the sum is {x.sum()}", RuntimeWarning, stacklevel=1)
    return x * 2


def caught(x: Tensor) -> Tensor:
    """Take another path if the warning is raised as an error."""
    try:
        warnings.warn("perhaps an error", stacklevel=1)
    except UserWarning:
        return x - 1
    return x + 1


def behind_a_write(x: Tensor) -> Tensor:
    """Write, warn and write again; the message shows the value between the two writes."""
    x.add_(1)
    warnings.warn(f"now {x.sum()}", stacklevel=1)
    x.add_(1)
    return x * 2


def outcomes_of(function: Callable[[Tensor], Tensor], actions: tuple[str, ...]) -> list[Any]:
    """Return the results of calls under these filters, and their warnings."""
    rows: list[Any] = []
    globals().pop("__warningregistry__", None)
    for index, action in enumerate(actions):
        with warnings.catch_warnings(record=True) as given:
            warnings.resetwarnings()
            warnings.simplefilter(action)  # type: ignore[arg-type]
            try:
                rows.append(function(torch.full((3,), float(index))).tolist())
            except Warning as error:
                rows.append(repr(error))
            rows.append([(str(value.message), value.category, value.filename, value.lineno) for value in given])
    return rows


@pytest.mark.parametrize("function", [plain, of_shapes, of_values, caught, behind_a_write])
@pytest.mark.parametrize("first", ACTIONS)
def test_warnings_of_each_call_match_eager(function: Callable[[Tensor], Tensor], first: str) -> None:
    actions = (first, "always", "always", "error", "default", "ignore", "always")
    assert outcomes_of(thunder.jit(function), actions) == outcomes_of(function, actions)


def test_a_changing_text_needs_no_other_program() -> None:
    compiled = thunder.jit(of_values)
    outcomes_of(compiled, ("always",) * 3)
    assert thunder.cache_misses(compiled) == 1


def test_filters_by_module_and_line_decide() -> None:
    compiled = thunder.jit(plain)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", module="of.another.module")
        warnings.filterwarnings("ignore", message="of a plain")
        compiled(torch.ones(1))
        warnings.filterwarnings("error", module=__name__.replace(".", r"\."))
        with pytest.raises(UserWarning, match="of a plain text"):
            compiled(torch.ones(1))


def test_the_program_keeps_its_own_warnings() -> None:
    def own(x: Tensor) -> tuple[Tensor, int]:
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter("always")
            warnings.warn("within", stacklevel=1)
        return x * 2, len(given)

    compiled = thunder.jit(own)
    with warnings.catch_warnings(record=True) as outer:
        warnings.simplefilter("always")
        assert [compiled(torch.ones(1))[1] for _ in range(2)] == [1, 1]
    assert not outer


def test_filter_on_a_message_with_values_sees_the_message() -> None:
    compiled = thunder.jit(of_values)
    for total in (3.0, 6.0, 3.0):
        with warnings.catch_warnings(record=True) as given:
            warnings.resetwarnings()
            warnings.filterwarnings("always")
            warnings.filterwarnings("error", message="the sum is 6")
            if total == 6:
                with pytest.raises(RuntimeWarning, match="the sum is 6"):
                    compiled(torch.full((3,), total / 3))
            else:
                compiled(torch.full((3,), total / 3))
                assert [str(value.message) for value in given] == [f"the sum is {total}"]


@pytest.mark.filterwarnings("ignore::thunder_core.errors.RecompileWarning")
def test_a_function_of_the_user_shows_warnings_before_the_program_continues() -> None:
    shown: list[str] = []

    def program(x: Tensor) -> Tensor:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.showwarning = lambda message, *_: shown.append(str(message))
            warnings.warn("of the program", stacklevel=1)
        return x * len(shown)

    compiled = thunder.jit(program)
    for count in (1, 2, 3):
        assert compiled(torch.ones(1)).item() == count
