"""Checks of choices by measurement, run on each rank: measurements differ, but the programs of all ranks are equal."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch import nn

import thunder_core as thunder
from thunder_core.backend.cache import Key, Store
from thunder_core.backend.claiming import kernel_times
from thunder_core.backend.claiming.kernel_times import KernelTimes, cached_times
from thunder_core.backend.claiming.tuning import TuningBudget, tuning
from thunder_core.backend.parallel import choices as choices_of_backend
from thunder_core.backend.parallel.positions import position_of
from thunder_executors.packed_linear import PackedLinear, measurement
from thunder_executors.packed_linear.measurement import Times

FAST, SLOW = {"kernel": 1e-3, "library": 2e-3}, {"kernel": 2e-3, "library": 1e-3}


@contextmanager
def own_times() -> Iterator[None]:
    """Give each rank a cache of measured times of its own, as on different machines."""
    with mock.patch.object(kernel_times, "Store", partial(Store, tempfile.mkdtemp())):
        yield


def by_rank(values: list[Any]) -> Any:
    return values[dist.get_rank()]


def gather_choices(value: Any) -> list[Any]:
    values = [None] * dist.get_world_size()
    dist.all_gather_object(values, value)
    return values


def times(name: str, measure: Callable[[], KernelTimes], seconds: float = 1.0) -> KernelTimes | None:
    """The times of an operation with a name, within a number of seconds."""
    return cached_times(KernelTimes, Key("test", {"region": name}), name, TuningBudget(seconds), 0.5, lambda: measure)


def never() -> KernelTimes:
    raise AssertionError("this rank measures what another rank has chosen")


def times_of_one_rank_are_those_of_all() -> None:
    with own_times():
        found = gather_choices(times("noise", lambda: KernelTimes(**by_rank([FAST, SLOW]))))
        assert found[0] == found[1]
        assert found[0] in (KernelTimes(**FAST), KernelTimes(**SLOW))
        assert gather_choices(times("noise", never)) == found


def rank_without_time_decides_for_all() -> None:
    """A rank that has no time left chooses first; the other rank, which has time, does not measure for this request."""
    with own_times():
        if dist.get_rank() == 0:
            assert times("no time", never, seconds=0.1) is None
        dist.barrier()
        position = position_of(dist.group.WORLD) - (dist.get_rank() == 1)  # as before the barrier
        with mock.patch.object(choices_of_backend, "position_of", lambda _: position):
            if dist.get_rank() == 1:
                assert times("no time", never) is None


def what_was_unknown_is_measured_later() -> None:
    """Neither rank has time; later one has, and the choice of this rank is that of all from then on."""
    with own_times():
        for _ in range(2):
            assert times("later", never, seconds=0.1) is None
        dist.barrier()
        if dist.get_rank() == 1:
            assert times("later", lambda: KernelTimes(**SLOW)) == KernelTimes(**SLOW)
        dist.barrier()
        for seconds in (0.1, 1.0):
            assert times("later", never, seconds) == KernelTimes(**SLOW)


def what_was_unknown_is_measured_later_without_collectives() -> None:
    with own_times():
        assert times("no collective", never, seconds=0.1) is None
        found = times("no collective", lambda: KernelTimes(**by_rank([FAST, SLOW])))
        assert found is not None
        first, second = gather_choices(found)
        assert first == second


def ranks_with_other_processors_choose_together() -> None:
    fields = {"region": "product", "processor": by_rank(["new", "old"]), "threads": by_rank(["2", "4"])}
    budget, numbers = TuningBudget(1.0), KernelTimes(**by_rank([FAST, SLOW]))
    with own_times():
        first, second = gather_choices(
            cached_times(KernelTimes, Key("test", fields), "product", budget, 0.5, lambda: lambda: numbers)
        )
    assert first == second


def rank_that_chooses_alone_does_not_wait() -> None:
    with own_times():
        start = time.monotonic()
        if dist.get_rank() == 1:
            assert times("alone", lambda: KernelTimes(**SLOW)) == KernelTimes(**SLOW)
        assert time.monotonic() - start < 30
        dist.barrier()
        assert times("alone", never) == KernelTimes(**SLOW)


class Layers(nn.Module):
    """Two layers of different sizes, with a sum over the ranks."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = nn.Linear(48, first), nn.Linear(first, second)

    def forward(self, x):
        y = self.up(x)
        dist.all_reduce(y)
        return self.down(y)


def compiled(model: nn.Module) -> Any:
    return thunder.jit(model, executors=(PackedLinear(), "torch"))


def programs_of_ranks_are_equal(seconds: str) -> None:
    """Each rank measures the opposite of the other, and may have no time to measure."""
    model, x = compiled(Layers(32, 64)), torch.ones(20, 48)
    ranks = [float(text) for text in seconds.split()]
    measured = mock.patch.object(measurement, "measure", lambda *_: Times(**by_rank([FAST, SLOW])))
    with own_times(), measured, torch.no_grad(), tuning(by_rank(ranks)):
        result = model(x)
    first, second = gather_choices(str(thunder.last_traces(model)[-1]))
    assert first == second
    assert torch.equal(*gather_choices(result))


def program_of_one_rank_is_the_later_program_of_the_other() -> None:
    """Only one rank traces first, and the other takes its choices."""
    counts = []
    for rank, numbers in ((1, FAST), (0, SLOW)):
        with own_times(), mock.patch.object(measurement, "measure", lambda *_, chosen=numbers: Times(**chosen)):
            if dist.get_rank() == rank:
                with torch.no_grad(), tuning(10):
                    local = thunder.jit(nn.Linear(40, 24), executors=(PackedLinear(), "torch"))
                    local(torch.ones(20, 40))
                counts.append([one.executor for one in thunder.last_traces(local)[-1].bound_symbols])
        dist.barrier()
    first, second = gather_choices(counts[0])
    assert first == second
    assert "packed-linear" in first
