"""`thunder doctor` and `thunder executors`: installed parts, missing parts, and how to install them."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch.nn import functional

from thunder_cli import doctor_checks, executor_trial, processor_support
from thunder_cli.doctor_checks import CheckResult
from thunder_cli.processor_support import WIDENED
from thunder_core.backend.claiming.executor import Executor
from thunder_core.foundation import plugins
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.extension import requirement
from thunder_executors.packed_linear import PackedLinear


def swapped(function):
    """An executor that claims `silu` and runs another function."""

    def claim(bsym):
        if bsym.symbol.name != "torch.nn.functional.silu":
            return None
        return replace(bsym, symbol=symbol_of(function), kwargs={}, executor="promising")

    return claim


@pytest.fixture
def small_trials(monkeypatch):
    """Try executors on a few elements: here Triton's kernels run in its interpreter."""
    monkeypatch.setattr(executor_trial, "SIZES", (1, 1, 4, 16))


@pytest.mark.parametrize("inner", ["", "hub", "a/b/hub"])
def test_a_hub_cache_in_a_file_is_not_usable(monkeypatch, tmp_path, inner):
    (tmp_path / "file").touch()
    monkeypatch.setattr(doctor_checks.constants, "HF_HUB_CACHE", str(tmp_path / "file" / inner))
    (check,) = doctor_checks.hub()
    assert (check.state, check.fix) == ("degraded", "set HF_HOME to a folder")
    assert f"{tmp_path / 'file'} is not a folder" in check.found


@pytest.mark.parametrize("inner", ["", "hub", "a/b/hub"])
def test_a_hub_cache_that_does_not_exist_yet_is_usable(monkeypatch, tmp_path, inner):
    monkeypatch.setattr(doctor_checks.constants, "HF_HUB_CACHE", str(tmp_path / inner))
    (check,) = doctor_checks.hub()
    assert check.state == "ok"


@pytest.mark.parametrize("name", ["thunder_recipes", "thunder_executors"])
def test_a_file_that_hides_our_own_plug_ins_is_reported(thunder, monkeypatch, tmp_path, name):
    hiding, group = tmp_path / f"{name}.py", name.removeprefix("thunder_")
    hiding.touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, name, raising=False)  # as in a new process
    monkeypatch.setattr(doctor_checks, "CHECKS", [doctor_checks.own_plugins, doctor_checks.executors])
    monkeypatch.setattr(doctor_checks, "try_executor", lambda listed: CheckResult(listed.name, "ok", ""))
    done = thunder("doctor", "--json")
    check = by_name(done.json["checks"])[group]
    assert not done.json["healthy"]
    assert (check["state"], check["fix"]) == ("missing", f"rename {hiding}")
    assert f"{hiding} has the name of Thunder's package {name} and hides its {group}" in check["found"]
    assert f"Missing requirements: {group}." in thunder("doctor").out
    assert thunder("doctor", "--strict").status == 3


@pytest.mark.parametrize(
    ("flags", "problem", "ending"),
    [
        ("avx2 avx512f avx512_vnni amx_tile avx512_bf16 avx512_fp16", None, "bfloat16, float16, int8 native"),
        ("avx2 avx512f avx512_vnni", None, f"bfloat16, float16 {WIDENED}; int8 native"),
        ("avx2", None, f"bfloat16, float16, int8 {WIDENED}"),
        ("sse2", "it needs AVX2", "bfloat16, float16, int8 converted (slow)"),
        ("avx2 avx_vnni avx512_bf16", "no compiler", "bfloat16, int8 native; float16 converted (slow)"),
        ("asimdhp asimddp bf16", "it needs AVX2", "bfloat16, float16, int8 native"),
    ],
)
def test_doctor_shows_how_products_of_narrow_numbers_are_computed(monkeypatch, flags, problem, ending):
    for module in (doctor_checks, processor_support, requirement):
        monkeypatch.setattr(module, "instruction_sets", lambda: frozenset(flags.split()))
    monkeypatch.setattr(doctor_checks, "problem_of_widening", lambda: problem)
    (check,) = doctor_checks.processor()
    assert check.found.endswith(f"Products: {ending}")
    assert f"(PyTorch uses {torch.backends.cpu.get_cpu_capability()})" in check.found
    assert ("AVX-512" in check.found) == ("avx512f" in flags or "none of" in check.found)
    assert (check.state == "optional") == ("converted" in ending)
    assert not check.fix or str(problem) in check.fix


