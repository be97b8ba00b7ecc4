"""`torch.cond`, `scan` and `map`: their function arguments become sub-traces of one bound symbol.

Values that a function reads besides its arguments are operands of the call. PyTorch's entry functions have already
checked the arguments. PyTorch's rules hold for the functions: they write only to tensors that they create, and return
tensors that share no memory with others. If the results of branches differ in shape or in numbers, the value of the
predicate is guarded, and only one branch is traced.

Within `torch.vmap`, the functions are called with logical tensors, and the operator once with physical ones
(`batches`). A batched predicate selects between the results of both branches, for each element of the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch._higher_order_ops.utils import check_meta_consistency
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from thunder_core.frontend.acquire.lookasides.operators.higher_order import higher_order
from thunder_core.frontend.acquire.subtraces import SubtraceRecording, Subtraces
from thunder_core.frontend.acquire.traced_run import TracedRun
from thunder_core.tracing.capture.torch_facts.modes import without_our_functions
from thunder_core.tracing.capture.transform_levels import is_wrapped
from thunder_core.tracing.ir.proxy import TensorProxy, slice_proxy
from thunder_core.tracing.library.control_flow import cond, map_slices, scan

PAIR = 2
SAME_NUMBERS = "let both branches return tensors, or the same numbers"


@higher_order("cond")
def branch(
    run: TracedRun,
    predicate: Any,
    true_branch: Callable[..., Any],
    false_branch: Callable[..., Any],
    operands: Any,
) -> Any:
    """Record both branches, and a call that selects a branch by the predicate's value at each call."""
    call = run.machine.call
    if not isinstance(predicate, torch.Tensor):
        return call(true_branch if predicate else false_branch, *operands)
    subtraces = Subtraces(run, "torch.cond")
    batches = subtraces.batches
    operand_tensors = [batches.unwrap(leaf) for leaf in tree_flatten(operands)[0] if isinstance(leaf, torch.Tensor)]
    outputs: list[tuple[list[Any], Any]] = []

    def results_of(function: Callable[..., Any]) -> list[torch.Tensor]:
        leaves, structure = tree_flatten(call(function, *operands))
        leaves = [batches.physical(leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
        outputs.append((leaves, structure))
        return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]

    branches = {
        name: subtraces.record(function, partial(results_of, function), operand_tensors)
        for name, function in (("true_branch", true_branch), ("false_branch", false_branch))
    }
    (leaves, structure), (other_leaves, other_structure) = outputs
    require_same_structure(structure, other_structure)
    if is_wrapped(predicate):
        subtraces.inline(branches.values())
        return tree_unflatten(select_by_predicate(subtraces, predicate, leaves, other_leaves), structure)
    if not are_alike(subtraces, leaves, other_leaves):
        return call(true_branch if call(bool, predicate) else false_branch, *operands)
    results = iter(emit_branches(subtraces, cond, predicate, branches))
    return tree_unflatten([next(results) if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves], structure)


def require_same_structure(true_structure: TreeSpec, false_structure: TreeSpec) -> None:
    """Raise PyTorch's `RuntimeError` if the results of the two branches have different structures."""
    if true_structure != false_structure:
        raise RuntimeError(
            f"Unmatched output spec from torch.cond branches: true branch tree_spec {true_structure} vs "
            f"false branch tree_spec {false_structure}."
        )


def emit_branches(
    subtraces: Subtraces,
    operator: Callable[..., Any],
    predicate: torch.Tensor,
    branches: Mapping[str, SubtraceRecording],
) -> Sequence[torch.Tensor]:
    """Emit a call that selects a branch by the predicate, and return its tensors as the program sees them.

    The branches have results with the same metadata, and are in the order of the operator's arguments.
    """
    read = subtraces.operands(branches.values(), ())
    tracked = are_tracked(subtraces, read)
    first = next(iter(branches.values()))
    results = [subtraces.like(result, requires_grad=tracked) for result in first.results]
    traces = [subtraces.trace(recording, name, (), read) for name, recording in branches.items()]
    subtraces.emit(operator, (subtraces.recorder.proxy_of(predicate), *traces, read), results)
    return subtraces.to_program(results)


def select_by_predicate(
    subtraces: Subtraces, predicate: torch.Tensor, true_leaves: Sequence[Any], false_leaves: Sequence[Any]
) -> list[Any]:
    """Select between the results of two branches, given as physical tensors, by a batched predicate."""
    call, batches = subtraces.run.machine.call, subtraces.batches
    predicate = call(torch.reshape, predicate, ())
    results: list[Any] = []
    for true_leaf, false_leaf in zip(true_leaves, false_leaves, strict=True):
        if isinstance(true_leaf, torch.Tensor) and isinstance(false_leaf, torch.Tensor):
            results.append(call(torch.where, predicate, batches.logical(true_leaf), batches.logical(false_leaf)))
        elif is_same_number(true_leaf, false_leaf):
            results.append(true_leaf)
        else:
            raise subtraces.refuse("returns numbers that differ from the other branch's, inside `vmap`", SAME_NUMBERS)
    return results


def is_same_number(left: object, right: object) -> bool:
    """Whether two results that are not tensors have one type and are equal; 0.0 and -0.0 are different."""
    if left is right or type(left) is not type(right):
        return left is right
    return bool(left == right) and (not isinstance(left, float) or str(left) == str(right))


def are_alike(subtraces: Subtraces, true_leaves: Sequence[Any], false_leaves: Sequence[Any]) -> bool:
    """Whether the results of two branches match, so that one name can represent both.

    Raises the error that PyTorch raises for tensors that differ in more than their sizes.
    """
    pairs = list(zip(true_leaves, false_leaves, strict=True))
    if any(isinstance(left, torch.Tensor) is not isinstance(right, torch.Tensor) for left, right in pairs):
        return False
    if any(not isinstance(left, torch.Tensor) and not is_same_number(left, right) for left, right in pairs):
        return False
    tensors = [(left, right) for left, right in pairs if isinstance(left, torch.Tensor)]
    fakes = [tuple(map(subtraces.recorder.tensors.fake, pair)) for pair in tensors]
    if any(left.shape != right.shape for left, right in fakes):
        return False
    require_alike([left for left, _ in fakes], [right for _, right in fakes], "true_fn_output", "false_fn_output")
    return all(left.stride() == right.stride() for left, right in fakes)


def are_tracked(subtraces: Subtraces, inputs: Iterable[Any]) -> bool:
    """Whether autograd is on and an input requires a gradient; then all floating-point results require a gradient."""
    tensors = (
        subtraces.recorder.tensors.tensor_named(proxy.name) for proxy in inputs if isinstance(proxy, TensorProxy)
    )
    return torch.is_grad_enabled() and any(tensor is not None and tensor.requires_grad for tensor in tensors)


def tracked_proxy(subtraces: Subtraces, proxy: TensorProxy) -> TensorProxy:
    """Return the proxy of a tensor, which requires a gradient if the tensor does at this point of the program."""
    tensor = subtraces.recorder.tensors.tensor_named(proxy.name)
    return proxy if tensor is None else replace(proxy, requires_grad=tensor.requires_grad)


def check_carried(
    subtraces: Subtraces, results: Sequence[Any], inputs: Sequence[Any], name: str, input_name: str
) -> None:
    """Raise PyTorch's error for carried values whose types or metadata differ from the function's inputs."""
    result_fakes, input_fakes = ([subtraces.fake(value) for value in values] for values in (results, inputs))
    require_alike(result_fakes, input_fakes, name, input_name)
    pairs = [pair for pair in zip(result_fakes, input_fakes, strict=True) if isinstance(pair[0], torch.Tensor)]
    with without_our_functions():  # Thunder reads these strides, not the program
        is_changed = any(carried.stride() != initial.stride() for carried, initial in pairs)
    if is_changed:
        raise subtraces.refuse(
            "returns a carried tensor whose strides differ from its input's", "return `x.contiguous()`"
        )


def require_alike(results: Sequence[Any], others: Sequence[Any], name: str, other_name: str) -> None:
    """Raise PyTorch's error for values that differ in number, type, shape, dtype or device."""
    with without_our_functions():
        check_meta_consistency(list(results), list(others), name, other_name, include_contiguity=False)


@higher_order("scan")
def record_scan(
    run: TracedRun,
    combine: Callable[..., Any],
    initial: Sequence[Any],
    slices: Sequence[Any],
    additional_inputs: Sequence[Any],
) -> Any:
    """Record `combine`, and a loop that calls `combine` for the slices of tensors."""
    flat_combine = FlatteningFunction(run, combine)

    def check_carries(*args: Any) -> list[Any]:
        leaves = flat_combine(*args)
        require_carry(flat_combine.results, len(initial))
        return leaves

    results = record_over_slices(
        Subtraces(run, "scan"), scan, combine, check_carries, initial, slices, additional_inputs
    )
    return tree_unflatten(list(results), flat_combine.structure)


def require_carry(results: object, count: int) -> None:
    """Raise `RuntimeError`, as PyTorch does, unless `results` are a pair whose first element has `count` tensors."""
    if not isinstance(results, tuple | list) or len(results) != PAIR:
        raise RuntimeError(f"Expect combine_fn to return a tuple (next_carry, y) but got {type(results).__name__}")
    if len(tree_flatten(results[0])[0]) != count:
        raise RuntimeError("Expected init and carry to have same number of outputs")


@higher_order("map_impl")
def record_map(run: TracedRun, body: Callable[..., Any], slices: Sequence[Any], additional: Sequence[Any]) -> Any:
    """Record the mapped function, and a loop over the slices of tensors. Results that are None are not stacked."""
    flat_body = FlatteningFunction(run, body)

    def call_body(*args: Any) -> list[Any]:
        return [leaf for leaf in flat_body(*args) if leaf is not None]

    results = iter(record_over_slices(Subtraces(run, "map"), map_slices, body, call_body, (), slices, additional))
    leaves = [None if leaf is None else next(results) for leaf in tree_flatten(flat_body.results)[0]]
    return tree_unflatten(leaves, flat_body.structure)


class FlatteningFunction:
    """Interprets a function of the program and returns the leaves of its results.

    `results` and `structure` are the results of the last call and their tree structure.
    """

    def __init__(self, run: TracedRun, function: Callable[..., Any]) -> None:
        self._call = partial(run.machine.call, function)
        self.results: Any = None
        self.structure: Any = None

    def __call__(self, *args: Any) -> list[Any]:
        """Call the function, and return the leaves of its results."""
        self.results = self._call(*args)
        leaves, self.structure = tree_flatten(self.results)
        return leaves


def record_over_slices(
    subtraces: Subtraces,
    operator: Callable[..., Any],
    function: Callable[..., Any],
    call: Callable[..., Sequence[Any]],
    initial: Sequence[Any],
    slices: Sequence[Any],
    additional: Sequence[Any],
    detach: Callable[..., Any] = lambda _subtraces, _inputs, arguments, _results: arguments,
) -> tuple[torch.Tensor, ...]:
    """Record a function of carried tensors and slices, and the operator that calls it for each slice in order.

    `call` interprets the function and returns its results as one list of tensors. `detach` returns the arguments of the
    operator without gradients for some of them; by default, all arguments get gradients, as in PyTorch.
    """
    recorder, batches = subtraces.recorder, subtraces.batches
    starts = [recorder.proxy_of(batches.physical(tensor)) for tensor in initial]
    stacks = [batches.with_slices_first(batches.physical(tensor)) for tensor in slices]
    stacked_proxies = [recorder.proxy_of(tensor) for tensor in stacks]
    input_proxies = [tracked_proxy(subtraces, proxy) for proxy in starts]
    input_proxies += [slice_proxy(tracked_proxy(subtraces, proxy)) for proxy in stacked_proxies]
    placeholders = [subtraces.placeholder(proxy) for proxy in input_proxies]
    inputs = subtraces.to_program(placeholders)
    recording = subtraces.record(function, lambda: [*map(batches.physical, call(*inputs, *additional))], placeholders)
    carried, rows = recording.results[: len(starts)], recording.results[len(starts) :]
    check_carried(subtraces, carried, placeholders[: len(starts)], "carry", "init")
    read = subtraces.operands((recording,), placeholders)
    trace = subtraces.trace(recording, "combine", [recorder.proxy_of(tensor) for tensor in placeholders], read)
    length = recorder.tensors.fake(stacks[0]).shape[0]
    arguments = detach(subtraces, placeholders, (tuple(starts), tuple(stacked_proxies), read), recording.results)
    tracked = are_tracked(subtraces, sum(arguments, ()))
    results = [
        *(subtraces.like(tensor, requires_grad=tracked) for tensor in carried),
        *(subtraces.stack(tensor, length, requires_grad=tracked) for tensor in rows),
    ]
    subtraces.emit(operator, (trace, *(arguments if starts else arguments[1:])), results)
    stacked = map(batches.with_batches_first, results[len(starts) :])
    return subtraces.to_program((*results[: len(starts)], *stacked))
