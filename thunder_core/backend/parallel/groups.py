"""The process group of parallel training, by its name."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist

from thunder_core.foundation.errors import OutsideProcessGroup
from thunder_core.tracing.library.collectives import registered_group


def required_group(name: str, recipe: str) -> Any:
    """The process group of a name, or the default one; raises `OutsideProcessGroup` where there is none."""
    ready = dist.is_available() and dist.is_initialized()
    group = (registered_group(name) if name else dist.group.WORLD) if ready else None
    if group is None:
        lacking = f"has no process group {name!r}" if ready else "has no process group"
        raise OutsideProcessGroup(
            f"the recipe {recipe} trains on several processes, but this process {lacking}",
            fix="start a script with `torchrun --nproc-per-node 2 script.py`, and call in it "
            f"`torch.distributed.init_process_group` and then `thunder_core.compile(model, {recipe!r})`; or run "
            f"`torchrun --nproc-per-node 2 -m thunder_cli.main optimize --recipe {recipe} --train`",
        )
    return group
