"""The GPUs that programs can be made for where there is none, by the names of their architectures."""

from __future__ import annotations

from thunder_core.foundation.errors import BadOption

# Architectures that programs can be made for where there is none, by NVIDIA's names; older ones lack bfloat16.
TARGETS: dict[str, tuple[int, int]] = {
    "sm_80": (8, 0),
    "sm_86": (8, 6),
    "sm_89": (8, 9),
    "sm_90": (9, 0),
    "sm_100": (10, 0),
    "sm_103": (10, 3),
    "sm_120": (12, 0),
    "sm_121": (12, 1),
}


def parse_target(name: str) -> str:
    """The architecture of that name; raises `BadOption`, naming those that there are."""
    if name not in TARGETS:
        raise BadOption(
            f"--target is {name!r}, but Thunder cannot compile kernels for this architecture",
            fix=f"use one of: {', '.join(TARGETS)} (sm_90 is Hopper, sm_80 Ampere)",
        )
    return name
