"""``python -m bench``: measure, and write ``docs/benchmarks.md``."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.lab.system import LabError

from . import boxes, cores, downloads, images, listing, once, sweep, tree, uptodate
from .measure import ROOT, BenchError, LeftOut, say
from .page import page, put
from .rows import Group

PAGE = ROOT / "docs" / "benchmarks.md"
ENOUGH = 5  # rounds that a median on the page has at least


@dataclass(frozen=True)
class Part:
    """One group of rows; ``rounds`` when nobody says otherwise."""

    measure: Callable[[Path, int], Group]
    rounds: int


PARTS: Mapping[str, Part] = {
    "listing": Part(listing.measure, 25),
    "preflight": Part(sweep.measure, 7),
    "uptodate": Part(uptodate.local, 9),
    "uptodate-ssh": Part(uptodate.over_ssh, 9),
    "cores": Part(cores.measure, 5),
    "once": Part(once.measure, 5),
    "downloads": Part(downloads.measure, 5),
    "prepare": Part(boxes.measure, 7),
    "archive-graphdriver": Part(images.between_graphdrivers, 5),
    "archive-containerd": Part(images.between_containerds, 5),
    "archive-large": Part(images.large_by_archive, 5),
    "relay": Part(images.by_relay, 5),
    "in-sync": Part(images.in_sync, 7),
    "tree": Part(tree.measure, 3),
}


def main() -> int:
    """Exit code 0 when all was measured or can't be here, 1 when something failed; a missed target is no failure."""
    options = _options()
    load, groups = os.getloadavg()[0], list[Group]()
    left_out, failed = dict[str, str](), dict[str, str]()
    for name in options.only or PARTS:
        try:
            groups.append(_measured(name, options.rounds))
        except LeftOut as reason:
            left_out[name] = str(reason)
        except (BenchError, LabError) as error:
            failed[name] = str(error)
        except KeyboardInterrupt:
            return 130
    text = put(PAGE.read_text(), groups, load) if options.write else page(groups, left_out, load)
    if (options.only and not options.write) or failed or (options.rounds or ENOUGH) < ENOUGH:
        print(text)
    else:
        PAGE.write_text(text)
        say(f"wrote {PAGE.relative_to(ROOT)}")
    for name, what in {**left_out, **failed}.items():
        say(f"{name} was not measured: {what}")
    return 1 if failed else 0


def _measured(name: str, rounds: int | None) -> Group:
    part = PARTS[name]
    with tempfile.TemporaryDirectory(prefix="fdl-bench-") as folder:
        return part.measure(Path(folder), rounds or part.rounds)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--only", action="append", choices=PARTS, help="measure and print this part; may be repeated")
    parser.add_argument("--write", action="store_true", help="put what --only names into its places on the page")
    parser.add_argument("--rounds", type=int, help=f"rounds of each part; below {ENOUGH}, the page is only printed")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
