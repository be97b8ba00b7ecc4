"""`thunder bench --task generate`: models and artifacts, token by token, in every form of a result."""

from __future__ import annotations

import csv
import io
import json
import re
from dataclasses import replace

import pytest
import torch

from tests.cli.small import assert_refused, save_small_model
from thunder_core.passes.recipe import Recipe
from thunder_core.workflow.benchmark import BenchmarkSuite
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import Request, generation_bench, optimize
from thunder_core.workflow.pipeline.generation import generation_contenders
from thunder_core.workflow.pipeline.generation.generation_contenders import CONTENDERS, twin_of
from thunder_core.workflow.pipeline.request import bench_request
from thunder_core.workflow.pipeline.session.session import open_model

GENERATE = ("--task", "generate", "--runs", 2, "--warmup", 0)
LENGTHS = ("--prompt-length", 3, "--new-tokens", 4)


class Eager(Recipe):
    """A recipe that compiles nothing."""


@pytest.fixture
def uncompiled(monkeypatch):
    """Measure another object of the eager model as thunder, so that nothing is compiled."""
    monkeypatch.setattr(
        generation_bench,
        "open_model",
        lambda prepared, purpose: replace(open_model(prepared, purpose), compile=twin_of),
    )


@pytest.fixture
def suite(thunder, llama, uncompiled, here):
    assert thunder("bench", llama, *GENERATE, *LENGTHS, "--batch", "1,2", "--out", "result.json").status == 0
    return here / "result.json"


def test_the_first_and_later_tokens_are_reported_for_each_batch(thunder, llama, uncompiled):
    done = thunder("bench", llama, *GENERATE, *LENGTHS, "--batch", "1,2")
    assert done.status == 0, done.err
    rows = [line.split("  ")[1] for line in done.out.splitlines() if line.startswith("Speed")]
    assert rows == ["thunder", "thunder, first token", "thunder, next token"]
    for word in (
        "3 + 4 tokens",
        "2 interleaved generations",
        "first token",
        "tokens/s",
        "peak memory",
        "1 x 3 + 4 tokens",
    ):
        assert word in " ".join(done.out.split())
    assert "measure 2 x 3 + 4 tokens" in done.err
    assert max(map(len, done.out.splitlines())) <= 100


def test_the_result_as_data(thunder, llama, uncompiled):
    """By default the batches are 1 and 8, and the number of tokens is the number of positions of the model."""
    done = thunder("bench", llama, "--task", "Generate", "--runs", 2, "--warmup", 0, "--new-tokens", 3, "--json")
    assert done.status == 0, done.err
    found = BenchmarkSuite.model_validate(json.loads(done.out))
    assert [
        (generation.prompt_length, generation.new_tokens, generation.configuration["batch"])
        for generation in found.generations
    ] == [
        (128, 3, "1"),
        (128, 3, "8"),
    ]
    assert [[candidate.name for candidate in report.candidates] for report in found.measured] == [
        ["eager", "thunder"]
    ] * 6
    assert [len(text.seconds) for report in found.generations for text in report.texts] == [3] * 4
    assert all(candidate.peak_bytes for report in found.reports for candidate in report.candidates)


def test_tokens_that_differ_from_eager_are_reported(thunder, llama, monkeypatch):
    def other(model):
        changed = saved_again(model)
        with torch.no_grad():
            changed.lm_head.weight.neg_()
        return changed

    def saved_again(model):
        return type(model)(model.config).eval()

    monkeypatch.setattr(
        generation_bench, "open_model", lambda prepared, purpose: replace(open_model(prepared, purpose), compile=other)
    )
    done = thunder("bench", llama, *GENERATE, *LENGTHS, "--batch", 1)
    assert done.status == 0, done.err
    assert "thunder, 1 x 3 + 4 tokens: " in done.out
    assert "of its tokens differ from eager's, starting at token 1" in done.out


