"""Training that accelerate or Lightning launches: a compiled model is trained as the model itself, on each rank.

Each rank runs this file; its arguments are the name of a library and of a method of compilation.
"""

# mypy: disable-error-code="no-untyped-call,no-untyped-def,import-not-found,misc,unused-ignore"

from __future__ import annotations

import sys
import warnings
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.utils.data import DataLoader, TensorDataset

import thunder_core as thunder

RECIPES = {"recipe-ddp": "ddp", "recipe-fsdp": "fsdp"}


class Net(nn.Module):
    """A small model in float64, or in float32 for Lightning's FSDP2, which has no float64."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.norm, self.down = nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.to(dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.down(self.norm(torch.tanh(self.up(x))))
        return result


def compiled(net: nn.Module, way: str) -> Any:
    """Compile a model by a method; "eager" returns the model unchanged."""
    if way in RECIPES:
        return thunder.compile(net, RECIPES[way], without=["inductor"])
    return thunder.jit(net) if way == "jit" else net


def batches(dtype: torch.dtype) -> DataLoader[Any]:
    """Batches of 32 samples; the launcher gives each rank its own."""
    generator = torch.Generator().manual_seed(1)
    x, y = (torch.randn(32, size, generator=generator, dtype=dtype) for size in (4, 3))
    return DataLoader(TensorDataset(x, y), batch_size=4)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if isinstance(tensor, DTensor) else tensor).detach().clone()


def with_accelerate(way: str) -> list[torch.Tensor]:
    """Train with accumulated and clipped gradients; return the losses, and the parameters at the end."""
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = compiled(Net(torch.float64), way)
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, batches(torch.float64))
    results = []
    for x, y in loader:
        with accelerator.accumulate(model):
            loss = (model(x) - y).pow(2).mean()
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
            results.append(accelerator.gather(loss.detach()))
    assert accelerator.num_processes == 2
    return [*results, *map(whole, model.parameters())]


def with_lightning(way: str) -> list[torch.Tensor]:
    """Train under DDP, or under FSDP2 for the recipe `fsdp` and its eager twin; return the losses and parameters."""
    import lightning
    from lightning.pytorch.strategies import ModelParallelStrategy

    shards = way.endswith("fsdp")
    dtype = torch.float32 if shards else torch.float64

    class Module(lightning.LightningModule):  # type: ignore[name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.net = Net(dtype)
            self.losses: list[torch.Tensor] = []

        def configure_model(self) -> None:
            if way == "eager-fsdp":
                fully_shard(self.net, mesh=self.device_mesh["data_parallel"])
            else:
                self.net = compiled(self.net, way)

        def training_step(self, batch: Any, index: int) -> torch.Tensor:
            loss: torch.Tensor = (self.net(batch[0]) - batch[1]).pow(2).mean()
            self.losses.append(loss.detach().clone())
            return loss

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), 0.01)

    module = Module()
    trainer = lightning.Trainer(
        strategy=ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1) if shards else "ddp",
        precision="32-true" if shards else "64-true",
        accelerator="cpu",
        devices=2,
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        barebones=False,
    )
    trainer.fit(module, batches(dtype))
    assert trainer.world_size == 2
    return [*module.losses, *map(whole, module.parameters())]


LIBRARIES = {"accelerate": with_accelerate, "lightning": with_lightning}


def main(library: str, way: str) -> None:
    """Compare a compiled model with the model itself, and print that they are equal."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    train = LIBRARIES[library]
    expected = train("eager-fsdp" if way == "recipe-fsdp" else "eager")
    for value, wanted in zip(train(way), expected, strict=True):
        tolerance = 1e-12 if wanted.dtype is torch.float64 else 1e-5
        torch.testing.assert_close(value, wanted, rtol=tolerance, atol=tolerance)
    print("equal", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
