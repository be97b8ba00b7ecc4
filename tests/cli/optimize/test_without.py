"""`--without`: left-out parts in the plan, the report, the manifest and the explanation."""

from __future__ import annotations

import json

import pytest

from tests.cli.small import QUICK, assert_refused
from thunder_core.backend.claiming.withholding import LEFT_OUT
from thunder_core.foundation.storage.manifest import MANIFEST

MLP = "inductor:layers.0.mlp"


def test_an_executor_is_left_out_of_a_module(thunder, here, llama):
    options = ("--without", MLP, "--without", "cse", "--without", "sdpa", "--no-benchmark", "--out", here / "a")
    done = thunder("optimize", llama, "--recipe", "default", *options, *QUICK)
    assert done.status == 0, done.err
    plan = " ".join(done.err.split())
    assert f"without cse, {MLP}, sdpa" in plan
    assert f"default + without=cse + without={MLP}" in plan
    report = json.loads((here / "a" / "report.json").read_bytes())
    assert report["recipe"]["without"] == ["cse", MLP, "sdpa"]
    assert report["degraded"] == []
    (refused,) = [refusal for refusal in report["refused"] if refusal["reason"] == LEFT_OUT]
    assert (refused["executor"], refused["operations"] > 4) == ("inductor", True)
    assert LEFT_OUT in (here / "a" / "report.md").read_text()
    assert f"| without | cse, {MLP}, sdpa |" in (here / "a" / "report.md").read_text()
    assert json.loads((here / "a" / MANIFEST).read_bytes())["compiler"]["options"]["without"] == ["cse", MLP, "sdpa"]
    held = thunder("inspect-trace", here / "a", "--module", "layers.0.mlp", "--plain").out
    assert "region" not in held
    assert "region" in thunder("inspect-trace", here / "a", "--plain").out


def test_left_out_parts_are_in_a_dry_run_and_in_an_inspected_trace(thunder, llama):
    plan = thunder("optimize", llama, "--without", MLP, "--dry-run", "--json").json
    assert plan["without"] == [MLP]
    shown = thunder("inspect-trace", llama, "--without", "inductor", "--seq", 8, "--plain").out
    assert "region" not in shown


def test_a_whole_model_without_an_executor_is_no_loss_of_the_machine(thunder, here, llama):
    done = thunder(
        "optimize", llama, "--without", "inductor:*", "--strict", "--no-benchmark", "--out", here / "a", *QUICK
    )
    assert done.status == 0, done.err
    assert json.loads((here / "a" / "report.json").read_bytes())["degraded"] == []


def test_an_explanation_omits_left_out_parts(thunder):
    explain = ("recipes", "explain", "default", "--without", "inductor", "--without", "cse", "--without", "sdpa:attn")
    explained = thunder(*explain, "--json").json["recipe"]
    assert [step["name"] for step in explained["steps"]] == [
        "DropDeadCode",
        "sdpa",
        "packed-linear",
        "packed-attention",
        "torch",
    ]
    assert explained["without"] == ["cse", "inductor", "sdpa:attn"]
    assert "without: cse, inductor, sdpa:attn" in thunder(*explain).out


REFUSED = {
    "induktor": ("TH0202", "did you mean inductor"),
    "inductor:": ("TH0201", "has no name"),
    "torch": ("TH0201", "torch runs the operations that no other executor claims"),
    "dce:layers.0": ("TH0201", "dce is a transform"),
    "inductor:layers.7": ("TH0202", "no module of this LlamaForCausalLM matches 'layers.7'"),
}


@pytest.mark.parametrize("text", REFUSED)
def test_parts_that_cannot_be_left_out_are_refused(thunder, here, llama, text):
    code, words = REFUSED[text]
    done = thunder("optimize", llama, "--without", text, "--quiet")
    assert_refused(done, here, 2, code, "")
    assert words in " ".join(done.err.split())
