"""`thunder_core.search`: a module, tried in the process of the tests."""

from __future__ import annotations

import os
from functools import partial

import pytest
import torch

import thunder_core as thunder
from thunder_core.errors import BadOption, UnknownName, WrongInputs
from thunder_core.workflow.recipe_search import module_search
from thunder_core.workflow.recipe_search.process import offered_module
from thunder_core.workflow.recipe_search.search_run import SearchRun
from thunder_core.workflow.recipe_search.trial_task_format import write_task
from thunder_core.workflow.recipe_search.worker import run_task

FEW = ("eager", "default", "default + int8-weight-only")


class Net(torch.nn.Module):
    """A small module of two arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(16, 32), torch.nn.Linear(32, 16)

    def forward(self, x, scale=None):
        y = self.second(torch.relu(self.first(x)))
        return y if scale is None else y * scale


@pytest.fixture(autouse=True)
def search_here(monkeypatch, tmp_path, without_kernels):
    def run_here(task, seconds):
        folder = tmp_path / "order"
        folder.mkdir(exist_ok=True)
        write_task(task, folder)
        with offered_module(task) as descriptors:
            return run_task(folder, *map(os.dup, descriptors))

    def few(context):
        found, excluded = module_search.list_candidates.wrapped(context)
        return [result for result in found if result.name in FEW], excluded

    few.wrapped = module_search.list_candidates
    monkeypatch.setattr(module_search, "SearchRun", partial(SearchRun, run_trial=run_here))
    monkeypatch.setattr(module_search, "list_candidates", few)
    monkeypatch.setattr("thunder_core.workflow.recipe_search.stored_searches.cache_folder", lambda: tmp_path / "cache")


@pytest.fixture
def net():
    torch.manual_seed(0)
    return Net().eval()


def test_the_winner_computes_what_the_model_does(net):
    x = torch.randn(4, 16)
    found = thunder.search(net, [x, (torch.randn(4, 16), 2.0)], budget=120, bounds={"max_error": 0.02})
    assert found.report.winner in FEW
    rows = {row.name: row for row in found.report.candidates}
    assert {name for name, row in rows.items() if row.state == "measured"} == {*FEW}
    assert rows["eager"].error == 0
    assert rows["default"].error < 1e-6
    assert 0 < rows["default + int8-weight-only"].error < 0.02
    assert rows["default + int8-weight-only"].size < rows["eager"].size
    torch.testing.assert_close(found.module(x), net(x), rtol=0.05, atol=0.02)


def test_the_smallest_within_a_bound_wins_and_is_what_is_returned(net):
    found = thunder.search(net, torch.randn(4, 16), objective="size", bounds={"max_error": 0.05})
    assert found.report.winner == "default + int8-weight-only"
    assert found.module is not net
    exact = thunder.search(net, torch.randn(4, 16), objective="size", bounds={"max_error": 1e-9})
    assert exact.report.winner == "eager"
    assert exact.module is net


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"budget": "soon"}, BadOption, "budget is 'soon'"),
        ({"budget": 0}, BadOption, "--search leaves no time"),
        ({"objective": "speed"}, UnknownName, "there is no objective called 'speed'"),
        ({"bounds": {"max_kl": float("nan")}}, BadOption, "NaN"),
        ({"bounds": {"kl": 0.1}}, BadOption, "which is not a bound"),
        ({"bounds": {"max_memory": "lots"}}, BadOption, "which is not a size"),
        ({"bounds": {"max_memory": float("inf")}}, BadOption, "max_memory is inf"),
        ({"bounds": {"max_kl": 0.1}}, BadOption, "--max-kl is for models with logits"),
        ({"inputs": []}, WrongInputs, "is empty"),
        ({"inputs": (1, 2, 3)}, WrongInputs, "does not take these inputs"),
        ({"inputs": torch.randn(4, 3)}, WrongInputs, "call 0 of the model fails in eager PyTorch: RuntimeError: mat1"),
        ({"inputs": {"y": torch.randn(4, 16)}}, WrongInputs, "fails in eager PyTorch: TypeError"),
        ({"bounds": {"max_error": "0.01"}}, BadOption, "max_error is '0.01', which is not a number"),
    ],
)
def test_values_that_cannot_be_are_refused(net, arguments, error, words):
    given = {"inputs": torch.randn(4, 16), **arguments}
    with pytest.raises(error, match=words):
        thunder.search(net, **given)


class Scaled(torch.nn.Module):
    """A module of any number of arguments."""

    def forward(self, *tensors):
        return sum(tensors)


def test_arguments_without_names_are_refused():
    with pytest.raises(WrongInputs, match=r"Scaled\.forward takes tensors by position only"):
        thunder.search(Scaled(), (torch.ones(2), torch.ones(2)))


def test_results_of_other_settings_and_other_code_are_not_reused(tmp_path, monkeypatch):
    request = module_search.search_request(60, "latency", {}, fresh=False)

    def folder(stride):
        torch.manual_seed(0)
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 3, 1, stride=stride))
        subject = module_search.ModuleSubject(model, ({"input": torch.ones(1, 3, 4, 4)},))
        return module_search.search_run(subject, request, 0.0).stored_trials.folder

    assert folder(1) == folder(1)
    assert folder(1) != folder(2)
    before = folder(1)
    monkeypatch.setattr(module_search, "digest_of_file", lambda file: "other code")
    assert folder(1) != before
