"""The check of overlaps remembers addresses from call to call, and answers like a check without memory."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from thunder_core.tracing.library import overlap
from thunder_core.tracing.library.overlap import MAX_MOVING, overlap_as, overlaps

MEMORY = torch.arange(64.0)


def prologue() -> Callable[..., Any]:
    """Return a function that remembers addresses, as a prologue does."""
    return lambda: None


def drawn(generator: random.Random) -> Tensor:
    """Return a tensor somewhere in the memory: often apart from most others, sometimes empty or with gaps."""
    start, size = generator.randrange(60), generator.choice((0, 1, 1, 2, 4))
    return MEMORY[start : start + size * 2 : 2] if generator.random() < 0.3 else MEMORY[start : start + size]


@pytest.mark.parametrize("seed", range(40))
def test_each_call_is_answered_like_the_first_one(seed: int) -> None:
    generator = random.Random(seed)
    tensors = [MEMORY[index : index + 2] for index in range(0, 40, 4)]
    expected = overlaps(tuple(tensors))
    every = tuple(range(len(tensors)))
    kept = prologue()
    movable = generator.sample(every, 3)
    answers = set()
    for _ in range(60):
        index = generator.choice(movable if generator.random() < 0.9 else every)
        before, tensors[index] = tensors[index], drawn(generator)
        answer = overlap_as(kept, tuple(tensors), expected, every)
        assert answer == (overlaps(tuple(tensors)) == expected)
        answers.add(answer)
        if not answer and generator.random() < 0.8:
            tensors[index] = before
    assert answers == {True, False}


def test_expected_overlaps_are_compared_after_a_move() -> None:
    first, row, other = MEMORY[:4], MEMORY[2:3], MEMORY[8:9]
    expected, kept = overlaps((first, row, other)), prologue()
    for token in (MEMORY[20:21], MEMORY[24:25], MEMORY[28:29]):
        assert overlap_as(kept, (first, row, token), expected)
        assert not overlap_as(kept, (first, row, MEMORY[3:4]), expected)
        assert not overlap_as(kept, (first, MEMORY[1:2], token), expected)


def test_only_moving_tensors_are_compared_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """The third token of a generation, and all later ones, need no comparison of all addresses."""
    weights, kept = tuple(MEMORY[index : index + 2] for index in range(0, 32, 2)), prologue()
    for start in (32, 34):
        assert overlap_as(kept, (*weights, MEMORY[start : start + 1]), ())
    monkeypatch.setattr(overlap, "_groups", None)
    for start in (36, 33, 40):
        assert overlap_as(kept, (*weights, MEMORY[start : start + 1]), ())


def test_many_moving_tensors_are_compared_together() -> None:
    kept = prologue()
    for shift in (0, 1, 0, 1):
        tensors = tuple(MEMORY[2 * index + shift : 2 * index + shift + 1] for index in range(MAX_MOVING + 1))
        assert overlap_as(kept, tensors, ())
    assert not overlap_as(kept, (*tensors[:-1], tensors[0]), ())
