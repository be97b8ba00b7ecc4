"""The modules that a fork server imports once, so that each rank begins with them. No module may start a thread."""

from __future__ import annotations

import multiprocessing as mp
from multiprocessing.context import ForkServerContext

CASES = """accumulated agreement backends checkpoints checks choices commands deadlocks faults functions groups meshes
    more_commands saved sharded_training tensor_parallel training whole_programs"""
MODULES = ["thunder_core.workflow.pipeline.optimization", *(f"tests.distributed.{name}" for name in CASES.split())]
MODULES.append("tests.distributed.frozen")


def fork_server() -> ForkServerContext:
    """Return the context whose fork server starts the ranks: the first process takes seconds, and others take none."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    return context
