"""The memory that each stage of an optimization needs, computed from the config before anything is loaded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch

from thunder_core.foundation.errors import BadModelFolder, OutOfMemory
from thunder_core.foundation.memory_limits import process_limits
from thunder_core.foundation.options.left_out import parse_left_out
from thunder_core.passes.recipe import Transform
from thunder_core.tracing.extension.leaving_out import require_modules
from thunder_core.workflow.fault_localization.boundary.eager_calls import bytes_for_results
from thunder_core.workflow.models.folder.checkpoint import stored_bytes
from thunder_core.workflow.models.folder.origin import FolderOrigin
from thunder_core.workflow.models.folder.weight_bytes import LARGE_WEIGHT_BYTES, weight_bytes
from thunder_core.workflow.models.loading.described_model import describe_model, is_mapped
from thunder_core.workflow.models.loading.library_output import quiet_transformers
from thunder_core.workflow.models.loading.loaded_model import LoadedModel
from thunder_core.workflow.models.loading.packed_weights import settings_of
from thunder_core.workflow.models.memory.free_memory import free_memory
from thunder_core.workflow.models.request.input_size import InputSize
from thunder_core.workflow.pipeline.request.purpose import Purpose
from thunder_core.workflow.pipeline.session.estimate import MemoryNeed, are_small, least_bytes, need_of
from thunder_core.workflow.pipeline.session.prepare import PreparedModel
from thunder_core.workflow.pipeline.session.progress import CALIBRATE, COMPARE, EVALUATE, QUALITY
from thunder_core.workflow.report.number_format import size as bytes_in_words
from thunder_core.workflow.validation.precision import reference_bytes
from thunder_core.workflow.validation.streamed_gradients import stream_gradients

COMPILER_BYTES = 160 << 20  # memory that compiling allocates and keeps, measured with Inductor on the CPU
RESIDENT, ON_DISK = "", "weights are read from the disk on use"
CALLS = (COMPARE, EVALUATE, "benchmark", CALIBRATE, QUALITY)


@dataclass(frozen=True)
class MemoryPlan:
    """The peak bytes of each stage, the free bytes, and the storage of the weights.

    `weights` is the number of bytes of the model's weights. `new_weights` is the number of bytes of weights that the
    recipe's transforms compute, such as quantized weights; both are in memory at the same time. If `is_mapped` is set,
    the model's weights are memory-mapped from a checkpoint, and may stay on the disk while they are not read. `free` is
    the free memory of the device. `address_limit` is the remaining address space within the process's limits
    (`prlimit --as`), which include mapped files. Both are None if unknown or unlimited.
    """

    weights: int
    new_weights: int
    is_mapped: bool
    stages: tuple[tuple[str, int], ...]
    free: int | None
    address_limit: int | None = None

    @property
    def peak(self) -> int:
        """The bytes of the stage that needs the most memory."""
        return max((size for _, size in self.stages), default=self.weights)

    @property
    def required_bytes(self) -> int:
        """The bytes that must be free: the peak minus the weights that may stay on the disk."""
        return self.peak - (self.weights if self.is_mapped else 0)

    @property
    def fits(self) -> bool:
        """Whether the plan fits into the memory."""
        is_within_limit = self.address_limit is None or self.peak <= self.address_limit
        return (self.free is None or self.required_bytes <= self.free) and is_within_limit

    @property
    def storage_note(self) -> str:
        """A note if weights are read from the disk on use; empty if everything fits into memory, or if the plan does
        not fit.
        """
        return ON_DISK if self.fits and self.free is not None and self.peak > self.free else RESIDENT

    def rows(self) -> Iterator[str]:
        """Yield the plan in words."""
        kind = "memory-mapped from the checkpoint" if self.is_mapped else "loaded into memory"
        quantized = f", {bytes_in_words(self.new_weights)} of quantized weights" if self.new_weights else ""
        free = "" if self.free is None else f"; {bytes_in_words(self.free)} free"
        yield f"{bytes_in_words(self.weights)} of weights, {kind}{quantized}{free}"
        if self.stages:
            yield ", ".join(f"{stage} {bytes_in_words(size)}" for stage, size in self.stages)
        if self.storage_note:
            yield self.storage_note

    def as_data(self) -> dict[str, object]:
        """Return the plan as plain data."""
        return {
            "weights": self.weights,
            "new_weights": self.new_weights,
            "mapped": self.is_mapped,
            "stages": dict(self.stages),
            "peak": self.peak,
            "free": self.free,
            "storage": self.storage_note or "everything in memory",
        }


def plan_memory(
    prepared: PreparedModel, purpose: Purpose, size: InputSize, stages: Sequence[str], tokens: int = 0
) -> MemoryPlan | None:
    """Return the memory of the stages for inputs of a size, or for generating `tokens` tokens after them.

    Return None if the library cannot build the model without its weights; loading then reports the problem. For a small
    model with small inputs, the files are enough, and the model's code is not imported, which would take seconds.
    Raises `UnknownName` if an executor is disabled in modules that the model does not have.
    """
    without = prepared.recipe.composition.without
    names_modules = any(part.pattern for part in map(parse_left_out, without))
    device = prepared.loading.device
    free = free_memory(device)  # before the model's code is imported
    are_inputs_small = are_small(size.batch * least_bytes(size), free)
    if are_inputs_small and not names_modules and (small := plan_of_files(prepared, free)) is not None:
        return small
    try:
        with quiet_transformers():
            described = describe_model(prepared.loading, prepared.model)
            new_weights = new_weight_bytes(prepared, described)
    except Exception:  # libraries raise any error for a device without data
        return None
    require_modules(without, described.model)
    weights = weight_bytes(described.model)
    limit = min(process_limits(), default=None) if device.type == "cpu" else None
    is_on_disk = is_mapped(prepared.loading, prepared.model)
    plan = MemoryPlan(weights, new_weights, is_on_disk, (), free_memory(device), limit)
    if (weights < LARGE_WEIGHT_BYTES and are_inputs_small) or not plan.fits:
        return plan
    need = call_need(described, purpose, size) or MemoryNeed(0, 0)
    if tokens:
        need = with_cache(need, size.seq, tokens)
    return replace(plan, stages=tuple(stage_needs(described, purpose, weights + new_weights, need, stages)))


def plan_of_files(prepared: PreparedModel, free: int | None) -> MemoryPlan | None:
    """Return the memory of a small model whose weights are used as stored in its files; None for other models."""
    loading, model = prepared.loading, prepared.model
    if not isinstance(loading.origin, FolderOrigin) or not is_mapped(loading, model):
        return None
    if settings_of(loading.config) or any(map(changes_weights, prepared.in_order)):
        return None
    try:
        weights = stored_bytes(loading.origin.folder)
    except BadModelFolder:  # only a config, for a dry run
        return None
    limit = min(process_limits(), default=None)
    plan = MemoryPlan(weights, 0, True, (), free, limit)
    return plan if weights < LARGE_WEIGHT_BYTES and plan.fits else None


def changes_weights(transform: Transform) -> bool:
    """Whether a transform may make new weights from a model's weights."""
    kind = type(transform)
    return kind.prepare is not Transform.prepare or kind.restructure is not Transform.restructure


