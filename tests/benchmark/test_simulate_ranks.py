"""The simulation of many ranks: a table that is computed by hand, and the traces of the recipes."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import simulate_ranks
from benchmarks.distributed import Model
from benchmarks.timeline import Event

MILLISECOND = 0.001
BYTES = 1_250_000  # the bytes that the default network carries in a millisecond
LAYERS, WIDTH = 2, 8


def simulate(monkeypatch: pytest.MonkeyPatch, folder: Path, *arguments: str) -> dict[str, Any]:
    """The file that the simulation writes."""
    out = folder / "simulation.json"
    monkeypatch.setattr(sys, "argv", ["benchmarks.simulate_ranks", *arguments, "--out", str(out)])
    simulate_ranks.main()
    result: dict[str, Any] = json.loads(out.read_text())
    return result


def test_table_computed_by_hand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A hidden all-reduce of 2 n - 2 messages, and a gather of n - 1 messages that 4 ms of computation hide in part."""
    events = [
        Event(10 * MILLISECOND),
        Event(start=0, kind="all_reduce", bytes=BYTES),
        Event(20 * MILLISECOND),
        Event(wait=0),
        Event(start=1, kind="all_gather_into_tensor", bytes=8 * BYTES),
        Event(4 * MILLISECOND),
        Event(wait=1),
    ]
    monkeypatch.setattr(simulate_ranks, "measure_step", lambda name, arguments: events)
    monkeypatch.setattr(simulate_ranks, "RECIPES", {"by hand": ("ddp", {})})
    result = simulate(monkeypatch, tmp_path, "--ranks", "2", "4", "--latency", "100")
    # Two ranks: 2 * (0.1 + 0.5) ms and 0.1 + 4 ms. Four ranks: 6 * (0.1 + 0.25) ms and 3 * (0.1 + 2) ms.
    assert {int(ranks): values["communication"] for ranks, values in result["seconds"]["by hand"].items()} == {
        2: pytest.approx(1.2 * MILLISECOND + 4.1 * MILLISECOND),
        4: pytest.approx(2.1 * MILLISECOND + 6.3 * MILLISECOND),
    }
    assert {int(ranks): values["step"] for ranks, values in result["seconds"]["by hand"].items()} == {
        2: pytest.approx(34.1 * MILLISECOND),
        4: pytest.approx(36.3 * MILLISECOND),
    }
    assert [" ".join(row.split()) for row in capsys.readouterr().out.splitlines()] == [
        "by hand 2 ranks step 34.1 ms computation 34.0 ms communication 5.3 ms hidden 98%",
        "by hand 4 ranks step 36.3 ms computation 34.0 ms communication 8.4 ms hidden 73%",
    ]


def test_speedup_divides_the_computation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    events = [Event(start=0, kind="all_reduce", bytes=BYTES), Event(8 * MILLISECOND), Event(wait=0)]
    monkeypatch.setattr(simulate_ranks, "measure_step", lambda name, arguments: events)
    monkeypatch.setattr(simulate_ranks, "RECIPES", {"by hand": ("ddp", {})})
    options = ("--ranks", "2", "--latency", "0", "--bandwidth", "0.625", "--speedup", "8")
    values = simulate(monkeypatch, tmp_path, *options)["seconds"]["by hand"]["2"]
    assert values["computation"] == pytest.approx(MILLISECOND)
    assert values["step"] == values["communication"] == pytest.approx(2 * MILLISECOND)


def test_communication_of_the_recipes_is_that_of_their_bytes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    recipes = {
        name: (recipe, {**options, "without": ["inductor"]})
        for name, (recipe, options) in simulate_ranks.RECIPES.items()
    }
    monkeypatch.setattr(simulate_ranks, "RECIPES", recipes)
    sizes = ("--layers", str(LAYERS), "--width", str(WIDTH), "--rows", "4", "--rounds", "1")
    seconds = simulate(monkeypatch, tmp_path, *sizes, "--ranks", "8", "--latency", "0")["seconds"]
    communication = {name: values["8"]["communication"] for name, values in seconds.items()}
    passes = 7 / 8 * sum(parameter.nbytes for parameter in Model(LAYERS, WIDTH).parameters()) / 1.25e9
    assert communication["ddp"] == pytest.approx(2 * passes)  # an all-reduce
    assert communication["fsdp (ZeRO-2)"] == pytest.approx(2 * passes)  # a gather and a reduce-scatter
    assert 2 * passes < communication["fsdp (ZeRO-3)"] <= 3 * passes * (1 + 1e-9)  # a second gather
    for by_ranks in seconds.values():
        assert by_ranks["8"]["computation"] <= by_ranks["8"]["step"]
