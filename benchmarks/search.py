"""Compare a search with an exhaustive trial: how close is the winner of the search to the best candidate?

    python -m benchmarks.search --models llama,vit --budget 5m
    python -m benchmarks.search --models llama-generate,bert,vit,t5,resnet --out benchmarks/results/search.json

First, a search runs as in `thunder bench --candidates`, without kept results. Then every candidate gets as many rounds
as a finalist of a search, on the same machine. The result is the winner's speed in the exhaustive trial, divided by
the speed of the best candidate in the exhaustive trial.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from thunder_core.foundation.options.duration import parse_duration
from thunder_core.workflow.models.request.request import ModelRequest, SampleModel
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline.request.request import Request
from thunder_core.workflow.pipeline.request.search_request import SearchRequest
from thunder_core.workflow.report.search import SearchCandidate

RESNET = SampleModel(
    "ResNetForImageClassification",
    {"embedding_size": 16, "hidden_sizes": [32, 64, 96, 128], "depths": [1, 1, 2, 1], "num_labels": 10},
)
GENERATION = {"prompt_length": 32, "new_tokens": 16, "batch": 2}
HARD_LIMIT = 600.0  # the largest number of seconds for a candidate in the exhaustive trial


def request_for(name: str) -> Request:
    """Return the request for a model with a name of `--models`: a sample, or a folder."""
    if Path(name).is_dir():
        return Request(model=ModelRequest(model=name))
    sample = RESNET if name == "resnet" else SAMPLES[name.removesuffix("-generate")]
    if name.endswith("-generate"):
        return Request(model=ModelRequest(sample=sample, task="generate"), **GENERATION)  # type: ignore[arg-type]
    return Request(model=ModelRequest(sample=sample))


def candidate_facts(row: SearchCandidate) -> dict[str, Any]:
    """Return the state of a candidate, and its speed in the exhaustive trial with its confidence interval."""
    speed = row.speed and [round(part, 3) for part in (row.speed.value, row.speed.low, row.speed.high)]
    return {"state": row.state, "exhaustive": speed, "reason": row.reason}


def compare(name: str, seconds: float, bounds: dict[str, Any]) -> dict[str, Any]:
    """Search for a model, try all of its candidates, and compare the winner with the best candidate."""
    from thunder_core.workflow.recipe_search.halving import ROUNDS
    from thunder_core.workflow.recipe_search.process import run_in_process
    from thunder_core.workflow.recipe_search.request_search import RequestSearch
    from thunder_core.workflow.recipe_search.request_trial import RequestSubject
    from thunder_core.workflow.recipe_search.rows import rows_of
    from thunder_core.workflow.recipe_search.trial_task import TrialTask

    planned = RequestSearch.plan_search(request_for(name), SearchRequest(seconds, fresh=True, **bounds))
    run = planned.run(writes=False)
    report = run.report()
    began = time.monotonic()
    subject = RequestSubject(planned.request)
    results = {
        candidate: run_in_process(TrialTask(subject, candidate, ROUNDS[-1], planned.search.objective), HARD_LIMIT)
        for candidate in planned.candidates
    }
    rows = {row.name: row for row in rows_of(planned.candidates, (), results, planned.bounds)}
    speeds = {row.name: row.speed.value for row in rows.values() if row.is_within and row.speed is not None}
    best = max(speeds, key=lambda candidate: speeds[candidate])
    winner = report.winner
    return {
        "model": name,
        "winner": winner,
        "best": best,
        "winner speed": round(speeds.get(winner, 0.0), 3),
        "best speed": round(speeds[best], 3),
        "of the best": round(speeds.get(winner, 0.0) / speeds[best], 3),
        "within bounds": winner in speeds,
        "search seconds": round(report.seconds),
        "budget": seconds,
        "exhaustive seconds": round(time.monotonic() - began),
        "end": report.end,
        "candidates": {row.name: candidate_facts(row) for row in rows.values()},
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Compare each model, print its results as JSON, and write a file if `--out` is set."""
    parser = argparse.ArgumentParser(prog="benchmarks.search", description=__doc__.partition("\n")[0])
    parser.add_argument("--models", default="llama,vit", help="names of samples, `resnet`, NAME-generate, or folders")
    parser.add_argument("--budget", default="5m")
    parser.add_argument("--max-kl", type=float)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(arguments)
    bounds = {} if options.max_kl is None else {"max_kl": options.max_kl}
    seconds = parse_duration("--budget", options.budget)
    rows = []
    for name in options.models.split(","):
        with tempfile.TemporaryDirectory() as cache:
            os.environ["THUNDER_CACHE_DIR"] = cache
            rows.append(compare(name, seconds, bounds))
        print(json.dumps(rows[-1], indent=1), flush=True)
        if options.out is not None:
            options.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
