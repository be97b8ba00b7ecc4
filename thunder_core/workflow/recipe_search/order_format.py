"""Write and read an order for another process: a JSON file and, if the search is for a module, a module file.

A request is plain data and is part of the JSON file. A module is written by `torch.save`.
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
    """Write an order into a folder; raise `WrongInputs` for a module that cannot be sent to another process."""
    facts = {name: value for name, value in vars(order).items() if name not in ("subject", "candidate")}
    content: dict[str, object] = {**facts, "candidate": asdict(order.candidate)}
    if isinstance(order.subject, RequestSubject):
        content["request"] = asdict(order.subject.request)
    else:
        write_module(order.subject, folder / MODULE)
    (folder / ORDER).write_text(json.dumps(content, default=str), encoding="utf-8")


def write_module(subject: object, file: Path) -> None:
    """Write a module with its inputs; raise `WrongInputs` for a module that cannot be pickled."""
    try:
        with full_disk_told("the model could not be sent to another process"):
            torch.save(subject, file)
    except (ThunderError, OSError):
        raise
    except Exception as error:  # the classes of its attributes may raise any exception
        raise WrongInputs(
            f"the model cannot be sent to another process, where candidates are tried: {error}",
            fix="define its class at the top level of a module, without lambdas among its attributes",
        ) from error


def read_order(folder: Path) -> Order:
    """Read the order in a folder; raise `WrongInputs` for a module whose class this process cannot import."""
    content = json.loads((folder / ORDER).read_text(encoding="utf-8"))
    facts = content.pop("candidate")
    bound = facts.pop("bound")
    candidate = Candidate(**tuples_in(facts), bound=None if bound is None else Quality(**bound))
    request = content.pop("request", None)
    subject = read_module(folder / MODULE) if request is None else RequestSubject(request_in(request))
    return Order(subject=subject, candidate=candidate, **tuples_in(content))


def read_module(file: Path) -> Any:
    """Read the module file of the search, which is in a folder that only the user can write to."""
    try:
        return torch.load(file, weights_only=False)
    except Exception as error:  # the import of its class may raise any exception
        raise WrongInputs(
            f"the model cannot be sent to another process, where candidates are tried: {error}",
            fix="define its class in a module that can be imported, not in the script that is run or in a session",
        ) from error


def tuples_in(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return plain data with tuples instead of lists, because JSON has no tuples."""
    return {name: as_tuple(value) for name, value in content.items()}


def as_tuple(value: Any) -> Any:
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
