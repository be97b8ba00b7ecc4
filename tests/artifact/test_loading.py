"""Saved programs are loaded in this process and in a fresh one, with every kind of constant."""

from __future__ import annotations

import copy
import copyreg
import importlib
import pickle
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from thunder_core.foundation.errors import ArtifactForeign, NotAnArtifact, WrongInputs
from thunder_core.workflow.artifact import open_artifact
from thunder_core.workflow.artifact.format.stored import stated_guards


def test_a_loaded_module_equals_the_model_without_tracing(written, model, x):
    loaded = thunder.load(written, model, strict=True)
    torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=0)
    assert thunder.cache_hits(loaded) == 1
    assert thunder.cache_misses(loaded) == 0


def test_loaded_module_shares_the_models_state(written, model, x):
    loaded = thunder.load(written, model)
    assert isinstance(loaded, torch.nn.Sequential)
    assert loaded.state_dict().keys() == model.state_dict().keys()
    with torch.no_grad():
        model[0].weight.mul_(2)
    torch.testing.assert_close(loaded(x), model(x), rtol=0, atol=0)


def test_a_loaded_module_from_a_pickle_has_the_artifacts_programs(written, model, x):
    for strict in (False, True):
        again = pickle.loads(pickle.dumps(thunder.load(written, model, strict=strict)))
        torch.testing.assert_close(again(x), model(x), rtol=0, atol=0)
        assert (thunder.cache_hits(again), thunder.cache_misses(again)) == (1, 0)
        assert again[0].weight is not model[0].weight


def test_a_pickled_module_without_its_artifact_is_compiled_by_its_recipe_or_refused(written, model, x, tmp_path):
    shutil.copytree(written, tmp_path / "artifact")
    usual, strict = (
        pickle.dumps(thunder.load(tmp_path / "artifact", model, strict=refuses)) for refuses in (False, True)
    )
    shutil.rmtree(tmp_path / "artifact")
    again = pickle.loads(usual)
    torch.testing.assert_close(again(x), model(x))
    assert thunder.cache_misses(again) == 1
    with pytest.raises(NotAnArtifact):
        pickle.loads(strict)


