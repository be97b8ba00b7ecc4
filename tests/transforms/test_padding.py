"""Padding is left out of encoders on the CPU: results are those of eager PyTorch, for every pattern of padding."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional
from transformers import BertConfig, BertForSequenceClassification

import thunder_core as thunder
from tests.families import inputs_for, sample
from thunder_core.passes.transforms.functionalize import Functionalize
from thunder_core.passes.transforms.padding import LeaveOutPadding
from thunder_core.tracing.library.padding.rows import (
    gather_rows,
    keys_read,
    linear_of_rows,
    order_of_rows,
    scatter_rows,
)

WIDTH, HEADS, LENGTH = 16, 2, 6


class Encoder(nn.Module):
    """Two layers of attention with a mask, and the function `end` of the hidden state."""

    def __init__(self, end=lambda h: h[:, 0], mask_of=lambda mask: mask.bool()[:, None, None], position_bias=False):
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.ModuleList(nn.Linear(WIDTH, 5 * WIDTH) for _ in range(2))
        self.outs = nn.ModuleList(nn.Linear(2 * WIDTH, WIDTH, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.bias = nn.Parameter(torch.randn(1, LENGTH, WIDTH)) if position_bias else None
        self.query, self.key, self.value = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.end, self.mask_of = end, mask_of

    def forward(self, h, mask):
        attention_mask = None if mask is None else self.mask_of(mask)
        for layer, out, norm in zip(self.layers, self.outs, self.norms, strict=True):
            h = norm(h + self.attend(h, attention_mask))
            h = h + out(functional.gelu(layer(h)[..., : 2 * WIDTH]))
            h = h if self.bias is None else h + self.bias
        return self.end(h)

    def attend(self, h, attention_mask):
        query, key, value = (
            layer(h).view(h.shape[0], -1, HEADS, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        attended = functional.scaled_dot_product_attention(query, key, value, attn_mask=attention_mask)
        return attended.transpose(1, 2).reshape(h.shape)


def mask_with(*rows: str) -> torch.Tensor:
    return torch.tensor([[int(character) for character in row] for row in rows])


MASKS = {
    "right": mask_with("110000", "111111", "111000"),
    "left": mask_with("000011", "111111", "000111"),
    "inside": mask_with("110010", "101111", "000001"),
    "none": mask_with("111111", "111111", "111111"),
    "a text of padding": mask_with("111100", "000000", "100000"),
}
FLOATS = {
    "bool": lambda mask: mask.bool()[:, None, None],
    "for each query": lambda mask: mask.bool()[:, None, None].expand(-1, 1, LENGTH, -1).contiguous(),
    "least float": lambda mask: (1 - mask.float())[:, None, None] * torch.finfo(torch.float32).min,
    "infinite": lambda mask: torch.zeros(mask.shape).masked_fill(mask == 0, -torch.inf)[:, None, None],
    "-10000": lambda mask: (1 - mask.float())[:, None, None] * -10000.0,
}


def compile_encoder(model, zeros=False, **options):
    return thunder.jit(model, transforms=(LeaveOutPadding(zeros),), executors=("torch",), **options)


def leaves_out(compiled) -> bool:
    return any(trace.made_by == "leave out padding" for trace in thunder.last_traces(compiled))


@pytest.mark.parametrize("pattern", MASKS)
@pytest.mark.parametrize("kind", FLOATS)
def test_results_are_those_of_eager(kind: str, pattern: str) -> None:
    model, h, mask = Encoder(mask_of=FLOATS[kind]).eval(), torch.randn(3, LENGTH, WIDTH), MASKS[pattern]
    compiled = compile_encoder(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(h, mask), model(h, mask), equal_nan=True)
    assert leaves_out(compiled)


@pytest.mark.parametrize("kind", FLOATS)
def test_one_program_serves_all_patterns(kind: str) -> None:
    model, h = Encoder(mask_of=FLOATS[kind]).eval(), torch.randn(3, LENGTH, WIDTH)
    compiled = compile_encoder(model)
    with torch.no_grad():
        for pattern in ("right", "left", "inside", "none"):
            torch.testing.assert_close(compiled(h, MASKS[pattern]), model(h, MASKS[pattern]))
    assert thunder.cache_misses(compiled) == 1


ENDS = {
    "last token": (lambda h: h[:, -1], True),
    "slice": (lambda h: h[:, 2:3], True),
    "hidden state": (lambda h: h, False),
    "mean": (lambda h: h.mean(1), False),
    "two": (lambda h: (h[:, 0], h[:, 1].tanh()), True),
    "first two": (lambda h: h[:, :2], False),
    "first text": (lambda h: h[0], False),
    "softmax over tokens": (lambda h: h.softmax(1)[:, 0], False),
    "softmax over width": (lambda h: h.softmax(-1)[:, 0], False),
    "reversed": (lambda h: h.flip(1)[:, 0], False),
}


@pytest.mark.parametrize("end", ENDS)
def test_padding_that_reaches_a_result_is_computed(end: str) -> None:
    function, is_left_out = ENDS[end]
    model, h, mask = Encoder(function).eval(), torch.randn(3, LENGTH, WIDTH), MASKS["right"]
    compiled = compile_encoder(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(h, mask), model(h, mask))
    assert leaves_out(compiled) is is_left_out


def test_operations_with_other_rows_run_on_all_rows() -> None:
    model, h, mask = Encoder(position_bias=True).eval(), torch.randn(3, LENGTH, WIDTH), MASKS["right"]
    compiled = compile_encoder(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(h, mask), model(h, mask))
    assert leaves_out(compiled)


def test_hidden_states_of_padding_are_zeros_on_request() -> None:
    model, h, mask = Encoder(lambda h: h).eval(), torch.randn(3, LENGTH, WIDTH), MASKS["inside"]
    compiled = compile_encoder(model, zeros=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(h, mask), model(h, mask) * mask[..., None])
    assert leaves_out(compiled)


def test_attention_without_a_mask_reads_all_tokens() -> None:
    model, h = Encoder().eval(), torch.randn(3, LENGTH, WIDTH)
    compiled = compile_encoder(model, zeros=True)
    with torch.no_grad():
        torch.testing.assert_close(compiled(h, None), model(h, None))
    assert not leaves_out(compiled)


def test_a_mask_of_all_texts_reads_all_tokens() -> None:
    model, h, mask = (
        Encoder(mask_of=lambda mask: mask[:1].bool()[:, None, None]).eval(),
        torch.randn(3, LENGTH, WIDTH),
        MASKS["right"],
    )
    compiled = compile_encoder(model)
    with torch.no_grad():
        torch.testing.assert_close(compiled(h, mask), model(h, mask))
    assert not leaves_out(compiled)


def test_training_computes_all_rows() -> None:
    model, h, mask = Encoder().train(), torch.randn(3, LENGTH, WIDTH), MASKS["right"]
    compiled = compile_encoder(model)
    compiled(h, mask).sum().backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    model(h, mask).sum().backward()
    for name, weight in model.named_parameters():
        if weight.grad is not None:
            torch.testing.assert_close(found[name], weight.grad)
    assert not leaves_out(compiled)


def test_changed_weights_are_read() -> None:
    model, h, mask = Encoder().eval(), torch.randn(3, LENGTH, WIDTH), MASKS["right"]
    compiled = compile_encoder(model)
    with torch.no_grad():
        compiled(h, mask)
        for weight in model.parameters():
            weight.mul_(1.5)
        torch.testing.assert_close(compiled(h, mask), model(h, mask))
    assert thunder.cache_misses(compiled) == 1


def test_symbolic_sizes_need_one_program() -> None:
    model = Encoder().eval()
    compiled = compile_encoder(
        model, symbolic={"h.size(0)": (2, 8), "h.size(1)": (2, 64), "mask.size(0)": (2, 8), "mask.size(1)": (2, 64)}
    )
    with torch.no_grad():
        for batch, length in ((3, 6), (2, 11), (5, 4)):
            h, mask = torch.randn(batch, length, WIDTH), torch.ones(batch, length, dtype=torch.long)
            mask[0, 2:] = 0
            torch.testing.assert_close(compiled(h, mask), model(h, mask))
    assert thunder.cache_misses(compiled) == 1
    assert leaves_out(compiled)


def test_rows_return_to_their_places() -> None:
    x, mask = torch.randn(3, LENGTH, 4), MASKS["inside"].bool()[:, None, None]
    order, count = order_of_rows(x, [mask], [0])
    gathered = gather_rows(x, order, count)
    is_read = MASKS["inside"].bool()
    is_read[:, 0] = True
    assert int(count) == int(is_read.sum())
    assert torch.equal(gathered.view(-1, 4)[: int(count)], x[is_read])
    assert torch.equal(scatter_rows(gathered, order, count), x * is_read[..., None])
    layer = nn.Linear(4, 3)
    for bias in (layer.bias.detach(), None):
        found = scatter_rows(linear_of_rows(gathered, layer.weight.detach(), bias, count), order, count)
        expected = functional.linear(x, layer.weight.detach(), bias) * is_read[..., None]
        torch.testing.assert_close(found, expected)


def test_a_query_without_keys_reads_all_keys() -> None:
    mask = torch.tensor([[[[True, False], [False, False]]], [[[True, False], [True, False]]]])
    assert keys_read(mask).tolist() == [[True, True], [True, False]]


@pytest.mark.usefixtures("without_kernels")
def test_recipe_of_bert_leaves_out_padding_before_a_classifier() -> None:
    config = BertConfig(vocab_size=64, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    model, mask = BertForSequenceClassification(config).eval(), torch.tensor([[1] * 9, [1] * 5 + [0] * 4])
    inputs = {"input_ids": torch.randint(1, 64, (2, 9)), "attention_mask": mask}
    compiled = thunder.compile(model, "hf-bert", symbolic=())
    with torch.no_grad():
        torch.testing.assert_close(compiled(**inputs).logits, model(**inputs).logits)
    assert leaves_out(compiled)
    encoder = thunder.compile(model.bert, "hf-bert", symbolic=())
    with torch.no_grad():
        torch.testing.assert_close(encoder(**inputs).last_hidden_state, model.bert(**inputs).last_hidden_state)
    assert not leaves_out(encoder)


@pytest.mark.parametrize("name", ["bert", "t5"])
@pytest.mark.usefixtures("without_kernels")
def test_zeros_for_padding_change_no_other_row(name: str) -> None:
    loaded, mask = sample(name), torch.tensor([[1] * 12, [1] * 5 + [0] * 7])
    inputs = inputs_for(loaded) | {"attention_mask": mask}
    transforms = [Functionalize(), LeaveOutPadding(zeros=True)]
    compiled = thunder.compile(loaded.model, ["hf-transformers", *transforms], symbolic=())
    with torch.no_grad():
        found, expected = compiled(**inputs), loaded.model(**inputs)
    if name == "t5":
        torch.testing.assert_close(found.logits, expected.logits)
    else:
        torch.testing.assert_close(found[0][mask.bool()], expected[0][mask.bool()])
    assert leaves_out(compiled)
