"""Wheels for a machine with a GPU and no network: collected here, copied there, and installed next to its Python.

`python -m tests.gpu.wheels collect` needs a network, `python -m tests.gpu.wheels install` does not. Packages that the
other machine has stay unchanged: only missing distributions are installed, into a separate folder.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
WHEELS = ROOT / "build" / "gpu-wheels"
SITE = ROOT / "build" / "gpu-site"
LARGEST = 64 << 20  # bytes of the tracked files and the wheels together: they are copied with every command

# The imports of the project and its GPU tests that a PyTorch machine may lack, and their dependencies.
NAMES = (
    *("annotated-types", "blake3", "filelock", "platformdirs", "pydantic", "pydantic-core", "typing-extensions"),
    *("typing-inspection", "typer", "annotated-doc", "rich", "markdown-it-py", "mdurl", "pygments", "shellingham"),
    *("jinja2", "markupsafe", "hypothesis", "sortedcontainers", "cryptography", "cffi", "pycparser"),
    *("psutil", "junitparser"),
    *("pytest", "pytest-timeout", "pluggy", "iniconfig", "packaging", "click"),
)
# Every C library tag that such a machine certainly supports. pip accepts only the given tags.
PLATFORMS = ("manylinux1", "manylinux2010", "manylinux2014", *(f"manylinux_2_{number}" for number in range(5, 36)))


def collect(python: str, machine: str, folder: Path = WHEELS) -> None:
    """Download a wheel of each distribution, without dependencies, for a Python (`3.12`) and processor (`x86_64`)."""
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    platforms = [word for name in PLATFORMS for word in ("--platform", f"{name}_{machine}")]
    target = ["--python-version", python, "--implementation", "cp", "--only-binary=:all:", "--no-deps", *platforms]
    pinned = ["--constraint", str(ROOT / "constraints.txt"), "--dest", str(folder)]
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", *target, *pinned]
    subprocess.run([*command, *NAMES], check=True)
    size = sum(path.stat().st_size for path in (*tracked(), *folder.iterdir()))
    print(f"{len(list(folder.iterdir()))} wheels in {folder}; with the tracked files {size / 2**20:.1f} MiB")
    if size > LARGEST:
        raise SystemExit(f"that is more than {LARGEST >> 20} MiB")


def tracked() -> Iterator[Path]:
    """The tracked files of the checkout."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True).stdout
    yield from (path for name in listed.split("\0") if name and (path := ROOT / name).is_file())


def install(folder: Path = WHEELS, site: Path = SITE) -> None:
    """Install the carried wheels that this Python lacks, without a network and without changing other packages."""
    carried = sorted(folder.glob("*.whl"))
    unmet = sorted({*NAMES} - present(site) - {*map(name_of, carried)})
    if unmet:
        print(f"lacking here, and not in {folder} (`make gpu-wheels` collects them): {', '.join(unmet)}", flush=True)
    wanted = [wheel for wheel in carried if name_of(wheel) not in present(site)]
    if not wanted:
        return
    print(f"installing into {site}: {', '.join(map(name_of, wanted))}", flush=True)
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index"]
    options = ["--no-deps", "--no-compile", "--no-cache-dir", "--no-warn-conflicts", "--upgrade", "--target", str(site)]
    subprocess.run([*command, *options, *map(str, wanted)], check=True)


def present(site: Path) -> set[str]:
    """The names of the distributions that are installed in this Python or in the folder."""
    here = {
        normal(distribution.metadata["Name"])
        for distribution in importlib.metadata.distributions()
        if distribution.metadata["Name"]
    }
    return here | {normal(path.name.partition("-")[0]) for path in site.glob("*.dist-info")}


def name_of(wheel: Path) -> str:
    """The name of a wheel's distribution."""
    return normal(wheel.name.partition("-")[0])


def normal(name: str) -> str:
    """The normalized name of a distribution."""
    return name.lower().replace("_", "-").replace(".", "-")


def main() -> None:
    """Collect or install."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("collect", "install"))
    parser.add_argument("--python", default="3.12", help="the other machine's Python")
    parser.add_argument("--machine", default="x86_64", help="the other machine's processor")
    chosen = parser.parse_args()
    if chosen.what == "collect":
        collect(chosen.python, chosen.machine)
    else:
        install()


if __name__ == "__main__":
    main()
