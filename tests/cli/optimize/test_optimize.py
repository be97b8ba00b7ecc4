"""`thunder optimize`: its output, and each bad input: message, code, status, and no leftover files."""

from __future__ import annotations

import errno
import json
import math

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.benchmark.test_verdict import report_of
from tests.cli.small import QUICK, assert_refused, own_model, save_small_model
from thunder_core.workflow.models.request import sample_models
from thunder_core.workflow.pipeline import STAGES
from thunder_executors.nvfuser import missing_parts


@pytest.fixture
def damaged(tmp_path):
    """A separate small Llama that a test may damage."""
    return save_small_model(tmp_path / "damaged")


def test_optimize_writes_and_reports_an_artifact(thunder, here, llama):
    done = thunder("optimize", llama, "--recipe", "hf-llama", *QUICK)
    assert done.status == 0, done.err
    artifact = here / "small-llama-hf-llama.thunder"
    assert [path.name for path in here.iterdir()] == [artifact.name]
    assert {"manifest.json", "report.json", "report.md", "report.html"} <= {path.name for path in artifact.iterdir()}
    for words in ("Validation", "logits", "Benchmark", "eager", "thunder", "Operations", "inductor", str(artifact)):
        assert words in done.out
    assert "Plan" in done.err
    assert all(stage in done.err for stage in STAGES)


