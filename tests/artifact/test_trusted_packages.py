"""Which packages and scripts an artifact's constants may import: installed ones, the user's own, and no scripts."""

from __future__ import annotations

import importlib
import json
import site
import sys
from pathlib import Path

import pytest
import torch

import thunder_core as thunder
from tests.artifact.damages import reseal
from tests.artifact.strangers import MARKS, add_constant, constant
from thunder_core.foundation.errors import ArtifactForeign, ImportRefused
from thunder_core.workflow.artifact.trust.installation import stray_location
from thunder_core.workflow.artifact.trust.trust import trust_in

SCRIPTS = (
    *("numpy.f2py.__main__:main", "numpy.f2py.f2py2e:main", "numpy.conftest:pytest_configure", "numpy.distutils:x"),
    *("numpy.fft.tests.test_helper:x", "sympy.this:s", "sympy.testing.runtests:test", "scipy.conftest:x"),
    *("torch.utils.bottleneck.__main__:main", "torch.utils.collect_env:main", "torch.testing._internal.common_fsdp:x"),
    *("transformers.cli.transformers:main", "transformers.models.bert.convert_bert_token_dropping:main"),
    *("mpmath.tests.runtests:testit", "regex.tests.test_regex:x", "thunder_core.__main__:x"),
)


@pytest.mark.parametrize("path", SCRIPTS)
def test_no_script_of_a_library_is_imported_for_a_constant(path, artifact, model, monkeypatch):
    module = path.partition(":")[0]
    monkeypatch.delitem(sys.modules, module, raising=False)
    add_constant(artifact, constant(path))
    with pytest.raises(ImportRefused, match="which no constant comes from") as refused:
        thunder.load(artifact, model)
    assert module in str(refused.value)
    assert module not in sys.modules


NEEDED = (
    *("torch.nn.utils.parametrize", "torch._higher_order_ops.flex_attention", "torch.utils._pytree", "numpy.linalg"),
    *("transformers.models.llama.modeling_llama", "transformers.models.bert.configuration_bert", "scipy.special"),
    *("transformers.modeling_outputs", "transformers.integrations.sdpa_attention", "sympy.functions", "regex"),
    *("transformers.models.auto.modeling_auto", "thunder_core.tracing.library.objects"),
)


@pytest.mark.parametrize("module", NEEDED)
def test_modules_that_constants_come_from_are_trusted(module, monkeypatch):
    monkeypatch.delitem(sys.modules, module, raising=False)
    assert trust_in(None).require(f"{module}:x") == module


@pytest.fixture
def package_of_scripts(tmp_path, monkeypatch, mark):
    """A package whose modules end the process when they are imported."""
    package = tmp_path / "path" / "a_package_of_scripts"
    (package / "tests").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "tests" / "__init__.py").write_text("")
    for name in ("__main__", "setup", "tests/test_thing", "operations"):
        (package / f"{name}.py").write_text(f"{MARKS}import sys\nsys.exit(0)\n")
    monkeypatch.syspath_prepend(package.parent)
    yield package.name
    for name in [name for name in sys.modules if name.partition(".")[0] == package.name]:
        del sys.modules[name]


@pytest.mark.parametrize("module", ["__main__", "setup", "tests.test_thing"])
def test_no_script_of_a_trusted_package_is_imported(module, artifact, model, package_of_scripts, mark):
    add_constant(artifact, constant(f"{package_of_scripts}.{module}:main"))
    with pytest.raises(ImportRefused, match="a script, a test or a tool"):
        thunder.load(artifact, model, trusted_modules=package_of_scripts)
    assert not mark.exists()


def test_a_module_that_ends_the_process_is_an_error_of_the_artifact(artifact, model, package_of_scripts, mark):
    add_constant(artifact, constant(f"{package_of_scripts}.operations:main"))
    with pytest.raises(ArtifactForeign, match=r"would have ended this process: SystemExit\(0\)"):
        thunder.load(artifact, model, trusted_modules=package_of_scripts)
    assert mark.exists()
    reseal(artifact, code={f"{package_of_scripts}.operations": "0" * 64})
    with pytest.raises(ArtifactForeign, match="would have ended this process"):
        thunder.load(artifact, model, trusted_modules=package_of_scripts)


