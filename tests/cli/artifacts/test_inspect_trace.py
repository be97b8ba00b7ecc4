"""`thunder inspect-trace` of an artifact and of a model."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
from pathlib import Path

import pytest
import torch

import thunder_core
from tests.processes import run_python
from thunder_core.workflow.artifact import write_artifact
from thunder_core.workflow.artifact.origin import Origin, TracedCalls
from thunder_core.workflow.models.inputs.inputs import example_inputs
from thunder_core.workflow.models.loading.load import load_model, rebuild_model
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def loaded() -> LoadedModel:
    return load_model(ModelRequest(sample=SAMPLES["llama"]))


@pytest.fixture(scope="module")
def artifact(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact for inference."""
    return artifact_of(loaded, tmp_path_factory.mktemp("artifacts") / "llama.thunder", grad=False)


@pytest.fixture(scope="module")
def training(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact for training, with a backward for all results and one for the first result alone."""
    return artifact_of(loaded, tmp_path_factory.mktemp("artifacts") / "training.thunder", grad=True)


@pytest.fixture(scope="module")
def fused(loaded: LoadedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An artifact for training, with regions."""
    folder = tmp_path_factory.mktemp("artifacts") / "fused.thunder"
    return artifact_of(loaded, folder, grad=True, executors=("inductor", "torch"))


def artifact_of(loaded: LoadedModel, folder: Path, *, grad: bool, executors: tuple[str, ...] = ("torch",)) -> Path:
    compiled = thunder_core.jit(loaded.model, executors=executors)
    example = example_inputs(loaded, batch=2, seq=8, seed=0)
    with torch.set_grad_enabled(grad):
        out = compiled(**example)
    if grad:
        keys = [tensor for layer in out.past_key_values.layers for tensor in (layer.keys, layer.values)]
        torch.autograd.backward([one.sum() for one in (out.logits, *keys)])
        compiled(**example).logits.sum().backward()
        loaded.model.zero_grad()
    return write_artifact(
        folder,
        compiled,
        Origin(source=loaded.source, fingerprint=loaded.fingerprint, recipe="default"),
        TracedCalls(example=example),
    )


def run_file(path: Path) -> subprocess.CompletedProcess[str]:
    python_path = os.pathsep.join(str(part) for part in (ROOT, ROOT / "executors", ROOT / "recipes"))
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": python_path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    return run_python(path.name, cwd=path.parent, env=environment)


def test_the_list_names_the_traces_and_stages(thunder, artifact):
    result = thunder("inspect-trace", artifact, "--list")
    assert result.status == 0
    assert "LlamaForCausalLM, program 0" in result.out
    assert re.search(r"computation +0 +trace ", result.out)
    for name in ("prologue", "epilogue", "drop dead code", "free after last use"):
        assert name in result.out


def test_the_list_as_data(thunder, artifact):
    stages = thunder("inspect-trace", artifact, "--list", "--json").json["stages"]
    assert [s["trace"] for s in stages if s["runs"]] == ["prologue", "computation", "epilogue"]
    assert all(s["seconds"] >= 0 and s["lines"] > 0 for s in stages)


def test_each_line_shows_types_source_line_and_module(thunder, artifact):
    out = thunder("inspect-trace", artifact).out
    assert "# ---- model.layers.0.self_attn.q_proj ----" in out
    assert "llama/modeling_llama.py:" in out
    assert "query_states = self.q_proj(hidden_states)" in out
    assert "# f32[2, 8, 64]" in out


def test_a_module_of_another_stage(thunder, artifact):
    out = thunder("inspect-trace", artifact, "--module", "layers.0.self_attn", "--stage", "trace").out
    assert "scaled_dot_product_attention(" in out
    assert "layers.1" not in out
    assert "mlp" not in out


def test_level_aten_shows_the_decomposed_operations(thunder, artifact):
    out = thunder("inspect-trace", artifact, "--level", "aten", "--module", "layers.0.mlp").out
    assert "torch.ops.aten.silu.default(" in out
    assert "torch.nn.functional" not in out


def test_grep_prints_line_numbers_and_source_lines(thunder, artifact):
    matches = thunder("inspect-trace", artifact, "--grep", r"functional\.silu", "--json").json["matches"]
    assert [m["module"] for m in matches] == ["model.layers.0.mlp.act_fn", "model.layers.1.mlp.act_fn"]
    assert all(m["number"] > 0 and "activations.py:" in m["source_line"] for m in matches)
    plain = thunder("inspect-trace", artifact, "--grep", r"functional\.silu", "--plain").out.splitlines()
    assert [line.split("\t")[1] for line in plain] == [m["module"] for m in matches]


def test_grep_without_a_match(thunder, artifact):
    result = thunder("inspect-trace", artifact, "--grep", "conv2d")
    assert (result.status, result.out) == (1, "")
    assert "no line of computation, stage" in result.err


def test_grep_names_the_earlier_stage_that_matches(thunder, artifact):
    dropped = thunder("inspect-trace", artifact, "--diff", "1", "2", "--plain").out
    (text,) = re.findall(r"^-    (t\d+) = ", dropped, re.MULTILINE)[:1]
    result = thunder("inspect-trace", artifact, "--grep", rf"^{text} = ", "--json")
    assert (result.status, result.json["matches"]) == (1, [])
    assert "lines of stage 1: share common expressions match: --stage 1" in result.err


# ---- regions --------------------------------------------------------------------------------------------------


def test_grep_looks_into_regions(thunder, fused):
    found = thunder("inspect-trace", fused, "--grep", r"functional\.linear", "--json").json["matches"]
    alone = thunder("inspect-trace", fused, "--grep", r"functional\.linear", "--stage", "trace", "--json").json[
        "matches"
    ]
    assert sorted(m["text"] for m in found) == sorted(m["text"] for m in alone)
    assert {m["module"] for m in found} == {m["module"] for m in alone}
    held = [m for m in found if m["outer"]]
    assert held
    lines = thunder("inspect-trace", fused, "--json").json["lines"]
    for match in held:
        region = re.match(r"(region_\d+) of inductor, line (\d+)$", match["outer"])
        assert f"{region[1]}(" in lines[int(region[2]) - 1]["text"]
        assert int(region[2]) == match["number"]
        assert match["source_line"]
        own = thunder("inspect-trace", fused, "--stage", match["stage"].partition(":")[0], "--plain").out
        assert match["text"] in own
    text = thunder("inspect-trace", fused, "--grep", r"functional\.linear").out
    assert re.search(r"in region_\d+ of inductor, line \d+; a separate call in stage \d: ", text)
    plain = thunder("inspect-trace", fused, "--grep", r"functional\.linear", "--plain").out.splitlines()
    assert sum("\tin region_" in line for line in plain) == len(held)


def test_grep_looks_into_the_aten_operations_of_regions(thunder, fused):
    found = thunder("inspect-trace", fused, "--grep", r"aten\.mm|aten\.addmm", "--level", "aten", "--json").json[
        "matches"
    ]
    assert any(m["outer"] and m["module"].endswith("proj") for m in found)


def test_grep_looks_into_the_regions_of_a_backward(thunder, fused):
    found = thunder("inspect-trace", fused, "-t", "backward", "--grep", "silu_backward", "--json").json["matches"]
    assert any(m["outer"] and m["module"].endswith("act_fn") for m in found)


@pytest.mark.parametrize("module", ["layers.1.self_attn", "o_proj"])
def test_a_module_is_found_in_regions(thunder, fused, module):
    shown = thunder("inspect-trace", fused, "--module", module)
    assert shown.status == 0, shown.err
    assert re.search(
        r"# \d+ lines? in region_\d+ of inductor, line \d+; (separate calls|a separate call) in stage", shown.out
    )
    (claim,) = {int(number) for number in re.findall(r"stage (\d): ", shown.out.partition("import")[0])[1:]}
    before = thunder("inspect-trace", fused, "--module", module, "--stage", claim, "--json").json["lines"]
    whole = thunder("inspect-trace", fused, "--module", module, "--json").json["lines"]
    held = [part for line in whole for part in (line, *line["parts"])]
    assert {line["text"] for line in before} <= {line["text"] for line in held}


@pytest.mark.parametrize("module", ["layers.1.mlp", "layers.0.input_layernorm"])
def test_the_function_of_a_module_in_regions_equals_the_module(thunder, fused, loaded, here, module):
    assert thunder("inspect-trace", fused, "--module", module, "-o", "part.py").status == 0
    spec = importlib.util.spec_from_file_location("part", here / "part.py")
    part = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(part)
    inputs = thunder("inspect-trace", fused, "--module", module, "--json").json["inputs"]
    x = torch.randn(2, 8, 64)
    given = [eval(v["origin"], {"module": loaded.model}) if v["origin"] else x for v in inputs]
    with torch.no_grad():
        torch.testing.assert_close(part.computation(*given)[-1], loaded.model.get_submodule(f"model.{module}")(x))


def test_an_unknown_module_of_a_fused_program_names_those_in_regions(thunder, fused):
    result = thunder("inspect-trace", fused, "--module", "layers.0.mpl")
    assert result.status == 2
    assert "layers.0.mlp" in result.err


def test_diff_of_two_stages(thunder, artifact):
    out = thunder("inspect-trace", artifact, "--diff", "claim-by-torch", "free-after-last-use").out
    assert out.startswith("--- computation, stage 3: claim by torch\n+++ computation, stage 4: free after last use\n")
    assert "\n+    del " in out
    assert "\n-    " not in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["--trace", "backward"], "TH0212", "no compiled backward: autograd was off when it was traced"),
        (
            ["--trace", "tail"],
            "TH0212",
            "no tail trace, because the program has no compiled backward: autograd was off",
        ),
        (["--stage", "fuse"], "TH0212", "no stage 'fuse'"),
        (["--module", "layers.9"], "TH0212", "layers.9"),
        (["--program", "3"], "TH0212", "no program 3"),
        (["--grep", "("], "TH0201", "regular expression"),
        (["--diff", "0", "1", "--grep", "x"], "TH0201", "--diff compares whole stages"),
        (["--recipe", "hf-llama"], "TH0201", "--recipe needs a model, but"),
        (["--train"], "TH0201", "--train needs a model, but"),
        (["--trace", "middle"], "TH0201", "middle"),
    ],
)
def test_missing_parts_and_conflicting_options_are_usage_errors(thunder, artifact, arguments, code, message):
    result = thunder("inspect-trace", artifact, *arguments, "--json")
    assert result.status == 2
    assert result.json["error"]["code"] == code
    assert message in result.json["error"]["what"]


