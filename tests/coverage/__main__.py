"""Run PyTorch's databases, write the findings and the page, and fail if the list of known failures is wrong."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from tests.coverage import page as static_page
from tests.coverage import symbolic, symbolic_page, vmapped, vmapped_page
from tests.coverage.known import disagreements
from tests.coverage.operators import OPERATORS
from tests.coverage.processes import everything, examine, examine_all

RESULTS = Path("build/coverage.json")
# The suites for operators only: the function that examines one operator, the page, and the file of results.
MODES: dict[str, tuple[Any, Any, Path]] = {
    "symbolic": (symbolic.examine, symbolic_page, Path("build/coverage_symbolic.json")),
    "vmap": (vmapped.examine, vmapped_page, Path("build/coverage_vmap.json")),
}


def save(path: Path, found: dict[str, Any]) -> None:
    """Write the findings so far, for a run that is interrupted."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1), encoding="utf-8")


def main() -> int:
    """Return 0 if exactly the known failures fail."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--limit", type=float, default=120, help="seconds for one operator or module")
    parser.add_argument("--again", action="store_true", help="only what failed the last time, or was not run")
    parser.add_argument("--results", type=Path, help="where results are kept, as JSON")
    parser.add_argument("--symbolic", action="store_true", help="operators with symbolic sizes, each in two sizes")
    parser.add_argument("--vmap", action="store_true", help="operators within torch.vmap, one level and two")
    parser.add_argument("names", nargs="*", help="only these operators and modules")
    options = parser.parse_args()
    mode = next((MODES[name] for name in MODES if getattr(options, name)), None)
    entries = everything() if mode is None else list(OPERATORS)
    one, page, results = (examine, static_page, RESULTS) if mode is None else mode
    options.results = options.results or results
    if unknown := set(options.names) - set(entries):
        parser.error(f"the databases have no {', '.join(sorted(unknown))}")
    kept: dict[str, Any] = {}
    if options.again and options.results.exists():
        kept = json.loads(options.results.read_text(encoding="utf-8"))
    passed = {name for name, verdicts in kept.items() if not any(verdict["failure"] for verdict in verdicts.values())}
    names = [name for name in options.names or entries if name not in passed]
    for name, verdicts in examine_all(names, jobs=options.jobs, limit=options.limit, examine=one):
        kept[name] = verdicts
        save(options.results, kept)
    found = {name: kept[name] for name in entries if name in kept}
    if len(found) == len(entries):
        page.PAGE.write_text(page.render(found), encoding="utf-8")
    wrong = disagreements(found) if mode is None else page.differing(found)
    print("\n".join(wrong))
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
