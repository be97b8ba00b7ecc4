"""Artifacts that refer to modules which must not be imported, for the tests of trust."""

from __future__ import annotations

from pathlib import Path

from tests.artifact.damages import manifest_of, reseal
from thunder_core.workflow.artifact.format.program_facts import ConstantFacts

WRITES = "with open(os.environ['THUNDER_TEST_MARK'], 'a') as mark:\n    mark.write('ran ')\n"
MARKS = f"import os\n{WRITES}"


def change_stage(folder: Path, trace: str, **changes: object) -> None:
    """Replace the last stage of a trace of program 0."""
    programs = manifest_of(folder).programs
    stages = [
        stage.model_copy(update=changes) if stage.trace == trace and stage.runs else stage
        for stage in programs[0].stages
    ]
    reseal(folder, programs=(programs[0].model_copy(update={"stages": tuple(stages)}), *programs[1:]))


def add_constant(folder: Path, facts: ConstantFacts) -> None:
    (stage,) = (
        kept_stage
        for kept_stage in manifest_of(folder).programs[0].stages
        if kept_stage.trace == "prologue" and kept_stage.runs
    )
    change_stage(folder, "prologue", constants={**stage.constants, "strange": facts})


def constant(text: str) -> ConstantFacts:
    return ConstantFacts(kind="import", text=text)