def make_package(folder: Path, name: str) -> Path:
    """A package in a folder that writes the mark when it is imported."""
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").write_text(f"{MARKS}def thing(**given):\n    return None\n")
    return folder


@pytest.fixture
def scipy_not_imported(monkeypatch):
    """Remove scipy from the imported modules; the name of the library is known."""
    for name in [name for name in sys.modules if name.partition(".")[0] == "scipy"]:
        monkeypatch.delitem(sys.modules, name)


def test_a_folder_with_the_name_of_a_library_is_not_trusted(
    artifact, model, x, mark, tmp_path, monkeypatch, scipy_not_imported
):
    """Python's path begins with the current folder if Python runs with `-m` or `-c`."""
    monkeypatch.chdir(make_package(tmp_path / "downloads", "scipy"))
    monkeypatch.syspath_prepend("")
    importlib.invalidate_caches()
    add_constant(artifact, constant("scipy:thing"))
    with pytest.raises(ImportRefused, match="which is not an installed location") as refused:
        thunder.load(artifact, model)
    assert str(tmp_path / "downloads" / "scipy") in str(refused.value)
    assert not mark.exists()
    monkeypatch.setenv("PYTHONPATH", "")
    with pytest.raises(ImportRefused):
        thunder.load(artifact, model)
    assert not mark.exists()
    loaded = thunder.load(artifact, model, trusted_modules=("scipy",), strict=True)
    assert mark.read_text() == "ran "
    assert torch.equal(loaded(x), model(x))


def test_a_folder_that_claims_to_be_a_plug_in_is_not_trusted(artifact, model, mark, tmp_path, monkeypatch):
    folder = make_package(tmp_path / "downloads", "a_plug_in_of_the_tests")
    facts = folder / "a_plug_in_of_the_tests-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: a-plug-in-of-the-tests\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[thunder.executors]\nown = a_plug_in_of_the_tests\n")
    monkeypatch.syspath_prepend(folder)
    add_constant(artifact, constant("a_plug_in_of_the_tests:thing"))
    with pytest.raises(ImportRefused, match="which is not an installed location"):
        thunder.load(artifact, model)
    assert not mark.exists()


def test_modules_on_the_users_pythonpath_are_trusted(artifact, model, mark, tmp_path, monkeypatch, scipy_not_imported):
    """`PYTHONPATH` contains a checkout of a library."""
    folder = make_package(tmp_path / "checkout", "scipy")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    add_constant(artifact, constant("scipy:thing"))
    thunder.load(artifact, model)
    assert mark.read_text() == "ran "


def test_a_library_that_was_installed_in_place_is_trusted(
    artifact, model, mark, tmp_path, monkeypatch, scipy_not_imported
):
    """`pip install -e` leaves a record next to the installed packages."""
    folder = make_package(tmp_path / "sources", "scipy")
    facts = tmp_path / "site" / "scipy-1.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: scipy\nVersion: 1\n")
    (facts / "direct_url.json").write_text(json.dumps({"url": folder.as_uri(), "dir_info": {"editable": True}}))
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setattr(site, "getsitepackages", lambda: [str(tmp_path / "site")])
    add_constant(artifact, constant("scipy:thing"))
    thunder.load(artifact, model)
    assert mark.read_text() == "ran "


@pytest.mark.parametrize("name", ["builtins", "json", "numpy", "regex", "scipy", "sympy", "transformers", "triton"])
def test_installed_packages_are_no_strays(name, monkeypatch):
    for module in [module for module in sys.modules if module.partition(".")[0] == name and name != "builtins"]:
        monkeypatch.delitem(sys.modules, module)
    assert stray_location(name) is None