def new_weight_bytes(prepared: PreparedModel, described: LoadedModel) -> int:
    """Return the bytes of new weights that the recipe's transforms make."""
    model: torch.nn.Module = described.model
    for transform in prepared.in_order:
        model = transform.restructure(model)
    if model is described.model:
        return 0
    old = {id(tensor) for tensor in (*described.model.parameters(), *described.model.buffers())}
    new = (tensor for tensor in (*model.parameters(), *model.buffers()) if id(tensor) not in old)
    return sum(tensor.nbytes for tensor in {id(tensor): tensor for tensor in new}.values())


def call_need(described: LoadedModel, purpose: Purpose, size: InputSize) -> MemoryNeed | None:
    """Return the memory of a call in addition to the weights; None if it cannot be estimated."""
    try:
        with quiet_transformers():
            sample = purpose.inputs(described, **size._replace(batch=1).stated, seed=0)
            with torch.set_grad_enabled(purpose.train):
                need = need_of(described, purpose, sample, size.batch)
                if need is None or not purpose.train:
                    return need
                with stream_gradients(described.model, lambda name, gradient: True):
                    streamed = need_of(described, purpose, sample, size.batch)
                return need if streamed is None else replace(need, streamed=streamed.peak)
    except Exception:  # the model reads values, or needs other inputs; the stage reports this error later
        return None


