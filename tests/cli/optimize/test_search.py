"""`thunder optimize --search` and `thunder bench --candidates`, with trials in the process of the tests."""

from __future__ import annotations

import json
from functools import partial

import pytest

from tests.cli.small import QUICK
from thunder_core.workflow.recipe_search import candidates, request_search
from thunder_core.workflow.recipe_search.search_run import SearchRun
from thunder_core.workflow.recipe_search.trial_task_format import read_task, write_task
from thunder_core.workflow.recipe_search.worker import run_task

SIZE = ("--seq", 8)
QUANTIZED = "hf-llama + int8-weight-only"
FEW = ("eager", "hf-llama", QUANTIZED)


@pytest.fixture(autouse=True)
def search_here(monkeypatch, tmp_path):
    """A search with few candidates, whose trials run in this process; results are stored in a folder of the test."""

    def run_here(task, seconds):
        folder = tmp_path / "order"
        folder.mkdir(exist_ok=True)
        write_task(task, folder)
        assert read_task(folder, receive=lambda: pytest.fail("a request has no module to send")) == task
        return run_task(folder)

    def few(context):
        found, excluded = candidates.list_candidates(context)
        return [result for result in found if result.name in FEW], excluded

    monkeypatch.setattr(request_search, "SearchRun", partial(SearchRun, run_trial=run_here))
    monkeypatch.setattr(request_search, "list_candidates", few)
    monkeypatch.setattr("thunder_core.workflow.recipe_search.stored_searches.cache_folder", lambda: tmp_path / "cache")


@pytest.mark.usefixtures("without_kernels")
def test_a_search_writes_its_winner_and_the_search_into_the_report(thunder, here, llama):
    done = thunder("optimize", llama, "--search", "2m", *QUICK, "-o", "out", "--json")
    assert done.status == 0, done.err
    search = done.json["search"]
    rows = {row["name"]: row for row in search["candidates"]}
    assert {name for name, row in rows.items() if row["state"] == "measured"} == {*FEW}
    assert search["winner"] in FEW
    assert search["why"].startswith(f"{search['winner']} wins with")
    assert rows["eager"]["kl"] == 0 < rows[QUANTIZED]["kl"] < 0.02
    assert rows["hf-llama"]["kl"] < 1e-9
    assert rows[QUANTIZED]["size"] < rows["eager"]["size"]
    assert all(row["memory"] > row["size"] > 0 for row in rows.values() if row["state"] == "measured")
    assert "leads" in done.err
    if search["winner"] == "eager":
        assert done.json["artifact"] is None
        assert [*here.iterdir()] == []
    else:
        report = json.loads((here / "out/report.json").read_text())
        assert report["search"]["winner"] == search["winner"]
        assert "## Search" in (here / "out/report.md").read_text()


@pytest.mark.usefixtures("without_kernels")
def test_candidates_are_measured_written_and_plotted_and_kept_for_the_next_search(thunder, here, llama):
    command = ("bench", llama, "--candidates", "--search", "2m", *SIZE)
    done = thunder(*command, "--out", "found.json", "--plot", "found.html")
    assert done.status == 0, done.err
    assert sorted(path.name for path in here.iterdir()) == ["found.html", "found.json"]
    assert json.loads((here / "found.json").read_text())["winner"] in FEW
    page = (here / "found.html").read_text()
    assert "Speed and loss of the measured candidates" in page
    assert "<script" not in page
    for words in ("Candidates", QUANTIZED, "speed  [95%]", "Not applicable"):
        assert words in done.out, done.out
    again = thunder(*command, "--json")
    assert again.json["schema"] == "thunder.search/1"
    assert again.json["kept"] == 3
    missed = thunder(*command, "--max-memory", "1KiB", "--json")
    assert (missed.status, missed.json["error"]["code"]) == (4, "TH0408")
    assert "weights alone take" in missed.json["error"]["what"]
    assert missed.json["error"]["report"]["winner"] == ""


def test_a_dry_run_lists_candidates_and_reasons_and_measures_nothing(thunder, here, llama):
    done = thunder("optimize", llama, "--search", "10m", "--dry-run", "--max-kl", "0.01")
    assert done.status == 0, done.err
    for words in (QUANTIZED, "Not applicable", "hf-bert", "KL divergence at most 0.01 nats", "10m 0s"):
        assert words in done.out, done.out
    plan = thunder("optimize", llama, "--search", "10m", "--dry-run", "--json").json
    assert plan["schema"] == "thunder.search-plan/1"
    assert [candidate["name"] for candidate in plan["candidates"]] == ["eager", *FEW[1:]]
    assert all(one["reason"] for one in plan["excluded"])
    assert [*here.iterdir()] == []


def test_the_options_of_a_search_are_keys_of_a_settings_file(thunder, here, llama):
    file = here.parent / "run.toml"
    file.write_text('search = "10m"\nmax-memory = "1GiB"\nobjective = "size"\n')
    plan = thunder("optimize", llama, "--config", file, "--dry-run", "--json").json
    assert (plan["budget"], plan["objective"], plan["bounds"]["max_memory"]) == (600.0, "size", 1 << 30)


@pytest.mark.usefixtures("without_kernels")
def test_kept_results_are_removed_with_the_cache(thunder, here, llama):
    assert thunder("cache", "clear", "--searches").out == "removed 0 results of 0 searches, 0 B\n"
    assert thunder("bench", llama, "--candidates", "--search", "2m", *SIZE).status == 0
    would = thunder("cache", "clear", "--searches", "--dry-run", "--json").json
    assert (would["searches"], would["trials"]) == (1, len(FEW))
    done = thunder("cache", "clear", "--searches").out
    assert done.startswith(f"removed {len(FEW)} results of 1 search, ")
    assert thunder("cache", "clear", "--searches", "--json").json["size"] == 0
    refused = thunder("cache", "clear", "--searches", "--model", "Llama")
    assert (refused.status, "TH0201" in refused.err) == (2, True)
