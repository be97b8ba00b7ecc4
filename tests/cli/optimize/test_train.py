"""`--train`: training steps are optimized, validated, measured, inspected, and run by another process."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.small import QUICK, assert_refused, own_model
from tests.processes import run_python
from thunder_core.foundation.errors import WrongInputs
from thunder_core.passes.autodiff.autograd_node import Bridge
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.artifact.loading import load, rebuilt_model
from thunder_core.workflow.artifact.replay import example_of
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline import bench
from thunder_core.workflow.pipeline.request import bench_request

ROOT = Path(__file__).parents[3]
PARAMETERS = 21  # of the small Llama


@pytest.fixture(scope="module")
def made(llama, tmp_path_factory):
    """The artifact of a training step."""
    from thunder_cli.main import main

    out = tmp_path_factory.mktemp("made") / "step"
    assert main([*map(str, ("optimize", llama, "-r", "hf-llama", "--train", *QUICK, "-q", "--out", out))]) == 0
    return out


@pytest.fixture
def step(made, here):
    return shutil.copytree(made, here / "step")


def test_optimize_writes_and_reports_a_training_step(thunder, here, llama):
    done = thunder("optimize", llama, "--recipe", "hf-llama", "--train", *QUICK)
    assert done.status == 0, done.err
    assert [path.name for path in here.iterdir()] == ["small-llama-hf-llama-train.thunder"]
    for words in ("loss", "logits", ".weight.grad", "2 interleaved training steps", "in the backward", "backward time"):
        assert words in done.out
    assert "saved for the backward" in done.out
    assert "with labels" in done.err
    assert "forward, loss and backward" in done.err


def test_the_report_shows_forward_and_backward(made):
    report = json.loads((made / "report.json").read_text())
    assert report["train"] is True
    names = [output["name"] for output in report["validation"]["outputs"]]
    assert names[:2] == ["loss", "logits"]
    assert len(names) == 2 + PARAMETERS  # without keys and values for later tokens
    assert sum(name.endswith(".grad") for name in names) == PARAMETERS
    assert report["validation"]["passed"] is True
    assert report["benchmark"]["configuration"]["call"] == "training step"
    shares = [share[part] for share in report["executors"] for part in ("time_share", "backward_share")]
    assert sum(share for share in shares if share) == pytest.approx(1.0)
    assert all(share["backward_share"] for share in report["executors"] if share["backward"])
    assert {point["trace"] for point in report["memory"]} == {"computation", "backward"}
    assert report["saved_bytes"] > 0
    page = (made / "report.html").read_text()
    for words in ("Training step", "Time per training step", "operations of the backward", "21 gradients"):
        assert words in page
    assert "the forward saves" in (made / "report.md").read_text()


SOUND = {
    "hidden_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "num_labels": 3,
    "conv_dim": [16] * 4,
    "conv_stride": [5, 4, 4, 4],
    "conv_kernel": [10, 4, 4, 4],
    "layerdrop": 0.3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
    "vocab_size": 32,
}


def test_frames_of_sound_are_trained_with_masks_that_numpy_draws(thunder, here, tmp_path_factory):
    sample = SampleModel("Wav2Vec2ForAudioFrameClassification", SOUND)
    folder = tmp_path_factory.mktemp("frames")
    loaded = load_model(ModelRequest(sample=sample))
    assert loaded.config.apply_spec_augment and loaded.config.mask_time_prob > 0
    loaded.model.save_pretrained(folder)
    made = thunder(
        "optimize", folder, "--train", "--no-benchmark", "--batch", 2, "--without", "inductor", "--out", "step"
    )
    assert made.status == 0, made.err
    report = json.loads((here / "step" / "report.json").read_text())
    assert [output["name"] for output in report["validation"]["outputs"]][:2] == ["loss", "logits"]


def test_speech_recognition_is_trained_with_its_check_of_labels(thunder, here, tmp_path_factory):
    sample = SampleModel("Wav2Vec2ForCTC", {**SOUND, "pad_token_id": 0, "ctc_zero_infinity": True})
    folder = tmp_path_factory.mktemp("speech")
    load_model(ModelRequest(sample=sample)).model.save_pretrained(folder)
    made = thunder(
        "optimize", folder, "--train", "--no-benchmark", "--batch", 2, "--without", "inductor", "--out", "step"
    )
    assert made.status == 0, made.err
    report = json.loads((here / "step" / "report.json").read_text())
    assert [output["name"] for output in report["validation"]["outputs"]][:2] == ["loss", "logits"]


def test_a_detector_is_trained_with_its_matching(thunder, here, tmp_path_factory):
    config = {**SAMPLES["vit"].config, "image_size": [32, 32], "num_detection_tokens": 4}
    folder = tmp_path_factory.mktemp("objects")
    load_model(ModelRequest(sample=SampleModel("YolosForObjectDetection", config))).model.save_pretrained(folder)
    made = thunder("optimize", folder, "--train", "--no-benchmark", "--without", "inductor", "--out", "step")
    assert made.status == 0, made.err
    report = json.loads((here / "step" / "report.json").read_text())
    assert report["validation"]["reference_dtype"] == "float64"
    trained = run_python("-c", MATCHES_ELSEWHERE, cwd=here)
    assert trained.returncode == 0, trained.stderr


MATCHES_ELSEWHERE = """
import sys
import torch
import thunder_core as thunder
from thunder_core.workflow.artifact.loading import rebuilt_model
from thunder_core.workflow.artifact.format.read import open_artifact
from pathlib import Path

