"""`thunder recipes`: the list, a single recipe, and the completion of names."""

from __future__ import annotations

import pytest

from tests.cli.small import QUICK, save_small_model
from thunder_cli.options import complete_executor, complete_recipe, complete_task
from thunder_core.foundation import plugins
from thunder_core.workflow.artifact import open_artifact


def test_recipes_are_listed(thunder):
    done = thunder("recipes")
    assert done.status == 0
    assert done.err == ""
    assert all(name in done.out for name in plugins.names("recipes"))
    assert thunder("recipes", "list").out == done.out


def test_the_list_as_json(thunder):
    data = thunder("recipes", "--json").json
    assert data["schema"] == "thunder.recipes/1"
    assert [row["name"] for row in data["recipes"]] == plugins.names("recipes")
    assert all(row["summary"] and row["available"] for row in data["recipes"])


def test_a_recipe_is_shown(thunder):
    data = thunder("recipes", "show", "hf-llama3-hopper", "--json").json
    assert data["schema"] == "thunder.recipe/1"
    assert data["recipe"]["families"] == ["llama"]
    assert data["recipe"]["sample"] == "llama3"
    text = thunder("recipes", "show", "hf-llama3-hopper").out
    assert all(part in text for part in ("hf-llama3-hopper", "models", "llama", "executors"))


def test_every_recipe_can_be_shown(thunder):
    for name in plugins.names("recipes"):
        done = thunder("recipes", "show", name)
        assert (done.status, done.err) == (0, "")


def test_an_unknown_recipe_suggests_the_nearest(thunder):
    done = thunder("recipes", "show", "hf-lama3")
    assert (done.status, done.out) == (2, "")
    assert "TH0202" in done.err
    assert "did you mean hf-llama3" in done.err


def test_names_are_completed():
    assert [name for name, _ in complete_recipe("hf-llama")] == ["hf-llama", "hf-llama3", "hf-llama3-hopper"]
    assert (
        "torch",
        "Eager PyTorch as an executor: runs any bound symbol as the user wrote it.",
    ) in complete_executor("to")


def test_where_a_recipe_runs_is_shown(thunder):
    assert "on cuda in bfloat16" in thunder("recipes", "show", "hf-llama3-hopper").out
    assert "runs" not in thunder("recipes", "show", "default").out


def test_the_differences_from_default_are_shown(thunder):
    summaries = {row["name"]: row["summary"] for row in thunder("recipes", "--json").json["recipes"]}
    for name in plugins.names("recipes"):
        beside = thunder("recipes", "show", name, "--json").json["recipe"]["differences_from_default"]
        assert ("like default" in summaries[name].replace("`", "")) == (not beside and name != "default"), name
    text = " ".join(thunder("recipes", "show", "hf-t5").out.split())
    assert "compared with default the same program; models of other families are refused" in text
    hopper = thunder("recipes", "show", "hf-llama3-hopper").out
    words = " ".join(hopper.split())
    assert "executors triton, joined, nvfuser, cudagraphs; " in words
    assert "transforms IncrementTogether, SelectRowsEarly, GenerateWithStaticCache; device cuda" in words
    assert "compared with default" not in thunder("recipes", "show", "default").out


def test_a_recipe_that_fuses_does_not_promise_eager_kernels(thunder):
    for name in plugins.names("recipes"):
        shown = thunder("recipes", "show", name, "--json").json["recipe"]
        if "inductor" in [executor["name"] for executor in shown["executors"]]:
            assert "eager" not in shown["description"].replace("eager's time", "")
    assert "Inductor" in thunder("recipes", "show", "default").out


def test_names_of_tasks_are_completed():
    assert complete_task("text-gen") == ["text-generation"]
    assert complete_task("causal") == ["causal-lm"]


def test_a_sum_is_explained_the_same_in_every_order(thunder):
    first = thunder("recipes", "explain", "hf-llama3", "default", "--add-executor", "triton", "--json").json
    second = thunder("recipes", "explain", "default", "--add-executor", "triton", "hf-llama3", "--json").json
    assert first == second
    assert first["schema"] == "thunder.explanation/1"
    assert first["recipe"]["name"] == "default + hf-llama3 + triton"
    steps = {step["name"]: step["reasons"] for step in first["recipe"]["steps"]}
    assert list(steps)[-6:] == ["triton", "sdpa", "packed-linear", "packed-attention", "inductor", "torch"]
    assert steps["sdpa"] == ["triton comes before sdpa"]
    text = thunder("recipes", "explain", "default", "--add-transform", "Autocast(dtype=torch.float16)").out
    assert "Autocast comes before ShareCommonExpressions" in text


BAD_SUMS = {
    ("hf-lama3",): ("TH0202", "did you mean hf-llama3"),
    ("default", "--add-transform", "Autocst"): ("TH0202", "did you mean autocast"),
    ("default", "--add-transform", "1 + 1"): ("TH0201", "is not the name of a transform"),
    ("default", "--add-transform", "Autocast(torch.float16)"): ("TH0201", "is not the name of a transform"),
    ("default", "--add-transform", "Autocast(dtyp=1)"): ("TH0201", "the options are: dtype"),
    ("default", "--add-transform", "Autocast(dtype=torch.tensor)"): ("TH0201", "is not a dtype"),
    ("default", "--add-executor", "trition"): ("TH0202", "did you mean triton"),
    ("nowhere/mine.py",): ("TH0202", "does not exist"),
}


