"""Artifacts of a composed recipe are equal for every order of its parts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.pipeline.conftest import quick
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.pipeline import optimize

OF_THE_MOMENT = ("created", "digest")  # and the seconds of each stage, and the digest of the report


def content(folder: Path) -> dict[str, Any]:
    """The manifest of an artifact without times, with the digests of all files except the report."""
    manifest = open_artifact(folder).manifest.model_dump(mode="json")
    for program in manifest["programs"]:
        for stage in program["stages"]:
            del stage["seconds"]
    manifest["files"] = {name: facts for name, facts in manifest["files"].items() if not name.startswith("report")}
    return {name: value for name, value in manifest.items() if name not in OF_THE_MOMENT}


@pytest.mark.usefixtures("without_kernels")
def test_the_artifact_is_the_same_in_every_order(tmp_path: Path) -> None:
    orders = (
        {"recipe": ("hf-llama", "max-memory-saving"), "add_transform": ("functionalize", "cse")},
        {"recipe": ("max-memory-saving + hf-llama",), "add_transform": ("ShareCommonExpressions", "Functionalize")},
    )
    found = []
    for number, order in enumerate(orders):
        folder = tmp_path / str(number)
        optimize(quick(folder, **order, options={"budget": 0.5}, benchmark=False, inputs=1))
        found.append(content(folder))
    assert found[0] == found[1]
    assert found[0]["recipe"] == "hf-llama + max-memory-saving + cse + functionalize"
    assert found[0]["options"] == {"budget": 0.5}
    assert found[0]["compiler"]["options"]["memory_budget"] == 0.5
    assert not [guard for program in found[0]["programs"] for guard in program["guards"] if " at 0x" in str(guard)]


QUANTIZED = {
    "int8-dynamic": ("hf-bert", "bert", {"dynamic": {"seq": (2, 16)}}),
    "int8-weight-only": ("hf-t5", "t5", {}),
    "int4-weight-only": ("hf-llama", "llama", {"options": {"group_size": 32}, "calibrate": "2"}),
    "fp8": ("hf-transformers", "gpt2", {}),
    "nf4-lora": ("hf-llama", "llama", {"train": True}),
    "bf16": ("hf-vit", "vit", {"seq": None}),
}


@pytest.mark.usefixtures("without_kernels")
@pytest.mark.parametrize("name", QUANTIZED)
def test_a_model_is_quantized_the_same_in_either_order(name: str, tmp_path: Path) -> None:
    recipe, sample, changes = QUANTIZED[name]
    found = []
    for order in ((recipe, name), (name, recipe)):
        folder = tmp_path / "-".join(order)
        optimize(quick(folder, order, sample, **{"benchmark": False, "inputs": 1, "force_slow": True, **changes}))
        found.append(content(folder))
    assert found[0] == found[1]
    assert found[0]["recipe"] == " + ".join(sorted((recipe, name)))
    assert any(file.startswith("weights") for file in found[0]["files"])
