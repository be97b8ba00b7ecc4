"""Checks of the command line on several ranks, run on each rank: it prints on the first one, which writes."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor
from transformers import LlamaConfig, LlamaForCausalLM

import thunder_core as thunder
from tests.distributed.recipes.saved import shared_folder
from thunder_cli.main import main
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.pipeline.ranks.rank import Rank, RankResult

DOCUMENTATION = Path(__file__).parents[3] / "docs" / "distributed.md"
QUICK = (
    "--random-weights",
    "--without",
    "inductor",
    "--seq",
    "8",
    "--runs",
    "2",
    "--warmup",
    "1",
    "--validate-inputs",
    "1",
)


@contextmanager
def launched() -> Iterator[None]:
    """The environment variables that torchrun sets."""
    facts = {"RANK": dist.get_rank(), "WORLD_SIZE": dist.get_world_size(), "LOCAL_RANK": dist.get_rank()}
    named = {name: str(value) for name, value in facts.items()}
    with mock.patch.dict(os.environ, {**named, "MASTER_ADDR": "localhost", "MASTER_PORT": "0"}):
        yield


def run(*arguments: str) -> tuple[int, str, str]:
    """The exit status, stdout and stderr of a command on this rank."""
    with launched(), redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as err:
        status = main(arguments)
    return status, out.getvalue(), err.getvalue()


def small_model(parent: Path) -> str:
    """The folder of a Llama of one layer, of which there is a config alone."""
    folder = parent / "model"
    if dist.get_rank() == 0:
        sizes = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 1, "vocab_size": 31}
        heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
        LlamaConfig(**sizes, **heads, architectures=["LlamaForCausalLM"]).save_pretrained(folder)
    dist.barrier()
    return str(folder)


def documented(recipe: str) -> list[str]:
    """The options of the command in docs/distributed.md, with another recipe instead of `fsdp`."""
    command = next(line for line in DOCUMENTATION.read_text().splitlines() if line.lstrip().startswith("torchrun"))
    _, options = command.split(" thunder_cli.main optimize ")
    return shlex.split(options.partition(" --out")[0].replace("fsdp", recipe))


def optimized(recipe: str, *options: str) -> tuple[Path, str, str]:
    """The artifact of a small model, and the output of this rank."""
    folder = shared_folder()
    chosen = (*documented(recipe), "--out", str(folder), *QUICK)
    status, out, err = run("optimize", small_model(folder.parent), *chosen, *options)
    assert status == 0, err
    dist.barrier()
    return folder, out, err


KINDS_OF_COLLECTIVES = {
    "ddp": {"broadcast", "all_reduce"},
    "fsdp": {"all_gather_into_tensor_coalesced", "reduce_scatter_tensor"},
    "tensor-parallel": {"all_reduce"},
}


def require_timeline(report: dict[str, Any], kinds: set[str]) -> None:
    """Require that the report has the times of the same collectives, of these kinds, on both ranks."""
    first, second = report["ranks"]
    assert (first["rank"], second["rank"]) == (0, 1)
    lines = [
        [(one["kind"], one["bytes"], one["trace"], one["line"]) for one in rank["collectives"]]
        for rank in report["ranks"]
    ]
    assert lines[0] == lines[1]
    assert {kind for kind, *_ in lines[0]} == kinds
    assert all(one["start"] <= one["wait"] <= one["end"] for rank in report["ranks"] for one in rank["collectives"])
    assert first["traces"][0]["name"] == "computation"


# Whether gradients are DTensors: all, none, or only those of divided layers.
KINDS_OF_GRADIENTS = {"ddp": {False}, "fsdp": {True}, "tensor-parallel": {True, False}}


def optimizes(recipe: str, contender: str) -> None:
    folder, out, err = optimized(recipe, "--json")
    if dist.get_rank() > 0:
        assert out == err == ""
    else:
        report = json.loads(out)["report"]
        assert report["validation"]["passed"]
        assert sum(one["name"].endswith(".grad") for one in report["validation"]["outputs"]) == 12
        assert [one["name"] for one in report["benchmark"]["candidates"]] == [contender, "thunder"]
        assert report["benchmark"]["configuration"]["ranks"] == "2"
        require_timeline(report, KINDS_OF_COLLECTIVES[recipe])
        assert err.count("Plan") == 1
        assert "2 processes with gloo" in err
        assert ("all with the same inputs" in err) == (recipe == "tensor-parallel")
    assert open_artifact(folder).manifest.group.size == 2
    loaded = thunder.load(folder, strict=True)
    tokens = torch.arange(8)[None] + (0 if recipe == "tensor-parallel" else dist.get_rank())
    loaded(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens.clone()).loss.backward()
    kinds = {isinstance(parameter.grad, DTensor) for parameter in loaded.parameters()}
    assert kinds == KINDS_OF_GRADIENTS[recipe]


def generates(recipe: str) -> None:
    """The documented command, with another recipe instead of `hf-llama3`; all ranks generate with the artifact."""
    folder = shared_folder()
    command = next(line for line in DOCUMENTATION.read_text().splitlines() if line.endswith("--task generate"))
    options = shlex.split(command.partition(" MODEL ")[2].replace("hf-llama3", recipe))
    sizes = ("--batch", "1", "--prompt-length", "5", "--new-tokens", "3", "--runs", "2", "--warmup", "0")
    tuned = ("--tune", "0.5s") if recipe == "hf-llama3" else ()  # by times that both ranks measure
    chosen = (*options, "--out", str(folder), "--random-weights", "--without", "inductor", *sizes, *tuned)
    status, out, err = run("optimize", small_model(folder.parent), *chosen, "--json")
    assert status == 0, err
    if dist.get_rank() > 0:
        assert out == err == ""
    else:
        report = json.loads(out)["report"]
        generation = report["generation"]
        assert generation["passed"]
        assert all(prompt["equal"] == prompt["tokens"] for prompt in generation["prompts"])
        require_timeline(report, {"all_reduce"})
        for benchmark in report["generation_benchmarks"]:
            assert [one["name"] for one in benchmark["candidates"]] == ["parallelize_module", "thunder"]
            assert [one["equal"] for one in benchmark["texts"]] == [1.0, 1.0]
        assert err.count("Plan") == 1
        assert "all with the same inputs; compared with generation in one process" in " ".join(err.split())
    dist.barrier()
    loaded = thunder.load(folder, strict=True)
    layer = loaded.model.layers[0].self_attn.k_proj
    assert layer.weight.to_local().shape == (4, 16)
    prompt = torch.arange(5)[None]
    sizes = {"attention_mask": torch.ones_like(prompt), "max_new_tokens": 3, "do_sample": False}
    assert torch.equal(loaded.generate(prompt, **sizes), in_one_process(loaded).generate(prompt, **sizes))


def in_one_process(divided: Any) -> LlamaForCausalLM:
    """The model with the full weights of a divided model."""
    whole = LlamaForCausalLM(divided.config).eval()
    state = divided.state_dict().items()
    whole.load_state_dict({name: one.full_tensor() if isinstance(one, DTensor) else one for name, one in state})
    return whole


AXES = {
    "fsdp ddp": ("FSDP2", ("--mesh", "replicate=2", "--mesh", "shard=2"), "each with inputs of its own", 4),
    "fsdp tensor-parallel": (
        "FSDP2 + parallelize_module",
        ("--mesh", "dp=2", "--mesh", "tp=2"),
        "with 2 inputs, each for 2 ranks",
        2,
    ),
    "ddp tensor-parallel": (
        "DDP + parallelize_module",
        ("--mesh", "dp=2", "--mesh", "tp=2"),
        "with 2 inputs, each for 2 ranks",
        2,
    ),
}


def optimizes_on_a_mesh(recipes: str) -> None:
    """Four ranks optimize with two recipes, and each loads the artifact."""
    contender, axes, inputs, parts = AXES[recipes]
    first, second = recipes.split()
    folder, out, err = optimized(first, "--recipe", second, *axes, "--json")
    if dist.get_rank() == 0:
        report = json.loads(out)["report"]
        assert report["validation"]["passed"]
        assert sum(one["name"].endswith(".grad") for one in report["validation"]["outputs"]) == 12
        assert [one["name"] for one in report["benchmark"]["candidates"]] == [contender, "thunder"]
        assert inputs in " ".join(err.split())
    manifest = open_artifact(folder).manifest
    assert len(manifest.programs) == 1
    names = {facts.axis for facts in (manifest.group, *manifest.more_groups)}
    assert names == {axis.partition("=")[0] for axis in axes if "=" in axis}
    loaded = thunder.load(folder, strict=True)
    tokens = torch.arange(8)[None] + dist.get_rank() * parts // 4
    loaded(input_ids=tokens, attention_mask=torch.ones_like(tokens), labels=tokens.clone()).loss.backward()
    kinds = {isinstance(parameter.grad, DTensor) for parameter in loaded.parameters()}
    assert kinds == ({True} if first == "fsdp" else {True, False})


def plans_on_the_first_rank() -> None:
    status, out, err = run("optimize", "--recipe", "fsdp", "--train", "--dry-run")
    assert status == 0
    assert ("ranks" in out) == (dist.get_rank() == 0)
    assert err == "" or dist.get_rank() == 0


REFUSED = {
    ("--recipe", "hf-llama3", "--train"): "the recipe hf-llama3 is for one process",
    ("--recipe", "fsdp"): "--train is missing",
    ("--recipe", "ddp"): "--train is missing",
    ("--recipe", "tensor-parallel", "--cache", "4"): "tensor-parallel and --cache exclude each other",
    ("--recipe", "tensor-parallel", "--recipe", "int4-weight-only", "--calibrate", "1"): "--calibrate exclude each",
    ("--recipe", "fsdp", "--recipe", "ddp", "--train"): "the mesh has 0 axes, but the recipe ddp + fsdp needs an axis",
    ("--recipe", "fsdp", "--recipe", "tensor-parallel", "--train"): "--mesh shard=2 --mesh tp=2",
    ("--recipe", "fsdp", "--mesh", "a=2", "--mesh", "b=2", "--train"): "the mesh has 2 axes, but the recipe fsdp needs",
    ("--recipe", "fsdp", "--mesh", "a=3", "--train"): "the mesh a=3 has 3 ranks, but 2 processes run this command",
    ("--recipe", "fsdp", "--mesh", "a=1", "--train"): "--mesh a=1 has fewer than 2 ranks",
    ("--recipe", "fsdp", "--mesh", "a-b=2", "--train"): "which is not an identifier",
    ("--recipe", "fsdp", "--mesh", "a=x", "--train"): "--mesh a=x is not a number of ranks",
    ("--recipe", "hf-llama3", "--mesh", "a=2", "--train"): "--mesh is set, but no recipe is for several ranks",
    ("--recipe", "fsdp", "--task", "generate"): "the recipe fsdp and --task generate exclude each other",
    (
        *("--recipe", "ddp", "--recipe", "tensor-parallel", "--mesh", "dp=2", "--mesh", "tp=2"),
        *("--task", "generate"),
    ): "the recipe ddp and --task generate exclude each other",
    ("--recipe", "tensor-parallel", "--task", "generate", "--target", "sm_90"): "--target exclude each other",
    ("--recipe", "ddp", "--train", "--dynamic", "batch=1:4"): "--dynamic exclude each other",
    ("--recipe", "ddp", "--train", "--include-weights"): "--include-weights exclude each other",
}


def refuses_what_ranks_cannot_do() -> None:
    for options, text in REFUSED.items():
        status, out, err = run("optimize", *options, "--dry-run", "--json")
        assert status == 2
        if dist.get_rank() == 0:
            assert text in " ".join(out.split())
        else:
            assert out == ""
            assert err.startswith("error TH02")
            assert err.count("\n") == 1


def finds_gradients_that_were_not_reduced() -> None:
    """Validation fails where a rank keeps its own gradients."""
    folder = shared_folder()

    original: Any = Rank.observe

    def observed(self: Any, *args: Any) -> RankResult:
        with self.compiled.no_sync():
            result: RankResult = original(self, *args)
            return result

    with mock.patch.object(Rank, "observe", observed):
        chosen = ("--recipe", "ddp", "--train", "--out", str(folder), *QUICK)
        status, _, err = run("optimize", small_model(folder.parent), *chosen)
    assert status != 0
    assert "weight.grad" in err
    assert ("TH0703 rank 0 failed" in err) == (dist.get_rank() > 0) == (err.count("\n") == 1)
    assert not folder.exists()
