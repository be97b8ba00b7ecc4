"""Plan a search on the command line, with notices about downloads and imports."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from rich.console import Console

from thunder_cli.hub_notice import print_hub_notice
from thunder_cli.import_notice import importing_tested_torch
from thunder_cli.search.views import plan_view
from thunder_core.workflow import recipe_search

if TYPE_CHECKING:
    from thunder_core.workflow.pipeline.request.request import Request
    from thunder_core.workflow.pipeline.request.search_request import SearchRequest
    from thunder_core.workflow.recipe_search import RequestSearch


def plan_and_print_search(
    request: Request, search: SearchRequest, console: Console, *, lists_unfit: bool = False
) -> RequestSearch:
    """Plan a search, and print its candidates; with `lists_unfit`, also print why others do not apply."""
    began = time.monotonic()
    print_hub_notice(console, request.model)
    with importing_tested_torch(console):
        planned = recipe_search.RequestSearch.plan_search(
            request, search, began
        )  # the attribute access imports PyTorch
    console.print(plan_view(planned, lists_unfit=lists_unfit))
    console.print()
    return planned
