"""Option values that are invalid or have no effect are refused, and the message names the option that is meant."""

from __future__ import annotations

import pytest

from thunder_core.foundation.errors import BadData, BadOption
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.pipeline import Request
from thunder_core.workflow.pipeline.request.request import require_calibration
from thunder_core.workflow.pipeline.request.request_checks import refuse_generation, refuse_sizes
from thunder_core.workflow.pipeline.request.run_request import parse_tokens

MANY_DIGITS = "1" * 5000  # more than `int` accepts


@pytest.mark.parametrize("text", ["\u00b2", "--5", "-"])
def test_calibration_that_is_no_number_is_a_file(text: str) -> None:
    with pytest.raises(BadData, match="has an unknown format"):
        require_calibration("--calibrate", text)


@pytest.mark.parametrize("text", ["0", "-3", MANY_DIGITS])
def test_calibration_with_an_impossible_number_is_refused(text: str) -> None:
    with pytest.raises(BadOption, match="--calibrate is"):
        require_calibration("--calibrate", text)


def test_token_with_too_many_digits_is_refused() -> None:
    with pytest.raises(BadOption, match="--prompt-ids is"):
        parse_tokens("--prompt-ids", f"1,{MANY_DIGITS}")


def test_training_refuses_the_cache_and_not_the_height() -> None:
    with pytest.raises(BadOption, match="--dynamic cache= and --train exclude each other"):
        refuse_sizes(Request(train=True, height=32, dynamic={"cache": (0, 8)}))


def test_time_limit_of_a_validation_is_not_for_generation() -> None:
    with pytest.raises(BadOption, match="--task generate and --validate-budget exclude each other"):
        refuse_generation(Request(model=ModelRequest(task="generate"), validate_budget=1.0))


def test_number_of_inputs_is_not_for_generation() -> None:
    with pytest.raises(BadOption, match="--task generate and --validate-inputs exclude each other"):
        refuse_generation(Request(model=ModelRequest(task="generate"), inputs=2))
