"""Sets from outside whose members have equal hashes: a set that is filled in another order is noticed."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder

X = torch.ones(2)


class Hashed:
    def __init__(self, value: int) -> None:
        self.value = value

    def __hash__(self) -> int:
        return 1


@pytest.fixture(autouse=True)
def eager_kernels(without_kernels: None) -> None:
    """Run programs in eager operations; guards do not depend on the executor."""


def test_members_added_in_another_order() -> None:
    objects = [Hashed(1), Hashed(2), Hashed(3)]
    members = {*objects}

    def program(x: torch.Tensor) -> torch.Tensor:
        for member in members:
            x = x * 10 + member.value
        return x

    compiled = thunder.jit(program, data_dependent="error")
    for ordered in (objects, objects, objects[::-1]):
        members.clear()
        members.update(ordered)
        assert torch.equal(compiled(X), program(X))
    assert thunder.cache_misses(compiled) == 2


def test_members_that_the_program_replaces() -> None:
    objects = [Hashed(1), Hashed(2), Hashed(3)]
    members = {*objects}

    def program(x: torch.Tensor) -> list[int]:
        before = [member.value for member in members]
        members.remove(objects[1])
        members.add(objects[1])
        return [*before, *(member.value for member in members)]

    compiled = thunder.jit(program)
    for _ in range(3):
        order = [member.value for member in members]
        assert compiled(X) == order * 2