fast, eager = thunder.load("step", strict=True), rebuilt_model(open_artifact(Path("step")))
for seed in range(4):
    torch.manual_seed(seed)
    objects = {"class_labels": torch.randint(0, eager.config.num_labels, (2,)), "boxes": torch.rand(2, 4) / 2 + 0.1}
    batch = {"pixel_values": torch.rand(1, eager.config.num_channels, 32, 32), "labels": [objects]}
    losses = []
    for model in (fast, eager):
        torch.manual_seed(seed)
        model.zero_grad()
        losses.append(model(**batch).loss)
        losses[-1].backward()
    torch.testing.assert_close(losses[0], losses[1])
    for (name, ours), theirs in zip(fast.named_parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-3, atol=1e-5, msg=name)
assert "thunder_core.frontend.acquire.lookasides" not in sys.modules
"""


TRAINS_ELSEWHERE = """
import torch
import thunder_core as thunder
import thunder_core.compilation.compiler
from thunder_core.workflow.artifact.replay import example_of
from thunder_core.workflow.artifact.format.read import open_artifact
from pathlib import Path

thunder_core.compilation.compiler.acquire = None  # nothing is traced here
fast = thunder.load("step", strict=True)
batch = example_of("step")
assert fast.training and "labels" in batch
fast(**batch).loss.backward()
ours = {name: one.grad.clone() for name, one in fast.named_parameters()}
fast.zero_grad()
from thunder_core.workflow.artifact.loading import rebuilt_model
eager = rebuilt_model(open_artifact(Path("step")))
eager(**batch).loss.backward()
for name, one in eager.named_parameters():
    torch.testing.assert_close(ours[name], one.grad, rtol=1e-4, atol=1e-7)
