"""The trial of process groups that `thunder doctor` makes: real processes, and the report of a group that fails."""

from __future__ import annotations

import time

import pytest
import torch

from thunder_cli import doctor_checks, process_group_trial
from thunder_cli.process_group_trial import problem_of_group


def test_group_of_two_processes_works() -> None:
    assert problem_of_group("gloo", 2) is None


def test_doctor_reports_a_group_of_two() -> None:
    checks = list(doctor_checks.process_groups())
    assert [(check.name, check.state) for check in checks if check.name == "gloo"] == [("gloo", "ok")]
    assert "2 processes" in checks[0].found
    assert ("nccl" in [check.name for check in checks]) == torch.cuda.is_available()


def test_network_interface_that_does_not_exist_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLOO_SOCKET_IFNAME", "none0")
    (check, *_) = doctor_checks.process_groups()
    assert check.state == "degraded"
    assert "none0" in check.found
    assert "GLOO_SOCKET_IFNAME" in check.fix


def test_group_whose_processes_hang_ends_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group_trial, "MODULE", "tests.cli.machine.hanging")
    began = time.monotonic()
    assert problem_of_group("gloo", 2, seconds=1.0) == "no answer within 1 seconds"
    assert time.monotonic() - began < 10


def test_process_that_ends_without_a_message_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process_group_trial, "MODULE", "tests.cli.machine.silent")
    assert problem_of_group("gloo", 2) == "ended with status 3"


def test_wrong_sum_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda tensor: tensor.zero_())
    try:
        with pytest.raises(RuntimeError, match=r"sum over 1 processes is 0.0 instead of 1.0"):
            process_group_trial.join_group(0, 1, "gloo", str(tmp_path / "store"), 10.0)
    finally:
        torch.distributed.destroy_process_group()
