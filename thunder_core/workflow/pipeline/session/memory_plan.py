"""The memory that each stage of an optimization takes, known from the config before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from thunder_core.foundation.errors import OutOfMemory
from thunder_core.workflow.fault_localization.boundary.eager_calls import room_beside
from thunder_core.workflow.models.folder.weight_bytes import LARGE, weight_bytes
from thunder_core.workflow.models.loading.described_model import describe_model, is_mapped
from thunder_core.workflow.models.loading.library_output import quiet_transformers
from thunder_core.workflow.models.loading.load import LoadedModel
from thunder_core.workflow.models.memory.free_memory import free_memory
from thunder_core.workflow.models.memory.memory_limits import process_limits
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.session.estimate import MemoryNeed, need_of
from thunder_core.workflow.pipeline.session.prepare import Prepared
from thunder_core.workflow.pipeline.session.progress import CALIBRATE, COMPARE, EVALUATE, QUALITY
from thunder_core.workflow.report.number_format import size as bytes_in_words
from thunder_core.workflow.validation.precision import reference_bytes

COMPILER_BYTES = 160 << 20  # what compiling takes and leaves behind, measured with Inductor on the CPU
RESIDENT, ON_DISK = "", "weights are read from the disk on use"
CALLS = (COMPARE, EVALUATE, "benchmark", CALIBRATE, QUALITY)


@dataclass(frozen=True)
class MemoryPlan:
    """The bytes at the peak of each stage, beside what is free, and the way that fits.

    `weights` are the bytes of the model's weights, and `new_weights` those of the weights that the recipe's transforms
    make from them, such as quantized ones; both are in memory at once. With `is_mapped` the model's weights are read
    from the files of a checkpoint as they lie there, and may stay on the disk while nobody reads them. `free` is the
    memory that the device has left, and `address_limit` the bytes of addresses that limits of the process leave it
    (`prlimit --as`), against which mapped files count, too; None where nothing is known or limited.
    """

    weights: int
    new_weights: int
    is_mapped: bool
    stages: tuple[tuple[str, int], ...]
    free: int | None
    address_limit: int | None = None

    @property
    def peak(self) -> int:
        """The bytes of the stage that takes most."""
        return max((size for _, size in self.stages), default=self.weights)

    @property
    def least(self) -> int:
        """The bytes that must be free: the peak, less weights that may stay on the disk."""
        return self.peak - (self.weights if self.is_mapped else 0)

    @property
    def fits(self) -> bool:
        """Whether there is a way that fits."""
        is_within_limit = self.address_limit is None or self.peak <= self.address_limit
        return (self.free is None or self.least <= self.free) and is_within_limit

    @property
    def way(self) -> str:
        """The way that was chosen, in words; empty where everything fits into memory."""
        return RESIDENT if self.free is None or self.peak <= self.free else ON_DISK

    def rows(self) -> Iterator[str]:
        """The plan in words."""
        kind = "memory-mapped from the checkpoint" if self.is_mapped else "loaded into memory"
        made = f", {bytes_in_words(self.new_weights)} of quantized weights" if self.new_weights else ""
        free = "" if self.free is None else f"; {bytes_in_words(self.free)} free"
        yield f"{bytes_in_words(self.weights)} of weights, {kind}{made}{free}"
        if self.stages:
            yield ", ".join(f"{stage} {bytes_in_words(size)}" for stage, size in self.stages)
        if self.way:
            yield self.way

    def as_data(self) -> dict[str, object]:
        """The plan as plain data."""
        return {
            "weights": self.weights,
            "new_weights": self.new_weights,
            "mapped": self.is_mapped,
            "stages": dict(self.stages),
            "peak": self.peak,
            "free": self.free,
            "way": self.way or "everything in memory",
        }


def plan_memory(
    prepared: Prepared, purpose: Purpose, size: InputSize, stages: Sequence[str], tokens: int = 0
) -> MemoryPlan | None:
    """The memory of the stages for inputs of a size, or for generation of so many tokens behind them.

    None where the library cannot describe the model without its weights, which is then found while it is loaded.
    """
    try:
        with quiet_transformers():
            described = describe_model(prepared.loading, prepared.model)
            new_weights = new_weight_bytes(prepared, described)
    except Exception:  # whatever a library says of a device without data
        return None
    weights, device = weight_bytes(described.model), prepared.loading.device
    limit = min(process_limits(), default=None) if device.type == "cpu" else None
    is_on_disk = is_mapped(prepared.loading, prepared.model)
    plan = MemoryPlan(weights, new_weights, is_on_disk, (), free_memory(device), limit)
    if weights < LARGE or not plan.fits:
        return plan
    need = call_need(described, purpose, size) or MemoryNeed(0, 0)
    if tokens:
        need = with_cache(need, size.seq, tokens)
    return replace(plan, stages=tuple(stage_needs(described, purpose, weights + new_weights, need, stages)))


def new_weight_bytes(prepared: Prepared, described: LoadedModel) -> int:
    """The bytes of the weights that the recipe's transforms make anew."""
    model: torch.nn.Module = described.model
    for transform in prepared.in_order:
        model = transform.restructure(model)
    if model is described.model:
        return 0
    old = {id(tensor) for tensor in (*described.model.parameters(), *described.model.buffers())}
    new = (one for one in (*model.parameters(), *model.buffers()) if id(one) not in old)
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in new}.values())


