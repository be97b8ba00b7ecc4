"""Malformed traces are named with the step that made them."""

from __future__ import annotations

import operator
from dataclasses import replace

import pytest

from thunder_core.claiming.free import DELETE
from thunder_core.errors import Bug
from thunder_core.ir.check import check_trace
from thunder_core.ir.proxy import Proxy
from thunder_core.ir.symbol import BoundSymbol, Symbol
from thunder_core.ir.trace import Trace

a, b, c = map(Proxy, "abc")
ADD = Symbol("operator.add", operator.add)


def line(output: Proxy, *args: object) -> BoundSymbol:
    return BoundSymbol(ADD, args, {}, output)


SOUND = Trace("computation", (a,), (line(b, a, 1), line(c, b, a)), (c,), made_by="a step")


def test_a_sound_trace_is_given_back():
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
def test_malformed_traces(lines, output, message):
    with pytest.raises(Bug, match=message):
        check_trace(replace(SOUND, bound_symbols=lines, output=output))


def test_constants_need_no_definition():
    check_trace(replace(SOUND, bound_symbols=(line(c, b, a),), constants={"b": 3}))
