"""`thunder bench`: artifacts and models, at several sizes, compared with other candidates and with a baseline."""

from __future__ import annotations

import csv
import errno
import io
import json
import os
import shutil
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from tests.artifact.damages import reseal
from tests.cli.small import save_small_model
from thunder_cli.results import bench_output, bench_result
from thunder_cli.views.bench import comparison_view, suite_view
from thunder_core.workflow.benchmark import BenchmarkSuite, baseline, gate
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import Request, bench, optimize
from thunder_core.workflow.pipeline.request import bench_request

pytestmark = pytest.mark.usefixtures("without_kernels")  # except for models that module fixtures make

ROUNDS = ("--runs", 2, "--warmup", 0)


@pytest.fixture(scope="session")
def model(llama):
    return llama


@pytest.fixture(scope="session")
def artifact(tmp_path_factory, model):
    out = tmp_path_factory.mktemp("artifacts") / "small.thunder"
    request = Request(
        recipe="hf-llama", model=ModelRequest(str(model)), out=out, seq=8, validate=False, benchmark=False
    )
    return optimize(request).artifact


def sizes(suite):
    return [(report["configuration"]["batch"], report["configuration"]["seq"]) for report in suite["reports"]]


def test_a_model_under_a_recipe_at_several_sizes(thunder, model):
    done = thunder("bench", model, "--recipe", "hf-llama", "--batch", "1,2", "--seq", "4, 8", *ROUNDS, "--json")
    assert done.status == 0, done.out
    assert sizes(done.json) == [("1", "4"), ("1", "8"), ("2", "4"), ("2", "8")]
    assert done.json["schema_version"] == 1
    report = done.json["reports"][0]
    assert [candidate["name"] for candidate in report["candidates"]] == ["eager", "thunder"]
    assert report["configuration"] | {"model": "", "recipe": "hf-llama", "dtype": "float32"} == (
        report["configuration"] | {"model": ""}
    )
    BenchmarkSuite.model_validate(json.loads(done.out))


def test_images_are_measured_by_their_pixels(thunder, tmp_path):
    """Image sizes replace the sequence length in tables, in messages of gates and in baselines."""
    done = thunder("bench", save_small_model(tmp_path / "vit", "vit"), "--batch", 2, *ROUNDS, "--json")
    assert done.status == 0, done.err
    assert "measure 2 x 32 x 32 pixels" in done.err
    suite = BenchmarkSuite.model_validate(done.json)
    assert gate.size_prefix(suite.reports[0]) == "batch 2, 32 x 32 pixels: "
    for view in (suite_view(suite), comparison_view(baseline.compare_with_baseline(suite, suite, 1.0))):
        console = Console(file=io.StringIO(), width=300)
        console.print(view)
        assert "2 x 32 x 32 pixels" in console.file.getvalue()
        assert "seq" not in console.file.getvalue()


def test_an_artifact(thunder, artifact):
    done = thunder("bench", artifact, "--seq", 8, *ROUNDS)
    assert done.status == 0, done.err
    assert all(word in done.out for word in ("hf-llama", "1 x 8", "eager", "thunder", "median"))
    assert "measure 1 x 8" in done.err


def test_an_artifact_is_measured_as_it_was_made(thunder, tmp_path):
    """The artifact's programs run at the size that they were traced for.

    A benchmark traces nothing and refuses another size.
    """
    made = Request("hf-bert", out=tmp_path / "made", batch=2, seq=8, validate=False, benchmark=False)
    optimize(made)
    done = thunder("bench", tmp_path / "made", *ROUNDS, "--json")
    assert (done.status, sizes(done.json)) == (0, [("2", "8")]), done.err
    refused = thunder("bench", tmp_path / "made", "--batch", 1, *ROUNDS)
    assert (refused.status, refused.out, "TH0213" in refused.err) == (2, "", True)
    assert all(words in refused.err for words in ("nothing is traced for inputs of 1 x 8", "measure 2 x 8"))
    optimize(replace(made, out=tmp_path / "other", seq=4))
    refused = thunder("bench", tmp_path / "made", tmp_path / "other", *ROUNDS)
    assert (refused.status, refused.out, "made for seq 8, other for seq 4" in refused.err) == (2, "", True)