def call_need(described: LoadedModel, purpose: Purpose, size: InputSize) -> MemoryNeed | None:
    """The memory of a call beside the weights; None where that cannot be known."""
    try:
        with quiet_transformers():
            sample = purpose.inputs(described, **size._replace(batch=1).stated, seed=0)
            with torch.set_grad_enabled(purpose.train):
                return need_of(described, purpose, sample, size.batch)
    except Exception:  # a model that asks for values, or takes other inputs: the stage itself tells
        return None


def with_cache(need: MemoryNeed, prompt: int, tokens: int) -> MemoryNeed:
    """The memory of generation: what a call for the prompt keeps, its cache, grows with each token."""
    grown = need.kept * (prompt + tokens) // max(prompt, 1)
    return MemoryNeed(need.peak + grown, grown)


def stage_needs(
    described: LoadedModel, purpose: Purpose, weights: int, need: MemoryNeed, stages: Sequence[str]
) -> Iterator[tuple[str, int]]:
    """The bytes at the peak of each stage."""
    reference = reference_bytes(described.model, train=purpose.train)
    widening = max(1, torch.float64.itemsize // described.model.dtype.itemsize)
    for stage in stages:
        if stage == "load":
            yield stage, weights
        elif stage == "validate":
            examined = room_beside(weights)  # what the look inside holds of the calls of eager PyTorch
            yield stage, weights + COMPILER_BYTES + reference + examined + (1 + widening) * need.peak
        elif stage in ("compile", *CALLS):
            yield stage, weights + COMPILER_BYTES + need.peak
        elif stage == "write":
            yield stage, weights + COMPILER_BYTES


def misfit(plan: MemoryPlan, prepared: Prepared) -> OutOfMemory:
    """The error for a plan that does not fit, with the bytes that are needed and what would fit."""
    limited = plan.address_limit is not None and plan.peak > plan.address_limit
    needed, free = (plan.peak, plan.address_limit) if limited else (plan.least, plan.free)
    assert free is not None
    weights = plan.weights if limited or not plan.is_mapped else 0  # of those that are needed
    of_weights = f", {bytes_in_words(weights)} of it for weights," if weights else ", without its weights,"
    left = bytes_in_words(free)
    where = f"the limits of this process allow {left}" if limited else f"{prepared.loading.device} has {left} free"
    return OutOfMemory(
        f"the model needs {bytes_in_words(needed)} of memory at its peak{of_weights} but {where}; nothing was loaded",
        fix="; or ".join(advice(prepared, needed, weights, free, is_mapped=plan.is_mapped)),
    )


def advice(prepared: Prepared, needed: int, weights: int, free: int, *, is_mapped: bool) -> Iterator[str]:
    """The changes by which the model would fit; `weights` are the bytes of weights among those that are needed."""
    if weights and "float32" in prepared.dtype_name and needed - weights // 2 <= free:
        yield f"use --dtype bfloat16, which needs {bytes_in_words(needed - weights // 2)}"
    if not is_mapped and needed - weights <= free and prepared.loading.device.type == "cpu":
        yield "use a checkpoint on disk in this dtype: its weights are memory-mapped and need not fit"
    if needed - weights > free // 2:
        yield "use a smaller --batch or --seq"
    yield f"use a machine with {bytes_in_words(needed)} free"
