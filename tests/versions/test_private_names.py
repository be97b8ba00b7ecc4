"""The private names of PyTorch: all of them are found, the installed PyTorch has them, and the page lists them."""

from __future__ import annotations

import ast

import pytest

from docs import private_names as page
from tests.versions.private_names import OPTIONAL, first_missing, is_private, names_in, private_names


@pytest.mark.filterwarnings("ignore")  # of modules that PyTorch deprecates when they are imported
def test_installed_pytorch_has_every_private_name():
    missing = {name: first_missing(name) for name in private_names() if name not in OPTIONAL}
    assert {name: what for name, what in missing.items() if what} == {}


def test_the_page_is_up_to_date():
    assert page.PAGE.read_text(encoding="utf-8") == page.render(), "run `make docs`"


def test_names_that_are_optional_are_used():
    assert set(OPTIONAL) <= set(private_names())


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("import torch\ntorch._C._get_mode()", {"torch._C._get_mode"}),
        ("import torch._dynamo.config", {"torch._dynamo.config"}),
        ("from torch._inductor import config\nconfig.cpp.threads", {"torch._inductor.config.cpp.threads"}),
        ("from torch.nn import Linear as L\nL._version", {"torch.nn.Linear._version"}),
        ("import torch\ntorch.nn.Linear.__doc__\nx._version", set()),
    ],
)
def test_names_are_found_in_imports_and_attributes(source, names):
    found = {name for name in names_in(ast.parse(source)) if is_private(name)}
    assert names <= found
    assert all(any(name.startswith(prefix) for name in names) for prefix in found)


def test_a_missing_name_is_reported_with_its_place():
    assert first_missing("torch._C._no_such_name.more") == "torch._C._no_such_name"
    assert first_missing("torch._no_such_module.name") == "torch._no_such_module"
    assert first_missing("torch.Tensor._version") == ""
