"""Loading an artifact imports only modules that the user, the model or an installation makes trustworthy."""

from __future__ import annotations

import functools
import importlib
import sys
import types

import pytest
import torch

import thunder_core as thunder
from tests.artifact.damages import manifest_of, reseal
from tests.artifact.strangers import MARKS, add_constant, constant
from tests.artifact.test_listing_check import rewrite
from tests.cli.small import own_model
from thunder_core.foundation.errors import ArtifactForeign, BadOption, ImportRefused, RemoteCodeRefused
from thunder_core.workflow.artifact.format.manifest import PartFacts
from thunder_core.workflow.artifact.format.object_paths import follow
from thunder_core.workflow.artifact.format.program_facts import ConstantFacts
from thunder_core.workflow.artifact.trust.trust import trust_in
from thunder_core.workflow.models.loading.load import load_model
from thunder_core.workflow.models.request.request import ModelRequest

STRANGER = "a_stranger_of_the_tests"


@pytest.fixture
def stranger(tmp_path, monkeypatch, mark) -> str:
    """A package on the path of which every module writes the mark when it is imported."""
    package = tmp_path / "path" / STRANGER
    package.mkdir(parents=True)
    for name in ("__init__", "inner"):
        (package / f"{name}.py").write_text(f"{MARKS}def thing(**given):\n    raise AssertionError\n")
    monkeypatch.syspath_prepend(package.parent)
    yield STRANGER
    for name in [name for name in sys.modules if name.partition(".")[0] == STRANGER]:
        del sys.modules[name]


def way(*steps: tuple[str, str]) -> ConstantFacts:
    return ConstantFacts(kind="path", text="function", steps=steps)


REFERENCES = {
    "a constant": lambda folder: add_constant(folder, constant(f"{STRANGER}:thing")),
    "a module": lambda folder: add_constant(folder, constant(STRANGER)),
    "a module inside": lambda folder: add_constant(folder, constant(f"{STRANGER}.inner:thing")),
    "a way": lambda folder: add_constant(folder, way(("import", f"{STRANGER}:thing"))),
    "a key on a way": lambda folder: add_constant(
        folder, way(("import", "sys:modules"), ("keyed", f"{STRANGER}:thing"))
    ),
    "code": lambda folder: reseal(folder, code={STRANGER: "0" * 64}),
}


@pytest.mark.parametrize("reference", REFERENCES)
def test_an_untrusted_module_is_not_imported(reference, artifact, model, stranger, mark):
    REFERENCES[reference](artifact)
    with pytest.raises(ImportRefused, match=STRANGER) as refused:
        thunder.load(artifact, model)
    assert "trusted_modules=" in refused.value.fix
    assert not mark.exists()
    assert STRANGER not in sys.modules


@pytest.mark.parametrize("trusted", [STRANGER, (STRANGER,), (f"{STRANGER}.inner", "math")])
def test_user_may_trust_a_module(trusted, artifact, model, x, stranger, mark):
    REFERENCES["a module inside"](artifact)
    loaded = thunder.load(artifact, model, trusted_modules=trusted, strict=True)
    assert mark.read_text() == "ran ran "
    assert torch.equal(loaded(x), model(x))


def test_trust_in_a_module_does_not_extend_to_its_neighbours(artifact, model, stranger, mark):
    REFERENCES["a constant"](artifact)
    for trusted in (f"{STRANGER}.inner", f"{STRANGER}s", STRANGER[:-1]):
        with pytest.raises(ImportRefused):
            thunder.load(artifact, model, trusted_modules=trusted)
    assert not mark.exists()


def test_modules_that_are_already_imported_may_be_referenced(artifact, model, x, stranger, mark):
    __import__(STRANGER)
    mark.unlink()
    REFERENCES["a constant"](artifact)
    assert torch.equal(thunder.load(artifact, model, strict=True)(x), model(x))
    assert not mark.exists()


@pytest.mark.parametrize("name", ["", "a b", "../x", ".x", "x."])
def test_invalid_module_names_cannot_be_trusted(name, artifact, model):
    with pytest.raises(BadOption, match="is not a module name"):
        thunder.load(artifact, model, trusted_modules=(name,))


@pytest.mark.parametrize("text", ["", ":thing", ".x:thing", "no_such_module_anywhere:x", "torch:no_such", "torch:a..b"])
def test_missing_constants_are_reported(text, artifact, model):
    add_constant(artifact, constant(text))
    with pytest.raises(ArtifactForeign, match="cannot be found"):
        thunder.load(artifact, model)


