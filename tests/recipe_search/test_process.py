"""Processes of trials: results, deaths, time limits and tasks as JSON."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path

import psutil
import pytest
import torch

from tests.recipe_search.samples import QUANTIZED, facts
from thunder_core.foundation.errors import OutOfTolerance, WrongInputs
from thunder_core.foundation.options.quality import Quality
from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.recipe_search import process, worker
from thunder_core.workflow.recipe_search.candidate import Candidate
from thunder_core.workflow.recipe_search.module_search import ModuleSubject
from thunder_core.workflow.recipe_search.module_transfer import receive
from thunder_core.workflow.recipe_search.request_trial import RequestSubject
from thunder_core.workflow.recipe_search.trial_facts import TrialFacts, TrialRefusal
from thunder_core.workflow.recipe_search.trial_task import TrialTask
from thunder_core.workflow.recipe_search.trial_task_format import read_task, write_task

REQUESTS = [
    Request(recipe=("hf-llama",), model=ModelRequest(sample=SAMPLES["llama"], task="generate"), new_tokens=4, batch=2),
    Request(
        recipe=("hf-llama",),
        model=ModelRequest(model="folder", dtype="float32", allow_unused_weights=("lm_head",)),
        dynamic={"seq": (1, 8)},
        out=Path("out"),
        input=Path("in.npz"),
        without=("cse",),
        tune=2.0,
        train=True,
    ),
]
CANDIDATE = Candidate("x", 4, ("a", "b"), "bfloat16", 2, ("c",), True, (("b.kl", "0.1"),), Quality(error=0.1))


def no_module():
    raise AssertionError("a request needs no module")


class Failing:
    """A subject of which each trial raises."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def try_candidate(self, task: TrialTask) -> TrialFacts:
        raise self.error


@pytest.mark.parametrize("request_", REQUESTS, ids=["generate", "calls"])
def test_task_is_the_same_after_json(tmp_path, request_):
    task = TrialTask(RequestSubject(request_), CANDIDATE, 20, "latency", first=False, skipped=("lm_head",))
    write_task(task, tmp_path)
    again = read_task(tmp_path, no_module)
    assert again == task
    assert again.candidate.request(request_) == task.candidate.request(request_)
    assert [path.name for path in tmp_path.iterdir()] == ["task.json"]
    assert "pickle" not in (tmp_path / "task.json").read_text()


def test_a_module_is_the_same_in_another_process(tmp_path):
    torch.manual_seed(0)
    module, x = torch.nn.Linear(2, 3), torch.ones(1, 2)
    task = TrialTask(ModuleSubject(module, ({"input": x},)), QUANTIZED, 10, "latency")
    write_task(task, tmp_path)
    with process.offered_module(task) as (descriptor,):
        subject = read_task(tmp_path, partial(receive, os.dup(descriptor))).subject
    assert torch.equal(subject.model(**subject.calls[0]), module(x))  # type: ignore[attr-defined]


def test_a_module_that_cannot_be_sent_is_refused():
    module = torch.nn.Linear(2, 3)
    module.hook = lambda: None
    with (
        pytest.raises(WrongInputs, match="cannot be sent to another process"),
        process.offered_module(TrialTask(ModuleSubject(module, ()), QUANTIZED, 10, "latency")),
    ):
        pass


@pytest.mark.parametrize(
    ("error", "reason", "passing", "is_raised"),
    [
        (OutOfTolerance("it differs", fix="none"), "TH0401 it differs", False, False),
        (MemoryError("too much"), "MemoryError: too much", True, False),
        (RuntimeError("one\ntwo"), "RuntimeError: one", True, True),
    ],
)
def test_error_of_a_trial_is_a_refusal(monkeypatch, error, reason, passing, is_raised, capsys):
    monkeypatch.setattr(worker, "read_task", lambda folder, receive: TrialTask(Failing(error), QUANTIZED, 1, "latency"))
    found = worker.run_task(Path())
    assert isinstance(found, TrialRefusal)
    assert (found.reason, found.is_temporary, found.is_raised) == (reason, passing, is_raised)


def test_results_are_read_as_they_were_written(tmp_path):
    measured = facts(QUANTIZED)
    (tmp_path / worker.RESULT).write_text(json.dumps({"facts": json.loads(measured.model_dump_json())}))
    assert process.result_in(tmp_path, 0, 1.0) == measured


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import os; os.kill(os.getpid(), 9)", "its process was killed by SIGKILL"),
        ("print('the last words'); raise SystemExit(3)", "its process ended with exit status 3: the last words"),
        ("import os; os.abort()", "its process was killed by SIGABRT"),
    ],
)
def test_a_process_that_dies_is_a_refusal(tmp_path, code, reason):
    with (tmp_path / worker.OUTPUT).open("wb") as output:
        status = process.run_command((sys.executable, "-c", code), output.fileno(), 60)
    found = process.result_in(tmp_path, status, 60)
    assert found == TrialRefusal(reason=reason, is_temporary=True)


def test_a_process_that_takes_too_long_is_killed_with_its_children(tmp_path):
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    with (tmp_path / worker.OUTPUT).open("wb") as output:
        status = process.run_command((sys.executable, "-c", code), output.fileno(), 3)
    found = process.result_in(tmp_path, status, 3)
    assert isinstance(found, TrialRefusal)
    assert (found.is_temporary, found.timed_out) == (True, True)
    child = int((tmp_path / worker.OUTPUT).read_text())
    deadline = time.monotonic() + 10  # a killed process ends a little later
    while is_running(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not is_running(child)


def is_running(pid):
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_real_process_measures_a_module_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "cache_folder", lambda: tmp_path)
    subject = ModuleSubject(torch.nn.Linear(8, 8), ({"input": torch.ones(1, 8)},))
    found = process.run_in_process(TrialTask(subject, Candidate("eager", 0), 10, "latency"), 120)
    assert isinstance(found, TrialFacts), found
    assert (found.error, found.size) == (0.0, 4 * (8 * 8 + 8))
    assert len(found.candidate_times) >= 10
    assert [path.name for path in tmp_path.rglob("*")] == ["searches"]


def test_files_of_a_killed_search_are_removed_by_the_next_search(tmp_path, monkeypatch):
    monkeypatch.setattr(process, "cache_folder", lambda: tmp_path)
    with process.trial_folder() as folder:
        left = folder.with_name(folder.name.replace(str(os.getpid()), "999999"))
        left.mkdir()
        (left / "task.json").write_text("{}")
    with process.trial_folder() as folder:
        assert [*folder.parent.iterdir()] == [folder]
    assert [*folder.parent.iterdir()] == []


def test_where_the_cache_cannot_be_written_a_trial_has_a_temporary_folder(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(process, "cache_folder", lambda: tmp_path / "file")
    with process.trial_folder() as folder:
        assert folder.is_dir()
    assert not folder.exists()


def test_plain_data_of_a_request_holds_nothing_but_json():
    for request in REQUESTS:
        assert json.loads(json.dumps(asdict(request), default=str))
