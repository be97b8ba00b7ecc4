"""`thunder optimize`: the main command, from a model and a recipe to an artifact."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from thunder_cli import options
from thunder_cli.ci.ci_options import CiOptions
from thunder_cli.console import json_data, print_json, say, stderr, stdout
from thunder_cli.library_output import quiet_libraries
from thunder_cli.option_groups import expand_options
from thunder_cli.settings import Settings, read_settings
from thunder_core.workflow.pipeline.request.launch import launch_of_process

if TYPE_CHECKING:
    from rich.console import Console

    from thunder_cli.ci.ci_report import CiReport
    from thunder_core.workflow.pipeline import Outcome, Plan, Request
    from thunder_core.workflow.pipeline.request.search_request import SearchRequest


@expand_options
def optimize(
    model: options.Model = None,
    *,
    settings: Annotated[Settings, options.EVERY_SETTING],
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            metavar="FILE",
            help="TOML file with settings of this command: all options but --config and those for output, CI and"
            " debugging. The command line takes precedence.",
        ),
    ] = None,
    ci: CiOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", metavar=options.FLAG, help="Print the plan and exit.")] = False,
    json: options.Json = False,
    quiet: Annotated[
        bool, options.quiet_option("Print the artifact's path and warnings, but no plan, progress or report.")
    ] = False,
    allow_untested_torch: options.AllowUntestedTorch = False,
    debug: options.Debug = False,
) -> None:
    """Optimize MODEL with a recipe, validate it against eager PyTorch, benchmark it, and save an artifact.

    With --train, the command optimizes a training step. Validation compares the loss and the gradient of every
    parameter with eager PyTorch. The benchmark measures the forward and the backward, and the artifact contains both.

    With --search TIME, the command tries recipes, dtypes and numbers of threads for TIME. The best candidate within the
    bounds (--max-kl, --min-top1, --max-error, --max-memory) is saved. No artifact is saved if eager PyTorch is best.
    Ctrl-C ends the search, and the best candidate so far is saved.
    """
    from thunder_cli.ci.ci_report import collect_checks

    with quiet_libraries(debug=debug), collect_checks(ci, "optimize") as checks:
        merged_settings = settings.with_model(model).with_defaults(read_settings(config) if config else Settings())
        request, search = merged_settings.request(), merged_settings.search_request()
        refuse_early(request, search, dry_run=dry_run)
        if search.search is not None:
            from thunder_cli.search.optimize_by_search import optimize_by_search

            report = optimize_by_search(request, search, dry_run=dry_run, json=json, quiet=quiet)
            if report is not None:
                from thunder_cli.ci.ci_findings import note_report

                note_report(checks, report)
            return

        optimize_by_recipe(request, checks, dry_run=dry_run, json=json, quiet=quiet)


def optimize_by_recipe(request: Request, checks: CiReport, *, dry_run: bool, json: bool, quiet: bool) -> None:
    """Plan and carry out a request, and record the report's results as checks for continuous integration."""
    from thunder_cli.hub_notice import print_hub_notice
    from thunder_cli.import_notice import importing, importing_tested_torch
    from thunder_cli.trusted_recipe import show_trusted_recipe
    from thunder_cli.views.plan import PlanPrinter

    if (launch := launch_of_process()) is not None and launch.follows:
        follow_first_rank(request, dry_run=dry_run)
        return
    console = stderr(quiet=quiet)
    print_hub_notice(console, request.model)
    show_trusted_recipe(stderr(), request)
    printer = PlanPrinter((stderr(quiet=True) if json else stdout()) if dry_run else console)
    if not dry_run:  # stdout of a dry run has the complete plan, or nothing after an error
        printer.begin(request)
    with importing_tested_torch(console):
        from thunder_core.workflow.pipeline import outline, with_memory

        outlined = outline(request, dry_run=dry_run)
    printer.show(outlined.rows())
    with importing(console):
        planned = with_memory(outlined)
    printer.end(planned.rows())
    if dry_run:
        if json:
            print_json("plan/1", planned.as_data())
        return
    outcome = carry_out_plan(planned, console)
    from thunder_cli.ci.ci_findings import note_report

    note_report(checks, outcome.report)
    show_outcome(outcome, json=json, quiet=quiet)


def carry_out_plan(planned: Plan, console: Console) -> Outcome:
    """Carry out a plan, and print its progress."""
    from thunder_cli.import_notice import importing
    from thunder_cli.progress import show_progress

    if planned.memory_error is not None:  # before more is imported
        raise planned.memory_error
    with importing(console):
        from thunder_core.workflow.pipeline import carry_out
    with show_progress(console) as progress:
        return carry_out(planned, progress)


def follow_first_rank(request: Request, *, dry_run: bool) -> None:
    """Carry out this rank's part of a request. The first rank prints the results and writes the artifact."""
    from thunder_core.workflow.pipeline import outline, with_memory

    planned = with_memory(outline(request, dry_run=dry_run))
    if dry_run:
        return
    if planned.memory_error is not None:
        raise planned.memory_error

    from thunder_core.workflow.pipeline import follow

    follow(planned)


def refuse_early(request: Request, search: SearchRequest, *, dry_run: bool = False) -> None:
    """Check the names, sizes and paths of a request, the cheapest checks first."""
    from thunder_core.workflow.pipeline.request.search_request import check_search

    check_search(search, request)

    from thunder_core.workflow.pipeline.request.request_checks import check_request

    check_request(request, dry_run=dry_run)

    from thunder_core.workflow.pipeline.request.destination import check_destination

    check_destination(request)


def show_outcome(outcome: Outcome, *, json: bool, quiet: bool) -> None:
    """Print the result: tables, JSON, or the path of the artifact."""
    from thunder_cli.views.outcome import caveat_warnings, outcome_view, paths_view

    if json:
        print_json("optimize/1", {"artifact": str(outcome.artifact), "report": json_data(outcome.report)})
    elif quiet:
        for warning in caveat_warnings(outcome.report.model.caveats):
            stderr().print(warning, soft_wrap=True)
        say(str(outcome.artifact))
    else:
        stderr().print()
        console = stdout()
        console.print(outcome_view(outcome.report, width=console.width))
        console.print()
        console.print(paths_view(outcome.report, outcome.artifact), soft_wrap=True)
