"""A transform for inference on a CPU: layers before the selection of a row compute only this row."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from thunder_core.passes.recipe import Transform
from thunder_core.passes.replay import Replay
from thunder_core.tracing.analysis.attention_arguments import ATTENTION, arguments_of
from thunder_core.tracing.analysis.grad_mode import is_pure
from thunder_core.tracing.analysis.token_rows import (
    LINEAR,
    RESHAPES,
    is_plain,
    operand_dimension,
    selected_row,
    sizes_of,
    tensors_read,
)
from thunder_core.tracing.ir.proxy import TensorProxy
from thunder_core.tracing.ir.sizes import expressions
from thunder_core.tracing.ir.symbol import BoundSymbol, renamed_proxies
from thunder_core.tracing.ir.trace import Trace
from thunder_core.tracing.ir.tree import leaves, replace_leaves

QUERIES = 2  # the dimension of queries [batch, heads, queries, width]


@dataclass(frozen=True)
class SelectedRow:
    """The only row of a tensor that a program reads: its dimension, and its index in the whole tensor."""

    dim: int
    index: int

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a view of the row; the dimension has size 1."""
        stop = None if self.index == -1 else self.index + 1
        return tensor[(*[slice(None)] * self.dim, slice(self.index, stop))]


@dataclass(frozen=True)
class SelectRowsEarly(Transform):
    """Compute only one row of tokens, such as the first or the last, if a program reads no other row of the result.

    A classifier reads the first token of the last layer, and the next token follows from the last one. The last layer
    then computes queries, attention, linear layers and norms for one row; its keys and values need all rows. The
    results are the same. A program is unchanged if autograd records it, or if it writes to tensors.
    """

    before: ClassVar[tuple[str, ...]] = ("padding",)

    def __call__(self, trace: Trace) -> Trace:
        """Return the trace unchanged; `before_claiming` changes it, right before executors claim it."""
        return trace

    def before_claiming(self, trace: Trace) -> Trace:
        """Return the trace with only the rows that it reads, or unchanged if no linear layer computes fewer rows."""
        if not any(selected_row(bsym) for bsym in trace.bound_symbols) or not (is_on_cpu(trace) and is_pure(trace)):
            return trace
        rows = rows_read(trace)
        narrowed = [bsym for bsym in trace.bound_symbols if is_narrowed(bsym, rows)]
        if not any(bsym.symbol.name == LINEAR for bsym in narrowed):
            return trace
        return _Narrowing(trace, rows).narrow()


def is_on_cpu(trace: Trace) -> bool:
    """Whether all tensors that a trace takes are on the CPU."""
    return all(tensor.device.type == "cpu" for tensor in trace.inputs if isinstance(tensor, TensorProxy))


def is_narrowed(bsym: BoundSymbol, rows: Mapping[str, SelectedRow | None]) -> bool:
    """Whether a bound symbol can compute the only row of its result that is read."""
    row = rows.get(bsym.output.name) if isinstance(bsym.output, TensorProxy) else None
    return row is not None and any(dimension_of_operand(bsym, proxy, row) is not None for proxy in tensors_read(bsym))


def rows_read(trace: Trace) -> dict[str, SelectedRow | None]:
    """Map the names of tensors that are read to the only row that is read; None if the whole tensor may be read."""
    rows: dict[str, SelectedRow | None] = {proxy.name: None for proxy in (*trace.outputs, *trace.inputs)}
    for bsym in reversed(trace.bound_symbols):
        for proxy in tensors_read(bsym):
            row = row_of_operand(bsym, proxy, rows)
            rows[proxy.name] = row if rows.setdefault(proxy.name, row) == row else None
    return rows


def row_of_operand(
    bsym: BoundSymbol, operand: TensorProxy, rows: Mapping[str, SelectedRow | None]
) -> SelectedRow | None:
    """Return the only row of an operand that a bound symbol reads, from the row that is read of its result."""
    selected = selected_row(bsym) if len(bsym.inputs) == 1 else None
    if selected is not None:
        return SelectedRow(*selected) if sizes_of(operand)[selected[0]] != 1 else None
    row = rows.get(bsym.output.name) if isinstance(bsym.output, TensorProxy) else None
    dim = None if row is None else dimension_of_operand(bsym, operand, row)
    return None if row is None or dim is None else SelectedRow(dim, row.index)


def dimension_of_operand(bsym: BoundSymbol, operand: TensorProxy, row: SelectedRow) -> int | None:
    """Return the dimension of an operand whose row determines a row of the result; None if all rows are read."""
    if not is_plain(bsym):
        return None
    if bsym.symbol.name == ATTENTION:
        return query_dimension(bsym, operand, row)
    return operand_dimension(bsym, operand, row.dim)


def query_dimension(bsym: BoundSymbol, operand: TensorProxy, row: SelectedRow) -> int | None:
    """Return the dimension of queries if an operand of attention is its query, and attention may compute one row."""
    arguments = arguments_of(bsym)
    query, key = arguments["query"], arguments["key"]
    others = {value.name for name, value in arguments.items() if name != "query" and isinstance(value, TensorProxy)}
    if operand.name != query.name or operand.name in others or row.dim != QUERIES or len(query.shape) != QUERIES + 2:
        return None
    return QUERIES if not arguments.get("is_causal") or reads_all_keys(query, key, row) else None