def test_a_damaged_artifact_is_rejected(thunder, artifact, tmp_path):
    import shutil

    copy = Path(shutil.copytree(artifact, tmp_path / "copy.thunder"))
    path = next(copy.rglob("computation-04-*.py"))
    path.write_text(path.read_text().replace("+", "-"))
    result = thunder("inspect-trace", copy)
    assert result.status == 6
    assert "TH0602" in result.err


def test_a_file_that_cannot_be_written(thunder, artifact):
    result = thunder("inspect-trace", artifact, "--output", "no/such/folder.py")
    assert result.status == 2
    assert "TH0207" in result.err


def test_the_plain_computation_runs_by_itself_and_gives_the_models_output(thunder, artifact, here):
    assert thunder("inspect-trace", artifact, "--plain", "--output", "computation.py").status == 0
    done = run_file(here / "computation.py")
    assert done.returncode == 0, done.stderr
    again = rebuild_model(load_model(ModelRequest(sample=SAMPLES["llama"])).source)
    with torch.no_grad():
        logits = again.model(**example_inputs(again, batch=2, seq=8, seed=0)).logits
    first = ", ".join(f"{value:.6g}" for value in logits.flatten()[:4].tolist())
    told = f"torch.float32 {list(logits.shape)}, sum {logits.sum().item():.6g}, first {first}"
    assert told in done.stdout