optimizer = torch.optim.SGD(fast.parameters(), lr=0.5)
losses = []
for _ in range(5):
    loss = fast(**batch).loss
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
assert losses[-1] < losses[0], losses
print("trained")
"""


def test_another_process_trains_with_the_artifact_without_tracing(step, here):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python("-c", TRAINS_ELSEWHERE, cwd=here, env=environment)
    assert (done.stdout, done.returncode) == ("trained\n", 0), done.stderr


def test_a_model_of_the_user_has_to_be_in_the_same_state(step):
    artifact = open_artifact(step)
    model = rebuilt_model(artifact)
    model.config.use_cache = True
    inputs = example_of(step)
    with pytest.raises(WrongInputs, match="use_cache"):
        load(step, model, strict=True)(**inputs)
    model.config.use_cache = False
    with pytest.raises(WrongInputs, match="training"):
        load(step, model.eval(), strict=True)(**inputs)
    load(step, model.train(), strict=True)(**inputs).loss.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())


def test_saved_training_step_is_validated_with_its_backward(thunder, step, monkeypatch):
    monkeypatch.setattr(
        "thunder_core.compilation.compiler.compiler.acquire", lambda *_, **__: pytest.fail("it was traced")
    )
    done = thunder("validate", step, "--validate-inputs", 1, "--seed", 5)
    assert done.status == 0, done.err
    assert ".grad" in done.out
    whole = Bridge.gradients

    def twice(self, *arguments):
        return [None if gradient is None else 2 * gradient for gradient in whole(self, *arguments)]

    monkeypatch.setattr(Bridge, "gradients", twice)
    done = thunder("validate", step, "--validate-inputs", 1, "--quiet", "--json")
    assert (done.status, done.json["error"]["code"]) == (4, "TH0401")
    failed = [output["name"] for output in done.json["error"]["report"]["outputs"] if not output["passed"]]
    assert len(failed) == PARAMETERS
    assert all(name.endswith(".grad") for name in failed)


@pytest.mark.usefixtures("without_kernels")
def test_a_wrong_backward_is_not_published(thunder, here, llama, monkeypatch):
    whole = Bridge.gradients

    def lost(self, *arguments):
        found = list(whole(self, *arguments))
        return [*found[:-1], None]

    monkeypatch.setattr(Bridge, "gradients", lost)
    done = thunder("optimize", llama, "-r", "hf-llama", "--train", "--out", "result", *QUICK, "--quiet")
    assert_refused(done, here, 4, "TH0402", ".grad` is None in the optimized model and a tensor of float32")


def test_backward_of_a_training_step_can_be_inspected(thunder, step, here):
    listed = thunder("inspect-trace", step, "--list")
    assert "for training" in listed.out
    assert thunder("inspect-trace", step, "--list", "--json").json["train"] is True
    assert "# ---- backward of" in thunder("inspect-trace", step, "-t", "backward", "--stage", "0", "--plain").out
    assert thunder("inspect-trace", step, "-t", "backward", "--output", "backward.py").status == 0
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = run_python("backward.py", cwd=here, env=environment)
    assert done.stdout.count("gradient of ") == PARAMETERS, done.stderr


def test_the_backward_is_saved_without_validation_and_benchmark(thunder, here, llama):
    run = ("optimize", llama, "-r", "hf-llama", "--train", "--out", "step", *QUICK, "--no-validate", "--no-benchmark")
    assert thunder(*run).status == 0
    (program,) = open_artifact(here / "step").manifest.programs
    assert [stage.has_cotangent for stage in program.stages if stage.trace == "backward" and stage.runs] != []
    assert thunder("validate", "step", "--validate-inputs", 1).status == 0


def test_training_is_in_the_plan_and_may_come_from_a_config_file(thunder, here, llama):
    plain = thunder("optimize", llama, "-r", "hf-llama", "--train", "--dry-run")
    assert "training: forward, loss and backward" in " ".join(plain.out.split())
    (here / "run.toml").write_text("train = true\n")
    data = thunder("optimize", llama, "--config", "run.toml", "--dry-run", "--json").json
    assert data["train"] is True
    assert data["artifact"].endswith("-default-train.thunder")
    assert thunder("optimize", llama, "--dry-run", "--json").json["train"] is False


class TestBench:
    ROUNDS = ("--seq", 8, "--runs", 2, "--warmup", 0, "--quiet")

    def test_a_model(self, thunder, llama, monkeypatch):
        steps = []

        def counted(model):
            return lambda **inputs: steps.append(model.training) or model(**inputs)

        monkeypatch.setitem(bench_request.OTHER_CONTENDERS, "counted", "a contender of this test")
        monkeypatch.setitem(bench.CONTENDERS, "counted", counted)
        run = ("bench", llama, "-r", "hf-llama", "--train", "--against", "eager,counted", *self.ROUNDS)
        report = thunder(*run, "--json").json["reports"][0]
        assert [candidate["name"] for candidate in report["candidates"]] == ["eager", "counted", "thunder"]
        assert report["configuration"]["call"] == "training step"
        assert steps == [True] * 4  # to compile, twice to measure, and once to count its memory
        assert "2 interleaved training steps" in " ".join(thunder(*run).out.split())

    def test_bench_measures_the_purpose_of_the_artifact(self, thunder, step):
        report = thunder("bench", step, *self.ROUNDS, "--json").json["reports"][0]
        assert report["configuration"]["call"] == "training step"
        done = thunder("bench", step, "--train")
        assert (done.status, "TH0201" in done.err, "--train needs a model, but" in done.err) == (2, True, True)

    @pytest.mark.usefixtures("without_kernels")
    def test_training_steps_are_not_compared_with_inference(self, thunder, llama, here):
        run = ("bench", llama, "-r", "hf-llama", *self.ROUNDS)
        assert thunder(*run, "--out", "inference.json").status == 0
        done = thunder(*run, "--train", "--baseline", "inference.json")
        assert (done.status, "call=training step" in done.err) == (2, True)


NO_LOSS = """
    def forward(self, input_ids, attention_mask=None, labels=None):
        return (self.head(self.embedding(input_ids)),)
