"""Checks of fully sharded training by the recipe, run on each rank: ten steps equal those of `fully_shard`."""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,attr-defined"

from __future__ import annotations

import copy
import tempfile
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

import thunder_core as thunder
from tests.distributed.comparison import assert_equal
from tests.distributed.models import Clipping, Layers, Normalized
from tests.distributed.recipes.training import (
    DTYPES,
    EAGER,
    FEW,
    OPTIMIZERS,
    STEPS,
    assert_close,
    assert_takes_gradients_outside_of_regions,
    llama,
    llama_loss,
    loss_of,
)
from thunder_core.backend.parallel.positions import position_of
from thunder_core.foundation.errors import BadOption, CannotReplay, OperationFailed, RecipeMismatch, WrongInputs
from thunder_core.tracing.analysis.collectives import Collective, Waits, collectives_of


def sharded_by_pytorch(model: Any, layers: Sequence[Any]) -> Any:
    for layer in layers:
        fully_shard(layer)
    return fully_shard(model)


def pair(recipe: Any = "fsdp", dtype: torch.dtype = torch.float64, **options: Any) -> tuple[Any, Any]:
    """A model that the recipe compiles, of which the ranks begin with other values, and one under fully_shard."""
    compiled = thunder.compile(Layers(dtype, seed=dist.get_rank()), recipe, without=EAGER, **options)
    twin = Layers(dtype)
    return compiled, sharded_by_pytorch(twin, twin.layers)


def whole(tensor: Any) -> torch.Tensor:
    """A tensor without its shards."""
    tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return tensor.detach().clone()


def steps_of(
    model: Any, optimizer: str = "sgd", loss=loss_of, accumulate: int = 1, clip: float = 0.0, steps: int = FEW
) -> list[Any]:
    """The losses, the norms, the gradients and at the end the parameters of some steps."""
    trained = OPTIMIZERS[optimizer](model.parameters())
    results: list[Any] = []
    for step in range(steps):
        for part in range(accumulate):
            value = loss(model, accumulate * step + part)
            value.backward()
        if clip:
            results.append(whole(torch.nn.utils.clip_grad_norm_(model.parameters(), clip)))
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        results += [value.detach(), *map(whole, gradients)]
        trained.step()
        trained.zero_grad()
    return [*results, *map(whole, model.parameters())]


def begins_on_the_meta_device(recipes: Any = "fsdp") -> None:
    """Shards are allocated by `to_empty`, and loaded; no rank has the full model."""
    compiled, twin = pair()
    with torch.device("meta"):
        model = Layers()
    loaded = thunder.compile(model, recipes, without=EAGER)
    with pytest.raises(WrongInputs, match="converted"):
        loaded.float()
    loaded.to_empty(device="cpu")
    assert loaded.head.weight is loaded.table.weight
    assert sum(one.to_local().numel() for one in loaded.parameters()) < sum(one.numel() for one in twin.parameters())
    loaded.load_state_dict(compiled.state_dict())
    with pytest.raises(WrongInputs, match="converted"):
        loaded.to_empty(device="cpu")
    loaded.frozen.requires_grad_(False)
    assert_equal(steps_of(loaded, "adamw"), steps_of(twin, "adamw"))


def equals_pytorch(dtype: str, optimizer: str, reshard_after_forward: bool) -> None:
    compiled, twin = pair(dtype=DTYPES[dtype], reshard_after_forward=reshard_after_forward)
    assert_equal(*(steps_of(model, optimizer, steps=STEPS) for model in (compiled, twin)))
    for actual, expected in zip(compiled.parameters(), twin.parameters(), strict=True):
        assert actual.placements == expected.placements
        assert torch.equal(actual.to_local(), expected.to_local())


