"""A transform for the inference of encoders on a CPU: rows of padding are left out of linear layers and norms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any

import torch

from thunder_core.passes.recipe import Transform
from thunder_core.passes.replay import proxies_defined_in
from thunder_core.tracing.analysis.attention_arguments import ATTENTION, arguments_of
from thunder_core.tracing.analysis.grad_mode import is_pure
from thunder_core.tracing.analysis.token_rows import (
    LINEAR,
    is_contiguous,
    is_elementwise,
    is_plain,
    linear_arguments,
    operand_dimension,
    reduces_last_dimension,
    selected_row,
    sizes_of,
    tensors_read,
)
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.symbol import BoundSymbol, Symbol, renamed_proxies
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.library.padding.rows import gather_rows, linear_of_rows, order_of_rows, scatter_rows

MIN_PRODUCTS = 2  # the fewest linear layers for which gathering rows is worthwhile
TOKENS = (0, 1)  # the dimensions of texts and tokens of a hidden state [batch, length, width]
KEY_DIMENSIONS = 4
HEADS = (0, 2)  # the same dimensions of queries, keys and values [batch, heads, length, width]
Dimensions = tuple[int, int]


class NotProvable(Exception):
    """Raised if a program may read rows of padding."""


@dataclass(frozen=True)
class LeaveOutPadding(Transform):
    """Compute linear layers, norms and elementwise operations only for the rows of tokens that a program reads.

    A row is read if no mask of attention hides its key, or if the program selects it, such as the first token. The
    program finds these rows at each call, moves them to the front, and moves them back for attention. The results of
    the program are the same, so a program is unchanged if padding may reach its results. With `zeros`, padding may
    reach the results: rows of padding are zeros where a program returns hidden states.

    A program is also unchanged if attention has no mask, if autograd records it, or if it writes to tensors.
    """

    zeros: bool = False

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace unchanged; `before_claiming` changes it, right before executors claim it."""
        return trace

    def before_claiming(self, trace: Trace) -> Trace:
        """Return the trace without rows of padding, or unchanged if it may read them."""
        if not any(bsym.symbol.name == ATTENTION for bsym in trace.bound_symbols) or not is_pure(trace):
            return trace
        ordered = with_masks_first(trace)
        try:
            rows = ReadRows.of(ordered, zeros=self.zeros)
        except NotProvable:
            return trace
        products = sum(ordered.bound_symbols[index].symbol.name == LINEAR for index in rows.gathered)
        return _Gathering(ordered, rows).run() if products >= MIN_PRODUCTS else trace


