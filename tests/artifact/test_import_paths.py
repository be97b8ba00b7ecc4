"""Objects of a program are found again in a fresh process, by the path of a module or from the subject."""

from __future__ import annotations

import importlib
import sys
import types

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import CannotReplay, WrongInputs
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.constants import import_path
from thunder_core.workflow.artifact.format.modules import find_in_modules

TABLE = torch.arange(8.0).reshape(2, 4).t()


def test_a_tensor_that_only_the_trace_holds_is_kept_with_its_strides(tmp_path):
    hidden = TABLE.clone(memory_format=torch.preserve_format)

    def get() -> torch.Tensor:
        return hidden

    import functools

    hold = functools.partial(get)

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + next(map(lambda _: hold(), [0]))  # noqa: C417 (C code calls what it cannot look into)

    compiled = thunder.jit(program)
    x = torch.ones(4, 2)
    expected = compiled(x)
    manifest = open_artifact(thunder.save(compiled, tmp_path / "a")).manifest
    kept = [c for s in manifest.programs[0].stages if s.runs for c in s.constants.values() if c.kind == "tensor"]
    if kept:
        assert kept[0].stride == (1, 4)
    loaded = thunder.load(tmp_path / "a", program, strict=True)
    torch.testing.assert_close(loaded(x), expected, rtol=0, atol=0)


def test_objects_that_cannot_be_imported_are_found_again_from_the_subject(tmp_path):
    class Local(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.inner(x) * 2

    model = Local()
    compiled = thunder.jit(model)
    x = torch.ones(2, 4)
    expected = compiled(x)
    manifest = open_artifact(thunder.save(compiled, tmp_path / "a")).manifest
    kinds = {c.kind for stage in manifest.programs[0].stages for c in stage.constants.values()}
    assert "path" in kinds
    torch.testing.assert_close(thunder.load(tmp_path / "a", model, strict=True)(x), expected, rtol=0, atol=0)


def test_a_class_of_an_argument_that_nothing_leads_to_is_named_when_saving(tmp_path):
    class Bag:
        def __init__(self) -> None:
            self.scale = 2.0

    def program(x: torch.Tensor, bag: Bag) -> torch.Tensor:
        return x * bag.scale

    del program.__annotations__["bag"]
    compiled = thunder.jit(program)
    compiled(torch.ones(2), Bag())
    with pytest.raises(CannotReplay, match="Bag"):
        thunder.save(compiled, tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_functions_of_a_script_have_no_import_path(monkeypatch):
    """`multiprocessing` runs the script again under the name `__mp_main__`."""
    for name in ("__main__", "__mp_main__"):
        script = types.ModuleType(name)
        exec("def own(): pass", vars(script))
        monkeypatch.setitem(sys.modules, name, script)
        assert import_path(script.own) is None


def test_path_of_a_namespace_of_a_replaced_module():
    """`torch.backends.cudnn` is an object that holds the module with its functions."""
    held = torch.backends.cudnn.is_available.__globals__
    assert held is not vars(torch.backends.cudnn)
    assert import_path(held) == "torch.backends.cudnn:m.__dict__"
    assert import_path(vars(torch.nn)) == "torch.nn:__dict__"
    assert import_path({"__name__": "torch.nn"}) is None


def test_names_of_builtins_and_of_nothing_that_only_this_process_has(monkeypatch):
    made = types.ModuleType("made_in_this_process")
    made.held = held = object()
    made.all = all
    monkeypatch.setitem(sys.modules, made.__name__, made)
    assert import_path(all) == "builtins:all"
    assert import_path(len) == "builtins:len"
    assert find_in_modules([held]) == {}


class Liar:
    """An object that claims to be a module, like libraries of cffi, but has no namespace."""

    __slots__ = ()
    __class__ = types.ModuleType


def test_fake_modules_in_sys_modules_are_skipped(monkeypatch):
    monkeypatch.setitem(sys.modules, "a_liar", Liar())
    assert find_in_modules([object()]) == {}


def test_a_function_that_another_was_put_in_the_place_of_is_noticed(tmp_path, monkeypatch):
    (tmp_path / "scaling.py").write_text(
        "def scale(x):\n    return x * 2\n\ndef program(x):\n    return scale(x) + 1\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    scaling = importlib.import_module("scaling")
    compiled = thunder.jit(scaling.program)
    x = torch.ones(2)
    compiled(x)
    folder = thunder.save(compiled, tmp_path / "a")
    assert torch.equal(thunder.load(folder, scaling.program, strict=True)(x), x * 3)
    monkeypatch.setattr(scaling, "scale", lambda x: x * 5)
    assert torch.equal(thunder.load(folder, scaling.program)(x), x * 6)
    with pytest.raises(WrongInputs, match="scale"):
        thunder.load(folder, scaling.program, strict=True)(x)
    del sys.modules["scaling"]


def test_a_module_without_a_file_is_an_attribute_of_a_module_with_one():
    assert import_path(torch.ops.aten) == "torch.ops:aten"
    assert import_path(torch.nn.functional) == "torch.nn.functional"
    assert import_path(torch._C.DispatchKey.Python) == "torch:DispatchKey.Python"
