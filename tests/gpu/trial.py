"""Compile a small module on the CPU, then on the GPU by each recipe, and compare: `python -m tests.gpu.trial`.

This finds within seconds that nothing can be compiled with the installed version of PyTorch, and shows the error.
"""

from __future__ import annotations

import torch
from torch import nn

import thunder_core as thunder

RECIPES = ("default", "reduce-overhead")


def compile_on(device: str, recipe: str) -> None:
    """Compile a module, and compare two calls with eager PyTorch."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4)).eval().to(device)
    compiled = thunder.compile(model, recipe=recipe)
    with torch.no_grad():
        for _ in range(2):
            x = torch.randn(3, 16, device=device)
            torch.testing.assert_close(compiled(x), model(x), rtol=1e-4, atol=1e-5)
    print(f"{recipe} on {device}: right", flush=True)


def main() -> None:
    """Compile on each device that this machine has."""
    compile_on("cpu", RECIPES[0])
    if torch.cuda.is_available():
        for recipe in RECIPES:
            compile_on("cuda", recipe)


if __name__ == "__main__":
    main()