@dataclass
class ReadRows:
    """The rows that a trace reads: its masks of attention, the selected tokens, and the operations on gathered rows.

    `padded` maps the names of tensors whose rows of padding have other values than in eager PyTorch to the dimensions
    of texts and tokens. `start` is the index of the first bound symbol that may run on gathered rows.
    """

    sizes: list[object]
    start: int
    masks: dict[str, TensorProxy] = field(default_factory=dict)
    positions: set[int] = field(default_factory=set)
    gathered: set[int] = field(default_factory=set)
    padded: dict[str, Dimensions] = field(default_factory=dict)

    @classmethod
    def of(cls, trace: Trace, *, zeros: bool) -> ReadRows:
        """Return the rows that a trace reads; raise `NotProvable` if it may read rows of padding."""
        makers = {proxy.name: index for index, bsym in enumerate(trace.bound_symbols) for proxy in bsym.defines}
        attentions = [bsym for bsym in trace.bound_symbols if bsym.symbol.name == ATTENTION]
        sizes = next((sizes_of_keys(bsym) for bsym in attentions if has_mask_of_texts(bsym)), None)
        of_tokens = [bsym for bsym in attentions if sizes is not None and sizes_of_keys(bsym) == sizes]
        if sizes is None or not all(map(has_mask_of_texts, of_tokens)):
            raise NotProvable
        masks = [whole_mask(trace, makers, arguments_of(bsym)["attn_mask"]) for bsym in of_tokens]
        start = max(makers.get(mask.name, -1) for mask in masks) + 1
        rows = cls(sizes, start, {mask.name: mask for mask in masks})
        for index, bsym in enumerate(trace.bound_symbols):
            rows._follow(index, bsym, zeros=zeros)
        if not zeros and any(proxy.name in rows.padded for proxy in trace.outputs):
            raise NotProvable
        return rows

    def is_row_tensor(self, proxy: object) -> bool:
        """Whether a tensor has a row for each token, which follow each other in memory."""
        return (
            isinstance(proxy, TensorProxy)
            and len(proxy.shape) == 3
            and [sizes_of(proxy)[dim] for dim in TOKENS] == self.sizes
            and is_contiguous(proxy)
            and proxy.device.type == "cpu"
        )

    def _follow(self, index: int, bsym: BoundSymbol, *, zeros: bool) -> None:
        """Note what a bound symbol reads, and whether it can run on gathered rows."""
        padded = [proxy for proxy in tensors_read(bsym) if proxy.name in self.padded]
        if index >= self.start and self._can_gather(bsym):
            self.gathered.add(index)
            self.padded[bsym.output.name] = TOKENS
        elif bsym.symbol.name == ATTENTION:
            self._follow_attention(bsym)
        elif padded and (selected := selected_row(bsym)) is not None and self._selects_token(padded[0], selected):
            self.positions.add(selected[1])
        elif padded:
            dimensions = self._dimensions_in_result(bsym, padded) if is_plain(bsym) else None
            if dimensions is not None:
                self.padded[bsym.output.name] = dimensions
            elif not zeros:
                raise NotProvable

    def _can_gather(self, bsym: BoundSymbol) -> bool:
        """Whether a bound symbol computes rows from the same rows alone, in a memory layout of gathered rows."""
        if not is_plain(bsym) or not self.is_row_tensor(bsym.output):
            return False
        if bsym.symbol.name == LINEAR:
            x, weight, _ = linear_arguments(bsym)
            is_same = x.dtype is weight.dtype is bsym.output.dtype
            return is_same and operand_dimension(bsym, x, 1) == 1 and self.is_row_tensor(x)
        if not (is_elementwise(bsym) or reduces_last_dimension(bsym)):
            return False
        operands = [
            proxy for proxy in tensors_read(bsym) if any(self._has_dimension(bsym, proxy, dim) for dim in TOKENS)
        ]
        return all(map(self.is_row_tensor, operands)) and any(proxy.name in self.padded for proxy in operands)

    def _has_dimension(self, bsym: BoundSymbol, proxy: TensorProxy, dim: int) -> bool:
        return operand_dimension(bsym, proxy, dim) is not None

    def _follow_attention(self, bsym: BoundSymbol) -> None:
        """Note the result of attention, whose rows of padding are those of its queries."""
        arguments = arguments_of(bsym)
        if any(self.padded.get(arguments[name].name, HEADS) != HEADS for name in ("query", "key", "value")):
            raise NotProvable
        if arguments["query"].name in self.padded:
            self.padded[bsym.output.name] = HEADS

    def _selects_token(self, proxy: TensorProxy, selected: tuple[int, int]) -> bool:
        """Whether the dimension of a selected row is that of tokens."""
        return self.padded[proxy.name][1] == selected[0]

    def _dimensions_in_result(self, bsym: BoundSymbol, padded: Sequence[TensorProxy]) -> Dimensions | None:
        """Return the dimensions of texts and tokens in a result; None if rows of padding may reach other rows."""
        results = {self._dimensions_from(bsym, proxy) for proxy in padded}
        return next(iter(results)) if len(results) == 1 else None

    def _dimensions_from(self, bsym: BoundSymbol, proxy: TensorProxy) -> Dimensions | None:
        rank = range(len(bsym.output.shape))
        texts, tokens = (
            next((dim for dim in rank if operand_dimension(bsym, proxy, dim) == own), None)
            for own in self.padded[proxy.name]
        )
        return None if texts is None or tokens is None else (texts, tokens)


def sizes_of_keys(attention: BoundSymbol) -> list[object]:
    """Return the numbers of texts and of tokens of the keys of attention."""
    key = arguments_of(attention)["key"]
    return [sizes_of(key)[dim] for dim in HEADS] if len(key.shape) == KEY_DIMENSIONS else []


def has_mask_of_texts(attention: BoundSymbol) -> bool:
    """Whether attention has a mask of its own for each text, which hides keys."""
    arguments = arguments_of(attention)
    mask = arguments.get("attn_mask")
    if not isinstance(mask, TensorProxy) or arguments.get("is_causal") or not is_plain(attention):
        return False
    is_mask = mask.dtype is torch.bool or mask.dtype.is_floating_point
    if not is_mask or len(mask.shape) != KEY_DIMENSIONS or mask.device.type != "cpu":
        return False
    return [sizes_of(mask)[0], sizes_of(mask)[-1]] == sizes_of_keys(attention)


def with_masks_first(trace: Trace) -> Trace:
    """Return a trace without writes that computes the masks of attention before everything else.

    Bound symbols that draw random numbers keep their order: if a mask depends on one, the trace is unchanged.
    """
    makers = {proxy.name: index for index, bsym in enumerate(trace.bound_symbols) for proxy in bsym.defines}
    waiting = [arguments_of(bsym)["attn_mask"] for bsym in trace.bound_symbols if has_mask_of(bsym)]
    first: set[int] = set()
    while waiting:
        index = makers.get(waiting.pop().name)
        if index is not None and index not in first:
            first.add(index)
            waiting += trace.bound_symbols[index].inputs
    if any(not is_movable(trace.bound_symbols[index]) for index in first):
        return trace
    rest = [bsym for index, bsym in enumerate(trace.bound_symbols) if index not in first]
    return trace.having([*(trace.bound_symbols[index] for index in sorted(first)), *rest], made_by=trace.made_by)


