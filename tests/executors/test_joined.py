"""Products of one row with several weights become one product, whatever the weights and the users of their memory."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import thunder_core as thunder
from thunder_executors.joined import JoinedProducts, are_adjacent, joined_linear

JOINED = JoinedProducts(devices=("cpu", "cuda"))


class Attention(nn.Module):
    """Three products of one input, and a fourth of their sum."""

    def __init__(self, width: int = 16, bias: bool = False):
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(width, out, bias=bias) for out in (width, width // 2, width // 2))
        self.o = nn.Linear(width, width, bias=False)

    def forward(self, x):
        return self.o(torch.cat([self.k(x), self.v(x)], dim=-1) * self.q(x).tanh())


Attention.__module__ = "tests.executors.test_joined"


def joined_in(compiled):
    return [bsym for bsym in thunder.last_traces(compiled)[-1].bound_symbols if bsym.executor == "joined"]


def weights_of(model):
    return [model.k.weight, model.v.weight, model.q.weight]  # in the order of the calls


def test_products_of_one_row_are_one_product():
    model, x = Attention(), torch.randn(1, 1, 16)
    expected = model(x).detach()
    compiled = thunder.jit(model, executors=(JOINED, "torch"))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), expected)
        (bsym,) = joined_in(compiled)
        assert len(bsym.subsymbols) == 3
        assert are_adjacent(weights_of(model))
        torch.testing.assert_close(compiled(x), expected)
        torch.testing.assert_close(model(x), expected)


def test_many_rows_and_training_are_left_to_others():
    model = Attention()
    compiled = thunder.jit(model, executors=(JOINED, "torch"))
    with torch.no_grad():
        compiled(torch.randn(2, 3, 16))
    assert joined_in(compiled) == []
    compiled(torch.randn(1, 1, 16)).sum().backward()
    assert joined_in(compiled) == []
    assert not are_adjacent(weights_of(model))


def test_products_of_different_dtypes_under_autocast_are_separate():
    class PartlyCast(Attention):
        def forward(self, x):
            with torch.autocast("cpu", torch.bfloat16, enabled=True):
                cast = self.q(x)
            return cast, self.k(x), self.v(x)

    model, x = PartlyCast(), torch.randn(1, 16)
    compiled = thunder.jit(model, executors=(JOINED, "torch"))
    with torch.no_grad():
        for result, expected in zip(compiled(x), model(x), strict=True):
            assert result.dtype == expected.dtype
            torch.testing.assert_close(result, expected)
    (bsym,) = joined_in(compiled)
    assert len(bsym.subsymbols) == 2


def test_a_single_program_serves_every_batch():
    model = Attention()
    compiled = thunder.jit(model, executors=(JOINED, "torch"), symbolic={"x.size(0)": (1, 8)})
    with torch.no_grad():
        for batch in (2, 1, 5):
            x = torch.randn(batch, 1, 16)
            torch.testing.assert_close(compiled(x), model(x))
    assert joined_in(compiled)


def test_weights_that_change_are_seen():
    model, x = Attention(), torch.randn(1, 16)
    compiled = thunder.jit(model, executors=(JOINED, "torch"))
    with torch.no_grad():
        compiled(x)
        model.k.weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))
        model.v.weight.data = torch.randn(8, 16)
        torch.testing.assert_close(compiled(x), model(x))
        model.load_state_dict(Attention().state_dict(), assign=True)
        torch.testing.assert_close(compiled(x), model(x))


def test_memory_with_other_references_stays_in_place():
    model, x = Attention(), torch.randn(1, 16)
    view, address = model.k.weight.detach().view(-1), model.k.weight.data_ptr()
    compiled = thunder.jit(model, executors=(JOINED, "torch"))
    with torch.no_grad():
        compiled(x)
        assert model.k.weight.data_ptr() == address
        view.mul_(3)
        torch.testing.assert_close(compiled(x), model(x))


def test_tied_weights_stay_tied():
    model, x = Attention(), torch.randn(1, 16)
    model.v.weight = model.k.weight
    compiled = thunder.jit(model, executors=(JOINED, "torch"))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
        model.k.weight.mul_(2)
        torch.testing.assert_close(compiled(x), model(x))
    assert model.v.weight is model.k.weight


def test_moved_weights_are_saved_and_loaded_as_others(tmp_path):
    model, x = Attention(), torch.randn(1, 16)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    compiled = thunder.jit(model, executors=(JOINED, "torch"))
    with torch.no_grad():
        compiled(x)
    assert are_adjacent(weights_of(model))
    save_file(model.state_dict(), tmp_path / "weights.safetensors")
    loaded = load_file(tmp_path / "weights.safetensors")
    assert all(torch.equal(loaded[name], value) for name, value in before.items())


def test_an_input_that_is_written_between_is_no_common_row():
    def function(module, x):
        first = module.q(x)
        x.add_(1)
        return first, module.k(x), module.v(x)

    model = Attention()
    compiled = thunder.jit(function, executors=(JOINED, "torch"))
    with torch.no_grad():
        x = torch.randn(1, 16)
        for found, expected in zip(compiled(model, x.clone()), function(model, x.clone()), strict=True):
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("change", ["bias", "width", "dtype"])
def test_layers_that_cannot_be_joined_run_unchanged(change):
    model, x = Attention(width=6 if change == "width" else 16, bias=change == "bias"), torch.randn(1, 16)
    if change == "dtype":
        model, x = model.double(), x.double()
    x = x[:, :6] if change == "width" else x
    compiled = thunder.jit(model, executors=(JOINED, "torch"))
    with torch.no_grad():
        torch.testing.assert_close(compiled(x), model(x))
    assert joined_in(compiled) == []


def test_an_artifact_joins_layers_in_another_process(tmp_path):
    model, x = Attention(), torch.randn(1, 16)
    with torch.no_grad():
        expected = model(x)
        compiled = thunder.jit(model, executors=(JOINED, "torch"))
        compiled(x)
        thunder.save(compiled, tmp_path / "artifact")
        again = Attention()
        loaded = thunder.load(tmp_path / "artifact", again, strict=True)
        torch.testing.assert_close(loaded(x), expected)
    assert are_adjacent(weights_of(again))


def test_arguments_by_name_are_joined_too():
    def function(module, x):
        return [torch.nn.functional.linear(input=x, weight=layer.weight) for layer in (module.q, module.k)]

    model, x = Attention().requires_grad_(False), torch.randn(1, 16)
    compiled = thunder.jit(function, executors=(JOINED, "torch"))
    torch.testing.assert_close(compiled(model, x), function(model, x))
    assert joined_in(compiled)


def test_a_constant_batch_is_left_to_others():
    model = Attention()
    compiled = thunder.jit(model, executors=(JOINED, "torch"))
    with torch.no_grad():
        compiled(torch.randn(4, 1, 16))
    assert joined_in(compiled) == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_on_a_gpu_the_product_matches_each_weight(dtype):
    torch.manual_seed(0)
    weights = [nn.Parameter(torch.randn(out, 256, device="cuda", dtype=dtype), False) for out in (256, 64, 64)]
    row = torch.randn(1, 1, 256, device="cuda", dtype=dtype)
    expected = [nn.functional.linear(row.double(), weight.double()) for weight in weights]
    found = joined_linear(row, *weights)
    assert are_adjacent(weights)
    for actual, wanted in zip(found, expected, strict=True):
        assert actual.is_contiguous()
        torch.testing.assert_close(actual.double(), wanted, rtol=2e-2, atol=2e-2 * wanted.abs().max().item())
