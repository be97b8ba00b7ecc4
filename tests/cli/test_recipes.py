"""`thunder recipes`: the list, one of them, and the completion of their names."""

from __future__ import annotations

from thunder_cli.options import complete_executor, complete_recipe, complete_task
from thunder_core import plugins


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
        "Eager PyTorch, as an executor: it runs any bound symbol as the user wrote it.",
    ) in complete_executor("to")


def test_where_a_recipe_runs_is_shown(thunder):
    assert "on cuda in bfloat16" in thunder("recipes", "show", "hf-llama3-hopper").out
    assert "runs" not in thunder("recipes", "show", "default").out


def test_what_a_recipe_does_beside_default_is_shown_and_its_summary_says_where_it_is_nothing(thunder):
    summaries = {row["name"]: row["summary"] for row in thunder("recipes", "--json").json["recipes"]}
    for name in plugins.names("recipes"):
        beside = thunder("recipes", "show", name, "--json").json["recipe"]["beside_default"]
        assert ("as default" in summaries[name]) == (not beside and name != "default"), name
    text = " ".join(thunder("recipes", "show", "hf-llama").out.split())
    assert "beside default the same program; models of other families are refused" in text
    hopper = thunder("recipes", "show", "hf-llama3-hopper").out
    assert "executors triton, nvfuser, cudagraphs; device cuda; dtype bfloat16" in " ".join(hopper.split())
    assert "beside default" not in thunder("recipes", "show", "default").out


def test_a_recipe_that_fuses_does_not_promise_eager_kernels(thunder):
    for name in plugins.names("recipes"):
        shown = thunder("recipes", "show", name, "--json").json["recipe"]
        if "inductor" in [one["name"] for one in shown["executors"]]:
            assert "eager" not in shown["description"]
    assert "Inductor" in thunder("recipes", "show", "default").out


def test_names_of_tasks_are_completed():
    assert complete_task("text-gen") == ["text-generation"]
    assert complete_task("causal") == ["causal-lm"]
