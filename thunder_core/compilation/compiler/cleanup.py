"""The transforms that clean up every program."""

from __future__ import annotations

from thunder_core.passes.recipe import Transform
from thunder_core.passes.transforms.cse import ShareCommonExpressions
from thunder_core.passes.transforms.dce import DropDeadCode

CLEANUP_TRANSFORMS: tuple[Transform, ...] = (ShareCommonExpressions(), DropDeadCode())
