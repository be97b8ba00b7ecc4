"""A report with every part, and a report with none."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from tests.report.samples import ENVIRONMENT, MODEL, benchmark, output, validation
from thunder_core.workflow.report import (
    ExecutorRefusal,
    ExecutorShare,
    MemoryPoint,
    OperationCount,
    RecipeFacts,
    Report,
    SkippedPart,
    StageTime,
    TraceSummary,
)


@pytest.fixture
def bare() -> Report:
    """A report of a run that measured nothing."""
    created = datetime(2026, 1, 2, 3, 4, tzinfo=UTC)
    return Report(
        thunder="0.1.0", created=created, environment=ENVIRONMENT, model=MODEL, recipe=RecipeFacts(name="default")
    )


@pytest.fixture
def full(bare: Report) -> Report:
    """A report with every part."""
    return bare.model_copy(
        update={
            "recipe": RecipeFacts(
                name="hf-llama3", options={"fp8": "true"}, transforms=("FuseNorms",), executors=("triton", "torch")
            ),
            "plan": ("capture", "claim"),
            "degraded": (SkippedPart(part="FP8", reason="no Hopper GPU", fix="use one"),),
            "sharp_edges": ("a constant",),
            "stages": (StageTime(name="trace", seconds=1.0), StageTime(name="write", seconds=0.25)),
            "traces": (
                TraceSummary(trace="computation", stage="1", made_by="claim", lines=212, seconds=0.05, changed=17),
            ),
            "executors": (
                ExecutorShare(executor="triton", operations=30, time_share=0.75),
                ExecutorShare(executor="torch", operations=10, time_share=0.25),
            ),
            "refused": (
                ExecutorRefusal(executor="nvfuser", reason="no CUDA GPU"),
                ExecutorRefusal(executor="inductor", reason="a result has | strides <", operations=7),
            ),
            "operations": tuple(OperationCount(name=f"torch.op{n}", count=n + 1) for n in range(15)),
            "memory": tuple(MemoryPoint(line=n + 1, bytes=(1 + n % 4) << 20) for n in range(12)),
            "validation": validation(output("logits", 5e-7), output("past_key_values.layers.0.keys", 1e-6)),
            "benchmark": benchmark(),
        }
    )
