"""Programs whose results differ from call to call."""

from __future__ import annotations

import itertools

import torch

from tests.fault_localization.examined import activating, examine_call, numbers, silu, silu_sum


def test_a_kernel_that_is_not_the_same_twice():
    count = itertools.count()
    executor = activating(lambda x: torch.nextafter(silu(x), silu(x) + next(count) % 2))
    (fault,) = examine_call(silu_sum, (executor, "torch"), x=numbers()).faults
    assert (fault.kind, fault.by) == ("nondeterminism", "mine")
    assert "my_silu(" in fault.line
    assert "in the first run" in fault.difference


def test_dropout_draws_from_the_same_state():
    drops = lambda x: torch.nn.functional.dropout(x, 0.5)  # noqa: E731
    assert not examine_call(drops, x=numbers()).faults
