"""Layers before the selection of a row compute only this row: results and their strides are those of eager PyTorch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional

import thunder_core as thunder
from thunder_core.passes.transforms.selected_rows import SelectedRow, SelectRowsEarly
from thunder_core.workflow.fault_localization.examination import examine

WIDTH, HEADS, LENGTH = 16, 2, 5


class Layer(nn.Module):
    """A layer of attention and a gated feed-forward layer, and the function `end` of the hidden state."""

    def __init__(self, end, *, causal=False, mask=None):
        super().__init__()
        torch.manual_seed(0)
        self.query, self.key, self.value, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.gate, self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH, bias=False)
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 3)
        self.end, self.causal, self.mask = end, causal, mask

    def forward(self, h):
        normed = self.norm(h)
        query, key, value = (
            layer(normed).view(h.shape[0], -1, HEADS, WIDTH // HEADS).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        query = torch.cat((-query[..., 4:], query[..., :4]), -1) * torch.linspace(0, 1, h.shape[1])[:, None]
        attended = functional.scaled_dot_product_attention(query, key, value, self.mask, is_causal=self.causal)
        h = h + self.out(attended.transpose(1, 2).reshape(h.shape))
        scale = torch.rsqrt((h**2).mean(-1, keepdim=True) + 1e-6)
        return self.end(h + self.down(functional.silu(self.gate(h * scale)) * self.up(h * scale)), self)


ENDS = {
    "first": lambda h, layer: layer.head(h[:, 0]),
    "last": lambda h, layer: layer.head(h[:, -1]),
    "last as a slice": lambda h, layer: layer.head(h[:, -1:, :]),
    "second": lambda h, layer: layer.head(h[:, 1]),
    "second as a slice": lambda h, layer: layer.head(h[:, 1:2]),
    "the same row twice": lambda h, layer: (layer.head(h[:, 1]), h[:, 1].tanh()),
}
WHOLE = {
    "two rows": lambda h, layer: layer.head(h[:, 0]) + layer.head(h[:, 1]),
    "all rows": lambda h, layer: (layer.head(h[:, 0]), h.sum(1)),
    "a range": lambda h, layer: layer.head(h[:, :2]),
    "a view of a result": lambda h, layer: h[:, 0],
    "hidden state": lambda h, layer: (layer.head(h[:, 0]), h),
    "mean": lambda h, layer: layer.head(h.mean(1)),
}
MASKS = {
    "none": None,
    "bool": torch.ones(LENGTH, LENGTH).tril().bool(),
    "of heads": torch.randn(1, HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(0)),
    "of keys": torch.tensor([True, True, True, False, False])[None, None, None],
}


def assert_like_eager(model: nn.Module, h: torch.Tensor):
    compiled = thunder.jit(model, transforms=(SelectRowsEarly(),), executors=("torch",))
    with torch.no_grad():
        found, expected = compiled(h), model(h)
    torch.testing.assert_close(found, expected)
    strides = [[x.stride() for x in (y if isinstance(y, tuple) else (y,))] for y in (found, expected)]
    assert strides[0] == strides[1]
    return compiled


def rows_of_products(compiled) -> list[int]:
    bsyms = thunder.last_traces(compiled)[-1].bound_symbols
    linears = [bsym.output for bsym in bsyms if bsym.symbol.short_name == "linear"]
    return [result.shape[1] for result in linears if len(result.shape) == 3]


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("end", ENDS)
def test_only_the_row_that_is_read_is_computed(end: str, mask: str) -> None:
    compiled = assert_like_eager(Layer(ENDS[end], mask=MASKS[mask]).eval(), torch.randn(2, LENGTH, WIDTH))
    rows = rows_of_products(compiled)
    assert rows.count(LENGTH) == 2  # keys and values
    assert rows.count(1) >= 5


@pytest.mark.parametrize("end", WHOLE)
def test_other_readers_need_all_rows(end: str) -> None:
    compiled = assert_like_eager(Layer(WHOLE[end]).eval(), torch.randn(2, LENGTH, WIDTH))
    assert 1 not in rows_of_products(compiled)


@pytest.mark.parametrize(("end", "rows_of_query"), [("last", 1), ("last as a slice", 1), ("first", LENGTH)])
def test_causal_attention_of_the_last_row_reads_all_keys(end: str, rows_of_query: int) -> None:
    compiled = assert_like_eager(Layer(ENDS[end], causal=True).eval(), torch.randn(2, LENGTH, WIDTH))
    assert rows_of_products(compiled)[0] == rows_of_query or rows_of_query in rows_of_products(compiled)
    assert rows_of_products(compiled).count(LENGTH) == (2 if rows_of_query == 1 else 3)


def test_training_computes_all_rows() -> None:
    model, h = Layer(ENDS["first"]), torch.randn(2, LENGTH, WIDTH)
    compiled = thunder.jit(model, transforms=(SelectRowsEarly(),), executors=("torch",))
    compiled(h).sum().backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    model.zero_grad()
    model(h).sum().backward()
    for name, weight in model.named_parameters():
        torch.testing.assert_close(found[name], weight.grad)
    assert not any(trace.made_by == "select rows early" for trace in thunder.last_traces(compiled))


def test_symbolic_lengths_need_one_program() -> None:
    model = Layer(ENDS["last"], causal=True).eval()
    compiled = thunder.jit(
        model, transforms=(SelectRowsEarly(),), executors=("torch",), symbolic={"h.size(1)": (2, 64)}
    )
    with torch.no_grad():
        for length in (5, 9, 2):
            h = torch.randn(2, length, WIDTH)
            torch.testing.assert_close(compiled(h), model(h))
    assert thunder.cache_misses(compiled) == 1
    assert 1 in rows_of_products(compiled)


def test_a_program_that_writes_is_unchanged() -> None:
    compiled = assert_like_eager(
        Layer(lambda h, layer: layer.head(h.mul_(2)[:, 0])).eval(), torch.randn(2, LENGTH, WIDTH)
    )
    assert 1 not in rows_of_products(compiled)


def test_changed_weights_are_read() -> None:
    model, h = Layer(ENDS["first"]).eval(), torch.randn(2, LENGTH, WIDTH)
    compiled = assert_like_eager(model, h)
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(1.5)
        torch.testing.assert_close(compiled(h), model(h))


@pytest.mark.parametrize("end", ENDS)
def test_the_internal_check_finds_no_fault(end: str) -> None:
    model, h = Layer(ENDS[end]).eval(), torch.randn(2, LENGTH, WIDTH)
    compiled = assert_like_eager(model, h)
    with torch.no_grad():
        check = examine(thunder.last_program(compiled), model, (h,), {}, is_thorough=False)
    assert "select rows early" in str(check.stages)
    assert check.faults == ()


def test_the_internal_check_finds_a_wrong_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SelectedRow, "of", lambda row, tensor: tensor.narrow(row.dim, 2, 1))
    model, h = Layer(ENDS["first"]).eval(), torch.randn(2, LENGTH, WIDTH)
    compiled = thunder.jit(model, transforms=(SelectRowsEarly(),), executors=("torch",))
    with torch.no_grad():
        compiled(h)
        check = examine(thunder.last_program(compiled), model, (h,), {}, is_thorough=False)
    assert [fault.kind for fault in check.faults] == ["transform"]


PROGRAMS = {
    "a hook changes all rows": (lambda h, layer: layer.out(layer.query(h))[:, 3].tanh(), True),
    "an index outside of the rows": (lambda h, layer: layer.out(layer.query(h))[:, 7:8].tanh(), True),
    "dropout before the last product": (lambda h, layer: layer.out(dropout(layer.query(h)))[:, 0].tanh(), True),
    "a sum over rows": (lambda h, layer: layer.out(layer.query(h).cumsum(1))[:, 3].tanh(), True),
    "a row that all rows read": (lambda h, layer: layer.out(h + layer.query(h)[:, :1])[:, 3].tanh(), True),
    "a weight that is computed": (
        lambda h, layer: functional.linear(layer.out(h[0]), layer.out(h[0]))[1].tanh(),
        False,
    ),
    "first and last row": (lambda h, layer: layer.out(h)[:, 0].tanh() + layer.out(h)[:, -1].tanh(), False),
    "first and last row of a value": (lambda h, layer: ends_of(layer.out(h)), False),
}


def dropout(h):
    return functional.dropout(h, 0.5, True)


def ends_of(h):
    return h[:, 0].tanh() + h[:, -1].tanh()


@pytest.mark.parametrize("symbolic", [(), {"h.size(1)": (4, 64)}], ids=["constant", "symbolic"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_programs_that_read_other_rows_elsewhere(program: str, symbolic: dict[str, object]) -> None:
    end, is_narrowed = PROGRAMS[program]
    model = Layer(end).eval()
    model.forward = lambda h: end(h, model)
    if program.startswith("a hook"):
        model.out.register_forward_hook(lambda module, args, result: result * torch.arange(result.shape[1])[:, None])
    compiled = thunder.jit(model, transforms=(SelectRowsEarly(),), executors=("torch",), symbolic=symbolic)
    for length in (LENGTH, 9) if symbolic else (LENGTH,):
        h = torch.randn(2, length, WIDTH)
        with torch.no_grad():
            results = [(torch.manual_seed(0), call(h), torch.rand(2))[1:] for call in (compiled, model)]
        torch.testing.assert_close(*results)
    assert any(trace.made_by == "select rows early" for trace in thunder.last_traces(compiled)) == is_narrowed
