"""Plug-ins are found by their files and described without being imported. Other packages join by an entry point."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest

from thunder_core.foundation import plugins
from thunder_core.foundation.errors import AmbiguousName, EnvironmentLacks, UnknownName
from thunder_core.tracing.extension.transform import Transform
from thunder_core.workflow.pipeline.request.part_names import module_of_transform

pytestmark = pytest.mark.source


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A third-party package, registered in both groups by its entry point."""
    package = tmp_path / "foreign_plugins"
    package.mkdir()
    (package / "__init__.py").write_text("")
    points = EntryPoints(EntryPoint("theirs", "foreign_plugins", group) for group in plugins.ENTRY_POINTS.values())
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: points.select(group=group))
    monkeypatch.syspath_prepend(str(tmp_path))
    yield package
    for name in [name for name in sys.modules if name.startswith("foreign_plugins")]:
        del sys.modules[name]


def list_plugins(name: str) -> plugins.PluginDescription:
    return next(executor for executor in plugins.listing("executors") if executor.name == name)


def test_our_own_plug_ins_are_listed() -> None:
    assert "torch" in plugins.names("executors")
    assert {"default", "hf-transformers", "hf-bert", "hf-llama", "hf-llama3", "hf-llama3-hopper"} <= set(
        plugins.names("recipes")
    )
    assert {"cse", "dce"} <= set(plugins.names("transforms"))
    assert plugins.names("lookasides")


def test_each_module_that_is_listed_as_a_transform_defines_one() -> None:
    """Parts of transforms are in other packages, so that the list contains only transforms that users can name."""
    for name in plugins.names("transforms"):
        module = plugins.load("transforms", name)
        own = [
            attribute
            for attribute in vars(module).values()
            if isinstance(attribute, type) and attribute.__module__ == module.__name__
        ]
        assert any(issubclass(attribute, Transform) for attribute in own), name


def test_each_of_our_plug_ins_has_a_summary() -> None:
    assert all(plugin.summary for group in plugins.BUILTIN for plugin in plugins.listing(group))


def test_hyphens_and_underscores_are_the_same() -> None:
    module = plugins.load("recipes", "hf_llama3-hopper")
    assert module is plugins.load("recipes", "hf-llama3-hopper")
    assert module.__name__ == "thunder_recipes.hf_llama3_hopper"


def test_an_unknown_name_suggests_the_nearest() -> None:
    with pytest.raises(UnknownName, match="no recipe called 'hf-lama3'") as caught:
        plugins.load("recipes", "hf-lama3")
    assert "did you mean hf-llama3" in caught.value.fix
    assert "default" in caught.value.fix


def test_a_new_file_is_seen_at_once(folder: Path) -> None:
    (folder / "very_fast.py").write_text('"""Runs fast.\n\nAnd more."""\nEXECUTOR = 7\n')
    assert list_plugins("very-fast") == plugins.PluginDescription(
        "very-fast", "Runs fast.", "foreign_plugins.very_fast", None
    )
    assert plugins.load("executors", "very_fast").EXECUTOR == 7


def test_listing_runs_nothing(folder: Path) -> None:
    (folder / "explosive.py").write_text('"""Explodes."""\nraise SystemExit("bang")\n')
    assert list_plugins("explosive").reason is None
    assert "foreign_plugins.explosive" not in sys.modules


def test_missing_imports_are_the_reason(folder: Path) -> None:
    (folder / "needy.py").write_text('"""Needs."""\nimport no_such_backend.kernels\nfrom also_missing import x\n')
    assert list_plugins("needy").reason == "needs also_missing, no_such_backend, not installed here"
    with pytest.raises(EnvironmentLacks, match="needs also_missing, no_such_backend") as caught:
        plugins.load("executors", "needy")
    assert caught.value.status == 3
    assert "`thunder executors` lists" in str(caught.value.fix)


def test_the_commands_that_a_message_names_exist() -> None:
    """No command lists transforms or lookasides."""
    words = [command.split() for command in plugins.LISTED_BY.values()]
    assert all(first == "thunder" and name in plugins.names("commands") for first, name in words)


def test_an_import_in_a_try_is_optional(folder: Path) -> None:
    (folder / "modest.py").write_text("try:\n    import no_such_backend\nexcept ImportError:\n    pass\n")
    assert list_plugins("modest").reason is None
    assert plugins.load("executors", "modest")


def test_a_missing_dependency_of_a_dependency(folder: Path) -> None:
    (folder / "_inner.py").write_text("import no_such_backend\n")
    (folder / "outer.py").write_text("from foreign_plugins import _inner\n")
    assert list_plugins("outer").reason is None
    with pytest.raises(EnvironmentLacks, match="no_such_backend"):
        plugins.load("executors", "outer")


def test_a_file_that_is_not_python(folder: Path) -> None:
    (folder / "broken.py").write_text("def (:\n")
    assert "is not Python" in (list_plugins("broken").reason or "")


def test_private_files_are_not_plug_ins_and_folders_are(folder: Path) -> None:
    (folder / "_private.py").write_text("")
    (folder / "whole").mkdir()
    (folder / "whole" / "__init__.py").write_text('"""A folder."""\n')
    (folder / "data").mkdir()
    assert list_plugins("whole").summary == "A folder."
    assert not {"-private", "data"} & set(plugins.names("executors"))