def test_doctor_knows_no_instruction_sets_outside_of_linux(monkeypatch):
    monkeypatch.setattr(doctor_checks, "instruction_sets", frozenset)
    (check,) = doctor_checks.processor()
    assert check.state == "ok"
    assert "on Linux only" in check.found


def test_an_executor_without_its_requirements_widens_nothing(monkeypatch):
    monkeypatch.setattr(PackedLinear, "missing", lambda executor: "there is no C++ compiler")
    assert processor_support.problem_of_widening() == "there is no C++ compiler"


def by_name(checks):
    return {check["name"]: check for check in checks}


@pytest.mark.usefixtures("small_trials")
def test_doctor_finds_this_environment(thunder):
    done = thunder("doctor", "--json")
    assert done.status == 0
    assert done.json["schema"] == "thunder.doctor/1"
    assert done.json["healthy"]
    checks = by_name(done.json["checks"])
    assert checks["torch"]["found"] == done.json["environment"]["torch"]
    assert checks["executor torch"]["state"] == "ok"
    assert all(check["fix"] for check in done.json["checks"] if check["state"] != "ok")


@pytest.mark.usefixtures("small_trials")
def test_doctor_prints_a_line_for_each_check(thunder):
    done = thunder("doctor")
    assert done.status == 0
    assert all(name in done.out for name in ("python", "torch", "hub cache", "All checks passed"))
    assert done.err == ""


def test_missing_dependency_is_an_error_only_when_strict(thunder, monkeypatch):
    missing = CheckResult("scipy", "missing", "no", "pip install scipy")
    monkeypatch.setattr(doctor_checks, "CHECKS", [lambda: iter([missing])])
    assert thunder("doctor").status == 0
    done = thunder("doctor", "--strict")
    assert done.status == 3
    assert "TH0301" in done.err
    assert "pip install scipy" in done.err


def test_missing_optional_dependency_is_no_error(thunder, monkeypatch):
    monkeypatch.setattr(doctor_checks, "CHECKS", [lambda: iter([CheckResult("gpu", "optional", "none", "buy one")])])
    done = thunder("doctor", "--strict")
    assert done.status == 0
    assert "All checks passed" in done.out


