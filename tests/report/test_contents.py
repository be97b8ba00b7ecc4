"""A report survives a round trip through its file, and refuses unknown fields."""

from __future__ import annotations

import json
import math

import pytest
import torch
from pydantic import ValidationError

from thunder_core.workflow.report import Report, contents, describe_environment


def test_a_report_survives_json(full: Report, bare: Report) -> None:
    for report in (full, bare):
        assert Report.model_validate_json(report.model_dump_json()) == report


def test_infinities_survive_json(full: Report) -> None:
    assert full.validation is not None
    endless = full.validation.outputs[0].model_copy(update={"smallest_tolerance": math.inf})
    report = full.model_copy(update={"validation": full.validation.model_copy(update={"outputs": (endless,)})})
    assert json.loads(report.model_dump_json())["validation"]["outputs"][0]["smallest_tolerance"] == "Infinity"
    assert Report.model_validate_json(report.model_dump_json()) == report


@pytest.mark.parametrize(
    "path", [(), ("model",), ("recipe",), ("validation",), ("validation", "tolerance"), ("environment",)]
)
def test_unknown_keys_are_refused_everywhere(full: Report, path: tuple[str, ...]) -> None:
    data = json.loads(full.model_dump_json())
    place = data
    for key in path:
        place = place[key]
    place["unknown"] = 1
    with pytest.raises(ValidationError, match="unknown"):
        Report.model_validate(data)


def test_another_schema_is_refused(full: Report) -> None:
    data = json.loads(full.model_dump_json()) | {"schema_version": contents.SCHEMA_VERSION + 1}
    with pytest.raises(ValidationError, match="schema_version"):
        Report.model_validate(data)


def test_a_report_is_dated_in_utc(full: Report) -> None:
    fresh = Report(thunder="0", environment=full.environment, model=full.model, recipe=full.recipe)
    assert fresh.created.utcoffset() is not None
    assert fresh.model_dump_json().split('"created":"')[1][19] == "Z"


def test_the_environment_describes_this_process() -> None:
    found = describe_environment()
    assert found.torch == torch.__version__
    assert found.threads == torch.get_num_threads()
    assert len(found.gpus) == torch.cuda.device_count()
    assert {"transformers", "safetensors"} <= found.libraries.keys()
    assert found.processor
    assert found.cores >= 1
