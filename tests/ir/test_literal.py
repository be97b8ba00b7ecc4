"""Objects as source: the printed source evaluates to an equal object."""

from __future__ import annotations

import collections
import enum
import math
import re
import sys
import types
from pathlib import Path

import pytest
import torch.nn.utils.stateless
from hypothesis import given
from hypothesis import strategies as st

import thunder_core
from thunder_core.tracing.ir.layout import import_line
from thunder_core.tracing.ir.literal import (
    RESERVED,
    Code,
    LibraryFunction,
    Scope,
    dotted_name,
    literal,
    unique_name,
    valid_name,
)
from thunder_core.tracing.ir.proxy import Proxy


class Colour(enum.Enum):
    RED = 1


class Access(enum.Flag):
    READ, WRITE = 1, 2


def meaning(value: object) -> object:
    """Evaluate the printed source with only its own imports and constants."""
    scope = Scope()
    text = literal(value, scope)
    namespace: dict[str, object] = dict(scope.constants)
    for line in map(import_line, scope.imports):
        exec(line, namespace)
    return eval(text, namespace)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
LITERALS = st.recursive(
    SCALARS | st.complex_numbers(allow_nan=False),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(max_size=2), inner, max_size=2)
    ),
    max_leaves=8,
)


@given(LITERALS)
def test_plain_data_evaluates_to_itself(value):
    assert meaning(value) == value


@pytest.mark.parametrize("value", [Colour.RED, Access.READ, Access.READ | Access.WRITE, Access(0)])
def test_members_of_enumerations_evaluate_to_themselves(value: enum.Enum) -> None:
    assert meaning(value) is value


def test_values_without_a_python_literal_evaluate_to_themselves():
    assert math.isnan(meaning(float("nan")))
    assert [meaning(value) for value in (math.inf, -math.inf, ..., slice(1, None, 2))] == [
        math.inf,
        -math.inf,
        ...,
        slice(1, None, 2),
    ]
    assert str(meaning(-0.0)) == "-0.0"


@pytest.mark.parametrize(
    "value",
    [torch.float8_e4m3fn, torch.strided, torch.channels_last, torch.device("cuda", 1), {1, 2}, set(), Colour.RED,
     torch.nn.functional.silu, torch.nn.Linear, len, int, collections.OrderedDict, types, torch.Size([1, 2])],
)  # fmt: skip
def test_importable_objects_evaluate_to_themselves(value):
    assert meaning(value) == value


def test_an_object_without_a_source_form_is_a_constant_with_one_name():
    scope, made = Scope(), object()
    assert literal([made, made], scope).count(literal(made, scope)) == 2
    assert list(scope.constants.values()) == [made]


def test_functions_that_cannot_be_imported_are_constants():
    def local() -> None: ...

    assert dotted_name(local) is None
    assert meaning(local) is local


def test_proxies_and_code_print_verbatim():
    assert literal((Proxy("t0"), Code("a.b")), Scope()) == "(t0, a.b)"


@pytest.mark.parametrize(
    ("text", "name"), [("a.b[0]", "a_b_0"), ("0", "_0"), ("class", "_class"), ("", "value"), ("ü", "ü")]
)
def test_names_are_made_valid(text, name):
    assert valid_name(text) == name
    assert name.isidentifier()


def test_module_whose_name_is_no_identifier_is_imported(monkeypatch):
    name = "code_of_models.397beb.own"
    module = types.ModuleType(name)
    monkeypatch.setitem(sys.modules, "code_of_models", types.ModuleType("code_of_models"))
    monkeypatch.setitem(sys.modules, "code_of_models.397beb", types.ModuleType("code_of_models.397beb"))
    monkeypatch.setitem(sys.modules, name, module)
    namespace: dict[str, object] = {}
    exec(import_line(f"{name}:__dict__ as own_globals"), namespace)
    assert namespace["own_globals"] is vars(module)
    exec(import_line(f"{name}:__name__"), namespace)
    assert namespace["__name__"] == name


def test_decorated_function_is_found_through_its_wrapper() -> None:
    managed = torch.nn.utils.stateless._reparametrize_module.__wrapped__  # of `contextlib.contextmanager`
    assert dotted_name(managed) == ("torch.nn.utils.stateless._reparametrize_module.__wrapped__", managed.__module__)
    assert meaning(managed) is managed


def test_function_of_a_class_method_is_found_through_the_method() -> None:
    function = torch.Tensor.__torch_function__.__func__  # type: ignore[attr-defined]
    assert dotted_name(function) == ("torch._tensor.Tensor.__torch_function__.__func__", "torch._tensor")
    assert meaning(function) is function


def test_no_variable_has_the_name_of_a_library_function():
    scope = Scope()
    assert scope.function(LibraryFunction("thunder_core.tracing.ir.tree", "of_class")) == "of_class"
    assert scope.imports == {"thunder_core.tracing.ir.tree:of_class"}
    assert [unique_name(name) for name in RESERVED] == [f"{name}_2" for name in RESERVED]


def test_generated_source_imports_functions_only_as_library_functions():
    bare = re.compile(r"imports(\.add|\.update|\s*\|=).*[\w}]:\w+(?!.* as )")
    lines = (
        (path.name, line)
        for part in ("frontend", "tracing")
        for path in Path(thunder_core.__file__).parent.joinpath(part).rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
    )
    assert [(name, line) for name, line in lines if bare.search(line)] == []
