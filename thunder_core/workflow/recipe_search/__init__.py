"""Search for the best candidate: combinations of recipes, dtypes and threads, each measured in a separate process.

The names below are imported when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from thunder_core.foundation import plugins

if TYPE_CHECKING:
    from thunder_core.workflow.recipe_search.module_search import ModuleSearchResult, search
    from thunder_core.workflow.recipe_search.request_search import RequestSearch

HOMES = {
    "ModuleSearchResult": "module_search",
    "RequestSearch": "request_search",
    "search": "module_search",
}

__all__ = ["ModuleSearchResult", "RequestSearch", "search"]

__getattr__ = plugins.lazy_face(__name__, HOMES)
