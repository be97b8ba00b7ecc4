"""Families of models on the CPU: eager, the recipe `default`, and the family's recipe with and without its parts.

The models have random weights in float32: BERT with 6 layers of width 384 and a classifier, a Llama with 8 layers of
width 512 that computes the next token of a prompt, a T5 with 4 layers of width 512 in the encoder and in the decoder,
and a ViT with 12 layers of width 384. Batches of 8 texts of up to 64 tokens have 51% tokens and 49% padding. All
contenders run in turn in one process, on one thread, in random order. The figures are CPU time: the median, and its
quotient by eager's median.

Usage: python -m benchmarks.cpu_families [--models bert llama ...] [--rounds 30]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers import BertConfig, BertForSequenceClassification, BertModel, T5Config, T5ForConditionalGeneration

import thunder_core
from benchmarks.cpu_models import VOCABULARY, WORDS, llama, vit
from benchmarks.steady import in_turn
from thunder_core.backend.claiming.tuning import tuning
from thunder_core.passes.transforms.functionalize import Functionalize
from thunder_core.passes.transforms.padding import LeaveOutPadding
from thunder_core.tracing.extension.transform import Transform

TUNING = 20.0  # seconds for measurements of kernels in each program
LENGTHS = (64, 50, 40, 34, 28, 20, 14, 10)
ZEROS = (Functionalize(), LeaveOutPadding(zeros=True))
Call = Callable[..., object]


@dataclass(frozen=True)
class Family:
    """A model with its inputs, its recipe, transforms that are added, and the parts that are left out one at a time."""

    model: torch.nn.Module
    inputs: Mapping[str, Any]
    recipe: str
    parts: Sequence[str] = ()
    transforms: Sequence[Transform] = ()

    def contenders(self) -> dict[str, Call]:
        """Return the call of each contender, by name; all have the same weights and inputs."""
        compile_model = partial(thunder_core.compile, self.model, symbolic=())
        modules = {"eager": self.model, "default": compile_model("default")}
        combined = [self.recipe, *self.transforms]
        modules[self.recipe] = compile_model(combined)
        modules |= {f"{self.recipe} without {part}": compile_model(combined, without=(part,)) for part in self.parts}
        return {name: partial(module, **self.inputs) for name, module in modules.items()}


def texts(words: int, lengths: Sequence[int]) -> dict[str, torch.Tensor]:
    """Return tokens of texts with these lengths, and the mask of their padding."""
    shape = (len(lengths), max(lengths))
    mask = torch.arange(shape[1])[None] < torch.tensor(lengths)[:, None]
    return {"input_ids": torch.randint(1, words, shape), "attention_mask": mask.long()}


def bert_config() -> BertConfig:
    return BertConfig(
        vocab_size=WORDS, hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536
    )


def classifier(lengths: Sequence[int]) -> Family:
    model = BertForSequenceClassification(bert_config()).eval()
    return Family(model, texts(WORDS, lengths), "hf-bert", ("padding", "selected_rows"))


def encoder(lengths: Sequence[int]) -> Family:
    model = BertModel(bert_config(), add_pooling_layer=False).eval()
    return Family(model, texts(WORDS, lengths), "hf-transformers", ("padding",), ZEROS)


def prompt(length: int) -> Family:
    inputs = {"input_ids": torch.randint(0, VOCABULARY, (1, length)), "logits_to_keep": 1}
    return Family(llama(), inputs, "hf-llama", ("selected_rows",))


def translation(lengths: Sequence[int], later: int) -> Family:
    config = T5Config(
        vocab_size=VOCABULARY, d_model=512, d_kv=64, d_ff=2048, num_layers=4, num_decoder_layers=4, num_heads=8
    )
    inputs = texts(VOCABULARY, lengths) | {"decoder_input_ids": torch.randint(1, VOCABULARY, (len(lengths), later))}
    model = T5ForConditionalGeneration(config).eval()
    return Family(model, {**inputs, "use_cache": False}, "hf-t5", ("padding",), ZEROS)


def images() -> Family:
    logits, (pixels,) = vit()
    return Family(logits.model, {"pixel_values": pixels}, "hf-vit", ("selected_rows",))  # type: ignore[arg-type]


FAMILIES: dict[str, Callable[[], Family]] = {
    "bert, padded": partial(classifier, LENGTHS),
    "bert, no padding": partial(classifier, (64,) * 8),
    "bert encoder, padded": partial(encoder, LENGTHS),
    "llama, 128 tokens": partial(prompt, 128),
    "llama, 512 tokens": partial(prompt, 512),
    "t5, padded": partial(translation, LENGTHS, 16),
    "vit": images,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[""], help="beginnings of names")
    parser.add_argument("--rounds", type=int, default=30)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    for name, family in FAMILIES.items():
        if not name.startswith(tuple(arguments.models)):
            continue
        torch.manual_seed(0)
        with torch.no_grad(), tuning(TUNING):
            medians = in_turn(family().contenders(), arguments.rounds, time.thread_time, shuffled=True)
        for contender, milliseconds in medians.items():
            ratio = milliseconds / medians["eager"]
            print(f"{name:22} {contender:32} {milliseconds:8.2f} ms  {ratio:.2f}", flush=True)


if __name__ == "__main__":
    main()
