"""What a compiled region holds while it runs, told from the text that calls its kernels."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import torch

from thunder_core.ir.proxy import TensorProxy
from thunder_core.ir.symbol import BoundSymbol
from thunder_core.lower.storage import Storages, extent, size_of

ALLOCATES = "empty_strided_cpu"
SHOWS = "reinterpret_tensor"
OPERATORS = "torch.ops."


def region_peak(text: str, operations: Sequence[BoundSymbol]) -> int:
    """The most bytes that the region has made and not yet freed; what it returns is among them.

    `operations` are what the region computes: they tell the sizes of what whole operations of PyTorch return.
    """
    called: dict[str, Iterator[BoundSymbol]] = defaultdict(lambda: iter(()))
    for name in {operation.symbol.name for operation in operations}:
        called[name] = iter([operation for operation in operations if operation.symbol.name == name])
    run = _Run(called)
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                run.statement(statement)
    return run.peak


@dataclass
class _Run:
    """The statements of a region, one after the other."""

    called: dict[str, Iterator[BoundSymbol]]
    storages: Storages = field(default_factory=Storages)
    peak: int = 0

    def statement(self, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Delete):
            for target in statement.targets:
                self._drop(ast.unparse(target))
        elif isinstance(statement, ast.Assign):
            self._assign(ast.unparse(statement.targets[0]), statement.value)
        self.peak = max(self.peak, self.storages.held)

    def _drop(self, name: str) -> None:
        for known in self.storages.names:
            if known == name or known.startswith(f"{name}["):
                self.storages.drop(known)

    def _assign(self, name: str, value: ast.expr) -> None:
        called = ast.unparse(value.func) if isinstance(value, ast.Call) else ""
        if isinstance(value, ast.Name | ast.Subscript):
            self.storages.share(name, ast.unparse(value))
        elif isinstance(value, ast.Call) and called == SHOWS:
            self.storages.share(name, ast.unparse(value.args[0]))
        elif isinstance(value, ast.Call) and called == ALLOCATES:
            self.storages.make(name, _allocated(value))
        elif called.startswith(OPERATORS):
            self._returned(name, next(self.called[called], None))

    def _returned(self, name: str, operation: BoundSymbol | None) -> None:
        """What an operation of PyTorch returns: one tensor, or several by their places."""
        output = None if operation is None else operation.output
        if isinstance(output, TensorProxy):
            self.storages.make(name, size_of(output))
        elif isinstance(output, tuple | list):
            for place, proxy in enumerate(output):
                if isinstance(proxy, TensorProxy):
                    self.storages.make(f"{name}[{place}]", size_of(proxy))


def _allocated(call: ast.Call) -> int:
    """The bytes that `empty_strided_cpu(shape, stride, dtype)` takes."""
    shape, stride = (ast.literal_eval(argument) for argument in call.args[:2])
    dtype: torch.dtype = getattr(torch, ast.unparse(call.args[2]).rpartition(".")[2])
    return extent(shape, stride) * dtype.itemsize
