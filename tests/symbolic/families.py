"""Whole models at many lengths and batches, in inference and training, compared with eager; the programs are counted.

Usage: python -m tests.symbolic.families [NAME ...] [--training] [--executors inductor,torch]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import thunder_core as thunder
from tests.families import FAMILIES, assert_same, inputs_for, sample, tensors

LLAMA = "llama of 8 layers"
LENGTHS = (16, 1, 320, 2, 3, 7, 8, 12, 15, 31, 32, 33, 50, 64, 99, 100, 128, 200, 255, 256)
SHAPES = {LLAMA: [((2, 1, 3, 4)[(index + index // 4) % 4], length) for index, length in enumerate(LENGTHS)]}
USUAL = ((2, 12), (3, 14), (1, 7), (4, 40), (1, 23), (2, 1), (1, 1), (3, 2), (4, 16), (1, 64))
PROGRAMS = {LLAMA: 2}  # number of programs that these shapes may need
MOST = 3


def llama_of_8_layers() -> LlamaForCausalLM:
    """A Llama of eight narrow layers with seeded weights."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 8, "vocab_size": 100}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=4, num_key_value_heads=2)).eval()


def llama_inputs(batch: int, length: int) -> dict[str, Any]:
    """Return tokens; the first third of one row is masked."""
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, : length // 3] = 0
    return {"input_ids": torch.randint(0, 100, (batch, length)), "attention_mask": mask, "use_cache": False}


def inputs_of(name: str, loaded: Any, batch: int, length: int) -> dict[str, Any]:
    """Return the inputs of a call: a padded batch, or images of one of two sizes."""
    if name == "vit":
        size = (32, 32) if length < 20 else (48, 40)
        return {"pixel_values": torch.randn(batch, 3, *size), "interpolate_pos_encoding": True}
    inputs = inputs_for(loaded, batch=batch, seq=length)
    if "attention_mask" in inputs and length > 3:
        inputs["attention_mask"][0, -3:] = 0
    return inputs


def gradients(model: Any, inputs: dict[str, Any]) -> tuple[Any, list[torch.Tensor | None]]:
    """Return the result of a call, and the gradients of the parameters for the mean square of all its outputs."""
    result = model(**inputs)
    loss = sum(tensor.square().mean() for _, tensor in tensors(result) if tensor.requires_grad)
    return result, list(torch.autograd.grad(loss, list(model.parameters()), allow_unused=True))


def compare(model: Any, compiled: Any, inputs: dict[str, Any], *, training: bool) -> None:
    """Compare a call of the compiled model, and its gradients, with eager."""
    if not training:
        with torch.no_grad():
            assert_same(compiled(**inputs), model(**inputs))
        return
    (found, ours), (expected, theirs) = gradients(compiled, inputs), gradients(model, inputs)
    assert_same(found, expected)
    assert [tensor is None for tensor in ours] == [value is None for value in theirs]
    for our, their in zip(ours, theirs, strict=True):
        if our is not None:
            torch.testing.assert_close(our, their, rtol=1e-4, atol=1e-5)
    assert not thunder.last_backward_reason(compiled)


def run(name: str, executors: Sequence[str], shapes: Iterable[tuple[int, int]], *, training: bool) -> Any:
    """Compile a model for symbolic sizes, call it with all shapes, and return it."""
    loaded = None if name == LLAMA else sample(name)
    model = llama_of_8_layers() if loaded is None else loaded.model
    compiled = thunder.jit(model, cache="symbolic values", executors=executors)
    for batch, length in shapes:
        inputs = llama_inputs(batch, length) if loaded is None else inputs_of(name, loaded, batch, length)
        compare(model, compiled, inputs, training=training)
        assert not thunder.last_program(compiled).constant_because
    return compiled


def main() -> int:
    """Run the requested models and print the number of programs of each; return 1 if a number is too large."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", default=[LLAMA, *FAMILIES])
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--executors", type=lambda names: names.split(","), default=["torch"], help="by commas")
    options = parser.parse_args()
    torch.set_num_threads(1)
    failed = False
    for name in options.names:
        before = time.process_time()
        compiled = run(name, options.executors, SHAPES.get(name, USUAL), training=options.training)
        programs, most = thunder.cache_misses(compiled), PROGRAMS.get(name, MOST)
        print(f"{name:<18} {programs} programs (at most {most}), {time.process_time() - before:.1f} s", flush=True)
        if programs > most:
            failed = True
            print("\n".join(thunder.recompile_reasons(compiled)))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
