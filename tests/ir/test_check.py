"""Malformed traces are reported with the transform that made them."""

from __future__ import annotations

import operator
from dataclasses import replace

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import DimDynamic

import thunder_core as thunder
from thunder_core.backend.claiming.free import DELETE
from thunder_core.backend.runtime.generate import executable_trace
from thunder_core.foundation.errors import Bug
from thunder_core.tracing.capture.symbolic.shape_env import NamedSource
from thunder_core.tracing.ir.check import check_takes_numbers, check_trace
from thunder_core.tracing.ir.proxy import NumberProxy, Proxy, TensorProxy, environment_of
from thunder_core.tracing.ir.sizes import size_for_trace
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace

a, b, c = map(Proxy, "abc")
ADD = Symbol("operator.add", operator.add)


def line(output: Proxy, *args: object) -> BoundSymbol:
    return BoundSymbol(ADD, args, {}, output)


SOUND = Trace("computation", (a,), (line(b, a, 1), line(c, b, a)), (c,), made_by="a step")


def test_valid_trace_is_returned():
    assert check_trace(SOUND) is SOUND


@pytest.mark.parametrize(
    ("lines", "output", "message"),
    [
        ((line(c, b, a), line(b, a, 1)), (c,), r"a step: line 0 of computation reads \['b'\] before definition"),
        ((line(b, a, 1), line(b, a, 2)), (b,), r"line 1 of computation defines \['b'\] again"),
        ((line(b, a, 1),), (c,), r"returns \['c'\], which nothing defines"),
        ((line(b, a, 1), BoundSymbol(DELETE, (b,), {}, None), line(c, b, a)), (c,), r"line 2 .* reads \['b'\]"),
        ((line(b, a, 1), BoundSymbol(DELETE, (b,), {}, None)), (b,), r"returns \['b'\]"),
    ],
)
def test_malformed_trace_is_reported(lines, output, message):
    with pytest.raises(Bug, match=message):
        check_trace(replace(SOUND, bound_symbols=lines, output=output))


def test_constants_need_no_definition():
    check_trace(replace(SOUND, bound_symbols=(line(c, b, a),), constants={"b": 3}))


def symbolic_traces() -> tuple[Trace, Trace]:
    """Return the final computation and backward of a program with symbolic sizes."""

    def loss(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return ((x @ weight).view(-1, 2, 3) * (x.shape[0] + x.shape[1])).tanh().sum()

    compiled = thunder.jit(loss, cache="symbolic values")
    compiled(torch.ones(4, 5, 8), torch.ones(8, 6, requires_grad=True)).backward()
    return thunder.last_traces(compiled)[-1], thunder.last_backward_traces(compiled)[-1]


def test_symbols_are_inputs_or_are_unpacked() -> None:
    for trace in symbolic_traces():
        assert any(isinstance(proxy, NumberProxy) for bsym in trace.bound_symbols for proxy in bsym.inputs)
        assert check_takes_numbers(check_trace(trace)) is trace


def test_number_that_is_no_input_is_named() -> None:
    forward, backward = symbolic_traces()
    numbers = tuple(proxy for proxy in forward.inputs if not isinstance(proxy, NumberProxy))
    with pytest.raises(Bug, match=r"computation reads \['\w+'.*\], which is not one of its inputs"):
        executable_trace(replace(forward, inputs=numbers))
    kept = [bsym for bsym in backward.bound_symbols if not isinstance(bsym.output, NumberProxy)]
    with pytest.raises(Bug, match=r"reads \['\w+'.*\], which is not one of its inputs"):
        executable_trace(replace(backward, bound_symbols=tuple(kept)))


def test_size_with_an_undefined_symbol_is_named() -> None:
    """A symbol of another program, or a symbol that a pass has made, is in no input."""
    (forward, backward), (other, _) = symbolic_traces(), symbolic_traces()
    (foreign,) = [proxy for proxy in other.inputs if isinstance(proxy, TensorProxy) and len(proxy.shape) == 3]
    assert isinstance(foreign, TensorProxy)
    environment = environment_of([foreign])
    symbol = environment.create_unspecified_symbol(7, NamedSource("made by a pass"), DimDynamic.DYNAMIC)
    size = size_for_trace(environment.create_symintnode(symbol, hint=7))
    for trace in (forward, backward):
        place, bsym = next(
            (p, b) for p, b in enumerate(trace.bound_symbols) if isinstance(b.output, TensorProxy) and b.inputs
        )
        damaged = replace(bsym, output=replace(bsym.output, shape=(size, *bsym.output.shape[1:])))
        lines = (*trace.bound_symbols[:place], damaged, *trace.bound_symbols[place + 1 :])
        with pytest.raises(Bug, match=rf"line {place} of {trace.name} makes a tensor with the size \['{symbol}'\]"):
            check_trace(replace(trace, bound_symbols=lines))


def test_a_size_that_is_read_without_a_name_is_named() -> None:
    (forward, _) = symbolic_traces()
    place, bsym = next((p, b) for p, b in enumerate(forward.bound_symbols) if b.inputs)
    (size, *_) = [size for proxy in forward.inputs for size in getattr(proxy, "shape", ()) if type(size) is not int]
    lines = [*forward.bound_symbols]
    lines[place] = replace(bsym, args=(*bsym.args, [size]))
    with pytest.raises(Bug, match=rf"line {place} of {forward.name} reads \['{size}'\] without a name"):
        check_trace(replace(forward, bound_symbols=tuple(lines)))


def raw_sizes() -> list[torch.SymInt | torch.SymFloat]:
    """Return raw symbolic numbers of PyTorch: a symbol, and numbers computed from it."""
    (forward, _) = symbolic_traces()
    (size, *_) = [size for proxy in forward.inputs for size in getattr(proxy, "shape", ()) if type(size) is not int]
    return [size, size * 2, torch.sym_float(size)]


def test_unnamed_symbol_that_no_tensor_has_is_refused() -> None:
    for size in raw_sizes():
        with pytest.raises(Bug, match=r"line 0 of computation reads \['.*'\] without a name"):
            check_trace(replace(SOUND, bound_symbols=(line(b, a, (size,)),), output=(b,)))
        with pytest.raises(Bug, match=r"computation returns \['.*'\] without a name"):
            check_trace(replace(SOUND, bound_symbols=(line(b, a, 1),), output=(b, [size])))