@pytest.mark.parametrize("width", [80, 140])
@pytest.mark.usefixtures("without_kernels")
def test_an_artifact_that_serves_a_range(thunder, here, llama, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    done = thunder("optimize", llama, "--dynamic", "seq=2:24", "--dynamic", "batch=1:2", *QUICK, "--out", "result")
    assert done.status == 0, done.err
    for words in ("Ranges", "seq 2 to 24, batch 1 to 2", "2 x 24", "1 x 7", "Constraints", "masking_utils.py"):
        assert words in done.out, done.out
    assert "seq 2 to 24, batch 1 to 2; validated and measured at 1 x 8" in " ".join(done.err.split())
    assert max(map(len, done.out.splitlines())) <= max(width, len(str(here)) + 30)
    listed = thunder("inspect-trace", "result", "--list")
    assert "2 <= s1 <= 24" in listed.out or "from the specified ranges" in listed.out
    assert thunder("bench", "result", "--runs", 2, "--warmup", 0, "--seq", "5,24").status == 0
    refused = thunder("bench", "result", "--runs", 2, "--warmup", 0, "--seq", "25")
    assert (refused.status, "outside the range seq=2:24" in refused.err) == (2, True)


BAD_RANGES = {
    "seq=8:1": ("TH0201", "is an empty range"),
    "seq=a": ("TH0201", "is not a range"),
    "seq=0:10": ("TH0201", "begins below 1"),
    "seq": ("TH0201", "is not of the form name=a:b"),
    "sq=1:8": ("TH0222", "did you mean"),
    "seq=1:9999999": ("TH0209", "exceeds the model's"),
    "seq=-4:8": ("TH0201", "is not a range"),
    "cache=-1:8": ("TH0201", "is not a range"),
    "cache=4:4": ("TH0201", "has only one size"),
}


@pytest.mark.parametrize("arguments", BAD_RANGES)
def test_a_range_that_cannot_be(thunder, here, llama, arguments):
    code, message = BAD_RANGES[arguments]
    assert_refused(thunder("optimize", llama, "--dynamic", arguments, "--dry-run"), here, 2, code, message)


def test_a_second_run_takes_a_new_name(thunder, here, llama):
    for _ in range(2):
        assert thunder("optimize", llama, "-r", "hf-llama", *QUICK, "--no-validate", "--no-benchmark").status == 0
    assert sorted(path.name for path in here.iterdir()) == [
        "small-llama-hf-llama-2.thunder",
        "small-llama-hf-llama.thunder",
    ]


def test_json_is_all_that_is_on_stdout(thunder, here, llama):
    done = thunder("optimize", llama, "--recipe", "hf-llama", "--out", "result", *QUICK, "--json")
    assert done.status == 0, done.out
    assert done.json["schema"] == "thunder.optimize/1"
    assert done.json["artifact"] == str(here / "result")
    assert done.json["report"] == json.loads((here / "result" / "report.json").read_text())
    assert done.json["report"]["validation"]["passed"] is True


def test_quiet_prints_the_artifacts_path_alone(thunder, here, llama):
    done = thunder("optimize", llama, "-r", "hf-llama", "-o", "result", *QUICK, "--quiet")
    assert (done.status, done.out, done.err) == (0, f"{here / 'result'}\n", "")


def test_missing_validation_is_reported(thunder, llama):
    done = thunder("optimize", llama, "-r", "hf-llama", *QUICK, "--no-validate", "--no-benchmark")
    assert done.status == 0
    assert "not validated" in done.out
    assert "not validated" in done.err


def test_a_dry_run_prints_the_plan_and_writes_nothing(thunder, here, llama, monkeypatch):
    monkeypatch.setattr(
        "thunder_core.workflow.pipeline.session.session.load_model", lambda request: pytest.fail("too heavy")
    )
    done = thunder("optimize", llama, "-r", "hf-llama", "--dry-run")
    assert done.status == 0
    assert "Plan" in done.out
    assert done.err == ""
    data = thunder("optimize", llama, "-r", "hf-llama", "--dry-run", "--json", "--batch", 3).json
    assert (data["schema"], data["batch"], data["stages"]) == ("thunder.plan/1", 3, list(STAGES))
    assert list(here.iterdir()) == []


def test_a_target_is_in_the_plan(thunder, here, llama):
    run = ("optimize", llama, "-r", "hf-llama3-hopper", "--target", "sm_90", "--dry-run")
    done = thunder(*run)
    assert (done.status, done.err) == (0, "")
    for words in ("sm_90", "on cuda", "pending", "there is no benchmark before"):
        assert words in " ".join(done.out.split())
    data = thunder(*run, "--json").json
    assert (data["target"], data["validation"], data["device"]) == ("sm_90", "pending", "cuda")
    assert not {"validate", "benchmark"} & set(data["stages"])
    (here / "run.toml").write_text('target = "sm_89"\n')
    assert thunder("optimize", llama, "--config", "run.toml", "--dry-run", "--json").json["target"] == "sm_89"
    (here / "run.toml").unlink()
    assert list(here.iterdir()) == []


@pytest.mark.usefixtures("without_kernels")
def test_artifact_for_a_target_reports_that_validation_is_pending(thunder, here, llama):
    done = thunder("optimize", llama, "-r", "hf-llama", "--target", "sm_90", "--out", "result", *QUICK)
    assert done.status == 0, done.err
    assert "pending: run `thunder validate`" in done.out
    assert "not measured" in done.out
    assert json.loads((here / "result" / "report.json").read_text())["validation_state"] == "pending"


def test_a_config_file_sets_options_that_the_command_line_omits(thunder, here, llama):
    (here / "run.toml").write_text(f'model = "{llama}"\nrecipe = "hf-llama"\nseq = 9\nbatch = 2\n')
    data = thunder("optimize", "--config", "run.toml", "--batch", 5, "--dry-run", "--json").json
    assert (data["recipe"], data["seq"], data["batch"]) == ("hf-llama", 9, 5)


def test_random_weights_need_a_config_alone(thunder, damaged):
    (damaged / "model.safetensors").write_bytes(b"\0" * 100)
    assert thunder("optimize", damaged, "--dry-run").status == 2
    (damaged / "model.safetensors").unlink()
    assert thunder("optimize", damaged).status == 2
    done = thunder("optimize", damaged, "--dry-run", "--random-weights")
    assert done.status == 0
    assert "lacking" not in done.out


def test_plan_of_a_config_alone_says_that_weights_are_lacking(thunder, damaged):
    (damaged / "model.safetensors").unlink()
    for more in ((), ("--task", "generate"), ("--train",), ("--recipe", "int8-weight-only")):
        done = thunder("optimize", damaged, "--dry-run", *more)
        assert done.status == 0, done.err
        words = " ".join(done.out.split())
        assert "lacking" in words
        assert "has none, but a run needs weights (add weights, or use --random-weights)" in words
    targeted = thunder("optimize", damaged, "--dry-run", "--target", "sm_90")
    assert targeted.status == 0
    assert "lacking" not in targeted.out


@pytest.mark.usefixtures("without_kernels")
def test_target_is_compiled_for_from_a_config_alone(thunder, here, damaged):
    (damaged / "model.safetensors").unlink()
    run = ("optimize", damaged, "-r", "hf-llama", "--target", "sm_90", "--out", "result", *QUICK)
    assert thunder(*run, "--include-weights").status == 2
    assert thunder(*run).status == 0
    assert json.loads((here / "result" / "manifest.json").read_text())["target"] == "sm_90"


def test_a_missing_part_degrades_and_is_an_error_if_strict(thunder, here, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setitem(sample_models.SAMPLES, "llama3", sample_models.SAMPLES["llama"])
    few = ("--seq", 4, "--validate-inputs", 1, "--no-benchmark")  # Triton's kernels run in its interpreter
    done = thunder("optimize", "--recipe", "hf-llama3-hopper", "--out", "result", *few)
    assert done.status == 0, done.err
    lacks_more = len(list(missing_parts())) > 1
    assert (done.err + done.out).count("no CUDA GPU") == 1 + lacks_more  # once for all, and once for nvFuser
    assert "degraded" in done.out
    assert json.loads((here / "result" / "report.json").read_text())["degraded"]
    strict = thunder("optimize", "--recipe", "hf-llama3-hopper", "--out", "other", "--strict")
    assert strict.status == 3
    assert "TH0301" in strict.err
    assert not (here / "other").exists()


def truncate(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


def lose_a_shard(folder):
    (folder / "model.safetensors").unlink()
    index = {"weight_map": {"lm_head.weight": "model-00001-of-00002.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def configured(**changes):
    def change(folder):
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    return change


DAMAGES = {
    "truncated": (truncate, 2, "TH0205", "model.safetensors"),
    "a shard is missing": (lose_a_shard, 2, "TH0205", "model-00001-of-00002.safetensors"),
    "unknown family": (configured(model_type="lama"), 8, "TH0801", "lama"),
    "unknown class": (configured(architectures=["LlamaForJuggling"]), 8, "TH0801", "LlamaForJuggling"),
    "remote code": (
        configured(model_type="own", architectures=["Own"], auto_map={"AutoModelForCausalLM": "own.Own"}),
        2,
        "TH0210",
        "--trust-remote-code",
    ),
    "no config": (lambda folder: (folder / "config.json").unlink(), 2, "TH0205", "config.json"),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_model(thunder, here, damaged, damage):
    change, status, code, words = DAMAGES[damage]
    change(damaged)
    done = thunder("optimize", damaged, "--recipe", "default", "--out", "result")
    assert_refused(done, here, status, code, words)


OPTIONS = {
    "no such folder": (("./nowhere/at/all",), 2, "TH0204", "nowhere"),
    "unknown recipe": (("--recipe", "hf-lama3"), 2, "TH0202", "did you mean hf-llama3"),
    "unknown recipe option": (("--set", "speed=high"), 2, "TH0202", "speed"),
    "not an assignment": (("--set", "speed"), 2, "TH0201", "key=value"),
    "a recipe option twice": (("--set", "speed=1", "--set", "speed=2"), 2, "TH0201", "--set gives speed twice"),
    "an unknown one of two recipes": (("--recipe", "default", "-r", "hf-lama"), 2, "TH0202", "hf-llama"),
    "recipes of two families": (("--recipe", "hf-bert", "-r", "hf-llama"), 2, "TH0208", "hf-bert"),
    "two places": (("-o", "one", "--out", "other"), 2, "TH0201", "--out was given 2 times"),
    "another family": (("--recipe", "hf-bert"), 2, "TH0208", "llama"),
    "unknown dtype": (("--dtype", "float33"), 2, "TH0202", "float32"),
    "unknown device": (("--device", "gpu"), 2, "TH0202", "cuda"),
    "unknown target": (("--target", "hopper"), 2, "TH0201", "sm_90"),
    "unknown task": (("--task", "causal-ml"), 2, "TH0202", "causal-lm"),
    "too long": (("--seq", 257), 2, "TH0209", "256"),
    "no samples": (("--batch", 0), 2, "TH0201", "--batch is 0"),
    "a gate, and nothing measured": (("--require-speedup", 2, "--no-benchmark"), 2, "TH0201", "exclude each other"),
    "a gate, and no GPU": (("--require-speedup", 2, "--target", "sm_90"), 2, "TH0201", "exclude each other"),
    "no factor": (("--require-speedup", -1), 2, "TH0201", "--require-speedup is -1"),
    "one run": (("--runs", 1), 2, "TH0201", "--runs is 1"),
    "no config file": (("--config", "none.toml"), 2, "TH0203", "none.toml"),
    "unwritable": (("--out", "/proc/result"), 2, "TH0207", "/proc/result"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_bad_option(thunder, here, llama, case):
    arguments, status, code, words = OPTIONS[case]
    model = () if case == "no such folder" else (llama,)
    done = thunder("optimize", *model, *arguments)
    assert_refused(done, here, status, code, words)


def test_a_device_that_is_not_there(thunder, here, llama, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert_refused(thunder("optimize", llama, "--device", "cuda"), here, 3, "TH0302", "cuda")


def test_a_hub_name_that_is_not_in_the_cache(thunder, here, monkeypatch, tmp_path):
    from huggingface_hub import constants

    def no_socket(*_):
        raise AssertionError("no socket may be opened")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("socket.socket.connect", no_socket)
    done = thunder("optimize", "somebody/something", "--out", "result")
    assert_refused(done, here, 2, "TH0204", "hf download somebody/something")


def test_an_output_folder_that_exists_is_kept(thunder, here, llama):
    (here / "result").mkdir()
    (here / "result" / "notes.txt").write_text("mine")
    for extra in ((), ("--force",)):
        done = thunder("optimize", llama, "--out", "result", *extra)
        assert (done.status, done.out) == (2, "")
        assert "TH0206" in done.err
    assert (here / "result" / "notes.txt").read_text() == "mine"


def test_force_replaces_an_artifact(thunder, here, llama):
    run = ("optimize", llama, "--out", "result", *QUICK, "--no-validate", "--no-benchmark")
    assert thunder(*run).status == 0
    assert thunder(*run).status == 2
    assert thunder(*run, "--force").status == 0
    assert [path.name for path in here.iterdir()] == ["result"]


@pytest.mark.parametrize(
    ("raised", "status", "code"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), 7, "TH0701"),
        (MemoryError(), 7, "TH0702"),
        (KeyboardInterrupt(), 130, "TH1301"),
    ],
    ids=["disk", "memory", "interrupt"],
)
def test_errors_while_writing_leave_nothing(thunder, here, llama, monkeypatch, raised, status, code):
    def fail(*_, **__):
        raise raised

    monkeypatch.setattr("thunder_core.workflow.artifact.write.write_report", fail)
    done = thunder("optimize", llama, "--out", "result", *QUICK, "--no-validate", "--no-benchmark", "--quiet")
    assert_refused(done, here, status, code, "")


@pytest.mark.parametrize("stage", STAGES)
def test_ctrl_c_at_any_stage(thunder, here, llama, monkeypatch, stage):
    from thunder_cli import progress

    def begin(self, name):
        if name == stage:
            raise KeyboardInterrupt

    monkeypatch.setattr(progress.StageLines, "begin", begin)
    done = thunder("optimize", llama, "--out", "result", *QUICK, "--quiet")
    assert_refused(done, here, 130, "TH1301", stage)


def test_a_failed_validation_publishes_nothing_and_reports_the_measurement(thunder, here, llama, monkeypatch):
    from thunder_core.passes.recipe import Recipe, Tolerance

    monkeypatch.setattr(Recipe, "tolerance", lambda self, dtype: Tolerance(times_eager=-1.0, floor=0.0))
    done = thunder("optimize", llama, "--out", "result", *QUICK, "--quiet")
    assert_refused(done, here, 4, "TH0401", "differs from the float64 reference by more than the recipe allows")
    data = thunder("optimize", llama, "--out", "result", *QUICK, "--quiet", "--json").json
    assert data["error"]["code"] == "TH0401"
    assert data["error"]["report"]["passed"] is False
    assert list(here.iterdir()) == []


@pytest.fixture
def takes(monkeypatch):
    """Set the measured times: eager takes 10 ms, and thunder takes the given time."""

    def set_to(milliseconds):
        from thunder_core.workflow.pipeline import call_optimization

        report = report_of([0.01] * 30, [milliseconds / 1000] * 30)
        monkeypatch.setattr(call_optimization, "measure", lambda *_, **__: report)

    return set_to


def test_a_slower_model_is_reported_first(thunder, here, llama, takes):
    takes(20.0)
    run = ("optimize", llama, "-r", "hf-llama", *QUICK, "--no-validate")
    done = thunder(*run, "--out", "result")
    assert done.status == 0, done.err
    first = done.out.splitlines()[0]
    assert first.startswith("Speed  slower than eager: hf-llama makes this model slower on this machine  0.50x")
    assert (
        "hf-llama makes this model slower than eager PyTorch on this machine"
        in (here / "result" / "report.md").read_text()
    )
    data = thunder(*run, "--out", "other", "--json").json
    assert data["report"]["benchmark"]["verdicts"] == {"thunder": "slower"}


def test_an_artifact_without_the_speedup_that_is_required_is_not_written(thunder, here, llama, takes):
    run = ("optimize", llama, "-r", "hf-llama", "--seq", 8, "--no-validate", "--out", "result", "--quiet")
    takes(9.0)
    assert_refused(thunder(*run, "--require-speedup", 1.2), here, 5, "TH0502", "thunder is 1.111x")
    error = thunder(*run, "--require-speedup", 1.2, "--json").json["error"]
    assert error["report"]["verdicts"] == {"thunder": "faster"}
    assert thunder(*run, "--require-speedup", 1.1).status == 0


def spoil(folder, value):
    """Fill all weights of a layer with a value."""
    weights = load_file(folder / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"].fill_(value)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize("train", [(), ("--train",)], ids=["inference", "training"])
@pytest.mark.usefixtures("without_kernels")
def test_a_model_that_gives_nan_is_not_perfect(thunder, here, damaged, train):
    spoil(damaged, math.nan)
    run = ("optimize", damaged, "-r", "hf-llama", "--out", "result", *QUICK, "--no-benchmark", *train)
    done = thunder(*run, "--quiet")
    assert_refused(done, here, 4, "TH0403", "`loss`, and" if train else "`logits`")
    assert "--allow-non-finite" in done.err
    told = thunder(*run, "--quiet", "--json").json["error"]
    assert told["report"]["outputs"][-1 if train else 0]["nan"] > 0
    if not train:
        accepted = thunder(*run, "--allow-non-finite")
        assert accepted.status == 0, accepted.err
        assert "NaN: all 12,288" in accepted.out
        assert "100%" not in accepted.out.partition("Operations")[0]
        assert "Validated, not finite" in (here / "result" / "report.html").read_text()
        again = thunder("validate", "result", "--quiet")
        assert (again.status, "TH0403" in again.err) == (4, True)
        assert thunder("validate", "result", "--quiet", "--allow-non-finite").status == 0


BRANCHING = """
    def forward(self, input_ids, attention_mask=None):
        hidden = self.embedding(input_ids)
        if hidden.sum() > 0:
            return (hidden,)
        return (-hidden,)
"""


@pytest.mark.usefixtures("without_kernels")
def test_a_forward_that_branches_on_a_tensor(thunder, here, tmp_path, monkeypatch):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = own_model(tmp_path / "own", BRANCHING)
    options = ("--random-weights", "--task", "feature-extraction", "--out", "result", "--quiet", *QUICK)
    assert_refused(thunder("optimize", folder, *options), here, 2, "TH0210", "--trust-remote-code")
    done = thunder("optimize", folder, *options, "--trust-remote-code")
    assert_refused(done, here, 8, "TH0802", "own.py:21, in OwnModel.forward")
    assert "torch.where" in done.err
