"""Runs the claims that take seconds, one after the other, in one set of processes; ``--all`` runs every claim."""

from __future__ import annotations

import argparse
import importlib
import sys
import traceback
from pathlib import Path

from harness import PAGES, Claim, measure_and_write, pool

HERE = Path(__file__).resolve().parent


def claims() -> dict[str, Claim]:
    """Every script of this folder that declares a ``CLAIM``, by name."""
    found = {}
    for file in sorted(HERE.glob("*.py")):
        if "\nCLAIM = " not in file.read_text(encoding="utf-8"):
            continue
        claim = importlib.import_module(file.stem).CLAIM
        if claim.name != file.stem.replace("_", "-"):
            raise SystemExit(f"{file.name} declares the claim {claim.name!r}; make looks for it under the file's name.")
        found[claim.name] = claim
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--all", action="store_true", help="the slow ones too")
    parser.add_argument("--list", action="store_true", help="say what there is and run nothing")
    parser.add_argument("--workers", type=int, default=2, help="processes of one thread each (2)")
    parser.add_argument("--out", type=Path, default=PAGES, help="folder of the pages (docs/claims)")
    given = parser.parse_args()
    chosen = {name: claim for name, claim in claims().items() if claim.fast or given.all}
    if given.list:
        print("\n".join(chosen))
        return
    failed = []
    with pool(given.workers) as executor:
        for name, claim in chosen.items():
            print(f"{name}: {claim.title}", file=sys.stderr)
            try:
                path = measure_and_write(claim, given.out, range(claim.seeds), workers=given.workers, executor=executor)
                print("\n".join(line for line in path.read_text().splitlines() if line.startswith(("- ", "## ", "# "))))
            except Exception:  # one broken claim must not keep the others from being measured
                traceback.print_exc()
                failed.append(name)
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