@pytest.mark.parametrize("arguments", BAD_SUMS)
def test_recipes_that_cannot_be_added_are_refused(thunder, arguments):
    done = thunder("recipes", "explain", *arguments)
    code, words = BAD_SUMS[arguments]
    assert (done.status, done.out) == (2, "")
    assert code in done.err
    assert words in " ".join(done.err.split())


def test_a_new_recipe_runs_with_its_test(thunder, tmp_path):
    done = thunder("recipes", "new", "careful-model", "--out", tmp_path / "own")
    assert [*map(str.strip, done.out.splitlines())] == [
        str(tmp_path / "own" / "careful_model.py"),
        str(tmp_path / "own" / "test_careful_model.py"),
    ]
    written = plugins.load_file(tmp_path / "own" / "test_careful_model.py")
    tests = [test for name, test in vars(written).items() if name.startswith("test_")]
    assert len(tests) == 2
    for test in tests:
        test()
    again = thunder("recipes", "new", "careful_model", "--out", tmp_path / "own")
    assert (again.status, "TH0206" in again.err) == (2, True)
    for name in ("Careful!", "", "3d", "class"):
        assert "TH0201" in thunder("recipes", "new", name, "--out", tmp_path / "other").err
    assert not (tmp_path / "other").exists()


OWN = '''
from dataclasses import dataclass
from thunder_core.passes.recipe import Recipe, Transform

@dataclass(frozen=True)
class LeaveAlone(Transform):
    """Leaves a trace as it is."""

    def __call__(self, trace):
        return trace

class One(Recipe):
    """Adds a transform."""

    def setup_transforms(self):
        return (*super().setup_transforms(), LeaveAlone())

class Other(Recipe):
    """Adds nothing."""
'''


def test_a_recipe_in_a_file_is_applied_and_added_to_others(thunder, here):
    (here / "own.py").write_text(OWN)
    model = save_small_model(here / "model")
    recipes = ("--recipe", "own.py:One", "--recipe", "hf-llama", "--add-executor", "sdpa")
    done = thunder("optimize", model, *recipes, *QUICK, "--no-benchmark", "--validate-inputs", 1, "--json")
    assert done.status == 0, done.err
    artifact = done.json["artifact"]
    assert artifact.endswith("model-hf-llama+one+sdpa.thunder")
    manifest = open_artifact(artifact).manifest
    assert manifest.recipe == "hf-llama + one + sdpa"
    assert done.json["report"]["recipe"]["transforms"] == ["SelectRowsEarly", "LeaveAlone"]
    assert "LeaveAlone" in str([part.path for part in manifest.compiler.transforms])
    assert thunder("validate", artifact, "--trust-module", "own").status == 0


@pytest.mark.parametrize(
    ("name", "words"), [("own.py", "defines 2 recipes"), ("own.py:Third", "no recipe called Third")]
)
def test_a_file_names_one_recipe(thunder, here, name, words):
    (here / "own.py").write_text(OWN)
    done = thunder("recipes", "explain", name)
    assert (done.status, "TH0219" in done.err, words in done.err) == (2, True, True)


def test_a_file_that_cannot_be_loaded_is_reported(thunder, here):
    (here / "broken.py").write_text("import nothing_of_the_kind")
    done = thunder("recipes", "explain", "broken.py")
    assert (done.status, "TH0219" in done.err) == (2, True)
    assert "No module named" in done.err


def test_the_recipe_of_a_models_folder_runs_only_if_trusted(thunder, here):
    model = save_small_model(here / "model")
    (model / "thunder_recipe.py").write_text(OWN.replace('class Other(Recipe):\n    """Adds nothing."""\n', ""))
    settings = (model, "--recipe", "hf-llama", *QUICK, "--dry-run")
    left = thunder("optimize", *settings)
    assert "--trust-recipe runs it" in " ".join(left.err.split())
    assert "LeaveAlone" not in left.out + left.err
    done = thunder("optimize", *settings, "--trust-recipe")
    assert done.status == 0, done.err
    assert "class LeaveAlone(Transform):" in done.err, "it is shown"
    assert "hf-llama + one" in done.out
    assert "LeaveAlone" in done.out
    refused = thunder("optimize", "--recipe", "hf-llama", "--trust-recipe", "--dry-run")
    assert (refused.status, "TH0201" in refused.err) == (2, True)


def test_the_recipe_of_a_models_folder_is_measured_and_inspected_only_if_trusted(thunder, here):
    model = save_small_model(here / "model")
    visible = OWN.replace("return trace", 'return trace.having(trace.bound_symbols, made_by="leave alone")')
    (model / "thunder_recipe.py").write_text(visible.replace('class Other(Recipe):\n    """Adds nothing."""\n', ""))
    settings = (model, "--recipe", "hf-llama", "--trust-recipe")
    left = thunder("bench", *settings[:3], "--seq", 4, "--runs", 2, "--warmup", 0)
    assert "--trust-recipe runs it" in " ".join(left.err.split())
    assert "LeaveAlone" not in left.out + left.err
    shown = thunder("inspect-trace", *settings, "--seq", 4, "--list", "--json")
    assert shown.status == 0, shown.err
    assert "class LeaveAlone(Transform):" in shown.err
    assert "leave alone" in str(shown.json)
    measured = thunder("bench", *settings, "--seq", 4, "--runs", 2, "--warmup", 0)
    assert measured.status == 0, measured.err
    assert "class LeaveAlone(Transform):" in measured.err
    refused = thunder("bench", "--recipe", "hf-llama", "--trust-recipe")
    assert (refused.status, "TH0201" in refused.err) == (2, True)