def test_an_artifact_has_its_own_recipe(thunder, artifact):
    done = thunder("bench", artifact, "--recipe", "default")
    assert (done.status, done.out) == (2, "")
    assert "recipe" in done.err
    assert "TH0201" in done.err


def test_a_damaged_artifact_is_rejected(thunder, artifact, tmp_path):
    copy = tmp_path / "copy.thunder"
    shutil.copytree(artifact, copy)
    (copy / "report.md").write_text("the fastest of all")
    done = thunder("bench", copy)
    assert (done.status, done.out) == (6, "")
    assert "TH0602" in done.err


def test_another_contender(thunder, model, monkeypatch):
    monkeypatch.setitem(bench_request.OTHER_CONTENDERS, "twice", "a contender of this test")
    monkeypatch.setitem(bench.CONTENDERS, "twice", lambda m: lambda **inputs: (m(**inputs), m(**inputs)))
    done = thunder("bench", model, "--seq", 4, "--against", "twice,eager", *ROUNDS, "--json")
    assert [candidate["name"] for candidate in done.json["reports"][0]["candidates"]] == ["twice", "eager", "thunder"]


def test_inductor_is_torch_compile_in_each_mode(monkeypatch):
    asked = []
    monkeypatch.setattr(torch, "compile", lambda model, **options: asked.append(options) or model)
    module = torch.nn.Linear(2, 2)
    assert bench.CONTENDERS["inductor"](module) is module
    for mode in ("reduce-overhead", "max-autotune"):
        assert bench.CONTENDERS[f"inductor-{mode}"](module) is module
    assert [one["mode"] for one in asked] == [None, "reduce-overhead", "max-autotune"]
    assert {one["dynamic"] for one in asked} == {False}
    assert bench.CONTENDERS.keys() == bench_request.OTHER_CONTENDERS.keys()


@pytest.fixture
def measured(monkeypatch):
    """Set the measured times: eager takes 10 ms, and thunder takes the given time."""
    from thunder_core.workflow.benchmark import BenchmarkReport
    from thunder_core.workflow.benchmark.statistics import describe_candidate

    def set_to(milliseconds):
        def measure(candidates, settings):
            eager = [0.010, 0.011, 0.010, 0.010] * 2
            first, *others = candidates
            described = (
                describe_candidate(first, eager, eager, None),
                *(describe_candidate(name, [milliseconds / 1000] * 8, eager, 3 << 20) for name in others),
            )
            return BenchmarkReport(
                machine="m",
                device=str(settings.device),
                configuration=dict(settings.configuration),
                runs=8,
                warmup=0,
                candidates=described,
            )

        monkeypatch.setattr(bench, "measure", measure)

    return set_to


class TestBaseline:
    @pytest.fixture
    def baseline(self, thunder, model, measured, here):
        measured(5.0)
        assert thunder("bench", model, "--seq", 4, "--out", "baseline.json").status == 0
        return here / "baseline.json"

    def test_as_fast_as_before(self, thunder, model, measured, baseline):
        measured(5.1)
        done = thunder("bench", model, "--seq", 4, "--baseline", baseline, "--fail-above", "5%")
        assert done.status == 0, done.err
        assert "Comparison with the baseline" in done.out
        assert "+2.0%" in done.out

    def test_slower_than_allowed(self, thunder, model, measured, baseline):
        measured(6.0)
        done = thunder("bench", model, "--seq", 4, "--baseline", baseline, "--fail-above", "5%")
        assert done.status == 5
        assert "TH0501" in done.err
        assert "too slow" in done.out
        assert thunder("bench", model, "--seq", 4, "--baseline", baseline, "--fail-above", "50%").status == 0
        data = thunder("bench", model, "--seq", 4, "--baseline", baseline, "--json").json
        assert data["error"]["code"] == "TH0501"
        assert data["error"]["rows"][0]["too_slow"] is True

    def test_size_that_the_baseline_lacks_is_refused(self, thunder, model, measured, baseline):
        done = thunder("bench", model, "--seq", 6, "--baseline", baseline)
        assert done.status == 2
        assert "seq=6" in done.err

    def test_json_on_stdout_is_a_baseline(self, thunder, model, measured, baseline, here):
        (here / "again.json").write_text(thunder("bench", model, "--seq", 4, "--json").out)
        assert thunder("bench", model, "--seq", 4, "--baseline", "again.json").status == 0