def has_mask_of(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol is attention with a mask for each text."""
    return bsym.symbol.name == ATTENTION and has_mask_of_texts(bsym)


def is_movable(bsym: BoundSymbol) -> bool:
    """Whether a bound symbol without writes may run earlier: it is no product, and changes no state."""
    return not bsym.keeps_position and bsym.symbol.name not in (LINEAR, ATTENTION)


def whole_mask(trace: Trace, makers: Mapping[str, int], mask: TensorProxy) -> TensorProxy:
    """Return the mask of all queries if a mask is that of a selected query; otherwise, the mask itself."""
    while mask.name in makers:
        maker = trace.bound_symbols[makers[mask.name]]
        if selected_row(maker) is None or len(maker.inputs) != 1:
            break
        whole = maker.inputs[0]
        if not isinstance(whole, TensorProxy) or len(whole.shape) != len(mask.shape):
            break
        mask = whole
    return mask


class _Gathering:
    """Makes the bound symbols that compute only the rows that a trace reads."""

    def __init__(self, trace: Trace, rows: ReadRows) -> None:
        self._trace = trace
        self._rows = rows
        used = {proxy.name for proxy in trace.inputs} | trace.constants.keys()
        used |= {proxy.name for bsym in trace.bound_symbols for proxy in proxies_defined_in(bsym)}
        self._names = (name for number in count() if (name := f"t{number}") not in used)
        self._order: tuple[TensorProxy, ...] = ()
        self._gathered: dict[str, TensorProxy] = {}
        self._scattered: dict[str, TensorProxy] = {}
        self._results: set[str] = set()
        self.bsyms: list[BoundSymbol] = []

    def run(self) -> Trace:
        """Return the trace that computes only rows that are read, with bound symbols that gather and scatter them."""
        for index, bsym in enumerate(self._trace.bound_symbols):
            if index in self._rows.gathered:
                self._append_gathered(bsym)
            else:
                self._append(bsym)
        for proxy in self._trace.outputs:
            if proxy.name in self._results:
                self._scatter(proxy, self.bsyms[-1])
        output = renamed_proxies(self._trace.output, self._scattered)
        return self._trace.having(self.bsyms, made_by="leave out padding", output=output)

    def _append_gathered(self, bsym: BoundSymbol) -> None:
        """Append a bound symbol that runs on gathered rows."""
        operands = [proxy for proxy in tensors_read(bsym) if self._rows.is_row_tensor(proxy)]
        for proxy in operands:
            self._gather(proxy, bsym)
        changed = bsym.rename({proxy.name: self._gathered[proxy.name] for proxy in operands})
        if bsym.symbol.name == LINEAR:
            arguments = (*linear_arguments(changed), self._order[1])
            changed = self._call(linear_of_rows, arguments, changed.output, changed)
        self.bsyms.append(changed)
        self._results.add(bsym.output.name)
        self._gathered[bsym.output.name] = bsym.output

    def _append(self, bsym: BoundSymbol) -> None:
        """Append a bound symbol that runs on all rows."""
        padded = [proxy for proxy in tensors_read(bsym) if proxy.name in self._results]
        for proxy in padded:
            self._scatter(proxy, bsym)
        self.bsyms.append(bsym.rename({proxy.name: self._scattered[proxy.name] for proxy in padded}))

    def _gather(self, proxy: TensorProxy, reader: BoundSymbol) -> None:
        """Gather the rows of a tensor, once."""
        if not self._order:
            self._find_rows(proxy, reader)
        if proxy.name not in self._gathered:
            self._gathered[proxy.name] = self._new(proxy)
            arguments = (proxy, *self._order)
            self.bsyms.append(self._call(gather_rows, arguments, self._gathered[proxy.name], reader))

    def _scatter(self, proxy: Any, reader: BoundSymbol) -> None:
        """Move gathered rows back to their places, once."""
        if proxy.name not in self._scattered:
            self._scattered[proxy.name] = self._new(proxy)
            arguments = (proxy, *self._order)
            self.bsyms.append(self._call(scatter_rows, arguments, self._scattered[proxy.name], reader))

    def _find_rows(self, proxy: TensorProxy, reader: BoundSymbol) -> None:
        """Append the bound symbol that finds the rows that are read."""
        length = proxy.shape[0] * proxy.shape[1]
        order = replace(self._new(proxy), shape=(length,), stride=(1,), dtype=torch.int64)
        self._order = (order, replace(self._new(proxy), shape=(), stride=(), dtype=torch.int64))
        arguments = (proxy, [*self._rows.masks.values()], sorted(self._rows.positions))
        self.bsyms.append(self._call(order_of_rows, arguments, self._order, reader))

    def _new(self, proxy: TensorProxy) -> TensorProxy:
        """Return a proxy with a new name and the same metadata."""
        return replace(proxy, name=next(self._names), requires_grad=False)

    def _call(self, function: Callable[..., Any], args: tuple[Any, ...], output: Any, at: BoundSymbol) -> BoundSymbol:
        """Return a bound symbol that calls a function, which is its only operation."""
        operation = BoundSymbol(Symbol.of_function(function), args, {}, output)
        return replace(operation, subsymbols=(operation,), source=at.source, module=at.module)
