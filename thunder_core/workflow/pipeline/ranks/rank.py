"""The work of one rank: steps of the compiled model and of PyTorch's parallel wrapper, on the rows of the rank."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from blake3 import blake3
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.utils import _pytree

from thunder_core.backend.parallel.tensor_parallel import COLWISE, ROWWISE, modules_of
from thunder_core.compilation.compiler import specializations_of
from thunder_core.passes.transforms.ddp import AverageGradients
from thunder_core.passes.transforms.fsdp import ShardParameters
from thunder_core.passes.transforms.tensor_parallel import ParallelizeLinears
from thunder_core.tracing.extension.transform import Transform
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.workflow.models.inputs.inputs import Inputs
from thunder_core.workflow.pipeline.ranks.link import Link
from thunder_core.workflow.pipeline.ranks.one_process import rows_of, seed_rank
from thunder_core.workflow.pipeline.request.bench_request import OURS
from thunder_core.workflow.validation.gradients import loss_of
from thunder_core.workflow.validation.precision import copy_sharing_parameters


@dataclass(frozen=True)
class RankResult:
    """The result of a step on one rank: the leaves and structure of the model's output, and the index of the loss.

    `gradients` maps the names of parameters to full gradients (not shards). `buffers` are the buffers after the step.
    """

    leaves: list[Any]
    structure: Any
    loss: int
    gradients: dict[str, torch.Tensor]
    buffers: list[torch.Tensor]


@dataclass
class Rank:
    """A rank with its compiled model.

    The batch of all ranks has a number of `parts`: one for each rank, or a single part that all ranks have. `baseline`
    is the name of PyTorch's parallel wrapper, and a function that wraps the model. `rows` are the inputs of the
    measured steps, and `last` is the result of the last step.
    """

    link: Link
    compiled: torch.nn.Module
    baseline: tuple[str, Callable[[], torch.nn.Module]]
    parts: int
    models: dict[str, torch.nn.Module] = field(init=False)
    rows: dict[str, Any] = field(init=False, default_factory=dict)
    last: RankResult = field(init=False)

    def __post_init__(self) -> None:
        self.models = {OURS: self.compiled}

    @property
    def part(self) -> int:
        """The number of the part of the batch that this rank has."""
        return self.link.launch.rank % self.parts

    def observe(self, inputs: Inputs, seed: int, buffers: list[torch.Tensor]) -> RankResult:
        """Run a step on the rows of this rank, with the given buffers and the seed of this rank."""
        for buffer, value in zip(self.compiled.buffers(), buffers, strict=True):
            buffer.detach().copy_(value)
        seed_rank(seed, self.part)
        rows = rows_of(inputs, self.part, self.parts)
        with torch.enable_grad():
            self.compiled.zero_grad(set_to_none=True)
            returned = self.compiled(**rows)
            loss = loss_of(returned)
            loss.backward()  # type: ignore[no-untyped-call]
        leaves, structure = _pytree.tree_flatten(returned)
        place = next(number for number, leaf in enumerate(leaves) if leaf is loss)
        gradients = {
            name: whole(parameter.grad)
            for name, parameter in self.compiled.named_parameters()
            if parameter.grad is not None
        }
        self.compiled.zero_grad(set_to_none=True)
        plain = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return RankResult(plain, structure, place, gradients, [buffer.detach() for buffer in self.compiled.buffers()])

    def leaves(self, *asked: Any) -> list[list[Any]]:
        """Run a step and gather the leaves of the results of all parts on the first rank."""
        self.last = self.observe(*asked)
        return self.link.gather(self.last.leaves)[: self.parts]

    def take(self, inputs: Inputs) -> None:
        """Store the rows of this rank for measured steps, and create the baseline model."""
        self.rows = rows_of(inputs, self.part, self.parts)
        name, wrap = self.baseline
        if name not in self.models:
            self.models[name] = wrap()

    def step(self, name: str) -> None:
        """Run a training step of the named model."""
        model = self.models[name]
        with torch.enable_grad():
            model.zero_grad(set_to_none=True)
            loss_of(model(**self.rows)).backward()  # type: ignore[no-untyped-call]

    def release(self) -> None:
        """Drop the models and gradients of a measurement."""
        self.models = {OURS: self.compiled}
        self.compiled.zero_grad(set_to_none=True)

    def digests(self) -> list[str]:
        """Gather the digests of the programs of all ranks on the first rank."""
        return self.link.gather(digest_of_programs(self.compiled))

    COMMANDS: ClassVar[tuple[str, ...]] = ("leaves", "take", "step", "release", "digests")

    def ask(self, command: str, *args: Any) -> Any:
        """Run a command on all ranks; return the result of the first rank."""
        self.link.busy = True
        self.link.send((command, *args))
        result = getattr(self, command)(*args)
        self.link.busy = False
        return result

    def follow(self) -> None:
        """Run the commands of the first rank until it ends."""
        while (command := self.link.receive()) is not None:
            name, *args = command
            assert name in self.COMMANDS
            getattr(self, name)(*args)


def whole(gradient: torch.Tensor) -> torch.Tensor:
    """Return the full gradient; all ranks must call this function, because it gathers shards."""
    return gradient.full_tensor() if isinstance(gradient, DTensor) else gradient


def digest_of_programs(compiled: torch.nn.Module) -> str:
    """Return a digest of the last stages of all programs and their guards."""
    digest = blake3()
    for program in specializations_of(compiled).programs:
        for name in ("computation", "backward"):
            for stage in program.stages_of(name)[-1:]:
                digest.update(print_trace(stage.trace).text.encode())
        digest.update("\n".join(map(str, program.guards)).encode())
    return digest.hexdigest()


def baseline_of(transform: Transform, model: torch.nn.Module, device: torch.device) -> tuple[str, Any]:
    """Return the name of PyTorch's equivalent of a transform, and the function that wraps the model."""
    wrap = WRAPPERS[type(transform)]
    return wrap[0], partial(wrap[1], transform, model, device)


