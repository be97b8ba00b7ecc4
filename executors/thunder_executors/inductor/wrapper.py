"""Inductor's wrapper rewritten as a Python function that needs only PyTorch and the kernels.

The function takes its tensors in a list, which it empties, and deletes each tensor after its last use.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch._inductor.select_algorithm import extern_kernels
from torch.overrides import resolve_name

from thunder_core.backend.fusion.conditions import named_sizes
from thunder_core.backend.fusion.machine_code import ENTRY
from thunder_core.backend.fusion.region import Region
from thunder_core.backend.quantization.products import IMPLEMENTATIONS
from thunder_core.foundation.descriptions import object_of_class
from thunder_executors.inductor.generate import Unsupported
from thunder_executors.inductor.strides import with_strides
from thunder_executors.inductor.torch_versions import CHECK_LAYOUT, with_plain_checks
from thunder_executors.inductor.value_checks import CHECK, EagerCheck, eager_check, has_flag

GUARDS = "torch._C._dynamo.guards"
# Functions of PyTorch that the wrapper calls by short names.
LIBRARY = {
    "empty_strided_cpu": f"{GUARDS}._empty_strided_cpu",
    "empty_strided_cuda": f"{GUARDS}._empty_strided_cuda",
    "reinterpret_tensor": f"{GUARDS}._reinterpret_tensor",
    CHECK_LAYOUT: f"{GUARDS}.{CHECK_LAYOUT}",
}
DROPPED = frozenset({"assert_alignment"})  # kernels for the CPU load unaligned memory
INPUT_LIST = "args"  # Inductor's name of the list of inputs
CLEAR = f"{INPUT_LIST}.clear"
CHECKED = "checked"  # the arguments of the value check, if it is called
SIZE_FUNCTIONS = ("max", "min")
EXTERN_KERNELS = "extern_kernels"
INDUCTOR_OPERATORS = "torch.ops.inductor."
OWN_OPERATORS = "torch.ops.thunder."
PRODUCTS = "thunder_core.backend.quantization.products"
OPERATORS = "torch.ops."  # operators of PyTorch, and of libraries that the model uses
NODES = (
    ast.Assign, ast.Expr, ast.Delete, ast.Return, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Store, ast.Del,
    ast.Tuple, ast.List, ast.Constant, ast.Attribute, ast.Subscript, ast.UnaryOp, ast.USub,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod,
)  # fmt: skip


def print_module(wrapper: str, kernels: Collection[str], region: Region) -> str:
    """Return the source of a module that defines `region`; raise `Unsupported` for an unexpected wrapper.

    The region converts its numbers to tensors, and increments the versions of the tensors that its kernels write to.
    """
    body = _Body(frozenset(kernels))
    acting = statements(wrapper)
    inputs = [name for statement in acting for name in unpacked_names(statement)]
    with_layouts = with_strides(acting, inputs, region.outputs, named_sizes(region.symbols))
    lines = [line for statement in with_layouts for line in body.lines(statement)]
    begin = lines.index(f"{INPUT_LIST}.clear()") + 1 if body.inputs else 0
    first = [*_first_statements(region, body.inputs)]
    check = eager_check(region) if has_flag(region) else None
    if check is not None:
        first, lines[-1:] = [_keep_statement(check, region, body.inputs), *first], _return_if_valid(lines[-1])
    lines[begin:begin] = first
    used = "\n".join(lines)
    head = [f"{name} = {path}" for name, path in LIBRARY.items() if f"{name}(" in used]
    modules = ["import torch", *([f"import {PRODUCTS}"] if f"{PRODUCTS}." in used else [])]
    before = [check.text, "", ""] if check is not None else []
    text = [*modules, "", *head, "", "", *before, f"def {ENTRY}({INPUT_LIST}):", *(f"    {line}" for line in lines)]
    return "\n".join(text) + "\n"


def _first_statements(region: Region, inputs: list[str]) -> Iterator[str]:
    """Yield statements that increment the versions of written tensors, and statements that make tensors of numbers."""
    names = dict(zip((proxy.name for proxy in region.inputs), inputs, strict=False))
    numbers = inputs[len(names) : len(names) + len(region.numbers)]
    if region.writes:
        yield f"torch.autograd.graph.increment_version([{', '.join(names[proxy.name] for proxy in region.writes)}])"
    yield from (f"{name} = torch.scalar_tensor({name}, dtype=torch.float64)" for name in numbers)


def _keep_statement(check: EagerCheck, region: Region, inputs: Sequence[str]) -> str:
    """Return the statement that keeps the arguments of the value check before they are deleted."""
    proxies = (*region.inputs, *region.numbers, *region.symbols)
    names = dict(zip((proxy.name for proxy in proxies), inputs, strict=True))
    return f"{CHECKED} = ({''.join(f'{names[name]}, ' for name in check.inputs)})"


def _return_if_valid(statement: str) -> list[str]:
    """Return statements that check a region's last result, and return the other results if no value was refused."""
    value = ast.parse(statement.removeprefix("return "), mode="eval").body
    *results, flag = map(ast.unparse, value.elts if isinstance(value, ast.Tuple) else [value])
    returned = results[0] if len(results) == 1 else f"({''.join(f'{result}, ' for result in results)})"
    return [f"if {flag}.item():", f"    {CHECK}(*{CHECKED})", f"return {returned}"]