"""
FROZEN = """
    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.embedding(input_ids))
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits

    def train(self, mode=True):
        return super().train(mode).requires_grad_(False)
"""
BRINGS_CODE = ("--random-weights", "--trust-remote-code", "--task", "causal-lm")


@pytest.mark.parametrize(
    ("forward", "code", "words"),
    [(NO_LOSS, "TH0217", "returned no loss"), (FROZEN, "TH0218", "all parameters of this OwnModel are frozen")],
    ids=["no loss", "frozen"],
)
def test_a_model_that_cannot_be_trained(thunder, here, tmp_path, monkeypatch, forward, code, words):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = own_model(tmp_path / "own", forward)
    done = thunder("optimize", folder, *BRINGS_CODE, "--train", "--out", "result", "--quiet", *QUICK)
    assert_refused(done, here, 2, code, words)
    assert_refused(thunder("bench", folder, *BRINGS_CODE, "--train", "--quiet", "--seq", 8), here, 2, code, words)


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--task", "feature-extraction"), "TH0217", "causal-lm"),
        (("--target", "sm_90"), "TH0201", "--train and --target sm_90 exclude each other"),
    ],
    ids=["no labels", "target"],
)
def test_bad_training_options_are_refused_before_anything_is_loaded(
    thunder, here, llama, monkeypatch, options, code, words
):
    monkeypatch.setattr(
        "thunder_core.workflow.pipeline.session.session.load_model", lambda request: pytest.fail("too heavy")
    )
    run = ("optimize", llama, "--train", *options, "--out", "result")
    assert_refused(thunder(*run), here, 2, code, words)
    assert_refused(thunder(*run, "--dry-run"), here, 2, code, words)


@pytest.mark.parametrize("value", [torch.inf, torch.nan])
@pytest.mark.usefixtures("without_kernels")
def test_gradients_that_are_not_finite(thunder, here, llama, tmp_path, value):
    folder = shutil.copytree(llama, tmp_path / "diverged")
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = value
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    done = thunder("optimize", folder, "-r", "hf-llama", "--train", "--out", "result", "--quiet", *QUICK)
    assert_refused(done, here, 4, "TH0403", "`loss`, and 22 more is infinite or NaN in eager")
    assert "bfloat16" in done.err


KEEPS = """
    def forward(self, input_ids, attention_mask=None, labels=None):
        logits = self.head(self.embedding(input_ids))
        logits.retain_grad()
        return torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten()), logits
"""


@pytest.mark.usefixtures("without_kernels")
def test_a_program_that_autograd_records_is_saved_and_says_so(thunder, here, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = own_model(tmp_path / "own", KEEPS)
    done = thunder("optimize", folder, *BRINGS_CODE, "--train", "--out", "step", *QUICK)
    assert done.status == 0, done.err
    assert "autograd differentiates the program" in " ".join(done.out.split())
    assert "it changes how autograd treats a returned tensor" in " ".join(done.out.split())
    assert "The artifact has no compiled backward: " in (here / "step" / "report.html").read_text()
    assert thunder("validate", "step", "--validate-inputs", 1, "--trust-remote-code").status == 0