def reduces_in_another_dtype() -> None:
    compiled = thunder.compile(
        Layers(torch.bfloat16, seed=dist.get_rank()), "fsdp", without=EAGER, reduce_dtype="float32"
    )
    twin, policy = Layers(torch.bfloat16), MixedPrecisionPolicy(reduce_dtype=torch.float32)
    for layer in twin.layers:
        fully_shard(layer, mp_policy=policy)
    fully_shard(twin, mp_policy=policy)
    assert_equal(steps_of(compiled), steps_of(twin))
    _, backward = collectives(compiled)
    whole_rows = 12 * 6 + 2 * (6 + 6 + 8 * 6 + 8 + 6 * 7)
    assert sum(one.bytes for one in backward if "scatter" in one.kind) == 4 * whole_rows
    with pytest.raises(BadOption, match="not a floating-point dtype"):
        thunder.compile(Layers(), "fsdp", reduce_dtype="int8")


def clips_and_accumulates() -> None:
    compiled, twin = pair()
    assert_equal(steps_of(compiled, accumulate=2, clip=0.1), steps_of(twin, accumulate=2, clip=0.1))


def equals_pytorch_with_activation_checkpoints() -> None:
    compiled, twin = pair(["max-memory-saving", "fsdp"])
    assert_equal(steps_of(compiled), steps_of(twin))


def equals_pytorch_with_llama() -> None:
    compiled = thunder.compile(llama(), ["hf-llama3", "fsdp"], without=EAGER)
    twin = llama()
    sharded_by_pytorch(twin, twin.model.layers)
    assert_close(steps_of(compiled, loss=llama_loss), steps_of(twin, loss=llama_loss), 1e-5)


def equals_pytorch_with_inductor() -> None:
    compiled, (_, twin) = thunder.compile(Layers(layers=1), "fsdp"), (None, Layers(layers=1))
    sharded_by_pytorch(twin, twin.layers)
    for model in (compiled, twin):
        loss_of(model, 0).backward()
    gradients = [[whole(one.grad) for one in model.parameters() if one.grad is not None] for model in (compiled, twin)]
    assert_close(*gradients, 1e-12)
    assert_takes_gradients_outside_of_regions(compiled, "take_unreduced_gradients")


def collectives(compiled: Any) -> tuple[list[Collective], list[Collective]]:
    """The collectives of the latest forward and backward."""
    traces = thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]
    forward, backward = (list(collectives_of(trace)) for trace in traces)
    return forward, backward


def gathers_again_only_if_resharded() -> None:
    for reshard, kinds in ((True, ["gather"] * 3 + ["scatter"] * 3), (False, ["scatter"] * 3)):
        compiled = thunder.compile(Layers(), "fsdp", without=EAGER, reshard_after_forward=reshard)
        loss_of(compiled, 0).backward()
        forward, backward = collectives(compiled)
        assert [one.kind for one in forward] == ["all_gather_into_tensor_coalesced"] * 3
        names = {"all_gather_into_tensor_coalesced": "gather", "reduce_scatter_tensor": "scatter"}
        assert sorted(names[one.kind] for one in backward) == kinds
        assert all(one.source and one.source.filename.endswith("models.py") for one in forward)  # the user's lines
        rows = {"table": 6 * 6, "frozen": 3 * 6 + 3, "layer": 2 * 3 + 4 * 6 + 4 + 3 * 7}
        assert sum(one.bytes for one in forward) == 8 * (rows["table"] + rows["frozen"] + 2 * rows["layer"])


def backend_makes_the_collectives_of_the_trace(recipe: str) -> None:
    """The backend makes one collective for each bucket; gloo would make one for each gradient of a coalesced call."""
    compiled = thunder.compile(Layers(), recipe, without=EAGER)
    loss_of(compiled, 0).backward()
    before = position_of(dist.group.WORLD)
    loss_of(compiled, 1).backward()
    assert position_of(dist.group.WORLD) - before == sum(map(len, collectives(compiled)))


