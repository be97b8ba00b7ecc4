"""Write and read a task for another process as a JSON file.

A request is plain data and is part of the file. A module is not: the other process receives it separately.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

from thunder_core.foundation.options import options_of
from thunder_core.foundation.options.quality import Quality
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.recipe_search.candidate import Candidate
from thunder_core.workflow.recipe_search.request_trial import RequestSubject
from thunder_core.workflow.recipe_search.trial_task import SearchSubject, TrialTask

TASK = "task.json"


def write_task(task: TrialTask, folder: Path) -> None:
    """Write a task into a folder, without its module."""
    facts = {name: value for name, value in vars(task).items() if name not in ("subject", "candidate")}
    content: dict[str, object] = {**facts, "candidate": asdict(task.candidate)}
    if isinstance(task.subject, RequestSubject):
        content["request"] = asdict(task.subject.request)
    (folder / TASK).write_text(json.dumps(content, default=str), encoding="utf-8")


def read_task(folder: Path, receive: Callable[[], SearchSubject]) -> TrialTask:
    """Read the task in a folder; `receive` returns the module of a task that has no request."""
    content = json.loads((folder / TASK).read_text(encoding="utf-8"))
    facts = content.pop("candidate")
    bound = facts.pop("bound")
    candidate = Candidate(**tuples_in(facts), bound=None if bound is None else Quality(**bound))
    request = content.pop("request", None)
    subject = receive() if request is None else RequestSubject(request_in(request))
    return TrialTask(subject=subject, candidate=candidate, **tuples_in(content))


def tuples_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data with tuples instead of lists, because JSON has no tuples."""
    return {name: as_tuple(value) for name, value in content.items()}


def as_tuple(value: object) -> Any:
    """Return a value with tuples instead of lists."""
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value


def request_in(content: Mapping[str, Any]) -> Request:
    """Return the request that plain data describes."""
    model = tuples_in(content["model"])
    sample = model["sample"]
    model["sample"] = None if sample is None else SampleModel(**sample)
    request = Request(**{**tuples_in(content), "model": ModelRequest(**model)})
    kinds = {name: option.kind for name, option in options_of(Request).items()}
    strings = {field.name: getattr(request, field.name) for field in fields(request) if kinds.get(field.name) is Path}
    paths: dict[str, Any] = {name: None if value is None else Path(value) for name, value in strings.items()}
    return replace(request, **paths, dynamic={name: as_tuple(ends) for name, ends in request.dynamic.items()})
