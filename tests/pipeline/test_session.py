"""An opened session: the programs that optimize and bench compile, and its artifact on the same inputs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from thunder_core.foundation.errors import OutOfMemory
from thunder_core.workflow.artifact.format.read import open_artifact
from thunder_core.workflow.artifact.trust.consent import NO_CONSENT
from thunder_core.workflow.pipeline import Request, optimize
from thunder_core.workflow.pipeline.bench import bench_model
from thunder_core.workflow.pipeline.request.bench_request import BenchRequest
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.session.prepare import prepare
from thunder_core.workflow.pipeline.session.session import InputSize, Session, open_model, open_saved
from thunder_core.workflow.validation.leaves import leaves_of

SIZE = InputSize(batch=2, seq=8)


@pytest.fixture
def request_of_a_sample(tmp_path: Path) -> Request:
    return Request("hf-bert", out=tmp_path / "artifact", batch=SIZE.batch, seq=SIZE.seq, runs=2, warmup=0, inputs=1)


def outputs(session: Session, compiled: bool) -> dict[str, torch.Tensor]:
    with session.ready():
        call = session.call_of(session.compiled if compiled else session.model)
        return leaves_of(call(**session.inputs(SIZE))).tensors


def test_a_model_and_its_artifact_open_to_sessions_that_compute_the_same(request_of_a_sample: Request) -> None:
    fresh = open_model(prepare(request_of_a_sample), Purpose())
    artifact = optimize(request_of_a_sample).artifact
    saved = open_saved(open_artifact(artifact), Purpose(), NO_CONSENT, strict=True)
    eager = outputs(fresh, compiled=False)
    for session in (fresh, saved):
        found = outputs(session, compiled=True)
        assert found.keys() == eager.keys()
        for name, tensor in found.items():
            torch.testing.assert_close(tensor, eager[name], rtol=1e-4, atol=1e-5)
    assert {**fresh.configuration(SIZE), "model": ""} == {**saved.configuration(SIZE), "model": ""}


@pytest.mark.usefixtures("without_kernels")
def test_a_session_compiles_once_and_puts_the_mode_and_gradients_back(request_of_a_sample: Request) -> None:
    session = open_model(prepare(request_of_a_sample), Purpose(train=True))
    assert session.compiled is session.compiled
    with session.ready():
        assert session.model.training
        session.call(session.inputs(SIZE))
        assert any(parameter.grad is not None for parameter in session.model.parameters())
    assert all(parameter.grad is None for parameter in session.model.parameters())


@pytest.mark.parametrize("run", [optimize, lambda request: bench_model(request, BenchRequest(runs=2, warmup=0))])
def test_memory_is_weighed_before_anything_is_compiled(
    run: Callable[[Request], object], request_of_a_sample: Request, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OutOfMemory("too large", fix="make it smaller")

    monkeypatch.setattr("thunder_core.workflow.pipeline.session.session.require_memory", refuse)
    monkeypatch.setattr(
        "thunder_core.workflow.pipeline.session.session.apply", lambda *_: pytest.fail("nothing may be compiled")
    )
    with pytest.raises(OutOfMemory):
        run(request_of_a_sample)
    assert not (request_of_a_sample.out or Path()).exists()