@pytest.mark.parametrize("level", ["torch", "aten"])
def test_the_plain_computation_can_be_imported_and_fed(thunder, artifact, here, loaded, level):
    thunder("inspect-trace", artifact, "--level", level, "--output", "imported.py")
    spec = importlib.util.spec_from_file_location("imported", here / "imported.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    kwargs = example_inputs(loaded, batch=2, seq=8, seed=0)
    listing = thunder("inspect-trace", artifact, "--json").json
    given = [eval(v["origin"], {"module": loaded.model, "kwargs": kwargs}) for v in listing["inputs"]]
    with torch.no_grad():
        outputs = module.computation(*given)
        expected = loaded.model(**kwargs).logits
    torch.testing.assert_close(
        outputs[0], expected, rtol=0 if level == "torch" else 1e-5, atol=1e-5 * (level == "aten")
    )


@pytest.mark.parametrize(
    ("trace", "output"), [("prologue", "every guard holds"), ("epilogue", "CausalLMOutputWithPast")]
)
def test_the_plain_prologue_and_epilogue_run_by_themselves(thunder, artifact, here, trace, output):
    thunder("inspect-trace", artifact, "--trace", trace, "--output", f"{trace}.py")
    done = run_file(here / f"{trace}.py")
    assert done.returncode == 0, done.stderr
    assert output in done.stdout


def test_a_model_is_traced_for_the_purpose_and_its_plain_form_runs(thunder, loaded, here):
    loaded.model.save_pretrained(here / "llama")
    result = thunder("inspect-trace", "llama", "--recipe", "hf-llama", "--seq", "8", "--plain", "-o", "model.py")
    assert result.status == 0, result.err
    done = run_file(here / "model.py")
    assert done.returncode == 0, done.stderr
    assert "torch.float32 [1, 8, 512]" in done.stdout
    assert sorted(path.name for path in here.iterdir()) == ["llama", "model.py"]


def test_an_unknown_model_is_refused(thunder):
    result = thunder("inspect-trace", "no/such/folder/here")
    assert result.status == 2
    assert "TH0204" in result.err


@pytest.mark.usefixtures("without_kernels")
def test_a_model_is_traced_for_training_on_request(thunder, loaded, here):
    loaded.model.save_pretrained(here / "llama")
    given = ("inspect-trace", "llama", "--recipe", "hf-llama", "--seq", "8", "--train")
    backward = thunder(*given, "--trace", "backward", "--plain")
    assert backward.status == 0, backward.err
    assert "# ---- backward of model.layers." in backward.out
    assert re.search(r"# of t\d+ = torch\.nn\.functional\.silu\(t\d+", backward.out)
    assert "a backward takes values from the computation" in backward.out
    assert thunder(*given, "--trace", "prologue", "--output", "prologue.py").status == 0
    done = run_file(here / "prologue.py")
    assert "every guard holds" in done.stdout, done.stderr


# ---- training -------------------------------------------------------------------------------------------------


def test_each_line_of_a_backward_names_its_forward_operation(thunder, training):
    out = thunder("inspect-trace", training, "--trace", "backward").out
    assert "# ---- backward of model.layers.0.mlp.act_fn ----" in out
    assert re.search(r"# of t\d+ = torch\.nn\.functional\.silu\(t\d+", out)
    assert "activations.py:" in out
    assert "gradient of model_layers_0_mlp_up_proj_weight" in out
    silu = thunder("inspect-trace", training, "-t", "backward", "--grep", r"functional\.silu", "--json").json["matches"]
    assert {match["module"] for match in silu} == {"model.layers.0.mlp.act_fn", "model.layers.1.mlp.act_fn"}
    assert any("silu_backward" in match["text"] for match in silu)


def test_backwards_for_some_results_say_for_which(thunder, training):
    stages = thunder("inspect-trace", training, "--list", "--json").json["stages"]
    runs = [stage for stage in stages if stage["trace"] == "backward" and stage["runs"]]
    assert [all(stage["has_cotangent"]) for stage in runs] == [True, False]
    assert "free after last use, for result 0 of 5" in thunder("inspect-trace", training, "--list").out


def test_the_plain_backward_gives_eagers_gradients(thunder, training, loaded, here):
    thunder("inspect-trace", training, "--trace", "backward", "-o", "backward.py")
    done = run_file(here / "backward.py")
    assert done.returncode == 0, done.stderr
    loaded.model(**example_inputs(loaded, batch=2, seq=8, seed=0)).logits.sum().backward()
    weight = loaded.model.model.layers[0].mlp.up_proj.weight
    (told,) = re.findall(r"gradient of model_layers_0_mlp_up_proj_weight: .* first (.*)", done.stdout)
    torch.testing.assert_close(torch.tensor([float(number) for number in told.split(", ")]), weight.grad.flatten()[:4])
    loaded.model.zero_grad()


@pytest.mark.parametrize(
    ("trace", "output"),
    [
        ("prologue", "every guard holds"),
        ("computation", "torch.float32 [2, 8, 512]"),
        ("epilogue", "CausalLMOutputWithPast"),
    ],
)
def test_the_plain_form_of_each_trace_of_training_runs(thunder, training, here, trace, output):
    thunder("inspect-trace", training, "--trace", trace, "--output", f"{trace}.py")
    done = run_file(here / f"{trace}.py")
    assert done.returncode == 0, done.stderr
    assert output in done.stdout


@pytest.mark.parametrize(
    ("trace", "stage", "level"),
    [
        ("computation", "free", "torch"),
        ("computation", "claim", "torch"),
        ("backward", "free", "torch"),
        ("backward", "free", "aten"),
    ],
)
def test_regions_in_a_plain_file_equal_eager(thunder, fused, loaded, here, trace, stage, level):
    stages = thunder("inspect-trace", fused, "--list", "--json").json["stages"]
    *_, number = (
        kept_stage["number"]
        for kept_stage in stages
        if kept_stage["trace"] == trace and kept_stage["name"].startswith(stage)
    )
    done = thunder("inspect-trace", fused, "-t", trace, "--stage", number, "--level", level, "-o", "fused.py")
    assert done.status == 0, done.err
    ran = run_file(here / "fused.py")
    assert ran.returncode == 0, ran.stderr
    logits = loaded.model(**example_inputs(loaded, batch=2, seq=8, seed=0)).logits
    logits.sum().backward()
    gradient = loaded.model.model.layers[0].mlp.up_proj.weight.grad
    expected, name = (logits, r"t\d+") if trace == "computation" else (gradient, r".*layers_0_mlp_up_proj_weight")
    told = re.findall(rf"^{name}: .* first (.*)", ran.stdout, re.M)[0]
    found = torch.tensor([float(one) for one in told.split(", ")])
    torch.testing.assert_close(found, expected.detach().flatten()[:4], rtol=1e-3, atol=1e-4)
    loaded.model.zero_grad()