class Counting(torch.nn.Module):
    """A module that writes to a buffer and then reads its value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total.add_(x)
        return x if self.total.sum() > 0 else -x


def test_values_are_guarded_and_writes_taken_back(tmp_path):
    model, eager, x = Counting(), Counting(), torch.ones(3)
    compiled = thunder.jit(model)
    compiled(x)
    thunder.save(compiled, tmp_path / "artifact")
    eager.load_state_dict(model.state_dict())
    loaded = thunder.load(tmp_path / "artifact", model)
    for factor in (1, -1, -1, -3, 1, 8):
        torch.testing.assert_close(loaded(x * factor), eager(x * factor), rtol=0, atol=0)
        torch.testing.assert_close(model.total, eager.total, rtol=0, atol=0)
    assert (thunder.cache_misses(loaded), thunder.cache_hits(loaded)) == (1, 5)


def test_traces_of_a_loaded_module_can_be_printed(written, model, x):
    loaded = thunder.load(written, model)
    loaded(x)
    assert "torch.nn.functional.gelu(" in str(thunder.last_traces(loaded)[-1])


def test_gradients_flow(written, model, x):
    loaded = thunder.load(written, model, strict=True)
    loaded(x).sum().backward()
    found = model[0].weight.grad.clone()
    model.zero_grad()
    model(x).sum().backward()
    torch.testing.assert_close(found, model[0].weight.grad)


def test_other_inputs_are_traced_again(written, model):
    loaded = thunder.load(written, model)
    y = torch.ones(7, 4)
    torch.testing.assert_close(loaded(y), model(y), rtol=0, atol=0)
    assert thunder.cache_misses(loaded) == 1


def test_strict_refuses_other_inputs_and_names_the_guard(written, model):
    loaded = thunder.load(written, model, strict=True)
    with pytest.raises(WrongInputs, match=r"args\[0\]: was f32\[3, 4\]"):
        loaded(torch.ones(7, 4))


def test_strict_refuses_forward_alone(written, model, x):
    with pytest.raises(WrongInputs, match="not of `forward`"):
        thunder.load(written, model, strict=True).forward(x)


def test_a_deep_copy_runs_the_stored_programs_on_its_own_weights(written, model, x):
    copied = copy.deepcopy(thunder.load(written, model, strict=True))
    with torch.no_grad():
        model[0].weight.zero_()
    assert not torch.equal(copied(x), model(x))


def test_loading_without_a_model_and_a_source_requests_the_model(written):
    with pytest.raises(WrongInputs, match="does not record where its Sequential comes from"):
        thunder.load(written)


def test_another_structure_is_refused(written):
    with pytest.raises(ArtifactForeign, match="another model"):
        thunder.load(written, torch.nn.Sequential(torch.nn.Linear(4, 9), torch.nn.GELU(), torch.nn.Linear(9, 2)))


def test_another_minor_version_of_pytorch_is_refused(written, model, monkeypatch):
    monkeypatch.setenv("THUNDER_ALLOW_UNTESTED_TORCH", "1")
    monkeypatch.setattr(torch, "__version__", "2.3.0")
    with pytest.raises(ArtifactForeign, match=r"this is PyTorch 2\.3\.0"):
        thunder.load(written, model)


def test_a_device_that_is_not_here_is_refused(artifact, model):
    manifest = open_artifact(artifact).manifest
    elsewhere = manifest.programs[0].model_copy(update={"devices": ("cuda:99",)})
    sealed = manifest.model_copy(update={"programs": (elsewhere,)}).with_own_digest()
    (artifact / "manifest.json").write_bytes(sealed.to_bytes())
    with pytest.raises(ArtifactForeign, match="cuda:99"):
        thunder.load(artifact, model)


@pytest.mark.gpu
def test_a_model_on_a_gpu(model, x, tmp_path):
    compiled = thunder.jit(model.cuda())
    expected = compiled(x.cuda())
    manifest = open_artifact(thunder.save(compiled, tmp_path / "a")).manifest
    assert manifest.programs[0].devices == ("cuda:0",)
    loaded = thunder.load(tmp_path / "a", model, strict=True)
    torch.testing.assert_close(loaded(x.cuda()), expected, rtol=0, atol=0)
    with pytest.raises(WrongInputs):
        loaded(x)


def test_a_folder_that_is_no_artifact(tmp_path, model):
    with pytest.raises(NotAnArtifact, match=r"has no manifest\.json"):
        thunder.load(tmp_path, model)
    with pytest.raises(NotAnArtifact, match="there is no folder"):
        thunder.load(tmp_path / "none", model)


def test_nothing_to_save_before_the_first_call(model, tmp_path):
    with pytest.raises(WrongInputs, match="nothing has been traced"):
        thunder.save(thunder.jit(model), tmp_path / "a")
    assert not list(tmp_path.iterdir())


def test_saving_a_loaded_module_is_refused(written, model, tmp_path):
    with pytest.raises(WrongInputs, match="loaded from an artifact"):
        thunder.save(thunder.load(written, model), tmp_path / "a")


def test_strict_names_the_value_that_decided(tmp_path):
    program = lambda x: torch.cond(x.sum() > 0, lambda x: x[:2] + 1, lambda x: x + 1, (x,))  # noqa: E731
    compiled = thunder.jit(program)
    compiled(torch.ones(3))
    loaded = thunder.load(thunder.save(compiled, tmp_path / "kept"), program, strict=True)
    with pytest.raises(WrongInputs, match="the program branches on them"):
        loaded(-torch.ones(3))


MODEL = """
import torch

SCALE = 3.0

def widen(x):
    return torch.tanh(x) * SCALE