def test_other_forms_of_the_result(thunder, llama, uncompiled, here):
    run = ("bench", llama, *GENERATE, *LENGTHS, "--batch", "1,2")
    done = thunder(*run, "--format", "csv", "--out", "result.md", "--plot", "picture.svg")
    assert done.status == 0, done.err
    rows = list(csv.DictReader(io.StringIO(done.out)))
    assert [(row["batch"], row["call"], row["candidate"]) for row in rows] == [
        (batch, call, name)
        for batch in "12"
        for call in ("generation", "first token", "next token")
        for name in ("eager", "thunder")
    ]
    assert {row["size"] for row in rows} == {"3 + 4 tokens"}
    assert "## Generation" in (here / "result.md").read_text()
    picture = (here / "picture.svg").read_text()
    assert all(words in picture for words in ("1 x 3 + 4 tokens", "2 x 3 + 4 tokens", "eager (first token: "))
    assert thunder(*run, "--plot", "page.html").status == 0
    assert (here / "page.html").read_text().count("Time of each token") >= 2


def test_two_results_and_a_baseline_are_compared_part_by_part(thunder, llama, suite, here):
    done = thunder("bench", suite, suite)
    assert (done.status, done.err) == (0, "")
    assert all(name in done.out for name in ("thunder, first token", "thunder, next token", "2 x 3 + 4 tokens"))
    rows = thunder("bench", suite, suite, "--json").json["rows"]
    assert [row["configuration"]["call"] for row in rows] == ["generation", "first token", "next token"] * 2
    run = ("bench", llama, *GENERATE, *LENGTHS, "--batch", "1,2", "--baseline", suite)
    held = thunder(*run, "--fail-above", "100000%")
    assert (held.status, len(re.findall(r" ok$", held.out, flags=re.MULTILINE))) == (0, 6), held.err
    lost = json.loads(suite.read_text())
    for report in lost["reports"]:
        report["next_token"]["candidates"][1]["speedup"] = {"value": 1e6, "low": 1e6, "high": 1e6}
    suite.write_text(json.dumps(lost))
    error = thunder(*run, "--fail-above", "1000%", "--json").json["error"]
    slow = [row["configuration"]["call"] for row in error["rows"] if row["too_slow"]]
    assert (error["code"], slow) == ("TH0501", ["next token"] * 2)


def test_the_gate_is_of_whole_calls(thunder, llama, uncompiled):
    run = ("bench", llama, "--task", "generate", "--runs", 6, "--warmup", 0, *LENGTHS, "--batch", 1)
    error = thunder(*run, "--require-speedup", 1000, "--json").json["error"]
    assert error["code"] == "TH0502"
    assert "not shown by 1 of 1 measurements: batch 1, 3 + 4 tokens: thunder is" in error["what"]


MODEL = {
    "train": (("--task", "generate", "--train"), "TH0201", "--train exclude each other"),
    "seq": (("--task", "generate", "--seq", "8"), "TH0201", "--seq is only for benchmarks of calls"),
    "unknown contender": (("--task", "generate", "--against", "inductr"), "TH0202", "inductor-static"),
    "lengths of calls": (("--prompt-length", 3), "TH0201", "--prompt-length is only for benchmarks of generation"),
    "a contender of generation": (
        ("--against", "inductor-static"),
        "TH0201",
        "inductor-static is only for benchmarks of",
    ),
    "no tokens": (("--task", "generate", "--new-tokens", "0"), "TH0201", "--new-tokens is 0"),
    "prompt": (("--task", "generate", "--prompt-length", "256"), "TH0209", "256"),
    "both": (("--task", "generate", "--prompt-length", "200", "--new-tokens", "57"), "TH0209", "57 new tokens are 257"),
}


@pytest.mark.parametrize("case", MODEL)
def test_a_bad_option_is_found_before_anything_is_loaded(thunder, here, llama, monkeypatch, case):
    monkeypatch.setattr(
        "thunder_core.workflow.pipeline.session.session.load_model",
        lambda request: pytest.fail("nothing may be loaded"),
    )
    arguments, code, words = MODEL[case]
    assert_refused(thunder("bench", llama, *arguments), here, 2, code, words)


def test_samples_are_no_prompts(thunder, here, llama, tmp_path):
    (tmp_path / "ids.jsonl").write_text('{"input_ids": [5, 9, 7]}')
    done = thunder("bench", llama, *GENERATE, "--input", tmp_path / "ids.jsonl")
    assert_refused(done, here, 2, "TH0201", "--input is only for benchmarks of calls")


@pytest.fixture(scope="module")
def artifact(tmp_path_factory, llama):
    """An artifact for generation that uses the executor torch alone."""
    out = tmp_path_factory.mktemp("artifacts") / "generates"
    made = {"prompt_length": 3, "new_tokens": 4, "batch": 1, "validate": False, "benchmark": False}
    return optimize(Request(Eager, model=ModelRequest(str(llama), task="generate"), out=out, **made)).artifact


