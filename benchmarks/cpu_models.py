"""The models of `benchmarks.cpu_peers`: transformers and convolutions with random weights, and their inputs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from transformers import (
    BertConfig,
    BertModel,
    DynamicCache,
    LlamaConfig,
    LlamaForCausalLM,
    MobileNetV2Config,
    MobileNetV2ForImageClassification,
    ResNetConfig,
    ResNetForImageClassification,
    ViTConfig,
    ViTForImageClassification,
)

LAYERS, WIDTH, HEADS, GROUPS = 8, 512, 8, 4
HEAD = WIDTH // HEADS
CACHED = 512
VOCABULARY, WORDS = 8192, 30522
Model = tuple[torch.nn.Module, tuple[torch.Tensor, ...]]


class Logits(torch.nn.Module):
    """A model that returns only its logits."""

    def __init__(self, model: torch.nn.Module, **options: object):
        super().__init__()
        self.model = model
        self.options = options

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return the logits of all tokens, or of all images."""
        return self.model(inputs, **self.options).logits


class Decoding(torch.nn.Module):
    """A model that computes one token after a KV cache, whose keys and values are an input."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor, cached: torch.Tensor) -> torch.Tensor:
        """Return the logits of the token."""
        cache = DynamicCache([(layer[0], layer[1]) for layer in cached])
        return self.model(tokens, past_key_values=cache).logits


class Hidden(torch.nn.Module):
    """An encoder that returns only its last hidden state."""

    def __init__(self, model: torch.nn.Module):
        super().__init__()
        self.model = model

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the hidden state of all tokens."""
        return self.model(tokens).last_hidden_state


def llama() -> torch.nn.Module:
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=1376, num_hidden_layers=LAYERS,
        num_attention_heads=HEADS, num_key_value_heads=GROUPS,
    )  # fmt: skip
    return LlamaForCausalLM(config).eval()


def prefill(length: int) -> Model:
    return Logits(llama(), use_cache=False), (torch.randint(0, VOCABULARY, (1, length)),)


def decode() -> Model:
    cached = torch.randn(LAYERS, 2, 1, GROUPS, CACHED, HEAD)
    return Decoding(llama()), (torch.randint(0, VOCABULARY, (1, 1)), cached)


def bert(layers: int, width: int, heads: int, shape: tuple[int, int]) -> Model:
    config = BertConfig(
        vocab_size=WORDS, hidden_size=width, num_hidden_layers=layers, num_attention_heads=heads,
        intermediate_size=4 * width,
    )  # fmt: skip
    return Hidden(BertModel(config, add_pooling_layer=False).eval()), (torch.randint(0, WORDS, shape),)


def vit() -> Model:
    config = ViTConfig(hidden_size=384, num_hidden_layers=12, num_attention_heads=6, intermediate_size=1536)
    return Logits(ViTForImageClassification(config).eval()), (torch.randn(1, 3, 224, 224),)


def resnet(layout: torch.memory_format) -> Model:
    config = ResNetConfig(layer_type="basic", hidden_sizes=[64, 128, 256, 512], depths=[2, 2, 2, 2])
    return images(ResNetForImageClassification(config), layout)


def mobilenet(layout: torch.memory_format) -> Model:
    return images(MobileNetV2ForImageClassification(MobileNetV2Config()), layout)


def images(model: torch.nn.Module, layout: torch.memory_format) -> Model:
    """Return a model of one image, both in the layout."""
    laid_out = Logits(model.eval()).to(memory_format=layout)
    return laid_out, (torch.randn(1, 3, 224, 224).to(memory_format=layout),)


minilm = partial(bert, 6, 384, 12)
MODELS: dict[str, Callable[[], Model]] = {
    "minilm-1x16": partial(minilm, (1, 16)),
    "minilm-8x64": partial(minilm, (8, 64)),
    "minilm-8x256": partial(minilm, (8, 256)),
    "bert-1x128": partial(bert, 12, 768, 12, (1, 128)),
    "llama-1x128": partial(prefill, 128),
    "llama-1x512": partial(prefill, 512),
    "decode-1x1": decode,
    "vit-small": vit,
    "resnet18": partial(resnet, torch.contiguous_format),
    "resnet18-channels-last": partial(resnet, torch.channels_last),
    "mobilenet": partial(mobilenet, torch.contiguous_format),
    "mobilenet-channels-last": partial(mobilenet, torch.channels_last),
}