def with_cache(need: MemoryNeed, prompt: int, tokens: int) -> MemoryNeed:
    """Return the memory of generation, whose KV cache grows with each token.

    `need` is the memory of a call for the prompt, which keeps a cache of `prompt` tokens.
    """
    grown = need.kept * (prompt + tokens) // max(prompt, 1)
    return MemoryNeed(need.peak + grown, grown)


def stage_needs(
    described: LoadedModel, purpose: Purpose, weights: int, need: MemoryNeed, stages: Sequence[str]
) -> Iterator[tuple[str, int]]:
    """Yield the bytes at the peak of each stage."""
    reference = reference_bytes(described.model, train=purpose.train)
    widening = max(1, torch.float64.itemsize // described.model.dtype.itemsize)
    for stage in stages:
        if stage == "load":
            yield stage, weights
        elif stage == "validate":
            examined = bytes_for_results(weights)  # the results of eager PyTorch that the internal check keeps
            call_bytes = 2 * need.kept + widening * need.streamed if need.streamed else (1 + widening) * need.peak
            yield stage, weights + COMPILER_BYTES + reference + examined + call_bytes
        elif stage in ("compile", *CALLS):
            yield stage, weights + COMPILER_BYTES + need.peak
        elif stage == "write":
            yield stage, weights + COMPILER_BYTES


def shortage_error(plan: MemoryPlan, prepared: PreparedModel) -> OutOfMemory:
    """Return the error for a plan that does not fit, with the needed bytes and changes that would fit."""
    limited = plan.address_limit is not None and plan.peak > plan.address_limit
    needed, free = (plan.peak, plan.address_limit) if limited else (plan.required_bytes, plan.free)
    assert free is not None
    weights = plan.weights if limited or not plan.is_mapped else 0  # the part of `needed` for weights
    of_weights = f", {bytes_in_words(weights)} of it for weights," if weights else ", without its weights,"
    free_in_words = bytes_in_words(free)
    where = (
        f"the limits of this process allow {free_in_words}"
        if limited
        else f"{prepared.loading.device} has {free_in_words} free"
    )
    return OutOfMemory(
        f"the model needs {bytes_in_words(needed)} of memory at its peak{of_weights} but {where}; nothing was loaded",
        fix="; or ".join(advice(prepared, needed, weights, free, is_mapped=plan.is_mapped)),
    )


def advice(prepared: PreparedModel, needed: int, weights: int, free: int, *, is_mapped: bool) -> Iterator[str]:
    """Yield the changes with which the model would fit; `weights` is the part of the needed bytes for weights."""
    if weights and "float32" in prepared.dtype_name and needed - weights // 2 <= free:
        yield f"use --dtype bfloat16, which needs {bytes_in_words(needed - weights // 2)}"
    if not is_mapped and needed - weights <= free and prepared.loading.device.type == "cpu":
        yield "use a checkpoint on disk in this dtype: its weights are memory-mapped and need not fit"
    if needed - weights > free // 2:
        yield "use a smaller --batch or --seq"
    yield f"use a machine with {bytes_in_words(needed)} free"
