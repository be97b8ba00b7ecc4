"""The form in which an order is written for another process: JSON, and beside it a module where one is searched for.

A request is plain data. A module is an object of the user's, and is sent as `torch.save` writes it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any

import torch

from thunder_core.foundation.errors import ThunderError, WrongInputs
from thunder_core.foundation.options import options_of
from thunder_core.foundation.options.quality import Quality
from thunder_core.foundation.storage.full_disk import full_disk_told
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.recipe_search.candidate import Candidate
from thunder_core.workflow.recipe_search.order import Order
from thunder_core.workflow.recipe_search.request_trial import RequestSubject

ORDER, MODULE = "order.json", "module.pt"


def write_order(order: Order, folder: Path) -> None:
    """Write an order into a folder; raises `WrongInputs` for a module that cannot be sent to another process."""
    facts = {name: value for name, value in vars(order).items() if name not in ("subject", "candidate")}
    content: dict[str, object] = {**facts, "candidate": asdict(order.candidate)}
    if isinstance(order.subject, RequestSubject):
        content["request"] = asdict(order.subject.request)
    else:
        write_module(order.subject, folder / MODULE)
    (folder / ORDER).write_text(json.dumps(content, default=str), encoding="utf-8")


def write_module(subject: object, file: Path) -> None:
    """Write a module with its inputs; raises `WrongInputs` for one that has no form outside of this process."""
    try:
        with full_disk_told("the model could not be sent to another process"):
            torch.save(subject, file)
    except (ThunderError, OSError):
        raise
    except Exception as error:  # whatever the classes of its attributes raise
        raise WrongInputs(
            f"the model cannot be sent to another process, where candidates are tried: {error}",
            fix="define its class at the top level of a module, without lambdas among its attributes",
        ) from error


def read_order(folder: Path) -> Order:
    """The order in a folder; raises `WrongInputs` for a module whose class this process cannot import."""
    content = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    facts = content.pop("candidate")
    bound = facts.pop("bound")
    candidate = Candidate(**tuples_in(facts), bound=None if bound is None else Quality(**bound))
    request = content.pop("request", None)
    subject = read_module(folder / MODULE) if request is None else RequestSubject(request_in(request))
    return Order(subject=subject, candidate=candidate, **tuples_in(content))


def read_module(file: Path) -> Any:
    """The module that the search has written a moment ago, into a folder that only its user can write to."""
    try:
        return torch.load(file, weights_only=False)
    except Exception as error:  # whatever importing its class raises
        raise WrongInputs(
            f"the model cannot be sent to another process, where candidates are tried: {error}",
            fix="define its class in a module that can be imported, not in the script that is run or in a session",
        ) from error


def tuples_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """Plain data with tuples in the place of lists, which JSON does not have."""
    return {name: as_tuple(value) for name, value in content.items()}


def as_tuple(value: Any) -> Any:
    """A value with tuples in the place of lists."""
    return tuple(map(as_tuple, value)) if isinstance(value, list) else value


def request_in(content: Mapping[str, Any]) -> Request:
    """The request that plain data describes."""
    model = tuples_in(content["model"])
    sample = model["sample"]
    model["sample"] = None if sample is None else SampleModel(**sample)
    request = Request(**{**tuples_in(content), "model": ModelRequest(**model)})
    kinds = {name: one.kind for name, one in options_of(Request).items()}
    paths = {one.name: getattr(request, one.name) for one in fields(request) if kinds.get(one.name) is Path}
    found: dict[str, Any] = {name: None if value is None else Path(value) for name, value in paths.items()}
    return replace(request, **found, dynamic={name: as_tuple(ends) for name, ends in request.dynamic.items()})
