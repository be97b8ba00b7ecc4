"""The listing of an artifact matches the code that runs: listings with other lines are refused."""

from __future__ import annotations

import json

import pytest

from tests.artifact.damages import manifest_of, reseal
from thunder_core.foundation.errors import ArtifactDamaged
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.foundation.storage.manifest import FileFacts
from thunder_core.workflow.artifact import open_artifact


def stages(folder, trace="computation"):
    return [stage for stage in manifest_of(folder).programs[0].stages if stage.trace == trace]


def rewrite(folder, name, text):
    """Replace the content of a file, and update its digest in the manifest."""
    (folder / name).write_text(text)
    facts = FileFacts(size=len(text.encode()), digest=digest_of(text.encode()))
    reseal(folder, files={**manifest_of(folder).files, name: facts})


def test_every_stage_of_every_trace_shows_its_lines(artifact):
    opened = open_artifact(artifact)
    listings = [opened.listing(stage) for stage in manifest_of(artifact).programs[0].stages]
    assert {listing.name for listing in listings} == {"prologue", "computation", "backward", "epilogue"}


LIES = {
    "another operation": lambda text: text.replace("gelu(", "relu(", 1),
    "another argument": lambda text: text.replace("_2_weight, _2_bias)", "_2_bias, _2_weight)", 1),
    "a line more": lambda text: text.replace("    return ", "    import os\n    return ", 1),
    "a line before the function": lambda text: text.replace("\ndef ", "\nprint(1)\n\ndef ", 1),
    "a line behind the function": lambda text: f"{text}print(1)\n",
    "a default": lambda text: text.replace("):\n", "=print(1)):\n", 1),
    "a decorator": lambda text: text.replace("\ndef ", "\n@print\ndef ", 1),
    "another import": lambda text: f"import antigravity\n{text}",
    "no Python": lambda text: f"{text}    (",
    "nesting": lambda text: f"{text}{'(' * 10_000}",
    "a zero": lambda text: f"{text}\0",
    "nothing": lambda text: "",
}


@pytest.mark.parametrize("lie", LIES)
def test_code_that_differs_from_its_listing_is_refused(lie, artifact):
    last = stages(artifact)[-1]
    text = (artifact / last.file).read_text()
    assert LIES[lie](text) != text
    rewrite(artifact, last.file, LIES[lie](text))
    with pytest.raises(ArtifactDamaged, match="which is displayed, differs from"):
        open_artifact(artifact).listing(last)


HIDDEN = {
    "in a module's name": lambda line: {**line, "module": "layers.0\nimport os"},
    "in the user's line": lambda line: {**line, "code": "x\n    import os", "file": "model.py"},
    "in an executor's name": lambda line: {**line, "executor": "fast\nimport os"},
    "in place of a line": lambda line: {**line, "text": "pass"},
}


@pytest.mark.parametrize("place", HIDDEN)
def test_listings_that_differ_from_the_code_are_refused(place, artifact):
    last = stages(artifact)[-1]
    content = json.loads((artifact / last.lines_file).read_text())
    content["lines"] = [HIDDEN[place](content["lines"][0]), *content["lines"][1:]]
    rewrite(artifact, last.lines_file, json.dumps(content))
    with pytest.raises(ArtifactDamaged, match="which is displayed, differs from"):
        open_artifact(artifact).listing(last)


def test_lines_of_another_trace_are_refused(artifact):
    computation, prologue = stages(artifact)[-1], stages(artifact, "prologue")[-1]
    rewrite(artifact, computation.lines_file, (artifact / prologue.lines_file).read_text())
    with pytest.raises(ArtifactDamaged, match="which is displayed"):
        open_artifact(artifact).listing(computation)


@pytest.mark.parametrize("content", ["", "[", "{}", "[" * 100_000, '{"name": 1}', "9" * 5001])
def test_lines_that_cannot_be_read_are_refused(content, artifact):
    last = stages(artifact)[-1]
    rewrite(artifact, last.lines_file, content)
    with pytest.raises(ArtifactDamaged, match=r"is not in the form that Thunder writes"):
        open_artifact(artifact).listing(last)


def test_code_that_is_no_text_file_is_refused(artifact):
    last = stages(artifact)[-1]
    (artifact / last.file).write_bytes(b"\xff\xfe")
    facts = FileFacts(size=2, digest=digest_of(b"\xff\xfe"))
    reseal(artifact, files={**manifest_of(artifact).files, last.file: facts})
    with pytest.raises(ArtifactDamaged, match="is not a text file"):
        open_artifact(artifact).listing(last)