SAID = {5.0: "faster than eager", 10.0: "not distinguishable from eager", 20.0: "slower than eager"}


@pytest.mark.parametrize("milliseconds", SAID)
@pytest.mark.parametrize("sizes", ["4", "4,8"])
def test_the_verdict_is_printed_first(thunder, model, measured, milliseconds, sizes):
    measured(milliseconds)
    done = thunder("bench", model, "--seq", sizes, "--quiet")
    first = done.out.splitlines()[0]
    assert first.startswith(f"Speed  thunder  {SAID[milliseconds]}")
    assert ("1 x 4, 1 x 8" in first) is (sizes == "4,8")
    assert max(map(len, done.out.splitlines())) <= 100
    verdict = SAID[milliseconds].partition(" eager")[0].removesuffix(" than").removesuffix(" from")
    data = thunder("bench", model, "--seq", sizes, "--quiet", "--json").json
    assert {report["verdicts"]["thunder"] for report in data["reports"]} == {verdict}
    assert data["reports"][0]["candidates"][1].keys() >= {"p90", "p99", "peak_bytes"}
    assert data["reports"][0]["throughput"]["thunder"] == pytest.approx(1000 / milliseconds)


@pytest.mark.parametrize(("required", "status"), [(1.5, 0), (2.5, 5)])
def test_a_speedup_that_is_required(thunder, model, measured, here, required, status):
    measured(5.0)
    run = ("bench", model, "--seq", 4, "--require-speedup", required)
    done = thunder(*run, "--out", "result.json")
    assert done.status == status, done.err
    assert ("TH0502" in done.err) is (status == 5)
    assert "faster than eager" in done.out
    assert BenchmarkSuite.model_validate_json((here / "result.json").read_text())
    told = thunder(*run, "--json")
    assert told.status == status
    if status:
        assert told.json["error"]["code"] == "TH0502"
        assert told.json["error"]["report"]["reports"][0]["verdicts"] == {"thunder": "faster"}


def test_other_forms_of_the_result(thunder, model, measured, here):
    measured(5.0)
    table = thunder("bench", model, "--seq", "4,8", "--format", "csv", "--out", "result.md").out
    rows = list(csv.DictReader(io.StringIO(table)))
    assert [(row["seq"], row["candidate"], row["verdict"]) for row in rows] == [
        (seq, *rest) for seq in "48" for rest in (("eager", ""), ("thunder", "faster"))
    ]
    text = thunder("bench", model, "--seq", "4,8", "--format", "markdown", "--out", "result.csv").out
    assert text == (here / "result.md").read_text()
    assert table == (here / "result.csv").read_text()
    assert "| thunder | 5.00 ms |" in text


