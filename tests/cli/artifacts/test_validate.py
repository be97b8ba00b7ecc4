"""`thunder validate`: its output, its files and its refusals; artifacts with and without weights."""

from __future__ import annotations

import json
import shutil

import pytest

from tests.artifact.damages import manifest_of, reseal
from tests.cli.small import QUICK, save_small_model
from thunder_core.workflow.artifact.format.manifest import SCHEMA_VERSION, ToleranceFacts
from thunder_core.workflow.artifact.format.read import open_artifact

MAKE = (*QUICK, "--no-benchmark", "--quiet")


def bytes_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Two artifacts of a small Llama: one is validated and contains the weights, the other is not and does not."""
    from thunder_cli.main import main

    folder = tmp_path_factory.mktemp("made")
    run = ["optimize", "--recipe", "hf-llama", *map(str, MAKE)]
    assert main([*run, "--out", str(folder / "whole"), "--include-weights"]) == 0
    assert main([*run, "--out", str(folder / "bare"), "--no-validate"]) == 0
    return folder


@pytest.fixture
def whole(made, here):
    return shutil.copytree(made / "whole", here / "whole")


@pytest.fixture
def bare(made, here):
    return shutil.copytree(made / "bare", here / "bare")


def test_validated_artifact_is_not_changed(thunder, here, whole):
    before = bytes_of(whole)
    done = thunder("validate", "whole")
    assert done.status == 0, done.err
    for words in ("Validation", "logits", "ok", str(whole), "validated again; the artifact was not changed"):
        assert words in done.out
    assert bytes_of(whole) == before
    assert [path.name for path in here.iterdir()] == ["whole"]


def test_json_and_fresh_inputs(thunder, whole):
    first = thunder("validate", "whole", "--json", "--quiet").json
    assert (first["schema"], first["state"], first["written"]) == ("thunder.validate/1", "validated", False)
    assert first["validation"]["inputs"] == 3
    other = thunder("validate", "whole", "--json", "--quiet", "--validate-inputs", 1, "--seed", 77).json
    assert other["validation"]["inputs"] == 1
    assert other["validation"]["outputs"] != first["validation"]["outputs"]


def test_unvalidated_artifact_becomes_validated_and_stays_whole(thunder, here, bare):
    (bare / "notes.txt").write_text("mine")
    before = bytes_of(bare)
    assert json.loads(before["report.json"])["validation_state"] == "off"
    done = thunder("validate", "bare")
    assert done.status == 0, done.err
    assert "the report and the manifest were updated" in done.out
    manifest = open_artifact(bare).manifest
    report = json.loads((bare / "report.json").read_text())
    assert (manifest.validation, report["validation_state"]) == ("validated", "validated")
    assert report["validation"]["passed"] is True
    assert "validated after it was made, on" in (bare / "report.md").read_text()
    changed = {name for name, content in bytes_of(bare).items() if before[name] != content}
    assert changed == {"manifest.json", "report.json", "report.md", "report.html"}
    assert [path.name for path in here.iterdir()] == ["bare"]


@pytest.mark.parametrize("state", ["pending", "off"])
def test_no_write_leaves_the_artifact_unchanged(thunder, bare, state):
    reseal(bare, validation=state)
    before = bytes_of(bare)
    done = thunder("validate", "bare", "--no-write", "--json", "--quiet")
    assert (done.status, done.json["state"], done.json["written"]) == (0, state, False)
    assert bytes_of(bare) == before


def test_out_of_tolerance_changes_nothing_and_reports_the_measurement(thunder, bare):
    reseal(bare, tolerance=ToleranceFacts(times_eager=-1.0, floor=0.0, kl=0.0, top1=1.0))
    before = bytes_of(bare)
    done = thunder("validate", "bare", "--json", "--quiet")
    assert done.status == 4
    assert done.json["error"]["code"] == "TH0401"
    assert done.json["error"]["report"]["passed"] is False
    assert bytes_of(bare) == before


LOOSE = ToleranceFacts(times_eager=1e300, floor=1e300, kl=1e300, top1=0.0)


def test_an_artifact_cannot_loosen_the_tolerance_of_its_recipe(thunder, bare):
    reseal(bare, tolerance=LOOSE)
    done = thunder("validate", "bare", "--no-write")
    assert done.status == 0, done.err
    assert "tolerance times_eager=2 floor=4e-06 kl=1e-05 top1=0.99" in done.out
    done = thunder("validate", "bare", "--tolerance", "0", "--tolerance", "floor=0", "--quiet")
    assert (done.status, "TH0401" in done.err) == (4, True)
    done = thunder("validate", "bare", "--no-write", "--tolerance", "times_eager=8", "--tolerance", "kl=0.5")
    assert "tolerance times_eager=8 floor=4e-06 kl=0.5 top1=0.99" in done.out


@pytest.mark.parametrize("text", ["much", "-1", "inf", "nan", "speed=1", "kl=", "=", ""])
def test_text_that_is_no_tolerance_is_refused(thunder, bare, text):
    done = thunder("validate", "bare", "--tolerance", text)
    assert (done.status, "TH0201" in done.err) == (2, True)


def test_the_stored_programs_are_compared(thunder, bare, monkeypatch):
    monkeypatch.setattr(
        "thunder_core.compilation.compiler.compiler.acquire", lambda *_, **__: pytest.fail("it was traced")
    )
    assert thunder("validate", "bare", "--quiet").status == 0
    reseal(bare, validation="pending", random_inputs={**manifest_of(bare).random_inputs, "seq": 9})
    done = thunder("validate", "bare", "--quiet")
    assert (done.status, "TH0213" in done.err) == (2, True)


def test_a_folder_that_cannot_be_written_is_reported_first(thunder, bare, monkeypatch):
    monkeypatch.setattr("thunder_core.workflow.pipeline.validate.can_be_revised", lambda folder: False)
    done = thunder("validate", "bare", "--quiet")
    assert done.status == 2
    assert "--no-write" in done.err
    assert thunder("validate", "bare", "--no-write", "--quiet").status == 0


def elsewhere(folder):
    programs = tuple(program.model_copy(update={"devices": ("cuda:99",)}) for program in manifest_of(folder).programs)
    reseal(folder, programs=programs)


REFUSED = {
    "no artifact": (lambda folder: (folder / "manifest.json").unlink(), 6, "TH0601"),
    "damaged": (lambda folder: (folder / "weights/model.safetensors").write_bytes(b""), 6, "TH0602"),
    "newer": (lambda folder: reseal(folder, schema_version=SCHEMA_VERSION + 1), 6, "TH0603"),
    "older": (lambda folder: reseal(folder, schema_version=SCHEMA_VERSION - 1), 6, "TH0608"),
    "another device": (elsewhere, 6, "cuda:99"),
    "no sizes": (lambda folder: reseal(folder, random_inputs={}), 2, "TH0213"),
    "no source": (lambda folder: reseal(folder, source={}), 2, "TH0213"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_damaged_and_unsuitable_artifacts_are_refused(thunder, whole, kind):
    damage, status, words = REFUSED[kind]
    damage(whole)
    done = thunder("validate", "whole", "--quiet")
    assert (done.status, done.out) == (status, "")
    assert words in done.err
    assert "Traceback" not in done.err


def test_no_inputs(thunder, whole):
    assert thunder("validate", "whole", "--validate-inputs", 0).status == 2


def test_validate_reports_whether_weights_are_included(thunder, made):
    for name, included in (("whole", True), ("bare", False)):
        report = json.loads((made / name / "report.json").read_text())
        assert bool(report["weights_bytes"]) is included
        listing = thunder("inspect-trace", made / name, "--list", "--json").json
        assert listing["weights"]["included"] is included
        assert ("B in the artifact" in (made / name / "report.md").read_text()) is included
    assert listing["validation"] == "off"
    assert "weights: those of the model, not in the artifact" in thunder("inspect-trace", made / "bare", "--list").out
    assert "weights: in the artifact" in thunder("inspect-trace", made / "whole", "--list").out


def test_bench_needs_no_checkpoint_if_the_weights_are_included(thunder, here, made, tmp_path):
    save_small_model(tmp_path / "model")
    run = ("optimize", tmp_path / "model", "-r", "hf-llama", *MAKE, "--no-validate", "--out")
    assert thunder(*run, "whole", "--include-weights").status == 0
    assert thunder(*run, "bare").status == 0
    shutil.rmtree(tmp_path / "model")
    quick = (*QUICK, "--quiet", "--json")
    assert thunder("bench", "whole", *quick).status == 0
    assert thunder("validate", "whole", "--quiet").status == 0
    assert thunder("bench", "bare", *quick).status == 2
