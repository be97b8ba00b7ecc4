"""The work of one rank: calls and generation of the compiled model and of PyTorch's parallel wrapper."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
import torch.distributed as dist
from blake3 import blake3
from torch.distributed.tensor import DTensor
from torch.utils import _pytree

from thunder_core.backend.quantization.layers import QuantizedLayer
from thunder_core.compilation.compiler import specializations_of
from thunder_core.foundation.options.symbolic_arguments import SymbolicArgument
from thunder_core.foundation.progress_marks import mark_progress
from thunder_core.tracing.ir.printer import print_trace
from thunder_core.workflow.benchmark.rank_recorder import CollectiveRecorder
from thunder_core.workflow.benchmark.rank_times import RankTimes
from thunder_core.workflow.models.inputs.inputs import Inputs
from thunder_core.workflow.pipeline.ranks.baselines import Baseline
from thunder_core.workflow.pipeline.ranks.divided_caches import heads_of, join_heads
from thunder_core.workflow.pipeline.ranks.link import Link, delay_interrupts
from thunder_core.workflow.pipeline.ranks.one_process import rows_of, seed_rank
from thunder_core.workflow.pipeline.request.bench_request import THUNDER
from thunder_core.workflow.validation.gradients import loss_of

RECORDED_CALLS = 3  # the calls whose times are recorded; a first call compiles the clocks into the programs


@dataclass(frozen=True)
class RankResult:
    """The result of a call on one rank: the leaves and structure of the model's output, and the index of the loss.

    `gradients` maps the names of parameters to full gradients (not shards). `buffers` are the buffers after the call.
    Without training, there is neither a loss nor a gradient.
    """

    leaves: list[Any]
    structure: Any
    loss: int | None
    gradients: dict[str, torch.Tensor]
    buffers: list[torch.Tensor]


@dataclass
class Rank:
    """A rank with its compiled model. `compiler` compiles it with symbolic sizes, by default those of the recipe.

    The batch of all ranks is divided into `parts`. Neighbouring ranks of tensor parallelism get the same part.
    `baseline` is PyTorch's equivalent of the recipe. A call is a training step if `train` is set, else a forward.
    `rows` are the inputs of the measured calls, and `last` is the result of the last call.
    """

    link: Link
    compiler: Callable[[tuple[SymbolicArgument, ...] | None], torch.nn.Module]
    baseline: Baseline
    parts: int
    train: bool
    compiled: torch.nn.Module = field(init=False)
    models: dict[str, torch.nn.Module] = field(init=False)
    rows: dict[str, Any] = field(init=False, default_factory=dict)
    last: RankResult = field(init=False)

    def __post_init__(self) -> None:
        self.compile(None)

    def compile(self, symbolic: tuple[SymbolicArgument, ...] | None) -> None:
        """Compile the model with symbolic sizes, by default those of the recipe, and drop the other models."""
        self.compiled = self.compiler(symbolic)
        self.models = {THUNDER: self.compiled}

    @property
    def part(self) -> int:
        """The number of the part of the batch that this rank has."""
        return self.link.launch.rank // self.ranks_of_part

    @property
    def ranks_of_part(self) -> int:
        """The number of ranks that have the same part of the batch."""
        return self.link.launch.size // self.parts

    def observe(self, inputs: Inputs, seed: int, buffers: list[torch.Tensor]) -> RankResult:
        """Call the model on the rows of this rank, with these buffers and this rank's seed, and return the result."""
        for buffer, value in zip(float_buffers(self.compiled), buffers, strict=True):
            buffer.copy_(value)
        seed_rank(seed, self.part)
        rows = rows_of(inputs, self.part, self.parts)
        return self._observe_step(rows) if self.train else self._observe_forward(rows)

    def _observe_forward(self, rows: Inputs) -> RankResult:
        with torch.no_grad():
            leaves, structure = _pytree.tree_flatten(self.compiled(**rows))
        return RankResult(leaves, structure, None, {}, float_buffers(self.compiled))

    def _observe_step(self, rows: Inputs) -> RankResult:
        with torch.enable_grad():
            self.compiled.zero_grad(set_to_none=True)
            returned = self.compiled(**rows)
            loss = loss_of(returned)
            loss.backward()  # type: ignore[no-untyped-call]
        leaves, structure = _pytree.tree_flatten(returned)
        loss_index = next(number for number, leaf in enumerate(leaves) if leaf is loss)
        gradients = {
            name: gather_gradient(parameter.grad)
            for name, parameter in self.compiled.named_parameters()
            if parameter.grad is not None
        }
        self.compiled.zero_grad(set_to_none=True)
        plain = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        return RankResult(plain, structure, loss_index, gradients, float_buffers(self.compiled))

    def leaves(self, *arguments: Any) -> list[list[Any]]:
        """Call the model and gather the leaves of the results of all parts on the first rank."""
        self.last = self.observe(*arguments)
        gathered = self.link.gather(self.last.leaves)
        return [self.join_part(gathered[first:]) for first in range(0, len(gathered), self.ranks_of_part)]

    def join_part(self, leaves: list[list[Any]]) -> list[Any]:
        """Return the leaves of a part of the batch; `leaves` begins with the leaves of the ranks with this part.

        The result has the leaves of the first rank; if each rank has some attention heads, the KV caches are joined.
        """
        size = self.ranks_of_part
        heads = heads_of(self.compiled)
        return [join_heads(values, heads) for values in zip(*leaves[:size], strict=True)]

    def store_rows(self, inputs: Inputs) -> None:
        """Store the rows of this rank for measured calls, and create the baseline model."""
        self.rows = rows_of(inputs, self.part, self.parts)
        self.wrap()

    def wrap(self) -> None:
        """Create the baseline model."""
        if self.baseline.name not in self.models:
            self.models[self.baseline.name] = self.baseline.wrap()

    def step(self, name: str) -> None:
        """Run the measured call of the named model: a training step, or a forward."""
        model = self.models[name]
        if not self.train:
            with torch.no_grad():
                model(**self.rows)
            return
        with torch.enable_grad():
            model.zero_grad(set_to_none=True)
            loss_of(model(**self.rows)).backward()  # type: ignore[no-untyped-call]

    def generate(self, name: str, options: Mapping[str, Any], **own: Any) -> Any:
        """Return the result of the named model's `generate`; `own` are options of only this rank."""
        model: Any = self.models[name]
        return model.generate(**options, **own)

    def record(self) -> list[RankTimes]:
        """Record a measured call of the compiled model on all ranks, and gather the times on the first rank."""
        return self._record(lambda: self.step(THUNDER), last_call=False)

    def record_generation(self, options: Mapping[str, Any]) -> list[RankTimes]:
        """Record the call for the last token on all ranks, and gather the times on the first rank."""
        return self._record(lambda: self.generate(THUNDER, options), last_call=True)

    def _record(self, call: Callable[[], Any], *, last_call: bool) -> list[RankTimes]:
        """Record a call that all ranks start together, and gather the times on the first rank."""
        recorder = CollectiveRecorder(self.link.device)
        rounds: list[RankTimes] = []
        with recorder.recording():
            for _ in range(1 + RECORDED_CALLS):
                with delay_interrupts():
                    dist.barrier()
                recorder.begin()
                call()
                rounds.append(recorder.times(self.link.launch.rank, last_call=last_call))
        return median_round(self.link.gather(rounds[1:]))

    def release(self) -> None:
        """Drop the models and gradients of a measurement."""
        self.models = {THUNDER: self.compiled}
        self.compiled.zero_grad(set_to_none=True)

    def digests(self) -> list[str]:
        """Gather the digests of the programs of all ranks on the first rank."""
        return self.link.gather(digest_of_programs(self.compiled))

    COMMANDS: ClassVar[tuple[str, ...]] = (
        "leaves",
        "store_rows",
        "step",
        "compile",
        "wrap",
        "generate",
        "record",
        "record_generation",
        "release",
        "digests",
    )

    def ask(self, command: str, *args: Any, **own: Any) -> Any:
        """Run a command on all ranks, and return the first rank's result; only that rank gets the arguments `own`."""
        mark_progress(command)
        self.link.send((command, *args))
        result = getattr(self, command)(*args, **own)
        mark_progress(f"after {command}")
        self.link.others_receive = True
        return result

    def follow(self) -> None:
        """Run the commands of the first rank until it ends."""
        while (command := self.link.receive()) is not None:
            name, *args = command
            assert name in self.COMMANDS
            mark_progress(name)
            getattr(self, name)(*args)
            mark_progress(f"after {name}")


@dataclass(frozen=True, eq=False)
class RanksGenerator:
    """A named model that generates on all ranks, with the same options on each rank."""

    rank: Rank
    name: str

    def generate(self, *, streamer: object = None, **options: Any) -> Any:
        """Return the result of the first rank; the `streamer` gets the tokens of the first rank."""
        return self.rank.ask("generate", self.name, options, streamer=streamer)


def median_round(ranks: list[list[RankTimes]]) -> list[RankTimes]:
    """Return the times of all ranks in the round with the median time of the slowest rank; empty without ranks."""
    rounds = sorted(zip(*ranks, strict=True), key=lambda times: max(rank.seconds for rank in times))
    return list(rounds[len(rounds) // 2]) if rounds else []


def float_buffers(model: torch.nn.Module) -> list[torch.Tensor]:
    """Return the buffers of a model that calls may change: all except the divided codes of quantized layers."""
    modules = (module for module in model.modules() if not isinstance(module, QuantizedLayer))
    unique = {id(buffer): buffer.detach() for module in modules for buffer in module.buffers(recurse=False)}
    return list(unique.values())


def gather_gradient(gradient: torch.Tensor) -> torch.Tensor:
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
