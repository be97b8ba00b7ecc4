"""The GPU architectures that programs can be cross-compiled for."""

from __future__ import annotations

from thunder_core.foundation.errors import BadOption

# Architectures that programs can be cross-compiled for, by NVIDIA's names. Older architectures do not have bfloat16.
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
    """Return the name of an architecture; for an unknown name, raise `BadOption`, which lists the known names."""
    if name not in TARGETS:
        raise BadOption(
            f"--target is {name!r}, but Thunder cannot compile kernels for this architecture",
            fix=f"use one of: {', '.join(TARGETS)} (sm_90 is Hopper, sm_80 Ampere)",
        )
    return name