@pytest.mark.usefixtures("small_trials")
@pytest.mark.parametrize(("allowed", "state"), [("", "missing"), ("1", "degraded")])
def test_doctor_names_an_untested_release_of_pytorch(allowed, state, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.16.0")
    monkeypatch.setenv("THUNDER_ALLOW_UNTESTED_TORCH", allowed)
    (check,) = doctor_checks.pytorch()
    assert check.state == state
    assert check.found == "2.16.0, which was never tested; the tests were run on 2.11 to 2.15"
    assert "--allow-untested-torch" in check.fix


def test_doctor_names_an_untested_release_of_transformers(monkeypatch):
    versions = {"transformers": "6.0.1"}
    monkeypatch.setattr(doctor_checks, "installed_version", lambda name: versions.get(name, "1.0"))
    checks = {check.name: check for check in doctor_checks.packages()}
    assert checks["transformers"].found.startswith("6.0.1, which was never tested; the tests were run on 5.17 to ")
    assert checks["typer"].found == "1.0"
    assert checks["transformers"].state == "ok"


@pytest.mark.parametrize(
    "words",
    [
        ("optimize", "--recipe", "hf-llama3", "--dry-run"),
        ("bench", "--recipe", "hf-llama3"),
        ("debug", "--recipe", "hf-llama3"),
        ("inspect-trace", "--recipe", "hf-llama3"),
    ],
)
def test_commands_refuse_an_untested_release_of_pytorch(words, thunder, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.16.0")
    monkeypatch.delenv("THUNDER_ALLOW_UNTESTED_TORCH", raising=False)
    done = thunder(*words)
    assert done.status == 3
    assert "TH0306" in done.err
    assert "--allow-untested-torch" in " ".join(done.err.split())


def test_the_option_allows_an_untested_release_of_pytorch(thunder, monkeypatch):
    monkeypatch.setattr(torch, "__version__", "2.16.0")
    monkeypatch.setenv("THUNDER_ALLOW_UNTESTED_TORCH", "")
    done = thunder("optimize", "--recipe", "hf-llama3", "--dry-run", "--allow-untested-torch")
    assert done.status == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="with a GPU, fewer things need a C++ compiler")
@pytest.mark.parametrize("compiler", ["/bin/false", "no-such-compiler", "/bin/true"])
def test_a_compiler_that_compiles_nothing_is_noticed(thunder, monkeypatch, compiler):
    monkeypatch.setenv("CXX", compiler)
    done = thunder("doctor", "--strict", "--json")
    assert done.status == 3
    found = json.JSONDecoder().raw_decode(done.out)[0]
    assert not found["healthy"]
    check = by_name(found["checks"])["c++ compiler"]
    assert check["state"] == "degraded"
    assert compiler in check["found"]
    assert "no C++ compiler" in by_name(found["checks"])["executor inductor"]["found"]
    told = thunder("doctor").out
    assert "All checks passed" not in told
    assert "these parts have problems: c++ compiler" in told


def promising(claim):
    """An executor that claims to run everywhere and claims a line."""

    class Promising(Executor):
        name = "promising"
        claims = "everything"

        def claim(self, bsym):
            return claim(bsym)

    return Promising()


def raises(x, **_):
    raise RuntimeError("no such kernel")


@pytest.mark.parametrize(
    ("claim", "message"),
    [
        (lambda bsym: None, "claims no operation"),
        (lambda bsym: 1 / 0, "ZeroDivisionError"),
        (swapped(functional.gelu), "its result differs from eager PyTorch by"),
        (swapped(raises), "RuntimeError: no such kernel"),
    ],
    ids=["nothing", "fails to claim", "wrong", "fails to run"],
)
def test_an_executor_that_breaks_its_promise_is_noticed(monkeypatch, claim, message):
    executor = SimpleNamespace(EXECUTOR=promising(claim))
    monkeypatch.setattr(plugins, "load", lambda group, name: executor)
    check = doctor_checks.try_executor(plugins.PluginDescription("promising", "Promises.", "nowhere.promising", None))
    assert check.state == "degraded"
    assert message in check.found


@pytest.mark.parametrize("name", plugins.names("executors"))
def test_an_executor_that_can_be_had_is_tried(name):
    (listed,) = [executor for executor in plugins.listing("executors") if executor.name == name]
    check = doctor_checks.try_executor(listed)
    assert check.state == "optional" or check.found.startswith("tried on")


def test_other_distributions_of_our_names_are_noticed(monkeypatch):
    monkeypatch.setattr(doctor_checks, "installed_version", {"lightning-thunder": "0.2.6"}.get)
    (check,) = doctor_checks.name_clash()
    assert check.state == "optional"
    assert "lightning-thunder 0.2.6" in check.found
    assert "python -m thunder_cli.main" in check.fix


def test_executors_are_listed_with_their_claims(thunder):
    done = thunder("executors", "--json")
    assert done.json["schema"] == "thunder.executors/1"
    rows = by_name(done.json["executors"])
    assert set(rows) == set(plugins.names("executors"))
    assert rows["torch"]["available"]
    assert rows["torch"]["claims"]
    assert "every operation" in thunder("executors").out


def test_an_executor_that_cannot_be_loaded_has_its_reason(thunder, monkeypatch):
    listed = [
        plugins.PluginDescription("swift", "Runs swiftly.", "nowhere.swift", "needs swiftlib, not installed here")
    ]
    monkeypatch.setattr(plugins, "listing", lambda group: listed)
    done = thunder("executors")
    assert done.status == 0
    assert "needs swiftlib" in done.out
    assert not thunder("executors", "swift", "--json").json["executors"][0]["available"]


def test_an_unknown_executor_suggests_the_nearest(thunder):
    done = thunder("executors", "troch")
    assert (done.status, done.out) == (2, "")
    assert "TH0202" in done.err
    assert "did you mean torch" in done.err