def gathers_run_ahead_and_reductions_are_waited_for_late() -> None:
    compiled = thunder.compile(Layers(layers=3), "fsdp", without=EAGER)
    loss_of(compiled, 0).backward()
    forward = [bsym.symbol.name for bsym in thunder.last_traces(compiled)[-1].bound_symbols]
    starts = [place for place, name in enumerate(forward) if "all_gather" in name]
    reads = [place for place, name in enumerate(forward) if name.endswith(("embedding", "native_layer_norm.default"))]
    assert len(starts) == len(reads) == 4
    assert all(start < read for start, read in zip(starts[1:], reads[:-1], strict=True))
    backward = thunder.last_backward_traces(compiled)[-1].bound_symbols
    reductions = [place for place, bsym in enumerate(backward) if "reduce_scatter" in bsym.symbol.name]
    waits = Waits(backward).starts
    first_waits = [min(wait for wait, start in waits.items() if start == reduction) for reduction in reductions]
    assert len(reductions) == 4
    for wait, later in zip(first_waits[:-1], reductions[1:], strict=True):
        # the wait is right before the next bucket, whose gradients are computed, so that only one has memory
        between = [bsym.symbol.name.removesuffix(".default").rpartition(".")[2] for bsym in backward[wait + 1 : later]]
        computed = {name for name in between if not name.startswith(("python", "view", "split_with_sizes", "del"))}
        assert computed == {"average_own_row", "take_unreduced_gradients", "_chunk_cat"}


def state_is_that_of_pytorch() -> None:
    compiled, twin = pair()
    loss_of(compiled, 0).backward()
    OPTIMIZERS["sgd"](compiled.parameters()).step()
    twin.load_state_dict(compiled.state_dict())
    assert_equal(*([*map(whole, model.parameters())] for model in (compiled, twin)))
    compiled.load_state_dict(twin.state_dict())
    assert torch.equal(loss_of(compiled, 1), loss_of(twin, 1))
    with torch.no_grad():
        assert torch.equal(loss_of(compiled, 2), loss_of(twin, 2))


class Scaled(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor(2.0))


def refusals() -> None:
    for model, what in ((Scaled(), "weight has no rows"), (torch.nn.LSTM(2, 2), "an attribute of the LSTM")):
        with pytest.raises(RecipeMismatch, match=what):
            thunder.compile(model, "fsdp", without=EAGER)
    compiled = thunder.compile(torch.nn.Linear(2, 2), "fsdp", without=EAGER)
    with pytest.raises(WrongInputs, match="cannot be converted"):
        compiled.double()
    with pytest.raises(WrongInputs, match="cannot be replaced"):
        compiled.weight = torch.nn.Parameter(torch.ones(2, 2))
    with pytest.raises(WrongInputs, match="cannot be copied"):
        copy.deepcopy(thunder.compile(torch.nn.Sequential(torch.nn.Linear(2, 2)), "fsdp", without=EAGER))
    compiled(torch.ones(1, 2))


def conversions_that_change_nothing() -> None:
    """Launchers move each module to its device, and convert it to the dtype of the training."""
    compiled = thunder.compile(Normalized(seed=dist.get_rank()), "fsdp", without=EAGER)
    parameters = list(compiled.parameters())
    assert compiled.to("cpu").double().to(torch.float64) is compiled
    assert all(after is before for after, before in zip(compiled.parameters(), parameters, strict=True))
    compiled(torch.ones(1, 2, 4, dtype=torch.float64)).sum().backward()
    assert all(parameter.grad is not None for parameter in parameters)
    with pytest.raises(WrongInputs, match="cannot be converted"):
        compiled.to("meta")
    with tempfile.TemporaryDirectory() as folder, pytest.raises(CannotReplay, match=r"fsdp cannot include weights"):
        thunder.save(compiled, folder, include_weights=True)
    with pytest.raises(OperationFailed, match="writes to a parameter"):
        thunder.compile(Clipping(), "fsdp", without=EAGER)(torch.ones(3)).sum().backward()
