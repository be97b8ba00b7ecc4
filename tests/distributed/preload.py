"""The modules that a fork server imports once, so that each rank begins with them. No module may start a thread."""

from __future__ import annotations

import multiprocessing as mp
from multiprocessing.context import ForkServerContext

CASES = """agreement.agreement agreement.choices agreement.deadlocks collectives.checks collectives.functions
    collectives.groups collectives.whole_programs commands.commands commands.faults commands.more_commands meshes.meshes
    recipes.accumulated recipes.backends recipes.checkpoints recipes.saved recipes.sharded_training
    recipes.tensor_parallel recipes.training"""
MODULES = ["thunder_core.workflow.pipeline.optimization", *(f"tests.distributed.{name}" for name in CASES.split())]
MODULES.append("tests.distributed.frozen")


def fork_server() -> ForkServerContext:
    """Return the context whose fork server starts the ranks: the first process takes seconds, and others take none."""
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(MODULES)
    return context
