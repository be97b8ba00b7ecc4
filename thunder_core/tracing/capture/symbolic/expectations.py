"""Bound symbols that check, at each call, that another bound symbol returns the value from recording."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

from thunder_core.tracing.capture.symbolic.shape_env import number_of
from thunder_core.tracing.capture.torch_facts.symbols import symbol_of
from thunder_core.tracing.ir.proxy import Proxy, TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves, replace_leaves
from thunder_core.tracing.library.objects import expect_items, expect_layout, expect_shape, expect_value


def with_result_checks(bsym: BoundSymbol, output: Any, next_name: Callable[[], str]) -> Iterator[BoundSymbol]:
    """Yield a bound symbol, and checks that end a later call in which the result of the bound symbol differs.

    A call that returns only its own arguments, such as `torch._foreach_lerp_`, needs no checks.
    """
    if bsym.outputs and not bsym.defines:
        yield bsym
        return
    if type(output) in (tuple, list):
        all_values = Proxy(next_name())
        yield replace(bsym, output=all_values)
        yield _check_of_result(bsym, expect_items, all_values, len(output), output=bsym.output)
    else:
        yield bsym
    for proxy, value in zip(leaves(bsym.output), leaves(output), strict=True):
        if isinstance(proxy, TensorProxy):
            yield _check_of_result(bsym, expect_layout, proxy, proxy.shape, proxy.stride)
        elif isinstance(proxy, Proxy):
            yield _check_of_result(bsym, expect_value, proxy, value)


def with_count_checks(bsym: BoundSymbol) -> Iterator[BoundSymbol]:
    """Yield checks that end a call in which the result sizes of a bound symbol differ from the counts of the
    prologue.
    """
    for proxy in bsym.outputs:
        if isinstance(proxy, TensorProxy):
            yield _check_of_result(bsym, expect_shape, proxy, replace_leaves(tuple(proxy.shape), number_of))


def expectation_of(bsym: BoundSymbol, proxy: Proxy, value: object) -> BoundSymbol:
    """Return a bound symbol, at the position of `bsym`, that ends a call in which a number has another value."""
    return _check_of_result(bsym, expect_value, proxy, value)


def _check_of_result(bsym: BoundSymbol, check: Callable[..., Any], *args: Any, output: object = None) -> BoundSymbol:
    """Return a bound symbol, at the position of `bsym`, that checks its result."""
    return BoundSymbol(symbol_of(check), args, {}, output, (), bsym.source, bsym.module, ordered=True)
