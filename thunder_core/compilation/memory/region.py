"""The memory of a region that Inductor compiled, computed from its source code, which allocates and calls kernels."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from thunder_core.backend.fusion.conditions import size_of as expression_value
from thunder_core.tracing.analysis.storages import Storages, length_of, new_tensors, size_of
from thunder_core.tracing.ir.proxy import NumberProxy, TensorProxy
from thunder_core.tracing.ir.sizes import hint_of
from thunder_core.tracing.ir.symbol import BoundSymbol

ALLOCATION = "empty_strided_cpu"
REINTERPRETATION = "reinterpret_tensor"
OPERATORS = "torch.ops."
REGION_PREFIX = "in a region: "  # distinguishes the region's names from the caller's names


def run_region(text: str, bsym: BoundSymbol, storages: Storages, sole_inputs: Sequence[str] = ()) -> int:
    """Simulate a call of the region: add its results to `storages`, and return the peak in bytes during the call.

    `text` is the source code of the region. `sole_inputs` names the inputs to which only the region refers, so that
    they are freed when the region deletes them. A function that ends with `raise` runs only after a failure, and is
    ignored.
    """
    run = _Run(bsym, storages, sole_inputs)
    for function in ast.parse(text).body:
        if isinstance(function, ast.FunctionDef) and not isinstance(function.body[-1], ast.Raise):
            run.parameters = [argument.arg for argument in function.args.args]
            for statement in function.body:
                run.statement(statement)
    run.end_region()
    return run.peak


@dataclass
class _Run:
    """A simulated run of the statements of a region."""

    bsym: BoundSymbol
    storages: Storages
    sole_inputs: Sequence[str]
    parameters: list[str] = field(default_factory=list)
    names: set[str] = field(default_factory=set)
    peak: int = 0
    called: dict[str, Iterator[BoundSymbol]] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        operations: dict[str, list[BoundSymbol]] = defaultdict(list)
        for operation in self.bsym.at_level("aten"):
            operations[operation.symbol.name].append(operation)
        self.called = {name: iter(calls) for name, calls in operations.items()}

    def statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Delete):
            for target in statement.targets:
                self._drop(ast.unparse(target))
        elif isinstance(statement, ast.Assign) and ast.unparse(statement.value) in self.parameters:
            self._unpack(statement.targets[0])
        elif isinstance(statement, ast.Assign):
            self._assign(ast.unparse(statement.targets[0]), statement.value)
        elif isinstance(statement, ast.Return) and statement.value is not None:
            self._return(statement.value)
        elif ast.unparse(statement) in [f"{name}.clear()" for name in self.parameters]:
            self._drop_inputs()
        self.peak = max(self.peak, self.storages.live_bytes)

    def end_region(self) -> None:
        """End the region: drop its own names, and allocate the outputs that the simulation has not found."""
        for proxy, base in new_tensors(self.bsym):
            if not self.storages.is_live(proxy.name) and base is not None:
                self.storages.share(proxy.name, base)
            elif not self.storages.is_live(proxy.name):
                self.storages.make(proxy.name, size_of(proxy))
        for name in self.names:
            self.storages.drop(name)
        self.peak = max(self.peak, self.storages.live_bytes)

    def _unpack(self, targets: ast.expr) -> None:
        """Handle `arg0_1, arg1_1 = args`, which binds the inputs."""
        if isinstance(targets, ast.Tuple | ast.List):
            for name, proxy in zip(targets.elts, self.bsym.inputs, strict=True):
                if isinstance(proxy, NumberProxy):
                    self.numbers[ast.unparse(name)] = hint_of(proxy.value)
                self._share(ast.unparse(name), proxy.name)

    def _drop_inputs(self) -> None:
        """Handle `args.clear()`, after which only the region's names refer to the inputs in `sole_inputs`."""
        for name in self.sole_inputs:
            self.storages.drop(name)

    def _drop(self, name: str) -> None:
        for inner_name in [
            inner_name
            for inner_name in self.names
            if inner_name == REGION_PREFIX + name or inner_name.startswith(f"{REGION_PREFIX}{name}[")
        ]:
            self.storages.drop(inner_name)
            self.names.discard(inner_name)

    def _make(self, name: str, size: int) -> None:
        self.names.add(REGION_PREFIX + name)
        self.storages.make(REGION_PREFIX + name, size)

    def _share(self, name: str, base: str) -> None:
        self.names.add(REGION_PREFIX + name)
        self.storages.share(REGION_PREFIX + name, base)

    def _assign(self, name: str, value: ast.expr) -> None:
        called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
        if called == ALLOCATION and isinstance(value, ast.Call):
            self._make(name, _allocated_bytes(value, self.numbers))
        elif ast.unparse(value) in self.numbers:
            self.numbers[name] = self.numbers[ast.unparse(value)]
        elif called.startswith(OPERATORS):
            self._take_results(name, next(self.called.get(called, iter(())), None))
        elif base := _referenced_name(value):
            self._share(name, REGION_PREFIX + base)

    def _take_results(self, name: str, operation: BoundSymbol | None) -> None:
        """Allocate the results of an operation of PyTorch: one tensor, or several that the region reads by index."""
        output = None if operation is None else operation.output
        if isinstance(output, TensorProxy):
            self._make(name, size_of(output))
        elif isinstance(output, tuple | list):
            for index, proxy in enumerate(output):
                if isinstance(proxy, TensorProxy):
                    self._make(f"{name}[{index}]", size_of(proxy))

    def _return(self, value: ast.expr) -> None:
        """Handle `return`, after which the caller's names also refer to the results."""
        values = value.elts if isinstance(value, ast.Tuple) else [value]
        if len(values) == len(self.bsym.outputs):
            for proxy, result in zip(self.bsym.outputs, values, strict=True):
                self.storages.share(proxy.name, REGION_PREFIX + _referenced_name(result))


def _referenced_name(value: ast.expr) -> str:
    """Return the name whose memory an expression refers to; empty for any other expression."""
    if isinstance(value, ast.Name | ast.Subscript):
        return ast.unparse(value)
    if isinstance(value, ast.Call) and ast.unparse(value.func) == REINTERPRETATION:
        return ast.unparse(value.args[0])
    return ""


def _allocated_bytes(call: ast.Call, numbers: Mapping[str, int]) -> int:
    """Return the bytes that `empty_strided_cpu(shape, stride, dtype)` allocates, given the values of symbols."""
    shape, stride = (expression_value(ast.unparse(argument), numbers) for argument in call.args[:2])
    dtype: torch.dtype = getattr(torch, ast.unparse(call.args[2]).rpartition(".")[2])
    return length_of(shape, stride) * dtype.itemsize