def test_an_artifact_generates_by_its_own_programs(thunder, artifact, here, monkeypatch):
    monkeypatch.setattr(
        "thunder_core.compilation.compiler.compiler.acquire", lambda *_, **__: pytest.fail("it was traced")
    )
    done = thunder("bench", artifact, *GENERATE, "--json")
    assert done.status == 0, done.err
    (report,) = BenchmarkSuite.model_validate(done.json).generations
    assert (report.prompt_length, report.new_tokens, report.configuration["batch"]) == (3, 4, "1")
    assert not report.difference(report.candidates[1])
    two = thunder("bench", artifact, artifact, *GENERATE, "--new-tokens", 2, "--prompt-length", 2, "--json")
    assert two.status == 0, two.err
    assert [row["name"] for row in two.json["reports"][0]["candidates"]] == ["A: generates", "B: generates"]
    assert two.json["reports"][0]["new_tokens"] == 2


ARTIFACT = {
    "prompt": (("--prompt-length", 4), "TH0213", "prompts of 1 to 3 tokens"),
    "too many tokens": (("--new-tokens", 5), "TH0213", "4 new tokens"),
    "batch": (("--batch", "1,3"), "TH0213", "single prompts"),
    "recipe": (("--recipe", "default"), "TH0201", "recipe"),
    "train": (("--train",), "TH0201", "--train exclude each other"),
}


@pytest.mark.parametrize("case", ARTIFACT)
def test_sizes_that_an_artifact_does_not_serve_are_refused(thunder, artifact, here, case):
    arguments, code, words = ARTIFACT[case]
    assert_refused(thunder("bench", artifact, *GENERATE, *arguments), here, 2, code, words)


def test_artifacts_of_calls_are_refused(thunder, llama, tmp_path, here):
    request = Request(model=ModelRequest(str(llama)), recipe=Eager, out=tmp_path / "made", seq=4, validate=False)
    optimize(replace(request, benchmark=False))
    for artifacts in ((tmp_path / "made",), (tmp_path / "made", tmp_path / "made")):
        assert_refused(thunder("bench", *artifacts, *GENERATE), here, 8, "TH0811", "programs for single calls")
    done = thunder("bench", tmp_path / "made", "--task", "causal-lm")
    assert_refused(done, here, 2, "TH0201", "--task needs a model, but")


def test_a_model_that_generates_nothing_is_refused(thunder, here, tmp_path):
    bert = save_small_model(tmp_path / "bert", "bert")
    assert_refused(thunder("bench", bert, *GENERATE), here, 8, "TH0811", "generates no text")


class TestContenders:
    """The contenders are other objects than the model, which stays unchanged."""

    @pytest.fixture
    def model(self):
        from tests.generation.models import model_of

        return model_of("llama")

    def test_the_names_are_those_that_options_take(self):
        assert CONTENDERS.keys() == bench_request.OTHER_GENERATION_CONTENDERS.keys()

    def test_the_forward_alone_is_compiled_for_the_dynamic_cache(self, model, monkeypatch):
        asked = []
        monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append((function, options)) or function)
        contender = generation_contenders.inductor(model)
        assert asked == [(model.forward, {"dynamic": True})]
        assert contender.model is not model
        assert "forward" not in vars(model)
        assert contender.model.lm_head is model.lm_head
        assert contender.options == {}

    def test_the_library_compiles_each_call_behind_the_prompt_for_its_static_cache(self, model, monkeypatch):
        asked = []
        monkeypatch.setattr(torch, "compile", lambda function, **options: asked.append(options) or function)
        contender = generation_contenders.inductor_static(model)
        prompt = {"input_ids": torch.tensor([[3, 4, 5]]), "attention_mask": torch.ones(1, 3, dtype=torch.int64)}
        tokens, seconds = generation_bench.time_tokens(contender, prompt, 4)
        assert [options["mode"] for options in asked] == ["default"]
        assert len(seconds) == 4
        assert torch.equal(tokens, generation_bench.time_tokens(CONTENDERS["eager"](model), prompt, 4)[0])
        assert not {"_compiled_call", "_previous_max_cache_length"} & vars(model).keys()
