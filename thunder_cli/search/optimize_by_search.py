"""`thunder optimize --search`: candidates are measured, and the winner is written as an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from thunder_cli.console import plain, print_json, say, stderr, stdout
from thunder_cli.progress import watching
from thunder_cli.search.planned_search import planned_search
from thunder_cli.search.search_progress import observing
from thunder_cli.search.views import search_view
from thunder_cli.views.outcome import outcome_view, places_view

if TYPE_CHECKING:
    from thunder_core.workflow.pipeline.request.request import Request
    from thunder_core.workflow.pipeline.request.search_request import SearchRequest
    from thunder_core.workflow.recipe_search.request_search import FoundArtifact
    from thunder_core.workflow.report import Report


def optimize_by_search(
    request: Request, search: SearchRequest, *, dry_run: bool, json: bool, quiet: bool
) -> Report | None:
    """Search, write the winner and print the result; the report of what was written, if anything was.

    With `dry_run` the candidates are printed, and nothing is measured.
    """
    told = (stderr(quiet=True) if json else stdout()) if dry_run else stderr(quiet=quiet)
    planned = planned_search(request, search, told, whole=dry_run)
    if dry_run:
        if json:
            print_json("search-plan/1", planned.as_data())
        return None
    with observing(told) as observer:
        run = planned.run(observer)
    with watching(told) as progress:
        found = planned.write(run, progress)
    show_found(found, json=json, quiet=quiet)
    return None if found.outcome is None else found.outcome.report


def show_found(found: FoundArtifact, *, json: bool, quiet: bool) -> None:
    """Print the result: the search and the winner's tables, JSON, or where the artifact is."""
    outcome = found.outcome
    artifact = None if outcome is None else outcome.artifact
    if json:
        report = None if outcome is None else plain(outcome.report)
        content = {"artifact": artifact and str(artifact), "report": report, "search": plain(found.report)}
        print_json("optimize/1", content)
        return
    if not quiet:
        stderr().print()
        console = stdout()
        console.print(search_view(found.report, width=console.width))
        console.print()
        if outcome is not None:
            console.print(outcome_view(outcome.report, width=console.width))
            console.print()
            console.print(places_view(outcome.report, outcome.artifact), soft_wrap=True)
    say_where(artifact, quiet=quiet)


def say_where(artifact: Path | None, *, quiet: bool) -> None:
    """Print where the artifact is to scripts, and to everybody that there is none where eager PyTorch won."""
    if artifact is None:
        stderr().print("eager PyTorch won: use the model as it is; no artifact was written", style="yellow")
    elif quiet:
        say(str(artifact))
