"""Repeated retracing is reported once, with the reason and a fix, and so is reaching the limit of programs."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import thunder_core as thunder
from thunder_core import functional
from thunder_core.foundation.errors import BadOption


def scaled(x: Tensor, factor: int) -> Tensor:
    return torch.zeros(int(f"{factor}")) + x.sum()


class Told(nn.Linear):
    """A layer that formats its batch size, so that each program serves one size."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + len(f"{x.shape[0]}")


def warnings_of(function: Any, *calls: tuple[Any, ...]) -> list[str]:
    """The warnings of calls, each with the number of the call."""
    found = []
    for number, arguments in enumerate(calls):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            function(*arguments)
        assert all(warning.category is thunder.RecompileWarning and warning.filename == __file__ for warning in caught)
        found += [f"{number}: {warning.message}" for warning in caught]
    return found


def test_only_the_third_retrace_warns() -> None:
    compiled = thunder.jit(scaled)
    x = torch.ones(2)
    (message,) = warnings_of(compiled, *((x, number) for number in range(1, 9)))
    assert message.startswith(
        "3: scaled was traced again 3 times for the same reason (args[1]: required s0 == 3, needed at "
    )
    assert f"{__file__}:" in message
    assert "fix: leave the code that needs its value (`s0 == 3`) uncompiled" in message
    assert "symbolic={'factor': (MINIMUM, MAXIMUM)}" in message


def test_other_reasons_are_counted_separately() -> None:
    compiled = thunder.jit(scaled)
    x = torch.ones(2)
    assert warnings_of(compiled, (x, 1), (x, 2), (x.double(), 2), (x, 3)) == []
    (message,) = warnings_of(compiled, (x.int(), 3))
    assert "args[0]: was f32[2], is i32[2]" in message


def test_the_number_that_decides_is_named_with_its_line_and_a_fix() -> None:
    def padded(tokens: torch.Tensor, *, width: int = 8) -> torch.Tensor:
        for size in (2, 4, 6, 8, 10, 12):
            if tokens.shape[0] <= size:
                return torch.nn.functional.pad(tokens, (0, size - tokens.shape[0])) * width
        return tokens

    compiled = thunder.jit(padded, cache="symbolic values", max_programs=3)
    messages = warnings_of(compiled, *((torch.ones(size),) for size in (2, 4, 6, 8, 10)))
    again = next(message for message in messages if "traced again 3 times" in message)
    dropped = next(message for message in messages if "more than 3 programs" in message)
    for message in (again, dropped):
        assert "args[0].size(0): required " in message and f"{__file__}:" in message
        assert "symbolic={'tokens.size(0)': (MINIMUM, MAXIMUM)}" in message
    assert "max_programs" in dropped


def test_calls_without_a_retrace_do_not_warn() -> None:
    compiled = thunder.jit(lambda x: x * 2)
    assert warnings_of(compiled, *[(torch.ones(size),) for size in (1, 2) * 4]) == []
    with torch.no_grad():
        assert warnings_of(compiled, *[(torch.ones(size),) for size in (1, 2) * 4]) == []


def test_retraces_for_tensor_values_name_the_line() -> None:
    compiled = thunder.jit(lambda x: [x * step for step in range(int(x))])
    (message,) = warnings_of(compiled, *((torch.tensor(float(size)),) for size in range(6)))
    assert "a value that the program reads from a tensor (" in message and "torch.where" in message


def test_retraces_of_a_module_name_its_class() -> None:
    compiled = thunder.jit(Told(2, 2).eval())
    (message,) = warnings_of(compiled, *((torch.ones(size, 2),) for size in range(1, 6)))
    assert message.startswith("4: Told was traced again 3 times")


def test_retraces_for_a_counter_do_not_warn() -> None:
    class Counter(nn.Module):
        calls = 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            return x + 1

    assert warnings_of(thunder.jit(Counter()), *[(torch.ones(1),)] * 6) == []


@pytest.mark.filterwarnings("always::thunder_core.foundation.errors.RecompileWarning")
def test_the_limit_of_programs_is_an_option_and_reaching_it_warns() -> None:
    compiled = thunder.jit(scaled, max_programs=2)
    x = torch.ones(2)
    for number in (1, 2, 1):
        compiled(x, number)
    assert thunder.cache_misses(compiled) == 2
    (message,) = warnings_of(compiled, (x, 3))
    assert "scaled has more than 2 programs" in message and "max_programs" in message
    assert "2 programs were made for the same reason (args[1]: was 1, is 3)" in message
    compiled(x, 1)  # the least recently used program was dropped
    assert thunder.cache_misses(compiled) == 3
    (message,) = warnings_of(compiled, (x, 2), (x, 3), (x, 4))
    assert "traced again 3 times" in message


def test_many_integers_fit_if_the_limit_allows_them() -> None:
    compiled = thunder.jit(scaled, max_programs=100)
    x = torch.ones(2)
    messages = warnings_of(compiled, *((x, number) for number in (*range(100), *range(100))))
    assert len(messages) == 1
    assert (thunder.cache_misses(compiled), thunder.cache_hits(compiled)) == (100, 100)


def test_every_way_to_compile_takes_the_limit() -> None:
    model = Told(2, 2)
    for compiled in (
        thunder.compile(model, max_programs=1),
        functional.jit(lambda x: x + len(f"{x.shape[0]}"), max_programs=1),
        thunder.jit(model, max_programs=1),
    ):
        for size in (1, 2, 1):
            compiled(torch.ones(size, 2))
        assert thunder.cache_misses(compiled) == 3


@pytest.mark.parametrize("limit", [0, -1, 2.0, True, "3", None])
def test_invalid_limits_are_refused(limit: Any) -> None:
    with pytest.raises(BadOption, match="max_programs"):
        thunder.jit(scaled, max_programs=limit)