def reads_all_keys(query: TensorProxy, key: TensorProxy, row: SelectedRow) -> bool:
    """Whether a causal mask hides no key of a row: the row is the last one, and each query has a key."""
    return row.index == -1 and sizes_of(query)[QUERIES] == sizes_of(key)[QUERIES]


class _Narrowing(Replay):
    """Runs the bound symbols of a trace again, on the rows that are read."""

    title = "The selection of rows"

    def __init__(self, trace: Trace, rows: Mapping[str, SelectedRow | None]) -> None:
        super().__init__(trace)
        self._rows = rows
        self._narrowed: set[str] = set()
        self._views: dict[tuple[str, SelectedRow], torch.Tensor] = {}

    def narrow(self) -> Trace:
        """Return the trace with only the rows that are read; unchanged if its results would have other strides."""
        with self._recorder.recording():
            self._run_all()
            proxies = self._proxies_of(self.trace.output)
            names = self._former_names(changed=self._narrowed)
        output = renamed_proxies(proxies, names)
        if [*map(strides_of, leaves(output))] != [*map(strides_of, leaves(self.trace.output))]:
            return self.trace
        bsyms = [bsym.rename(names) for bsym in self.bsyms]
        return self.trace.having(bsyms, made_by="select rows early", output=output)

    def _restore(self, leaf: object) -> Any:
        """Return the value of a proxy, which is whole."""
        return self._value(leaf)

    def _run(self, bsym: BoundSymbol) -> None:
        """Run a bound symbol on the row that is read of its result, or append it unchanged."""
        if selected_row(bsym) is not None and bsym.inputs[0].name in self._narrowed:
            self._run_selection(bsym)
        elif is_narrowed(bsym, self._rows):
            self._run_on_row(bsym, self._rows[bsym.output.name])
        else:
            self._append_with_restored_operands(bsym)

    def _run_selection(self, bsym: BoundSymbol) -> None:
        """Select the row of a tensor that has only this row."""
        entries = (
            entry if entry == slice(None) else 0 if isinstance(entry, int) else slice(0, 1) for entry in bsym.args[1]
        )
        self._record_result(bsym, bsym.symbol.target, (self._value(bsym.args[0]), tuple(entries)), {})

    def _run_on_row(self, bsym: BoundSymbol, row: Any) -> None:
        """Run a bound symbol on a row of its operands."""
        args, kwargs = replace_leaves((bsym.args, dict(bsym.kwargs)), lambda leaf: self._row_of(leaf, bsym, row))
        function: Any = bsym.symbol.target
        if bsym.symbol.name in RESHAPES:
            sizes = [1 if dim == row.dim else size for dim, size in enumerate(bsym.output.shape)]
            function, args, kwargs = torch.Tensor.reshape, (args[0], *sizes), {}
        elif bsym.symbol.name == ATTENTION:
            args, kwargs = (), arguments_of(bsym) | self._attention_of_row(bsym, row)
            kwargs = replace_leaves(kwargs, self._value)
        self._record_result(bsym, function, args, kwargs)
        self._narrowed.add(bsym.output.name)

    def _attention_of_row(self, bsym: BoundSymbol, row: SelectedRow) -> dict[str, Any]:
        """Return the arguments of attention that differ for one query: the query, the mask, and `is_causal`."""
        arguments = arguments_of(bsym)
        mask = arguments.get("attn_mask")
        changed = {"query": self._row_of(arguments["query"], bsym, row), "is_causal": False}
        if isinstance(mask, TensorProxy) and sizes_of(mask)[-2] != 1:
            changed["attn_mask"] = self._view(mask, SelectedRow(len(mask.shape) - 2, row.index))
        return changed

    def _row_of(self, leaf: object, bsym: BoundSymbol, row: SelectedRow) -> Any:
        """Return the value of an argument, of which only a row may be read."""
        dim = dimension_of_operand(bsym, leaf, row) if isinstance(leaf, TensorProxy) else None
        if dim is None or not isinstance(leaf, TensorProxy) or leaf.name in self._narrowed:
            return self._value(leaf)
        return self._view(leaf, SelectedRow(dim, row.index))

    def _view(self, proxy: TensorProxy, row: SelectedRow) -> torch.Tensor:
        """Return a view of a row of a whole tensor, made at its first use."""
        key = (proxy.name, row)
        if key not in self._views:
            view, bsyms = self._record(row.of, (self._value(proxy),), {})
            self._views[key] = view
            self.bsyms += bsyms
        return self._views[key]

    def _record_result(self, bsym: BoundSymbol, function: Any, args: Any, kwargs: Any) -> None:
        """Record the call that replaces a bound symbol."""
        output, bsyms = self._record(function, args, kwargs)
        self._bind(bsym.output, output)
        self.bsyms += bsyms


def strides_of(leaf: object) -> Any:
    """Return the strides of a tensor as expressions; None for other values."""
    return expressions(leaf.stride) if isinstance(leaf, TensorProxy) else None