class Own(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


def test_a_models_own_package_is_trusted(tmp_path):
    assert trust_in(Own()).covers("tests.artifact.some_module_that_was_not_imported_yet")
    assert trust_in(test_a_models_own_package_is_trusted).covers("tests.anything")
    assert not trust_in(torch.nn.Linear(1, 1)).covers("tests.anything")
    assert all(trust_in(None).covers(name) for name in ("torch.nn", "transformers.models", "thunder_core", "numpy.fft"))
    assert not any(trust_in(None).covers(name) for name in ("antigravity", "subprocess", "torchevil", "pip"))


def test_the_code_of_one_model_differs_from_that_of_another(monkeypatch):
    monkeypatch.setattr(Own, "__module__", "transformers_modules.mine.abc.modeling")
    assert trust_in(Own()).covers("transformers_modules.mine.abc.configuration")
    assert not trust_in(Own()).covers("transformers_modules.other.abc.modeling")


def test_no_code_runs_while_an_attribute_path_is_followed():
    """Attribute paths could run getters and methods of the model."""

    class Trap:
        @property
        def thing(self):
            raise AssertionError("it ran")

        def __getitem__(self, key):
            raise AssertionError("it ran")

        def __getattr__(self, name):
            raise AssertionError("it ran")

    class Making(dict):
        def __missing__(self, key):
            raise AssertionError("it ran")

    for subject, step in (
        (Trap(), ("open", "thing")),
        (Trap(), ("item", 0)),
        (Making(), ("item", "x")),
        ("x", ("item", 0)),
    ):
        with pytest.raises(LookupError):
            follow(subject, [step])


@pytest.mark.parametrize("trace", ["prologue", "computation", "epilogue"])
def test_the_text_of_a_program_runs_at_its_first_call(trace, artifact, model, x, mark):
    (stage,) = (
        kept_stage
        for kept_stage in manifest_of(artifact).programs[0].stages
        if kept_stage.trace == trace and kept_stage.runs
    )
    rewrite(artifact, stage.file, MARKS + (artifact / stage.file).read_text())
    loaded = thunder.load(artifact, model, strict=True)
    assert not mark.exists()
    assert torch.equal(loaded(x), model(x))
    assert torch.equal(loaded(x), model(x))
    assert mark.read_text() == "ran "


def literal(text: str) -> ConstantFacts:
    return ConstantFacts(kind="literal", text=text)


STRANGE_TRANSFORMS = {
    "a stranger's": (f"{STRANGER}:thing", {}, ImportRefused),
    "no transform": ("subprocess:Popen", {"args": literal("['touch', 'mark']")}, ArtifactForeign),
    "an option": (
        "thunder_core.passes.transforms.dce:DropDeadCode",
        {"x": constant(f"{STRANGER}:thing")},
        ImportRefused,
    ),
}


@pytest.mark.parametrize("kind", STRANGE_TRANSFORMS)
def test_nothing_but_transforms_is_made_for_new_inputs(kind, artifact, model, x, stranger, mark, monkeypatch):
    monkeypatch.chdir(mark.parent)
    path, options, error = STRANGE_TRANSFORMS[kind]
    facts = PartFacts(path=path, options=options)
    compiler = manifest_of(artifact).compiler.model_copy(update={"transforms": (facts,)})
    reseal(artifact, compiler=compiler)
    loaded = thunder.load(artifact, model)
    assert torch.equal(loaded(x), model(x))
    with pytest.raises(error):
        loaded(x[:2])
    assert not mark.exists()


OWN_FORWARD = f"""
    def forward(self, input_ids=None, **kwargs):
        from transformers.modeling_outputs import CausalLMOutput
        return CausalLMOutput(logits=self.head(self.embedding(input_ids)))

{MARKS}"""


def test_code_that_a_model_brings_runs_with_its_users_consent_alone(tmp_path, mark):
    folder = own_model(tmp_path / "own", OWN_FORWARD)
    loaded = load_model(ModelRequest(model=str(folder), trust_remote_code=True, random_weights=True, task="causal-lm"))
    compiled, tokens = thunder.jit(loaded.model), torch.arange(4)[None]
    with torch.no_grad():
        expected = compiled(input_ids=tokens).logits
    artifact = thunder.save(compiled, tmp_path / "own.thunder", source=loaded.source)
    for name in [name for name in sys.modules if name.startswith("transformers_modules.own")]:
        del sys.modules[name]
    mark.unlink()
    with pytest.raises(RemoteCodeRefused, match="its own Python code") as refused:
        thunder.load(artifact)
    assert "trust_remote_code=True" in refused.value.fix
    assert not mark.exists()
    again = thunder.load(artifact, trust_remote_code=True, strict=True)
    assert mark.exists()
    with torch.no_grad():
        assert torch.equal(again(input_ids=tokens).logits, expected)
    assert thunder.load(artifact, loaded.model) is not None  # a caller that passes the model has already run its code


def test_a_module_in_memory_imports_nothing_more_by_its_own_getattr(monkeypatch, mark, stranger):
    lazy = types.ModuleType("a_lazy_module_of_the_tests")
    lazy.__getattr__ = lambda name: importlib.import_module(f"{STRANGER}.inner")
    lazy.there = len
    monkeypatch.setitem(sys.modules, lazy.__name__, lazy)
    trust = trust_in(None)
    assert trust.import_object(f"{lazy.__name__}:there") is len
    with pytest.raises(AttributeError, match="inner"):
        trust.import_object(f"{lazy.__name__}:inner")
    assert not mark.exists()


def test_the_packages_behind_partials_of_methods_are_the_subjects():
    method = functools.partial(functools.partial(Own().forward), 1)
    assert trust_in(method).covers(Own.__module__)