class TestWhatWasMeasuredIsNotLost:
    """A result is printed, or is in the error's document, even if a step after the measurement fails."""

    def test_a_file_that_cannot_be_written(self, thunder, model, measured, here, monkeypatch):
        measured(5.0)

        def refuse(*_):
            raise OSError(errno.EROFS, "Read-only file system", "there.json")

        monkeypatch.setattr(bench_result, "write_suite", refuse)
        run = ("bench", model, "--seq", 4, "--out", "result.json")
        done = thunder(*run)
        assert (done.status, "TH0207" in done.err, "faster than eager" in done.out) == (2, True, True)
        told = thunder(*run, "--json").json["error"]
        assert (told["code"], told["report"]["reports"][0]["verdicts"]) == ("TH0207", {"thunder": "faster"})

    def test_a_file_that_may_not_be_written_is_refused_at_once(self, thunder, model, here, monkeypatch):
        (here / "result.json").write_text("earlier")
        monkeypatch.setattr(bench_output.os, "access", lambda path, mode: mode != os.W_OK or path == here)
        done = thunder("bench", model, "--out", here / "result.json")
        assert (done.status, "exists and is not writable" in done.err) == (2, True), done.err

    @pytest.mark.parametrize("json_option", [("--json",), ("--format", "json"), ("--format=json",)])
    def test_errors_are_json_where_results_are(self, thunder, model, measured, json_option):
        measured(5.0)
        done = thunder("bench", model, "--seq", 4, "--require-speedup", 4, *json_option)
        assert (done.status, done.json["error"]["code"]) == (5, "TH0502")

    def test_both_failed_gates_are_reported(self, thunder, model, measured):
        measured(5.0)
        thunder("bench", model, "--seq", 4, "--out", "before.json")
        measured(8.0)
        run = ("bench", model, "--seq", 4, "--require-speedup", 4, "--baseline", "before.json")
        done = thunder(*run)
        assert done.status == 5
        assert all(
            words in " ".join(done.err.split()) for words in ("more than 5% slower", "a speed-up of 4 is required")
        )
        assert "Comparison with the baseline" in done.out
        error = thunder(*run, "--json").json["error"]
        assert (error["rows"][0]["too_slow"], len(error["report"]["reports"])) == (True, 1)

    def test_a_baseline_of_another_size(self, thunder, model, measured):
        measured(5.0)
        thunder("bench", model, "--seq", 4, "--out", "before.json")
        done = thunder("bench", model, "--seq", 6, "--baseline", "before.json")
        assert (done.status, "faster than eager" in done.out) == (2, True)


def test_two_results(thunder, model, measured, here):
    for milliseconds, name in ((10.0, "before.json"), (5.0, "after.json")):
        measured(milliseconds)
        assert thunder("bench", model, "--seq", 4, "--out", name, "--quiet").status == 0
    done = thunder("bench", "before.json", "after.json")
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("Speed  after  faster than before")
    data = thunder("bench", "after.json", "before.json", "--json").json
    assert (data["schema"], data["rows"][0]["verdict"]) == ("thunder.contrast/1", "slower")
    assert data["rows"][0]["ratio"]["value"] == pytest.approx(0.5)
    out, speedup = ("--out", "x.json"), ("--require-speedup", 1)
    for extra, words in (
        (out, "--out has no effect"),
        ((*out, *speedup), "--out, --require-speedup have no effect"),
        (("--batch", 4, "--runs", 3, "--recipe", "hf-bert"), "--recipe, --batch, --runs have no effect"),
        (("--require-signature",), "--require-signature has no effect"),
    ):
        refused = thunder("bench", "before.json", "after.json", *extra)
        assert (refused.status, words in refused.err) == (2, True)
    (here / "junk.json").write_text("{}")
    assert "junk.json is not a measurement" in thunder("bench", "before.json", "junk.json").err
    alone = thunder("bench", "before.json")
    assert (alone.status, "before.json is a result of `thunder bench --out`" in alone.err) == (2, True)
    assert "are neither" in thunder("bench", "nowhere.json", "nowhere").err
    assert "but nowhere is neither" in thunder("bench", "before.json", "nowhere").err


def test_two_artifacts_are_measured_in_turn(thunder, artifact, tmp_path):
    copy = shutil.copytree(artifact, tmp_path / "other.thunder")
    rounds = ("--seq", 8, "--runs", 6, "--warmup", 1, "--threads", 1, "--json")
    report = thunder("bench", artifact, copy, *rounds).json["reports"][0]
    assert [candidate["name"] for candidate in report["candidates"]] == [artifact.name, copy.name]
    assert list(report["verdicts"]) == [copy.name]
    assert (report["configuration"]["recipe"], report["machine"][-8:]) == ("hf-llama", "1 thread")
    with_eager = thunder("bench", artifact, artifact, *rounds, "--against", "eager").json["reports"][0]
    names = [candidate["name"] for candidate in with_eager["candidates"]]
    assert names == [f"A: {artifact.name}", f"B: {artifact.name}", "eager"]


