"""The launch of this process by `torchrun`, or by another launcher that sets the same environment variables."""

from __future__ import annotations

import os
from dataclasses import dataclass

from thunder_core.foundation.errors import BadOption

LAUNCH_VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Launch:
    """The rank of this process, the number of ranks, and this process's rank on this machine."""

    rank: int
    size: int
    local_rank: int

    @property
    def follows(self) -> bool:
        """Whether this is not the first rank. The first rank decides, prints and writes; the others follow it."""
        return self.rank > 0


def launch_of_process() -> Launch | None:
    """Return the launch of this process, or None without a launcher; raise `BadOption` for an impossible rank."""
    if any(name not in os.environ for name in LAUNCH_VARIABLES):
        return None
    rank, size, local = (os.environ.get(name, "0") for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    try:
        launch = Launch(int(rank), int(size), int(local))
    except ValueError:
        launch = Launch(-1, 0, 0)
    if not 0 <= launch.rank < launch.size:
        raise BadOption(
            f"the environment variables RANK={rank} and WORLD_SIZE={size} name no rank",
            fix="start the command with `torchrun`, or unset RANK and WORLD_SIZE",
        )
    return launch
