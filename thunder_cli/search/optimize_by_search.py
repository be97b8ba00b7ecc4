"""`thunder optimize --search`: measure candidates, and write the winner as an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thunder_cli.console import json_data, print_json, say, stderr, stdout
from thunder_cli.progress import show_progress
from thunder_cli.search.planned_search import plan_and_print_search
from thunder_cli.search.search_progress import show_search_progress
from thunder_cli.search.views import search_view
from thunder_cli.views.outcome import caveat_warnings, outcome_view, paths_view

if TYPE_CHECKING:
    from thunder_core.workflow.pipeline.request.request import Request
    from thunder_core.workflow.pipeline.request.search_request import SearchRequest
    from thunder_core.workflow.recipe_search.request_search import ArtifactSearchResult
    from thunder_core.workflow.report import Report


def optimize_by_search(
    request: Request, search: SearchRequest, *, dry_run: bool, json: bool, quiet: bool
) -> Report | None:
    """Search, write the winner and print the result; return the report of the artifact, or None without an artifact.

    With `dry_run`, print the candidates and measure nothing.
    """
    console = (stderr(quiet=True) if json else stdout()) if dry_run else stderr(quiet=quiet)
    planned = plan_and_print_search(request, search, console, lists_unfit=dry_run)
    if dry_run:
        if json:
            print_json("search-plan/1", planned.as_data())
        return None
    with show_search_progress(console) as observer:
        run = planned.run(observer)
    with show_progress(console) as progress:
        result = planned.write(run, progress)
    show_result(result, json=json, quiet=quiet)
    return None if result.outcome is None else result.outcome.report


def show_result(result: ArtifactSearchResult, *, json: bool, quiet: bool) -> None:
    """Print the result: JSON, the tables of the search and the winner, or with `quiet` the artifact's path."""
    outcome = result.outcome
    artifact = None if outcome is None else outcome.artifact
    if json:
        report = None if outcome is None else json_data(outcome.report)
        content = {"artifact": artifact and str(artifact), "report": report, "search": json_data(result.report)}
        print_json("optimize/1", content)
        return
    if not quiet:
        stderr().print()
        console = stdout()
        console.print(search_view(result.report, width=console.width))
        console.print()
        if outcome is not None:
            console.print(outcome_view(outcome.report, width=console.width))
            console.print()
            console.print(paths_view(outcome.report, outcome.artifact), soft_wrap=True)
    elif outcome is not None:
        for warning in caveat_warnings(outcome.report.model.caveats):
            stderr().print(warning, soft_wrap=True)
    print_path_or_eager(artifact, quiet=quiet)


def print_path_or_eager(artifact: Path | None, *, quiet: bool) -> None:
    """Print that eager PyTorch won, if there is no artifact; with `quiet`, print the path of the artifact."""
    if artifact is None:
        stderr().print("eager PyTorch won: use the model as it is; no artifact was written", style="yellow")
    elif quiet:
        say(str(artifact))