def test_results_that_cannot_be_compared_are_refused(thunder, artifact, model, measured, tmp_path):
    for first, second in ((artifact, model), (artifact, tmp_path / "nowhere"), (artifact, __file__)):
        done = thunder("bench", first, second)
        assert (done.status, done.out) == (2, "")
        assert f"{second} is neither" in done.err
    measured(5.0)
    assert thunder("bench", model, "--seq", 4, "--out", "before.json", "--quiet").status == 0
    done = thunder("bench", artifact, "before.json", "--json")
    assert done.json["error"]["what"].endswith(f"but before.json is a result and {artifact} is an artifact")
    copy = shutil.copytree(artifact, tmp_path / "training.thunder")
    reseal(copy, train=True)
    assert "is for training, the other is not" in thunder("bench", artifact, copy).err
    assert thunder("bench", artifact, copy, "--recipe", "default").status == 2


@pytest.mark.parametrize("suffix", [".svg", ".png"])
def test_a_plot(thunder, model, measured, here, suffix):
    measured(5.0)
    assert thunder("bench", model, "--seq", "4,8", "--plot", f"picture{suffix}").status == 0
    content = (here / f"picture{suffix}").read_bytes()
    assert content.startswith(b"\x89PNG" if suffix == ".png" else b"<?xml")
    if suffix == ".svg":
        assert b"thunder" in content
        assert b"2.00x" in content


OPTIONS = {
    "unknown contender": (("--against", "inducter"), "TH0202", "inductor"),
    "nobody": (("--against", ","), "TH0201", "--against"),
    "no number": (("--batch", "1,x"), "TH0201", "1,x"),
    "zero": (("--batch", "0"), "TH0201", "--batch is 0"),
    "one run": (("--runs", "1"), "TH0201", "--runs is 1"),
    "too long": (("--seq", "4,257"), "TH0209", "256"),
    "no such picture": (("--plot", "picture.gif"), "TH0201", ".svg"),
    "no such folder": (("--out", "nowhere/result.json"), "TH0207", "nowhere"),
    "no baseline": (("--fail-above", "5%"), "TH0201", "--baseline"),
    "no percentage": (("--baseline", "none.json", "--fail-above", "5"), "TH0201", "5%"),
    "no such baseline": (("--baseline", "none.json"), "TH0201", "none.json"),
    "no such model": ((), "TH0204", "nowhere"),
    "no such form": (("--format", "cvs"), "TH0202", "csv"),
    "no factor": (("--require-speedup", "0"), "TH0201", "--require-speedup is 0"),
    "too few rounds": (("--require-speedup", "1.1", "--runs", "5"), "TH0201", "--runs is 5"),
    "no threads": (("--threads", "0"), "TH0201", "--threads is 0"),
    "too many threads": (("--threads", "999999"), "TH0201", "--threads is 999999"),
    "a long number": (("--batch", "9" * 5001), "TH0201", "not a list of numbers"),
}


@pytest.mark.parametrize("case", OPTIONS)
def test_a_bad_option_is_found_before_anything_is_loaded(thunder, here, model, monkeypatch, case):
    monkeypatch.setattr(
        "thunder_core.workflow.pipeline.session.session.load_model",
        lambda request: pytest.fail("nothing may be loaded"),
    )
    arguments, code, words = OPTIONS[case]
    done = thunder("bench", "./nowhere" if case == "no such model" else model, *arguments)
    assert (done.status, done.out) == (2, "")
    assert code in done.err
    assert words in done.err
    assert list(here.iterdir()) == []


def test_ctrl_c_while_measuring(thunder, model, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(bench, "measure", stop)
    done = thunder("bench", model, "--seq", 4, "--out", "result.json")
    assert done.status == 130
    assert "measure 1 x 4" in done.err
