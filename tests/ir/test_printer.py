"""Traces as text: golden, valid, and equivalent at both levels, with and without comments."""

from __future__ import annotations

import pytest
import torch

import thunder_core as thunder
from thunder_core.backend.runtime.generate import executable
from thunder_core.compilation.compiler import last_program
from thunder_core.tracing.ir.layout import fit, layout
from thunder_core.tracing.ir.printer import list_trace, print_trace
from thunder_core.tracing.ir.proxy import Proxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol
from thunder_core.tracing.ir.trace import Trace


def program(x, weight, bias=None):
    y = torch.nn.functional.linear(x, weight, bias)
    first, second = y.chunk(2, dim=-1)
    return first * torch.sigmoid(second)


@pytest.fixture(scope="module")
def traces():
    compiled = thunder.jit(program)
    compiled(torch.ones(2, 4), torch.ones(6, 4))
    return {
        stage.trace.made_by: stage.trace for stage in last_program(compiled).stages if stage.trace.name == "computation"
    }


def without_places(text: str) -> str:
    """Return the text without the user's line numbers, which change with this file."""
    return "\n".join(line.rstrip() for line in text.splitlines() if "test_printer.py:" not in line) + "\n"


GOLDEN = """\
# computation: free after last use
import torch


def computation(
    x,                                                                            # f32[2, 4]  args[0]
    weight,                                                                       # f32[6, 4]  args[1]
):

    # ---- program ----
    t1 = torch.nn.functional.linear(x, weight, None)                              # f32[2, 6]
    (t2, t3) = t1.chunk(2, dim=-1)                                                # f32[2, 3], f32[2, 3]
    del t1
    t4 = torch.sigmoid(t3)                                                        # f32[2, 3]
    del t3
    t5 = t2 * t4                                                                  # f32[2, 3]
    del t2, t4
    return (t5,)
"""


def test_a_function_has_another_name_than_a_parameter() -> None:
    def double(x: float) -> float:
        return 2 * x

    double.__name__ = "region_0"
    number, result = Proxy("region_0"), Proxy("t0")
    call = BoundSymbol(Symbol("region_0", double), (number,), {}, result)
    trace = Trace("computation", (number,), (call,), result)
    assert executable(print_trace(trace), "computation")(4.0) == 8.0


def test_printed_trace_equals_the_golden_text(traces):
    assert without_places(print_trace(traces["free after last use"]).text) == GOLDEN


def test_every_statement_follows_the_users_line(traces):
    text = print_trace(traces["free after last use"]).text
    assert "printer.py:" in text
    assert ": first, second = y.chunk(2, dim=-1)\n" in text


def test_without_comments_nothing_but_code_is_left(traces):
    text = print_trace(traces["free after last use"], comments=False).text
    assert "#" not in text
    assert text.startswith("import torch\n\n\ndef computation(x, weight):\n    t1 = ")


@pytest.mark.parametrize("comments", [True, False])
@pytest.mark.parametrize("level", ["torch", "aten"])
def test_all_forms_compute_the_same(traces, level, comments):
    x, weight = torch.randn(2, 4), torch.randn(6, 4)
    for trace in traces.values():
        function = executable(print_trace(trace, level=level, comments=comments), "computation")
        torch.testing.assert_close(function(x, weight)[0], program(x, weight))


def test_aten_level_prints_the_subsymbols(traces):
    text = print_trace(traces["trace"], level="aten", comments=False).text
    assert "torch.ops.aten.t.default(weight)" in text
    assert "torch.nn.functional" not in text


def test_listing_equals_the_printed_trace(traces):
    for trace in traces.values():
        listing, _ = list_trace(trace)
        assert layout(listing) == print_trace(trace).text == str(trace)


def test_comments_are_cut_to_a_width_and_statements_never(traces):
    listing, _ = list_trace(traces["trace"])
    narrow, wide = layout(listing, width=60).splitlines(), layout(listing).splitlines()
    assert all(len(line) <= 60 or "# " not in line for line in narrow if "linear" not in line)
    assert [line.partition("#")[0].split() for line in narrow] == [line.partition("#")[0].split() for line in wide]


def test_text_is_cut_to_one_line():
    assert fit("x = 1  # a comment that is too long", 24) == "x = 1  # a comment that…"
    assert fit('x = "a very long literal of text"', 20) == 'x = "a very long literal of text"'
    assert fit("x = 1  # too long", 12) == "x = 1  # too long"
    assert fit("# a comment alone, and long", 20) == "# a comment alone, …"
