"""Each attempt to trace a call is recorded, with the reason and the source line of its failure."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

import thunder_core as thunder
from thunder_core.backend.runtime import attempt_log
from thunder_core.backend.runtime.attempt_log import AttemptLog, TracingAttempt
from thunder_core.foundation.errors import SourceLine, WrongInputs
from thunder_core.frontend.acquire.run.call_attempts import CallAttempts, reason_of
from thunder_core.tracing.ir import retrace

X = torch.ones(3)
READS_VALUE = "reads the value of a tensor"


def shift(x: torch.Tensor) -> torch.Tensor:
    return x + 1 if x.sum() > 0 else x - 1


def raise_error(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("no")


def summary(compiled: Any) -> list[tuple[int, str]]:
    return [(attempt.call, attempt.reason) for attempt in thunder.tracing_attempts(compiled)]


def test_program_without_retrace_has_one_attempt() -> None:
    compiled = thunder.jit(torch.tanh)
    assert thunder.tracing_attempts(compiled) == []
    for _ in range(2):
        compiled(X)
    (attempt,) = thunder.tracing_attempts(compiled)
    assert (attempt.call, attempt.tried, attempt.reason, attempt.where) == (1, "constant numbers and sizes", "", None)
    assert attempt.seconds > 0
    assert str(attempt) == f"call 1: constant numbers and sizes: {attempt.seconds:.3f} s, succeeded"


def test_read_of_a_tensor_value_is_an_attempt_in_vain() -> None:
    compiled = thunder.jit(shift, cache="symbolic values")
    assert torch.equal(compiled(X), shift(X))
    failed, succeeded = thunder.tracing_attempts(compiled)
    line = inspect.getsourcelines(shift)[1] + 1
    assert READS_VALUE in failed.reason
    assert failed.where == SourceLine(__file__, line, "shift")
    assert f"s, failed: {failed.reason}, at {__file__}:{line}, in shift" in str(failed)
    assert succeeded.tried == f"{failed.tried}, values of tensors are read"
    assert not succeeded.reason


def test_attempts_of_later_calls_have_their_number() -> None:
    compiled = thunder.jit(lambda x, mask: x[mask] * 2)
    masks = [torch.tensor([True, False, kept]) for kept in (True, False)]
    for mask in masks:
        compiled(X, mask)
    attempts = thunder.tracing_attempts(compiled)
    assert [attempt.call for attempt in attempts] == [1, 2, 2, 2]
    assert attempts[1].tried == "symbolic numbers and sizes, to find out whether the program uses any"
    assert attempts[1].reason == "the program uses a number or a size that differs between calls"
    assert [bool(attempt.reason) for attempt in attempts] == [False, True, True, False]


def test_decision_for_other_sizes_is_named() -> None:
    compiled = thunder.jit(lambda x: x + 1 if x.size(0) > 1 else x * 2, cache="symbolic values")
    assert torch.equal(compiled(torch.ones(1)), torch.full((1,), 2.0))
    failed, succeeded = thunder.tracing_attempts(compiled)
    assert failed.reason == "a decision based on sizes does not hold for the call: args[0].size(0)"
    assert succeeded.tried.endswith("traced with the call's args[0].size(0)")


def test_error_of_the_program_is_a_reason() -> None:
    compiled = thunder.jit(raise_error)
    with pytest.raises(ValueError, match="no"):
        compiled(X)
    (attempt,) = thunder.tracing_attempts(compiled)
    assert attempt.reason == "the program raises ValueError: no"
    assert attempt.where is not None
    assert attempt.where.function == "raise_error"


def test_methods_and_graphs_of_dynamo_have_attempts() -> None:
    model = torch.nn.Linear(3, 3)
    compiled = thunder.jit(model)
    compiled.forward(X)
    assert summary(compiled) == [(1, "")]
    captured = thunder.thunderfx(model)
    captured(X)
    assert summary(captured) == [(1, "")]


def test_other_objects_have_no_attempts() -> None:
    with pytest.raises(WrongInputs, match="not compiled by thunder"):
        thunder.tracing_attempts(shift)


def test_copies_and_pickles_do_not_share_attempts() -> None:
    compiled = thunder.jit(torch.nn.Linear(3, 3))
    compiled(X)
    for copied in (copy.deepcopy(compiled), pickle.loads(pickle.dumps(compiled))):
        copied(torch.ones(5, 3))
        assert len(thunder.tracing_attempts(compiled)) == 1


def test_latest_attempts_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_log, "MAX_ATTEMPTS", 2)
    compiled = thunder.jit(lambda x: x + 1, cache="no caching")
    for _ in range(3):
        compiled(X)
    assert summary(compiled) == [(2, ""), (3, "")]


def test_program_that_cannot_be_used_is_an_attempt_in_vain() -> None:
    log = AttemptLog()
    log.fail_last("nothing was tried")
    CallAttempts(log).end()
    log.fail_last("another thread")
    (attempt,) = log.attempts
    assert attempt == TracingAttempt(0, "", attempt.seconds, "another thread")


# ---- the reasons ----------------------------------------------------------------------------------------------------


def test_every_reason_has_words() -> None:
    assert set(get_args(retrace.RetraceReason)) == set(retrace.WORDS)
    values = {"refusal": "REASON", "reason": "REASON", "code": shift.__code__, "offset": 0, "what": "REASON", "fix": ""}
    for kind in retrace.WORDS:
        fields = [field.name for field in dataclasses.fields(kind) if field.default is dataclasses.MISSING]
        given = {name: values.get(name) for name in fields if name != "observed"}
        text = retrace.in_words(kind(**given))
        assert text
        assert ("REASON" in text) == ("REASON" in given.values())


def test_line_of_a_loop_or_a_branch_is_known() -> None:
    reason = retrace.ReadsCondition(shift.__code__, len(shift.__code__.co_code) - 2)
    line = SourceLine(__file__, inspect.getsourcelines(shift)[1] + 1, "shift")
    assert retrace.line_of(reason) == line
    assert reason_of(retrace.Retrace(reason))[1] == line
    assert retrace.line_of(retrace.ReadsCondition(shift.__code__, 10_000)) is None
    assert reason_of(retrace.Retrace(retrace.RunsInEager("does it", "", line)))[1] == line


# ---- files ----------------------------------------------------------------------------------------------------------


def lines_of_files(folder: Path) -> list[str]:
    return [line for path in sorted(folder.rglob("*.txt")) for line in path.read_text().splitlines()]


@pytest.mark.parametrize(
    ("names", "count", "traces"), [("attempts", 2, False), ("all", 2, True), ("computation", 0, True)]
)
def test_environment_variable_writes_a_line_for_each_attempt(
    names: str, count: int, traces: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THUNDER_LOGS", names)
    monkeypatch.setenv("THUNDER_LOGS_TO", str(tmp_path))
    compiled = thunder.jit(shift, cache="symbolic values")
    compiled(X)
    assert lines_of_files(tmp_path) == list(map(str, thunder.tracing_attempts(compiled)))[:count]
    assert bool(list(tmp_path.rglob("*.py"))) == traces


def test_repeated_attempts_explain_their_folders(tmp_path: Path) -> None:
    compiled = thunder.jit(lambda x: x + 1 if x.size(0) > 1 else x * 2, cache="symbolic values", dump=tmp_path)
    compiled(torch.ones(1))
    paths = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.txt"))
    assert paths == [Path("lambda-0/attempts.txt"), Path("lambda-1/attempts.txt")]
    assert ["failed" in (tmp_path / path).read_text() for path in paths] == [True, False]
    numbers = [path.name[:2] for path in sorted((tmp_path / "lambda-1").glob("*.py"))]
    assert numbers == [f"{number:02}" for number in range(len(numbers))]
