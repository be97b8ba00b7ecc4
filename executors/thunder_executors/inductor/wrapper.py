"""Inductor's wrapper as Python of our own: one function that needs PyTorch and the kernels alone.

It takes its tensors in a list, which it empties, and deletes each after it was read last.
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
from thunder_executors.inductor.generate import Unsupported
from thunder_executors.inductor.strides import with_strides
from thunder_executors.inductor.torch_versions import CHECK_LAYOUT, with_plain_checks
from thunder_executors.inductor.value_checks import CHECK, EagerCheck, eager_check, has_flag

GUARDS = "torch._C._dynamo.guards"
# Functions of PyTorch's own library that the wrapper calls by short names.
LIBRARY = {
    "empty_strided_cpu": f"{GUARDS}._empty_strided_cpu",
    "empty_strided_cuda": f"{GUARDS}._empty_strided_cuda",
    "reinterpret_tensor": f"{GUARDS}._reinterpret_tensor",
    CHECK_LAYOUT: f"{GUARDS}.{CHECK_LAYOUT}",
}
DROPPED = frozenset({"assert_alignment"})  # kernels for the CPU load unaligned memory
GIVEN = "args"  # the list of inputs, in Inductor's words
CLEAR = f"{GIVEN}.clear"
CHECKED = "checked"  # what the check of values is given, if it is called
OF_SIZES = ("max", "min")
BORROWED = "extern_kernels"
INDUCTORS = "torch.ops.inductor."
OWN_OPERATORS = "torch.ops.thunder."
PRODUCTS = "thunder_core.backend.quantization.products"
OPERATORS = "torch.ops."  # PyTorch's own, and those of libraries that the model brings along
NODES = (
    ast.Assign, ast.Expr, ast.Delete, ast.Return, ast.Call, ast.keyword, ast.Name, ast.Load, ast.Store, ast.Del,
    ast.Tuple, ast.List, ast.Constant, ast.Attribute, ast.Subscript, ast.UnaryOp, ast.USub,
    ast.BinOp, ast.Add, ast.Sub, ast.Mult, ast.FloorDiv, ast.Mod,
)  # fmt: skip


def printed(wrapper: str, kernels: Collection[str], region: Region) -> str:
    """The text of a module that defines `region`; raises `Unsupported` for a wrapper that does more than expected.

    It makes tensors of its numbers, and lets PyTorch know what its kernels have written to.
    """
    body = _Body(frozenset(kernels))
    acting = statements(wrapper)
    inputs = [name for statement in acting for name in unpacked(statement)]
    whole = with_strides(acting, inputs, region.outputs, named_sizes(region.symbols))
    lines = [line for statement in whole for line in body.lines(statement)]
    begin = lines.index(f"{GIVEN}.clear()") + 1 if body.inputs else 0
    first = [*_first(region, body.inputs)]
    check = eager_check(region) if has_flag(region) else None
    if check is not None:
        first, lines[-1:] = [_kept(check, region, body.inputs), *first], _returned_if_valid(lines[-1])
    lines[begin:begin] = first
    used = "\n".join(lines)
    head = [f"{name} = {path}" for name, path in LIBRARY.items() if f"{name}(" in used]
    modules = ["import torch", *([f"import {PRODUCTS}"] if f"{PRODUCTS}." in used else [])]
    before = [check.text, "", ""] if check is not None else []
    text = [*modules, "", *head, "", "", *before, f"def {ENTRY}({GIVEN}):", *(f"    {line}" for line in lines)]
    return "\n".join(text) + "\n"


def _first(region: Region, inputs: list[str]) -> Iterator[str]:
    """The first statements: versions go up while the tensors that are written to still have their names."""
    names = dict(zip((proxy.name for proxy in region.inputs), inputs, strict=False))
    numbers = inputs[len(names) : len(names) + len(region.numbers)]
    if region.writes:
        yield f"torch.autograd.graph.increment_version([{', '.join(names[proxy.name] for proxy in region.writes)}])"
    yield from (f"{name} = torch.scalar_tensor({name}, dtype=torch.float64)" for name in numbers)


def _kept(check: EagerCheck, region: Region, inputs: Sequence[str]) -> str:
    """The statement that keeps what the check of values would be given, before it is deleted."""
    proxies = (*region.inputs, *region.numbers, *region.symbols)
    names = dict(zip((proxy.name for proxy in proxies), inputs, strict=True))
    return f"{CHECKED} = ({''.join(f'{names[name]}, ' for name in check.inputs)})"


def _returned_if_valid(statement: str) -> list[str]:
    """The statements that return what a region computed, once its last result says that no value was refused."""
    value = ast.parse(statement.removeprefix("return "), mode="eval").body
    *results, flag = map(ast.unparse, value.elts if isinstance(value, ast.Tuple) else [value])
    returned = results[0] if len(results) == 1 else f"({''.join(f'{one}, ' for one in results)})"
    return [f"if {flag}.item():", f"    {CHECK}(*{CHECKED})", f"return {returned}"]


def statements(wrapper: str) -> list[ast.stmt]:
    """The statements of the wrapper that act on its tensors."""
    functions = [node for node in ast.walk(ast.parse(wrapper)) if isinstance(node, ast.FunctionDef)]
    found = [function for function in functions if function.name == "call"]
    if len(found) != 1:
        raise Unsupported(f"its wrapper has {len(found)} functions `call`")
    return list(with_plain_checks(found[0].body))


def unpacked(statement: ast.stmt) -> list[str]:
    """The inputs, if this is the statement that names them: `arg0_1, arg1_1 = args`."""
    if not isinstance(statement, ast.Assign) or ast.unparse(statement.value) != GIVEN:
        return []
    names = statement.targets[0]
    return [ast.unparse(name) for name in (names.elts if isinstance(names, ast.Tuple) else [names])]


@dataclass
class _Body:
    """The statements of the wrapper, one after the other, as they are printed; `inputs` are the region's."""

    kernels: frozenset[str]
    inputs: list[str] = field(default_factory=list)

    def lines(self, statement: ast.stmt) -> Iterator[str]:
        self.inputs += unpacked(statement)
        if any(_is_call_of(statement, name) for name in DROPPED) or self._checks_input(statement):
            return
        if isinstance(statement, ast.Return) and isinstance(statement.value, ast.Tuple):
            statement.value = statement.value.elts[0] if len(statement.value.elts) == 1 else statement.value
        for node in ast.walk(statement):
            self._allow(node)
        yield ast.unparse(_Shortened().visit(statement))

    def _checks_input(self, statement: ast.stmt) -> bool:
        """A check of an input, which the program's guards and the trace's metadata have made already."""
        if not _is_call_of(statement, CHECK_LAYOUT):
            return False
        return ast.unparse(statement.value.args[0]) in self.inputs  # type: ignore[attr-defined]

    def _allow(self, node: ast.AST) -> None:
        if not isinstance(node, NODES):
            raise Unsupported(f"its wrapper holds a {type(node).__name__}")
        if isinstance(node, ast.Call):
            self._allow_call(ast.unparse(node.func))

    def _allow_call(self, name: str) -> None:
        called = name in self.kernels or name in LIBRARY or name in (CLEAR, *OF_SIZES)
        known = called or (name.startswith(OPERATORS) and not name.startswith(INDUCTORS))
        if not known and not (name.startswith(f"{BORROWED}.") and _borrowed(name)):
            raise Unsupported(f"its wrapper calls {name}")


