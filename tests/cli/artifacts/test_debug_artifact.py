"""`thunder debug ARTIFACT`: an artifact whose stored text was changed, with a manifest that fits."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.artifact.damages import manifest_of, reseal
from tests.cli.small import QUICK
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.workflow.artifact.format.manifest import ToleranceFacts


def write_resealed(folder: Path, name: str, content: str) -> None:
    """Write a file of an artifact, and update the manifest."""
    (folder / name).write_text(content)
    files = dict(manifest_of(folder).files)
    data = (folder / name).read_bytes()
    files[name] = files[name].model_copy(update={"size": len(data), "digest": digest_of(data)})
    reseal(folder, files=files)


def stage_of(folder: Path, trace: str):
    """The stage of a trace that runs."""
    (program,) = manifest_of(folder).programs
    return next(stage for stage in reversed(program.stages) if stage.trace == trace and stage.runs)


def change_line(folder: Path, trace: str, pattern: str, replacement: str, number: int = 0) -> None:
    """Change a line of a stage's code: the line of the match with the given number."""
    name = stage_of(folder, trace).file
    text = (folder / name).read_text()
    found = list(re.finditer(pattern, text, re.MULTILINE))[number]
    write_resealed(folder, name, text[: found.start()] + found.expand(replacement) + text[found.end() :])


@dataclass(frozen=True)
class Change:
    """A change of a stored program: the trace, a pattern of its text, the replacement, and the wrong line."""

    trace: str
    pattern: str
    replacement: str
    line: str


RETURN = r"^    return \((\w+), (\w+), (\w+),"
CHANGES = {
    "a result that is scaled": Change("computation", RETURN, r"    \1 = \1 * 1.5\n\g<0>", r"(\w+) = \1 \* 1.5"),
    "a value that is moved a little": Change(
        "computation", r"^    (t\d+) = region_1.*$", r"\g<0>\n    \1 = \1 + 0.001", r"(\w+) = \1 \+ 0.001"
    ),
    "a write in place": Change("computation", RETURN, r"    \1.mul_(1.5)\n\g<0>", r"return \(.*"),
    "swapped arguments": Change(
        "computation", r"(given_\d+ = \[\w+, )(\w+), (\w+)\]", r"\1\3, \2]", r"t\d+ = region_1\(given_\d+\)"
    ),
    "swapped results": Change("computation", RETURN, r"    return (\1, \3, \2,", r"return \(.*"),
    "swapped fields": Change(
        "epilogue", r"'keys': (t\d+), 'values': (t\d+)", r"'keys': \2, 'values': \1", "return result"
    ),
    "a field that is left out": Change("epilogue", r"items=\{'logits': (t\d+), ", r"items={", "return result"),
}

SWAPPED_WEIGHTS = Change(
    "prologue",
    r"^(    tensors = \(.*)(model_layers_0_self_attn_q_proj_weight)(.*)(model_layers_0_self_attn_o_proj_weight)",
    r"\1\4\3\2",
    r"tensors = \(.*",
)


@pytest.fixture
def artifact(thunder, here, llama):
    """An artifact of a small Llama."""
    made = thunder("optimize", llama, "--recipe", "default", "--no-benchmark", "--out", here / "a", *QUICK)
    assert made.status == 0, made.err
    return here / "a"


def faults_of(thunder, folder: Path) -> list[dict[str, str]]:
    """Return the faults that `thunder debug` finds in an artifact. The command exits with 1 if there are any."""
    done = thunder("debug", folder, "--json")
    faults = done.json["internal_check"]["faults"]
    assert done.status == bool(faults), done.err
    return faults


def test_a_stored_line_that_was_changed_is_named(thunder, artifact):
    sound = {path: path.read_bytes() for path in artifact.rglob("*") if path.is_file()}
    assert faults_of(thunder, artifact) == []
    for what, change in CHANGES.items():
        change_line(artifact, change.trace, change.pattern, change.replacement)
        fault, *others = faults_of(thunder, artifact)
        assert (fault["kind"], fault["trace"]) == ("stored", change.trace), what
        assert re.fullmatch(change.line, fault["line"]), (what, fault["line"])
        assert [one["line"] for one in others] == [stage_of(artifact, change.trace).lines_file], what
        for path, content in sound.items():
            path.write_bytes(content)


def test_a_changed_prologue_is_refused(thunder, artifact):
    change_line(artifact, SWAPPED_WEIGHTS.trace, SWAPPED_WEIGHTS.pattern, SWAPPED_WEIGHTS.replacement)
    stage = stage_of(artifact, SWAPPED_WEIGHTS.trace)
    error = thunder("debug", artifact, "--json").json["error"]
    assert error["code"] == "TH0602"
    assert f"{stage.lines_file}, which is displayed, differs from {stage.file}" in error["what"]


def test_a_changed_line_is_named_although_the_artifact_allows_any_error(thunder, artifact):
    change = CHANGES["a result that is scaled"]
    change_line(artifact, change.trace, change.pattern, change.replacement)
    reseal(artifact, tolerance=ToleranceFacts(times_eager=1e300, floor=1e300, kl=1e300, top1=0.0))
    assert faults_of(thunder, artifact)[0]["kind"] == "stored"


def test_a_listing_that_shows_something_else_is_named(thunder, artifact):
    stage = stage_of(artifact, "computation")
    text = (artifact / stage.lines_file).read_text()
    write_resealed(artifact, stage.lines_file, text.replace("region_1(given_3)", "region_1(given_4)"))
    (fault,) = faults_of(thunder, artifact)
    assert (fault["kind"], fault["trace"], fault["line"]) == ("stored", "computation", stage.lines_file)


def test_a_stored_backward_that_was_changed_is_named(thunder, here, llama):
    folder = here / "a"
    made = thunder("optimize", llama, "--recipe", "default", "--train", "--no-benchmark", "--out", folder, *QUICK)
    assert made.status == 0, made.err
    assert faults_of(thunder, folder) == []
    change_line(folder, "backward", r"^    (\w+) = region_\d+\(.*$", r"\g<0>\n    \1 = \1 * 1.01")
    fault = faults_of(thunder, folder)[0]
    assert (fault["kind"], fault["trace"]) == ("stored", "backward")
    assert fault["line"].endswith("* 1.01")
