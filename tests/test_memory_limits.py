"""The memory of a container is the memory that its control groups (of either version) leave, and not the memory of the
machine.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from thunder_core.foundation import memory_limits
from thunder_core.foundation.memory_limits import limited_memory
from thunder_core.workflow.models.memory import free_memory

GIB = 1 << 30
UNIFIED = ("memory.max", "memory.current", "inactive_file")
FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
UNLIMITED = 0x7FFFFFFFFFFFF000  # what the first version says where nobody has set a limit


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The root of control groups without processes."""
    monkeypatch.setattr(memory_limits, "GROUPS", tmp_path / "groups")
    monkeypatch.setattr(memory_limits, "MEMBERSHIPS", tmp_path / "memberships")
    return tmp_path / "groups"


def set_group(group: Path, names: tuple[str, str, str], limit: object, used: int, cached: int = 0) -> None:
    """A group with a limit and used memory, a part of which is unused cached files."""
    group.mkdir(parents=True)
    (group / names[0]).write_text(f"{limit}\n")
    (group / names[1]).write_text(f"{used}\n")
    (group / "memory.stat").write_text(f"anon 1\n{names[2]} {cached}\n")


@pytest.mark.parametrize(("names", "folder", "line"), [(UNIFIED, "", "0::"), (FIRST, "memory", "9:cpu,memory:")])
def test_the_tightest_group_around_a_process_decides(
    groups: Path, names: tuple[str, str, str], folder: str, line: str
) -> None:
    set_group(groups / folder / "outer", names, 4 * GIB, 2 * GIB, cached=GIB)
    set_group(groups / folder / "outer" / "inner", names, "max" if folder == "" else UNLIMITED, GIB)
    memory_limits.MEMBERSHIPS.write_text(f"3:pids:/elsewhere\n{line}/outer/inner\n")
    assert limited_memory() == 3 * GIB


def test_a_container_whose_group_is_the_root_of_what_it_sees(
    groups: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    set_group(groups / "memory", FIRST, 4 * GIB, 3 * GIB)
    memory_limits.MEMBERSHIPS.write_text("9:memory:/docker/0123\n")
    monkeypatch.setattr(memory_limits, "MEMORY_FILE", tmp_path / "meminfo")
    (tmp_path / "meminfo").write_text("MemTotal: 268435456 kB\nMemAvailable: 134217728 kB\n")
    assert free_memory.free_memory(torch.device("cpu")) == GIB
    memory_limits.MEMBERSHIPS.unlink()
    assert free_memory.free_memory(torch.device("cpu")) == 128 * GIB


def test_the_first_version_says_by_a_huge_number_that_there_is_no_limit(groups: Path) -> None:
    set_group(groups / "memory", FIRST, UNLIMITED, GIB)
    memory_limits.MEMBERSHIPS.write_text("9:memory:/\n")
    assert limited_memory() is None


@pytest.mark.parametrize("text", ["", "0::/nowhere\n", "nonsense\n"])
def test_without_a_limit_there_is_none(groups: Path, text: str) -> None:
    memory_limits.MEMBERSHIPS.write_text(text)
    assert limited_memory() is None


def test_more_than_the_limit_leaves_nothing(groups: Path) -> None:
    set_group(groups, UNIFIED, GIB, 2 * GIB)
    memory_limits.MEMBERSHIPS.write_text("0::/\n")
    assert limited_memory() == 0


@pytest.mark.parametrize(
    ("left", "refused"), [([1 << 20], True), ([1 << 40, 1 << 20], True), ([1 << 30], False), ([], False)]
)
def test_error_without_exception_at_a_limit_is_refused_memory(left, refused, monkeypatch):
    monkeypatch.setattr(memory_limits, "process_limits", lambda: iter(left))
    for error in (SystemError("error return without exception set"), ImportError("cannot import name 'x'")):
        assert memory_limits.is_refused_memory(error) is refused
    assert not memory_limits.is_refused_memory(TypeError("no memory"))