class _Shortened(ast.NodeTransformer):
    """Functions that Inductor borrows from PyTorch by their own names, and of our operations what they do.

    A region is nothing that autograd records, so that no dispatcher is needed.
    """

    def visit_Attribute(self, node: ast.Attribute) -> ast.AST:
        name = ast.unparse(node)
        if name.startswith(OWN_OPERATORS) and name.endswith(".default"):
            own = name.removeprefix(OWN_OPERATORS).removesuffix(".default")
            return ast.parse(f"{PRODUCTS}.{own}", mode="eval").body if own in IMPLEMENTATIONS else node
        return ast.parse(_borrowed(name), mode="eval").body if name.startswith(f"{BORROWED}.") else node


def _borrowed(name: str) -> str:
    """The name in PyTorch of what Inductor calls `extern_kernels.mm`; empty for a function of Inductor's own."""
    function = getattr(extern_kernels, name.partition(".")[2], None)
    found = resolve_name(function) or _name_in_torch(function)
    return found if found.startswith("torch.") and "_inductor" not in found else ""


def _name_in_torch(function: object) -> str:
    """The name of a function of PyTorch's that is not public, such as `torch._int_mm`; empty for any other."""
    name = str(getattr(function, "__name__", ""))
    return f"torch.{name}" if name and getattr(torch, name, None) is function else ""


def _is_call_of(statement: ast.stmt, name: str) -> bool:
    if not isinstance(statement, ast.Expr) or not isinstance(statement.value, ast.Call):
        return False
    return ast.unparse(statement.value.func) == name
