"""The contenders of the GPU benchmark: a Llama of the 1B size, eager or compiled, and the call that is timed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

RECIPE = "hf-llama3-hopper"
DEVICE = "cuda"
VOCABULARY = 128_256
SIZES: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 8192,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "max_position_embeddings": 16_384,
}
CACHE = 1024  # the capacity of a decoding cache in tokens
PROMPT = 512  # tokens in the cache before decoding is timed
TOKENS = 64  # new tokens of a call of `generate`

COMPILE: dict[str, dict[str, Any]] = {
    "compile": {},
    "compile reduce-overhead": {"mode": "reduce-overhead"},
    "compile max-autotune": {"mode": "max-autotune"},
}


@dataclass(frozen=True)
class Contender:
    """A model, eager or compiled, and the call that is timed."""

    call: Callable[[], Any]
    compiled: Any


def model_of(layers: int) -> Any:
    """Return a model of this number of layers on the device, with random weights."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(
        num_hidden_layers=layers,
        vocab_size=VOCABULARY,
        rope_parameters={"rope_type": "default", "rope_theta": 500_000.0},
        tie_word_embeddings=False,
        **SIZES,
    )
    with torch.device(DEVICE):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(torch.float32)
    return model


def compile_model(way: str, model: Any) -> Any:
    """Return the model as a contender (`way`) runs it: eager or compiled."""
    import torch

    import thunder_core as thunder

    if way == "eager":
        return model
    if way in COMPILE:
        return torch.compile(model, dynamic=False, **COMPILE[way])
    without = way.partition(" without ")[2]
    return thunder.compile(model, recipe=RECIPE, without=(without,) if without else ())


def begin_step(way: str) -> None:
    """Let the graphs of torch.compile overwrite the results of the previous step."""
    import torch

    if way in ("compile reduce-overhead", "compile max-autotune"):
        torch.compiler.cudagraph_mark_step_begin()


def prefill(way: str, shape: str, layers: int) -> Contender:
    """Return a call for the logits of the last token."""
    import torch

    model = model_of(layers).eval()
    compiled = compile_model(way, model)
    batch, length = map(int, shape.split(" x "))
    ids = torch.randint(0, VOCABULARY, (batch, length), device=DEVICE)

    def call() -> Any:
        with torch.no_grad():
            return compiled(input_ids=ids, logits_to_keep=1).logits

    return Contender(call, compiled)


def decode(way: str, shape: str, layers: int) -> Contender:
    """Return a call for a token after a prompt, in a static cache, and the choice of the next token."""
    import torch
    from transformers import StaticCache

    model = model_of(layers).eval()
    compiled = compile_model(way, model)
    ids = torch.randint(0, VOCABULARY, (1, PROMPT), device=DEVICE)
    cache = StaticCache(config=model.config, max_cache_len=CACHE)
    with torch.no_grad():
        first = model(input_ids=ids, past_key_values=cache, logits_to_keep=1).logits.argmax(-1)
    state = {"ids": first, "position": torch.full((1, 1), PROMPT, device=DEVICE)}
    positions = torch.arange(CACHE, device=DEVICE)
    lengths = [layer.cumulative_length for layer in cache.layers]

    def call() -> Any:
        with torch.no_grad():
            begin_step(way)
            mask = (positions <= state["position"])[:, None, None]
            output = compiled(
                input_ids=state["ids"],
                position_ids=state["position"],
                attention_mask=mask,
                past_key_values=cache,
                logits_to_keep=1,
            )
            state["ids"] = output.logits.argmax(-1)
            torch._foreach_sub_(lengths, 1)  # the next call writes the same slot, so that all calls are equal
            return output.logits

    return Contender(call, compiled)


def train(way: str, shape: str, layers: int) -> Contender:
    """Return a call for the forward and backward of the loss."""
    import torch

    model = model_of(layers).train()
    compiled = compile_model(way, model)
    batch, length = map(int, shape.split(" x "))
    ids = torch.randint(0, VOCABULARY, (batch, length), device=DEVICE)

    def call() -> Any:
        begin_step(way)
        model.zero_grad(set_to_none=True)
        loss = compiled(input_ids=ids, labels=ids, use_cache=False).loss
        loss.backward()
        return loss

    return Contender(call, compiled)


def generate(way: str, shape: str, layers: int) -> Contender:
    """Return a greedy call of transformers' `generate`; `compile static` uses its static cache and compilation."""
    import torch

    model = model_of(layers).eval()
    model.generation_config.eos_token_id = None
    compiled = model if way == "compile static" else compile_model(way, model)
    ids = torch.randint(3, VOCABULARY, (1, PROMPT), device=DEVICE)
    options: dict[str, Any] = {"cache_implementation": "static"} if way == "compile static" else {}

    def call() -> Any:
        return compiled.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0, **options
        )

    return Contender(call, compiled)


def maker_of(job: str, shape: str) -> Callable[[str, str, int], Contender]:
    """Return the function that makes the contenders of a job."""
    jobs = {
        "prefill": prefill,
        "train": train,
        "autotune": prefill,
        "autotune-train": train,
        "generate": generate,
    }
    return decode if shape == "decode" else jobs[job]
