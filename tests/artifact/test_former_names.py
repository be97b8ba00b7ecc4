"""Artifacts of schema 4, whose text has names that modules of Thunder no longer have, load and run as before."""

from __future__ import annotations

import importlib
import importlib.util
import json
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from thunder_core.compilation.compiler import specializations_of
from thunder_core.foundation.storage.digest import digest_of
from thunder_core.foundation.storage.manifest import MANIFEST
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.former_names import FUNCTIONS, MODULES, current_path, in_current_names

LIBRARY = "thunder_core.tracing.library"


class Counting(torch.nn.Module):
    """A program whose prologue, computation and epilogue all call Thunder's own functions."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
        self.calls.add_(1)
        y = self.linear(x).relu()
        return {"y": y * 2 if y.sum() > -1 else y}


def formerly(text: str) -> str:
    """The text of a trace or of its lines as it was written before the functions moved."""
    for module, name in (("known", "tensor_guards"), ("spent", "freed_graph")):
        text = text.replace(f"{LIBRARY}.{name}", f"thunder_core.tracing.ir.{module}")
    text = text.replace(f"{LIBRARY}.", "thunder_core.tracing.ir.")
    return text.replace("tensors_match", "known").replace("with_freed_graph", "spent")


def as_schema_4(folder: Path) -> Path:
    """The artifact as the version before this schema wrote it."""
    content = json.loads((folder / MANIFEST).read_bytes())
    for name in [name for name in content["files"] if name.startswith("traces/")]:
        text = formerly((folder / name).read_text()).encode()
        (folder / name).write_bytes(text)
        content["files"][name] = {"size": len(text), "digest": digest_of(text)}
    del content["digest"]
    for option in ("symbolic", "without"):
        del content["compiler"]["options"][option]
    content = json.loads(formerly(json.dumps({**content, "schema_version": 4})))
    digest = digest_of((json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode())
    (folder / MANIFEST).write_text(json.dumps({**content, "digest": digest}, indent=1, ensure_ascii=False) + "\n")
    return folder


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    compiled = thunder.jit(Counting())
    compiled(torch.ones(2, 3))["y"].sum().backward()
    return as_schema_4(thunder.save(compiled, tmp_path_factory.mktemp("former") / "a"))


def test_an_artifact_with_the_former_names_runs_forward_and_backward_as_eager_does(saved: Path) -> None:
    assert any("from thunder_core.tracing.ir.known import known\n" in path.read_text() for path in saved.rglob("*.py"))
    torch.manual_seed(0)
    model, eager = Counting(), Counting()
    eager.load_state_dict(model.state_dict())
    loaded = thunder.load(saved, model)
    x = torch.ones(2, 3)
    ours, wanted = loaded(x)["y"], eager(x)["y"]
    ours.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(ours, wanted)
    torch.testing.assert_close(model.linear.weight.grad, eager.linear.weight.grad)
    assert model.calls == eager.calls == 1
    assert specializations_of(loaded).misses == 0


def test_it_is_shown_by_the_names_that_run(saved: Path) -> None:
    artifact = open_artifact(saved)
    for stage in artifact.manifest.programs[0].stages:
        listing = artifact.listing(stage)
        assert "thunder_core.tracing.ir" not in artifact.source(stage) + repr(listing)


def test_every_former_name_has_one_today_and_is_no_more() -> None:
    for former, module in MODULES.items():
        assert importlib.util.find_spec(former) is None
        importlib.import_module(module)
    for path in FUNCTIONS:
        module, _, name = current_path(path).partition(":")
        assert callable(getattr(importlib.import_module(module), name))


@pytest.mark.parametrize(
    ("former", "current"),
    [
        (
            "from thunder_core.tracing.ir.spent import spent",
            f"from {LIBRARY}.freed_graph import with_freed_graph as spent",
        ),
        ('"thunder_core.tracing.ir.known:remember"', f'"{LIBRARY}.tensor_guards:remember"'),
        ("import thunder_core.tracing.ir.objects", f"import {LIBRARY}.objects"),
        ("thunder_core.tracing.ir.objects.expect_value(t4, True)", f"{LIBRARY}.objects.expect_value(t4, True)"),
        (
            "thunder_core.tracing.ir.objects_of, my.thunder_core.ir.known",
            "thunder_core.tracing.ir.objects_of, my.thunder_core.ir.known",
        ),
    ],
)
def test_text_is_put_into_current_names(former: str, current: str | None) -> None:
    assert in_current_names(former) == (former if current is None else current)
