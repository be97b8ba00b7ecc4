"""A pytest plug-in that writes each event at once, so that the record of a crashed process shows its progress.

It also selects the shard of the tests that the process runs, without those that an earlier process has finished.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "THUNDER_GPU_RECORD"  # the file of the events, with a line of JSON for each
SHARD = "THUNDER_GPU_SHARD"  # `1/4` selects the second of every four tests
FINISHED = "THUNDER_GPU_FINISHED"  # the names of finished tests, as JSON
FINISH = "finish"  # the phase of the last event, which belongs to no test


def note(**event: Any) -> None:
    with Path(os.environ[VARIABLE]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    number, count = map(int, os.environ.get(SHARD, "0/1").split("/"))
    finished = {*json.loads(os.environ.get(FINISHED, "[]"))}
    items[:] = [item for item in items[number::count] if item.nodeid not in finished]


def pytest_collectreport(report: pytest.CollectReport) -> None:
    if report.failed:
        note(test=report.nodeid, phase="collect", outcome="failed", seconds=0.0, text=report.longreprtext)


def pytest_runtest_logstart(nodeid: str) -> None:
    note(test=nodeid, phase="begin", outcome="passed", seconds=0.0, text="")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    text = getattr(report, "wasxfail", "") or report.longreprtext
    note(test=report.nodeid, phase=report.when, outcome=report.outcome, seconds=report.duration, text=text)


def pytest_sessionfinish(exitstatus: int) -> None:
    note(test="", phase=FINISH, outcome=str(int(exitstatus)), seconds=0.0, text="")
