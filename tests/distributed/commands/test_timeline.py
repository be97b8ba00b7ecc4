"""The simulation of many ranks: formulas, overlap, order within a group, and traces of the recipes."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from benchmarks.timeline import Event, Network, claimed_traces, events_of, predict
from tests.distributed.models import Layers, tokens

GIGABYTE = 10**9
GATHER, SCATTER, REDUCE = "all_gather_into_tensor_coalesced", "reduce_scatter_tensor", "all_reduce"


@pytest.mark.parametrize(
    ("kind", "ranks", "seconds"),
    [
        (GATHER, 1, 0.0),
        (GATHER, 8, 7 * 0.001 + 7 / 8),
        (SCATTER, 8, 7 * 0.001 + 7 / 8),
        (REDUCE, 8, 14 * 0.001 + 14 / 8),
        ("all_reduce_coalesced", 512, 1022 * 0.001 + 2 * 511 / 512),
        ("broadcast", 8, 3 * 0.001 + 1),
    ],
)
def test_collective_takes_the_time_of_a_ring(kind: str, ranks: int, seconds: float) -> None:
    assert Network(ranks, GIGABYTE, 0.001).seconds(kind, GIGABYTE) == pytest.approx(seconds)


NETWORK = Network(2, GIGABYTE, 1.0)  # a gather of nothing takes one second


def start(number: int, group: str = "0") -> Event:
    return Event(start=number, kind=GATHER, group=group)


@pytest.mark.parametrize(
    ("events", "step"),
    [
        ([Event(3.0), start(0), Event(wait=0)], 4.0),
        ([start(0), Event(3.0), Event(wait=0)], 3.0),
        ([start(0), Event(0.25), Event(wait=0), Event(1.0)], 2.0),
        ([start(0), start(1), Event(wait=1), Event(wait=0)], 2.0),
        ([start(0), start(1, "1"), Event(wait=1), Event(wait=0)], 1.0),
        ([Event(1.0), start(0)], 2.0),
        ([], 0.0),
    ],
)
def test_step_is_as_long_as_computation_and_what_it_cannot_hide(events: list[Event], step: float) -> None:
    prediction = predict(events, NETWORK)
    assert prediction.step == pytest.approx(step)
    assert prediction.exposed == pytest.approx(step - prediction.computation)


def test_speedup_makes_computation_shorter_and_communication_visible() -> None:
    events = [start(0), Event(3.0), Event(wait=0)]
    assert predict(events, NETWORK).hidden == 1
    assert predict(events, NETWORK, speedup=6.0).step == 1
    assert predict(events, NETWORK, speedup=6.0).hidden == pytest.approx(0.5)


@pytest.mark.usefixtures("group_of_one")
@pytest.mark.parametrize(("recipe", "kinds"), [("ddp", {REDUCE}), ("fsdp", {GATHER, SCATTER})])
def test_events_are_the_lines_of_the_traces(recipe: str, kinds: set[str]) -> None:
    model = Layers()
    trained = {parameter for parameter in model.parameters() if parameter.requires_grad} - {*model.unused.parameters()}
    size = sum(parameter.numel() * 8 for parameter in trained)
    compiled = (
        thunder.compile(model, recipe, without=["inductor"], broadcast_buffers=False)
        if recipe == "ddp"
        else (thunder.compile(model, recipe, without=["inductor"]))
    )
    compiled(tokens(0, 0)).pow(2).mean().backward()
    events = events_of(claimed_traces(compiled), rounds=1)
    starts = [event for event in events if event.start is not None]
    assert {event.kind for event in starts} == kinds
    assert {event.wait for event in events if event.wait is not None} == {event.start for event in starts}
    assert sum(event.bytes for event in starts if event.kind != GATHER) == size
    one, many = (predict(events, Network(ranks, GIGABYTE, 0.001)) for ranks in (1, 64))
    assert one.step == one.computation > 0 == one.communication
    assert many.computation == one.computation
    assert 0 < many.exposed <= many.communication
    assert torch.is_grad_enabled()