def replicated(transform: AverageGradients, model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """Wrap a copy of the model in `DistributedDataParallel`, with the options of the transform."""
    return DistributedDataParallel(
        copy_sharing_parameters(model),
        device_ids=[device] if device.type == "cuda" else None,
        bucket_cap_mb=transform.bucket_cap_mb,
        broadcast_buffers=transform.broadcast_buffers,
    )


def sharded(transform: ShardParameters, model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """Apply `fully_shard` to each layer of a copy of the model, with the options of the transform."""
    mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))
    copied = copy_sharing_parameters(model)
    options: dict[str, Any] = {"mesh": mesh, "reshard_after_forward": transform.reshard_after_forward}
    for path, module in list(copied.named_modules()):
        numbers = [part.isdigit() for part in path.split(".")]
        if numbers[-1] and not any(numbers[:-1]):
            fully_shard(module, **options)
    wrapped: Any = fully_shard(copied, **options)
    return wrapped  # type: ignore[no-any-return]


def divided(transform: ParallelizeLinears, model: torch.nn.Module, device: torch.device) -> torch.nn.Module:
    """Apply `parallelize_module` to a copy of the model, with the colwise and rowwise layers of the plan."""
    mesh = dist.device_mesh.init_device_mesh(device.type, (dist.get_world_size(),))
    copied = copy_sharing_parameters(model)
    styles = {
        path: PYTORCH_STYLES.get(style)
        for path, _, style in modules_of(copied, transform.plan_for(copied, mesh.size()))
    }
    plan = {path: style() for path, style in styles.items() if style is not None}
    parallelized: torch.nn.Module = parallelize_module(copied, mesh, plan)
    return parallelized


PYTORCH_STYLES: Mapping[str, Callable[[], ParallelStyle]] = {COLWISE: ColwiseParallel, ROWWISE: RowwiseParallel}
WRAPPERS: Mapping[type, tuple[str, Callable[..., torch.nn.Module]]] = {
    AverageGradients: ("DDP", replicated),
    ShardParameters: ("FSDP2", sharded),
    ParallelizeLinears: ("parallelize_module", divided),
}