class Small(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.inner = torch.nn.Linear(4, 4)
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return {"y": widen(self.inner(x)), "calls": self.calls}
"""


LOAD = """
import sys
import torch, thunder_core as thunder
from small import Small
model = Small()
loaded = thunder.load("saved.thunder", model, strict=True)
result = loaded(torch.ones(2, 4))
assert result["calls"] == 1 and model.calls == 1, result
assert torch.equal(result["y"], torch.tanh(model.inner(torch.ones(2, 4))) * 3.0)
assert not sys.modules.keys() & {"matplotlib", "scipy"}
print("same")
text = open("small.py").read()
open("small.py", "w").write(text.replace("tanh", "sigmoid"))
try:
    thunder.load("saved.thunder", Small())
except thunder.ThunderError as error:
    print(error.code, error.what)
"""


def run(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    root = Path(__file__).parents[2]
    path = ":".join(str(part) for part in (root, root / "executors", root / "recipes", folder))
    command = [sys.executable, "-W", "error", "-c", textwrap.dedent(code)]
    return subprocess.run(command, cwd=folder, env={"PYTHONPATH": path}, capture_output=True, text=True, check=False)


def test_a_fresh_process_loads_an_artifact_and_notices_a_changed_module(tmp_path, monkeypatch):
    (tmp_path / "small.py").write_text(MODEL)
    monkeypatch.syspath_prepend(tmp_path)
    model = importlib.import_module("small").Small()
    compiled = thunder.jit(model)
    compiled(torch.ones(2, 4))
    model.calls = 0
    compiled(torch.ones(2, 4))
    thunder.save(compiled, tmp_path / "saved.thunder")
    done = run(LOAD, tmp_path)
    assert done.returncode == 0, done.stderr
    same, changed = done.stdout.splitlines()
    assert same == "same"
    assert changed.startswith("TH0604 the code of small has changed since Small was traced from it")
    del sys.modules["small"]


def test_reading_an_artifact_imports_no_torch(written):
    code = f"""
    import sys
    from thunder_core.workflow.artifact.format.read import open_artifact
    from thunder_core.workflow.inspect.subject import subject_of
    print(len(subject_of(open_artifact({str(written)!r})).stage("computation").read().lines))
    assert "torch" not in sys.modules and "transformers" not in sys.modules
    """
    done = run(code, written.parent)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == 3


class Settings:
    """Settings of a model, with a dtype like the configs of checkpoints."""

    def __init__(self) -> None:
        self.dtype = torch.float64
        self.scale = 2


class CopyingSettings(torch.nn.Module):
    """A module that copies its settings in each call, like an encoder-decoder model of transformers."""

    def __init__(self) -> None:
        super().__init__()
        self.settings = Settings()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        settings = copy.deepcopy(self.settings)
        return x.to(settings.dtype) * settings.scale


def test_classes_that_other_libraries_add_to_the_table_of_copies_do_not_matter(tmp_path, monkeypatch):
    model, x = CopyingSettings(), torch.ones(3)
    compiled = thunder.jit(model)
    expected = compiled(x)
    thunder.save(compiled, tmp_path / "artifact")
    monkeypatch.setitem(copyreg.dispatch_table, Counting, str)  # an import of another library, in another process
    loaded = thunder.load(tmp_path / "artifact", model, strict=True)
    torch.testing.assert_close(loaded(x), expected, rtol=0, atol=0)


class ReadsTable(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.table = {"scale: large": 2.0}

    def forward(self, x):
        return x * self.table["scale: large"]


def test_path_of_a_stored_guard_may_contain_a_colon(tmp_path):
    compiled = thunder.jit(ReadsTable())
    compiled(torch.ones(2))
    (facts,) = open_artifact(thunder.save(compiled, tmp_path / "table.thunder")).manifest.programs
    assert ("module.table['scale: large']", "was 2.0") in facts.paths_and_words
    joined = facts.model_copy(update={"guards": ("torch.is_grad_enabled(): was True",)})  # as Thunder 0.2.0 wrote it
    assert joined.paths_and_words == [("torch.is_grad_enabled()", "was True")]
    assert len(stated_guards(joined)) == 1
