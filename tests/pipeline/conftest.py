"""Small models, quick requests, and an object that watches an optimization."""

from __future__ import annotations

from pathlib import Path

import pytest

from thunder_core.workflow.models.request.request import ModelRequest
from thunder_core.workflow.models.request.sample_models import SAMPLES
from thunder_core.workflow.pipeline import Request


class Watcher:
    """A watcher that records its calls, and raises an error in a given stage."""

    def __init__(self, fails_in: str = "", error: type[BaseException] | None = None) -> None:
        self.fails_in, self.error = fails_in, error
        self.begun: list[str] = []
        self.ended: dict[str, float] = {}
        self.moves: dict[str, list[tuple[int, int]]] = {}

    def begin(self, stage: str) -> None:
        self.begun.append(stage)
        if stage == self.fails_in and self.error is not None:
            raise self.error

    def advance(self, done: int, total: int) -> None:
        self.moves.setdefault(self.begun[-1], []).append((done, total))

    def end(self, stage: str, seconds: float) -> None:
        self.ended[stage] = seconds


@pytest.fixture(autouse=True)
def threads(one_thread: None) -> None:
    """Use one thread: the models are too small for more."""


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """The path of the artifact, which is the only object in its folder."""
    (tmp_path / "results").mkdir()
    return tmp_path / "results" / "small.thunder"


def quick(out: Path | None, recipe: object = "default", sample: str = "llama", **changes: object) -> Request:
    """A request that takes about a second."""
    lengths = {} if sample == "vit" else {"seq": 8}  # a model of images has no length
    settings = {**lengths, "runs": 2, "warmup": 0, "inputs": 2, **changes}
    return Request(recipe=recipe, model=ModelRequest(sample=SAMPLES[sample]), out=out, **settings)