def test_two_plug_ins_of_one_name_are_an_error_that_has_both_full_names(folder: Path) -> None:
    (folder / "torch.py").write_text('"""Another."""\n')
    for refused in (plugins.load, plugins.require, plugins.source_of):
        with pytest.raises(AmbiguousName, match=r"thunder-executors\.torch and foreign-plugins\.torch") as caught:
            refused("executors", "torch")
        assert "uninstall" in caught.value.fix
    assert "torch" not in plugins.names("executors")
    assert plugins.load("executors", "foreign_plugins.torch").__name__ == "foreign_plugins.torch"
    assert plugins.load("executors", "thunder_executors.torch").__name__ == "thunder_executors.torch"


def test_two_transforms_of_one_class_name_are_an_error(folder: Path) -> None:
    source = "from thunder_core.tracing.extension.transform import Transform\nclass Autocast(Transform):\n    pass\n"
    (folder / "narrower.py").write_text(source)
    with pytest.raises(AmbiguousName, match="autocast and narrower"):
        module_of_transform("Autocast")
    assert module_of_transform("narrower") == "narrower"
    assert module_of_transform("ShareCommonExpressions") == module_of_transform("cse") == "cse"


def test_an_entry_point_may_name_one_module(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "single.py").write_text('"""Alone."""\n')
    (folder / "other.py").write_text('"""Not named."""\n')
    points = EntryPoints([EntryPoint("theirs", "foreign_plugins.single", "thunder.executors")])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: points.select(group=group))
    assert list_plugins("single").module == "foreign_plugins.single"
    assert "other" not in plugins.names("executors")


def test_an_entry_point_whose_package_is_gone_breaks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    points = EntryPoints([EntryPoint("theirs", "gone_package.sub", "thunder.executors")])
    monkeypatch.setattr(importlib.metadata, "entry_points", lambda *, group: points.select(group=group))
    assert "torch" in plugins.names("executors")


@pytest.mark.parametrize("is_package", [False, True])
@pytest.mark.parametrize("name", ["thunder_recipes", "thunder_executors"])
def test_a_module_of_the_user_that_hides_our_own_plug_ins_is_an_error(
    name: str, is_package: bool, tmp_path: Path
) -> None:
    hiding = tmp_path / name if is_package else tmp_path / f"{name}.py"
    file = hiding / "__init__.py" if is_package else hiding
    file.parent.mkdir(exist_ok=True)
    file.write_text("", encoding="utf-8")
    group = name.removeprefix("thunder_")
    paths = os.pathsep.join([str(tmp_path), *sys.path])
    run = subprocess.run(
        [sys.executable, "-m", "thunder_cli.main", group],
        env=os.environ | {"PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == AmbiguousName.status
    assert f"{hiding} has the name of Thunder's package {name} and hides its {group}" in run.stderr
    assert f"rename {hiding}" in run.stderr


def test_objects_are_imported_by_path() -> None:
    assert plugins.import_object("pathlib:Path.name") is Path.name
    assert plugins.import_object("pathlib").__name__ == "pathlib"
    with pytest.raises(AttributeError):
        plugins.import_object("pathlib:Nothing")


def test_listing_imports_no_torch() -> None:
    program = (
        "import sys; from thunder_core import plugins; [plugins.listing(group) for group in plugins.BUILTIN]; "
        "sys.exit('torch' in sys.modules)"
    )
    path = os.pathsep.join(entry for entry in sys.path if entry)
    subprocess.run([sys.executable, "-c", program], check=True, env={**os.environ, "PYTHONPATH": path})


def test_entry_points_are_read_once_until_a_package_is_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []

    def read(*, group: str) -> EntryPoints:
        reads.append(group)
        return found(group=group)

    found = importlib.metadata.entry_points
    monkeypatch.setattr(importlib.metadata, "entry_points", read)
    monkeypatch.syspath_prepend(tmp_path)
    assert [plugins.load("executors", "torch").__name__ for _ in range(3)] == ["thunder_executors.torch"] * 3
    assert reads == ["thunder.executors"]
    (tmp_path / "late.py").write_text('"""Installed while the process runs."""\n')
    facts = tmp_path / "late-1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: late\nVersion: 1\n")
    (facts / "entry_points.txt").write_text("[thunder.executors]\nlate = late\n")
    assert list_plugins("late").summary == "Installed while the process runs."
    assert reads == ["thunder.executors"] * 2
    shutil.rmtree(facts)
    assert "late" not in plugins.names("executors")


def test_files_of_two_folders_import_their_own_neighbours_of_the_same_name(tmp_path):
    for name in ("one", "two"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "beside.py").write_text(f"NAME = {name!r}\n")
        (folder / "recipe.py").write_text(
            "import beside\n\ndef later():\n    import beside_late\n    return beside_late.NAME\n"
        )
        (folder / "beside_late.py").write_text(f"NAME = 'late {name}'\n")
    before = list(sys.path)
    try:
        first, second = (plugins.load_file(tmp_path / name / "recipe.py") for name in ("one", "two"))
        assert (first.beside.NAME, second.beside.NAME) == ("one", "two")
        assert second.later().startswith("late")
    finally:
        sys.path[:] = before
        for name in ("beside", "beside_late"):
            sys.modules.pop(name, None)
