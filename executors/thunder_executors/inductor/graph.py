"""Convert regions to FX graphs for Inductor.

A graph is traced on fake tensors, with Inductor's decompositions except for batch norms and the operators in
`REPLACEMENTS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch._dispatch.python import enable_python_dispatcher
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing, make_fx

from thunder_core.backend.fusion.region import Region
from thunder_core.tracing.analysis.aliasing import written_tensors
from thunder_core.tracing.capture.fakes.faithful import settle_contiguity
from thunder_core.tracing.capture.symbolic.metadata import is_symbolic_slice, slice_dimension
from thunder_core.tracing.capture.symbolic.shape_env import TraceShapeEnv
from thunder_core.tracing.capture.torch_facts.layouts import is_symbolic
from thunder_core.tracing.capture.torch_facts.writes import OUT, without_write
from thunder_core.tracing.ir.evaluate import evaluate, evaluate_bound_symbol
from thunder_core.tracing.ir.proxy import TensorProxy, environment_of
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol
from thunder_core.tracing.ir.tree import leaves
from thunder_executors.inductor.attention import KERNEL as ATTENTION_BACKWARD
from thunder_executors.inductor.attention import attention_backward
from thunder_executors.inductor.batch_norm import OPERATION as BATCH_NORM
from thunder_executors.inductor.batch_norm import with_sums_in_float64
from thunder_executors.inductor.numbers import compute, formula_of, takes_numbers
from thunder_executors.inductor.precision.roundings import with_rounded_constants
from thunder_executors.inductor.sizes import is_certain, numbers_in
from thunder_executors.inductor.value_checks import FLAG, ValueChecks, has_flag

NUMBER_DTYPE = torch.float64
COPY = torch.ops.aten.copy_.default
SLICE = torch.ops.aten.slice.Tensor


class SymbolicMode(FakeTensorMode):
    """A fake tensor mode for symbolic sizes: a tensor counts as contiguous only if it is contiguous for all sizes.

    PyTorch's cache of fake tensors is off: finding and rebuilding a cached result takes longer than the call.
    """

    def __init__(self, environment: TraceShapeEnv) -> None:
        super().__init__(shape_env=environment)
        self.environment = environment
        self.cache_enabled = False

    def dispatch(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation on tensors without data."""
        output = self._output(func, types, args, kwargs or {})
        for leaf in leaves(output):
            settle_contiguity(leaf, self.environment)
        return output

    def _output(self, func: Any, types: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func is SLICE and is_symbolic_slice(*args, **kwargs):
            with self:
                return slice_dimension(*args, **kwargs)
        return super().dispatch(func, types, args, kwargs)  # type: ignore[no-untyped-call]


def graph_of(region: Region) -> tuple[GraphModule, list[FakeTensor | torch.SymInt]]:
    """Return the FX graph of a region, and the fake arguments of the graph: tensors, numbers and symbolic integers.

    The graph returns the outputs of the region as a tuple, and writes to the inputs that the region writes to.
    """
    region = with_rounded_constants(region)
    environment = environment_of(region.symbols)
    mode = FakeTensorMode() if environment is None else SymbolicMode(environment)
    with mode:
        fakes: Any = [_empty(proxy) for proxy in region.inputs]
        fakes += [torch.empty((), dtype=NUMBER_DTYPE) for _ in region.numbers]
        fakes += [torch.SymInt(proxy.value.node) for proxy in region.symbols]  # type: ignore[no-untyped-call]

    def run(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
        results, written = compute_region(region, values, ValueChecks() if has_flag(region) else None)
        return (*(lay_out(*pair) for pair in zip(results, region.outputs, strict=True)), *written.values())

    dispatching = enable_python_dispatcher() if environment is not None else nullcontext()
    with mode, torch.no_grad(), dispatching:
        graph = make_fx(run, decomposition_table=decompositions(), tracing_mode="real")(*fakes)
    output_node = graph.graph.output_node()
    _write_at_the_end(graph, region)
    output_node.meta["user_visible_output_idxs"] = list(range(len(region.outputs)))
    output_node.meta["original_output_strides"] = [proxy.stride for proxy in region.outputs]
    return graph, fakes


def decompositions() -> dict[Any, Callable[..., Any]]:
    """Return Inductor's table of decompositions, with a derivative of batch norms as precise as PyTorch's kernel."""
    table = dict(select_decomp_table())
    table[BATCH_NORM] = with_sums_in_float64(table[BATCH_NORM])
    return table


def reshape(tensor: torch.Tensor, shape: Sequence[Any]) -> torch.Tensor:
    """Return a tensor with another shape: a view, or else a view of a contiguous copy.

    A tensor with symbolic sizes is not passed to `aten.reshape`, which would compare its sizes with the number 1.
    """
    if not is_symbolic(tensor):
        reshaped_tensor: torch.Tensor = torch.ops.aten.reshape.default(tensor, shape)
        return reshaped_tensor
    try:
        return tensor.view(shape)
    except (RuntimeError, ValueError):
        return tensor.clone(memory_format=torch.contiguous_format).view(shape)


# Functions that run instead of operators. `reshape` replaces views, because a decomposition may give a tensor a layout
# of which no view has the new shape. `attention_backward` is faster, and a copy needs only the source.
REPLACEMENTS: dict[object, Callable[..., Any]] = {
    torch.ops.aten.view.default: reshape,
    torch.ops.aten.reshape.default: reshape,
    torch.ops.aten._unsafe_view.default: reshape,
    ATTENTION_BACKWARD: attention_backward,
    torch.ops.aten.copy.default: lambda into, source, non_blocking=False: source.to(into.dtype).expand(into.shape),
}


def _write_at_the_end(graph: GraphModule, region: Region) -> None:
    """Copy the values for written inputs into these inputs at the end of the graph, instead of returning the values."""
    placeholders = dict(
        zip((proxy.name for proxy in region.inputs), graph.graph.find_nodes(op="placeholder"), strict=False)
    )
    output_node = graph.graph.output_node()
    results: Any = output_node.args[0]
    outputs, written_values = results[: len(region.outputs)], results[len(region.outputs) :]
    with graph.graph.inserting_before(output_node):
        for proxy, value in zip(dict.fromkeys(region.writes), written_values, strict=True):
            graph.graph.call_function(COPY, (placeholders[proxy.name], value)).meta["val"] = placeholders[
                proxy.name
            ].meta["val"]
    output_node.args = (tuple(outputs),)
    graph.recompile()


OutputsAndWrites = tuple[tuple[torch.Tensor, ...], dict[str, torch.Tensor]]


def compute_region(
    region: Region, arguments: tuple[torch.Tensor, ...], checks: ValueChecks | None = None
) -> OutputsAndWrites:
    """Return the outputs of a region, and the new values of its written inputs by name, without writing to the inputs.

    `arguments` are the values of the inputs, the numbers and the symbols of the region. Instead of writing to a tensor,
    an operation gives the tensor's name a new value. With `checks`, invalid operands of operations that do not write
    are replaced, and the flag that reports them is among the outputs.
    """
    count = len(arguments) - len(region.symbols)
    proxies = (*region.inputs, *region.numbers)
    values: dict[str, Any] = dict(zip((proxy.name for proxy in proxies), arguments[:count], strict=True))
    values |= numbers_in(region, arguments[count:])

    def run(operation: BoundSymbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return call_operation(operation, *(checks.settle(operation, args, kwargs) if checks else (args, kwargs)))

    for operation in region.operations:
        into = next(written_tensors(operation), None)
        if into is None:
            evaluate([operation], values, run)
        else:
            values[into.name] = evaluate_bound_symbol(operation, values, call_operation).to(into.dtype)
    if checks is not None:
        values[FLAG.name] = checks.flag()
    written = {proxy.name: values[proxy.name] for proxy in region.writes}
    return tuple(values[proxy.name] for proxy in region.outputs), written


def call_operation(operation: BoundSymbol, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the value that an operation computes, or would write; the caller casts a written value."""
    target: Any = operation.symbol.target
    dtype = _dtype(operation)
    formula = formula_of(operation) if takes_numbers(operation) else None
    if formula is not None and dtype is not None:
        return compute(formula, dtype, args, kwargs)
    if not target._schema.is_mutable:
        return REPLACEMENTS.get(target, target)(*args, **kwargs)
    plain: Any = without_write(target)
    return REPLACEMENTS.get(plain, plain)(*args, **{name: value for name, value in kwargs.items() if name != OUT})


def _dtype(operation: BoundSymbol) -> torch.dtype | None:
    """Return the dtype of the tensor that an operation writes to, or else of its only result; None without either."""
    into = next(written_tensors(operation), operation.output)
    return into.dtype if isinstance(into, TensorProxy) else None


def same_layout(shape: Sequence[int], first_strides: Sequence[int], second_strides: Sequence[int]) -> bool:
    """Whether two sets of strides give each element the same address; dimensions of size one do not matter."""
    sizes = zip(shape, first_strides, second_strides, strict=True)
    with disable_proxy_modes_tracing():
        return all(is_certain(size < 2) or is_certain(first == second) for size, first, second in sizes)


def lay_out(result: torch.Tensor, proxy: TensorProxy) -> torch.Tensor:
    """Return the result, or a dense copy with PyTorch's order of dimensions if its strides differ from PyTorch's."""
    if same_layout(proxy.shape, result.stride(), proxy.stride):
        return result
    order = sorted(range(len(proxy.shape)), key=lambda dim: -hint_of(proxy.stride[dim]))
    back = [order.index(dim) for dim in range(len(order))]
    return result.permute(order).clone(memory_format=torch.contiguous_format).permute(back)


def _empty(proxy: TensorProxy) -> torch.Tensor:
    return torch.empty_strided(proxy.shape, proxy.stride, dtype=proxy.dtype, device=proxy.device)
