"""The zoo stores its results, continues after an interruption, and writes a page of the results."""

from __future__ import annotations

import argparse
import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.zoo import __main__ as zoo
from tests.zoo.configs import SMALL, architectures_of, parts_of, shrink, small_config
from tests.zoo.examine import compare_sizes, outputs_after_backward, require_same_gradients, without_folders
from tests.zoo.page import page
from tests.zoo.shelves import PACKAGES, shelf_of

ROWS: list[dict[str, Any]] = [
    {"type": "one", "class": "One", "inference": "right", "training": "right, recorded: a | b", "operations": 7},
    {"type": "three", "class": "Three", "inference": "AssertionError: .logits differs from eager's"},
    {"type": "two", "eager": "ValueError: no sizes"},
    {
        "shelf": "gnn",
        "type": "gnn:GCN",
        "class": "GCN",
        "inference": "right",
        "symbolic": "right, 2 programs",
        "symbolic reason": "args[0].size(0): required s0 < 3 | needed",
    },
]
VERSIONS = {"transformers": "5.0", "gnn": "2.8"}


def options(folder: Path, *, again: bool = False, failed: bool = False) -> argparse.Namespace:
    return argparse.Namespace(results=folder / "zoo.jsonl", again=again, failed=failed, jobs=2, seconds=1, memory=1)


def test_a_run_goes_on_where_it_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def examine_type(model_type: str, seconds: int, memory: float) -> dict[str, Any]:
        asked.append(f"{model_type} {seconds} {memory}")
        return {"type": model_type, "inference": "right"}

    monkeypatch.setattr(zoo, "examine_type", examine_type)
    zoo.run(["one", "two"], options(tmp_path))
    rows = zoo.run(["one", "three"], options(tmp_path))
    assert sorted(rows) == ["one", "three", "two"]
    assert sorted(asked) == ["one 1 1", "three 1 1", "two 1 1"]
    zoo.run(["one", "two"], options(tmp_path, failed=True))
    assert len(asked) == 3
    zoo.run(["one"], options(tmp_path, again=True))
    assert sorted(zoo.read_results(tmp_path / "zoo.jsonl")) == ["one"]


def test_a_short_config_keeps_a_layer_of_each_kind() -> None:
    values = {"num_hidden_layers": 6, "layer_types": ["a", "a", "b", "a", "a", "b"], "factors": [1, 2, 3, 4, 5, 6]}
    found = shrink(values | {"part": {"num_layers": 9}, "vocab_size": 500, "eos_token_id": 100}, SMALL)
    assert (found["num_hidden_layers"], found["layer_types"], found["factors"]) == (2, ["a", "b"], [1, 3])
    assert (found["part"], found["vocab_size"], found["eos_token_id"]) == ({"num_layers": 2}, 99, 1)


def test_the_page_counts_and_gives_reasons() -> None:
    text = page(ROWS, VERSIONS, 60, 8)
    assert "## Model types of transformers 5.0" in text
    assert "Eager PyTorch runs 2 of 3." in text
    assert "| inference | 1 | 2 |" in text
    assert "| training | 1 | 1 |" in text
    assert "1 programs are recorded" in text
    assert "| one | One | right | right, recorded: a / b |  |  | 0.0 | 7 |" in text
    assert "- two: ValueError: no sizes" in text
    assert "not examined" not in text
    assert "3 types were not examined yet" in page(ROWS, {}, 60, 8, {"transformers": 3})
    assert text.index("## Graph layers of torch_geometric 2.8") > text.index("- two")
    assert "| gnn:GCN | GCN | right |  | right, 2 programs |" in text
    assert "- gnn:GCN: args[0].size(0): required s0 ( 3 / needed" in text
    assert "## Architectures of timm" not in text


def test_a_shelf_without_its_package_is_skipped_with_a_word(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(zoo, "is_installed", lambda shelf: shelf != "gnn")
    assert zoo.types_on("gnn") == []
    assert "the package torch_geometric is not installed" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["timm:resnet10t", "diffusers:dit", "gnn:GATConv edges"])
def test_a_type_of_each_shelf_is_compared(name: str) -> None:
    shelf = shelf_of(name)
    pytest.importorskip(PACKAGES[shelf], reason=f"needs the package {PACKAGES[shelf]}")
    assert name in zoo.types_on(shelf)
    row = zoo.examine_type(name, 120, 8)
    assert (row["type"], row["shelf"], row.get("eager")) == (name, shelf, None)
    assert row["inference"].startswith("right"), row
    assert row["training"].startswith("right"), row


def test_several_programs_have_a_reason_without_folders() -> None:
    model = torch.nn.Module()
    model.forward = lambda x: x * 2 if x.shape[0] == 3 else x  # type: ignore[assignment]
    found = compare_sizes(model, ({"x": torch.ones(size)} for size in (3, 4)))
    assert found["symbolic"] == "right, 2 programs"
    assert "args[0].size(0)" in found["symbolic reason"].replace("kwargs['x']", "args[0]")
    text = "needed at /home/me/lib/site-packages/transformers/models/led.py:3, in f, is 4"
    assert without_folders(text) == "needed at transformers/models/led.py:3, in f, is 4"


def test_the_page_compares_the_first_calls_with_dynamo() -> None:
    rows = [
        {"type": str(number), "inference": "right", "inference first call seconds": 1.0, "dynamo first call seconds": n}
        for number, n in enumerate((4.0, 5.0, 8.0))
    ]
    assert "takes 0.20 of the CPU time that it takes with Dynamo (the median of 3 types" in page(rows, VERSIONS, 60, 8)
    assert "Dynamo (" not in page(rows[:1], VERSIONS, 60, 8)


def test_a_process_that_reaches_a_limit_names_the_comparison() -> None:
    assert zoo.examine_type("no such type", 60, 8)["eager"].startswith("LookupError")
    row = zoo.examine_type("bert", 2, 8)  # seconds, too few
    assert row["type"] == "bert"
    assert "more than 2 seconds" in row.values()
    assert "running" not in row


@pytest.mark.parametrize("model_type", ["llama", "vit", "clip"])
def test_a_small_config_has_small_parts_and_names_its_class(model_type: str) -> None:
    config = small_config(model_type)
    assert config.architectures == architectures_of(model_type)[:1]
    for part in parts_of(config):
        sizes = {name: getattr(part, name, None) for name in SMALL}
        assert all(size <= SMALL[name] for name, size in sizes.items() if type(size) is int)


class Cancelled(torch.nn.Module):
    """A module with a bias before a normalization: its gradient consists of rounding errors."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.scale = torch.nn.Parameter(torch.full((4,), 1e4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.linear(x)
        return (y - y.mean(0)) * self.scale


def test_gradients_may_differ_by_rounding_errors_alone() -> None:
    torch.manual_seed(0)
    twin, inputs = Cancelled(), {"x": torch.randn(64, 4)}
    model = copy.deepcopy(twin)
    outputs_after_backward(twin, inputs)
    outputs_after_backward(model, {"x": inputs["x"].flip(0)})  # the same sums in another order
    require_same_gradients(model, twin, inputs)
    for name, _ in model.named_parameters():
        changed = copy.deepcopy(model)
        for copied, original in zip(changed.parameters(), model.parameters(), strict=True):
            copied.grad = None if original.grad is None else original.grad.clone()
        gradient = dict(changed.named_parameters())[name].grad
        assert gradient is not None
        gradient += gradient.abs().max() / 10 + 100
        with pytest.raises(AssertionError, match=name):
            require_same_gradients(changed, twin, inputs)
