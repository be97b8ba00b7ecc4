"""Progress bars of tqdm in a program, also the first bar, which makes the objects that all bars share."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from tqdm import std, tqdm, trange

import thunder_core as thunder


def hidden(x: Tensor) -> Tensor:
    for step in tqdm(range(3), disable=True):
        x = x * 2 + step
    return x


def shown(x: Tensor) -> Tensor:
    for step in trange(3, desc="steps", leave=False, file=io.StringIO()):
        x = x * 2 + step
    return x


def described(x: Tensor) -> Tensor:
    bar = tqdm(range(3), disable=True)
    for step, value in enumerate(bar):
        x = x + value
        bar.set_description(f"{step}")
    return x


def entered(x: Tensor) -> Tensor:
    with tqdm(total=2, disable=True) as bar:
        for _ in range(2):
            x = x.relu() + 1
            bar.update(1)
    return x


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("program", [hidden, shown, described, entered])
def test_a_program_with_a_progress_bar_equals_eager(
    program: Callable[[Tensor], Tensor], is_first: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for owner, name in ((tqdm, "_lock"), (std.TqdmDefaultWriteLock, "mp_lock")) if is_first else ():
        monkeypatch.delattr(owner, name, raising=False)
    compiled: Any = thunder.jit(program, executors=("torch",))
    for value in range(3):
        x = torch.full((2,), float(value))
        assert torch.equal(compiled(x), program(x))
    assert thunder.cache_misses(compiled) == 1
    assert not tqdm._instances