def statements(wrapper: str) -> list[ast.stmt]:
    """Return the statements of the wrapper that process its tensors."""
    functions = [node for node in ast.walk(ast.parse(wrapper)) if isinstance(node, ast.FunctionDef)]
    calls = [function for function in functions if function.name == "call"]
    if len(calls) != 1:
        raise Unsupported(f"Inductor's wrapper has {len(calls)} functions `call`")
    return list(with_plain_checks(calls[0].body))


def unpacked_names(statement: ast.stmt) -> list[str]:
    """Return the input names if this statement unpacks them (`arg0_1, arg1_1 = args`); else empty."""
    if not isinstance(statement, ast.Assign) or ast.unparse(statement.value) != INPUT_LIST:
        return []
    names = statement.targets[0]
    return [ast.unparse(name) for name in (names.elts if isinstance(names, ast.Tuple) else [names])]


@dataclass
class _Body:
    """The printed form of the wrapper's statements; `inputs` are the region's inputs."""

    kernels: frozenset[str]
    inputs: list[str] = field(default_factory=list)

    def lines(self, statement: ast.stmt) -> Iterator[str]:
        self.inputs += unpacked_names(statement)
        if any(_is_call_of(statement, name) for name in DROPPED) or self._checks_input(statement):
            return
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
            statement.value = statement.value.elts[0] if len(statement.value.elts) == 1 else statement.value
        for node in ast.walk(statement):
            self._allow(node)
        yield ast.unparse(_FunctionRenamer().visit(statement))

    def _checks_input(self, statement: ast.stmt) -> bool:
        """Whether a statement checks an input, which guards and the trace's metadata have already checked."""
        if not _is_call_of(statement, CHECK_LAYOUT):
            return False
        return ast.unparse(statement.value.args[0]) in self.inputs  # type: ignore[attr-defined]

    def _allow(self, node: ast.AST) -> None:
        if not isinstance(node, NODES):
            raise Unsupported(f"Inductor's wrapper contains {object_of_class(type(node))}")
        if isinstance(node, ast.Call):
            self._allow_call(ast.unparse(node.func))

    def _allow_call(self, name: str) -> None:
        called = name in self.kernels or name in LIBRARY or name in (CLEAR, *SIZE_FUNCTIONS)
        is_known = called or (name.startswith(OPERATORS) and not name.startswith(INDUCTOR_OPERATORS))
        if not is_known and not (name.startswith(f"{EXTERN_KERNELS}.") and _torch_name(name)):
            raise Unsupported(f"Inductor's wrapper calls {name}")


class _FunctionRenamer(ast.NodeTransformer):
    """A transformer that writes PyTorch's names for functions that Inductor calls by its own names.

    It also calls Thunder's operations directly, without a dispatcher, because autograd records nothing in a region.
    """

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = ast.unparse(node)
        if name.startswith(OWN_OPERATORS) and name.endswith(".default"):
            own = name.removeprefix(OWN_OPERATORS).removesuffix(".default")
            return ast.parse(f"{PRODUCTS}.{own}", mode="eval").body if own in IMPLEMENTATIONS else node
        return ast.parse(_torch_name(name), mode="eval").body if name.startswith(f"{EXTERN_KERNELS}.") else node


def _torch_name(name: str) -> str:
    """Return PyTorch's name of a function such as `extern_kernels.mm`; empty for a function of Inductor itself."""
    function = getattr(extern_kernels, name.partition(".")[2], None)
    path = _name_in_torch(function) or resolve_name(function) or ""
    return path if path.startswith("torch.") and "_inductor" not in path else ""


def _name_in_torch(function: object) -> str:
    """Return the name of a function in `torch`, such as `torch.mm` or `torch._int_mm`; empty for any other function.

    PyTorch's own `resolve_name` returns the last of several names, which is `torch.spmm` for `torch.mm`.
    """
    name = str(getattr(function, "__name__", ""))
    return f"torch.{name}" if name and getattr(torch, name, None) is function else ""


def _is_call_of(statement: ast.stmt, name: str) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return ast.unparse(statement.value.func) == name
