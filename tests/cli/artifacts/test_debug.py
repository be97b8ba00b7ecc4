"""`thunder debug`: the first wrong line, the script that reproduces it, and the exit statuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from transformers import ViTConfig, ViTForImageClassification

from tests.cli.small import QUICK, assert_refused
from thunder_core.workflow.pipeline import debug

RECIPES = '''
from dataclasses import dataclass, replace

import torch

import thunder_core as thunder
from thunder_core.tracing.ir.tree import replace_leaves
from thunder_core.passes.recipe import Recipe, Transform

approximate = thunder.OperatorExecutor("approximate")


@approximate.implements(torch.nn.functional.silu)
def silu(input, inplace=False):
    return input * torch.sigmoid(input) * 1.0003


def larger(leaf):
    return leaf * 1.5 if type(leaf) is float and 0 < leaf < 1e-3 else leaf


def changed(bsym):
    return replace(bsym, args=replace_leaves(bsym.args, larger), subsymbols=tuple(map(changed, bsym.subsymbols)))


@dataclass(frozen=True)
class EnlargeEpsilon(Transform):
    """Makes small constants larger."""

    def __call__(self, trace):
        return trace.having(map(changed, trace.bound_symbols), made_by="enlarge epsilon")


class WrongExecutor(Recipe):
    """A recipe with an executor that is a little wrong."""

    executors = (approximate, "torch")


class WrongTransform(Recipe):
    """A recipe with a transform that changes constants."""

    executors = ("torch",)

    def setup_transforms(self):
        return (EnlargeEpsilon(),)
'''


@pytest.fixture
def recipes(here):
    """A file with wrong recipes."""
    file = here / "wrong.py"
    file.write_text(RECIPES)
    return file


def reproduced(folder):
    """Run a script that reproduces a fault; return its exit status and output."""
    script = [sys.executable, "-W", "ignore", str(folder / "reproduce.py")]
    done = subprocess.run(script, capture_output=True, text=True, check=False, env=os.environ.copy())
    assert done.stderr == ""
    return done.returncode, done.stdout


def test_nothing_is_found_in_a_model_that_is_right(thunder, llama):
    done = thunder("debug", llama, "--recipe", "default", "--seq", 8, "--nan")
    assert done.status == 0, done.err
    assert "no wrong line" in done.out
    assert "compared with eager; the largest error is" in done.out


def test_an_executor_is_named_by_line_and_module_and_its_fault_reproduced(thunder, here, llama, recipes):
    options = ("--recipe", f"{recipes}:WrongExecutor", "--seq", 8)
    done = thunder("debug", llama, *options, "--out", here / "found", "--json")
    assert done.status == 1, done.err
    assert done.json["schema"] == "thunder.debug/1"
    first = done.json["internal_check"]["faults"][0]
    assert (first["kind"], first["by"], first["trace"]) == ("executor", "approximate", "computation")
    assert first["module"].endswith("layers.0.mlp.act_fn")
    assert "silu" in first["line"]
    assert first["operations"] == ["torch.nn.functional.silu"]
    assert first["inputs"][0]["dtype"] == "float32"
    folder = here / "found" / "fault-0"
    assert json.loads((folder / "fault.json").read_bytes())["line"] == first["line"]
    status, printed = reproduced(folder)
    assert status == 1
    assert "the largest difference is" in printed
    told = thunder("debug", llama, *options)
    assert f"--without approximate:{first['module']}" in told.out
    assert thunder("debug", llama, *options, "--without", "approximate").status == 0


def test_a_transform_is_named_and_its_fault_reproduced(thunder, here, llama, recipes):
    done = thunder("debug", llama, "--recipe", f"{recipes}:WrongTransform", "--seq", 8, "--out", here / "found")
    assert done.status == 1, done.err
    assert "the transform enlarge epsilon changed the result" in done.out
    assert "input_layernorm" in done.out
    assert reproduced(here / "found")[0] == 1


def test_a_validation_that_fails_names_the_line_and_how_to_leave_it_out(thunder, here, llama, recipes):
    done = thunder("optimize", llama, "--recipe", f"{recipes}:WrongExecutor", "--out", here / "a", *QUICK)
    assert done.status == 4
    assert "the first wrong line is `" in done.err
    assert "--without approximate:model.layers.0.mlp.act_fn" in " ".join(done.err.split())
    assert not (here / "a").exists()


def test_an_artifact_is_compared_with_a_new_compilation(thunder, here, llama):
    made = thunder("optimize", llama, "--recipe", "default", "--no-benchmark", "--out", here / "a", *QUICK)
    assert made.status == 0, made.err
    done = thunder("debug", here / "a")
    assert done.status == 0, done.err
    assert "no wrong line" in done.out


@pytest.mark.parametrize(
    ("options", "code"),
    [
        (("--task", "generate", "--nan"), "TH0203"),
        (("--task", "generate", "--out", "folder"), "TH0203"),
        (("--dynamic", "sequence=2:8"), "TH02"),
        (("--dynamic", "seq=2:8", "--seq", "9"), "TH02"),
        (("--recipe", "hf-lama"), "TH0202"),
        (("--seq", "0"), "TH0203"),
    ],
)
def test_bad_input_is_refused(thunder, llama, options, code):
    done = thunder("debug", llama, *options)
    assert done.status == 2
    assert code[:4] in done.err


GENERATION = ("--task", "generate", "--prompt-length", 6, "--new-tokens", 4, "--batch", 2)


@pytest.mark.parametrize(
    "options",
    [
        ("--dynamic", "seq=2:16"),
        ("--dynamic", "batch=1:8", "--dynamic", "seq=2:16", "--batch", 3),
        ("--dynamic", "cache=0:20", "--dynamic", "seq=1:4"),
        ("--dynamic", "seq=2:16", "--recipe", "int8-weight-only"),
        GENERATION,
        (*GENERATION, "--recipe", "int8-weight-only"),
    ],
)
def test_right_program_of_ranges_and_of_generation_has_no_fault(thunder, llama, options):
    done = thunder("debug", llama, "--without", "inductor", *options, "--json")
    assert done.status == 0, done.out + done.err
    internal_check = done.json["internal_check"]
    assert internal_check["stages"]
    assert not internal_check["faults"]


@pytest.mark.parametrize("options", [("--dynamic", "seq=2:16"), GENERATION])
@pytest.mark.parametrize(("name", "kind"), [("WrongExecutor", "executor"), ("WrongTransform", "transform")])
def test_wrong_program_of_ranges_and_of_generation_is_named(thunder, llama, recipes, options, name, kind):
    done = thunder("debug", llama, "--recipe", f"{recipes}:{name}", *options, "--json")
    assert done.status == 1, done.err
    assert {fault["kind"] for fault in done.json["internal_check"]["faults"]} == {kind}


def test_an_existing_folder_is_kept(thunder, here, llama):
    (here / "there").mkdir()
    done = thunder("debug", llama, "--out", here / "there")
    assert done.status == 2
    assert "exists already" in done.err


EAGER = ("--without", "inductor", "--without", "packed-linear", "--without", "packed-attention", "--without", "sdpa")


def test_program_that_eager_pytorch_runs_is_reported_as_not_compared(thunder, llama):
    done = thunder("debug", llama, *EAGER, "--seq", 8, "--nan")
    assert done.status == 0, done.err
    assert "no line was compared, because eager PyTorch runs every line" in " ".join(done.out.split())
    assert "no line computes NaN or an infinity" in done.out
    assert "no line computes NaN" not in thunder("debug", llama, *EAGER, "--seq", 8).out


@pytest.mark.parametrize("error", [KeyboardInterrupt, ValueError("a bug"), OSError(28, "No space left on device")])
def test_folder_of_reproductions_is_complete_or_absent(thunder, here, llama, recipes, monkeypatch, error):
    original, folders = debug.write_reproduction, []

    def fail_at_the_second(folder, *args):
        folders.append(folder)
        if len(folders) == 2:
            raise error
        return original(folder, *args)

    monkeypatch.setattr(debug, "write_reproduction", fail_at_the_second)
    options = ("--recipe", f"{recipes}:WrongExecutor", "--seq", 8, "--out", here / "found")
    done = thunder("debug", llama, *options)
    assert done.status in (130, 70, 7), done.err
    assert len(folders) == 2
    assert {path.name for path in here.iterdir()} - {"__pycache__"} == {"wrong.py"}


def test_folder_that_cannot_be_created_is_refused(thunder, here, llama):
    done = thunder("debug", llama, "--out", "/proc/inner/found")
    assert_refused(done, here, 2, "TH0207", "cannot be written")


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    """A small model that reads images."""
    folder = tmp_path_factory.mktemp("models") / "vit"
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2, "num_hidden_layers": 1}
    ViTForImageClassification(ViTConfig(**sizes, image_size=16, patch_size=8)).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("command", ["optimize", "debug", "inspect-trace", "bench"])
def test_sequence_length_is_refused_for_a_model_without_tokens(thunder, here, vit, command):
    done = thunder(command, vit, "--seq", 3)
    assert_refused(done, here, 2, "TH0201", "--seq has no effect, because ViTForImageClassification reads no tokens")
