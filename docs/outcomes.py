"""The confusion table of the verdict: published runs that ran or ran out of memory, and what `actplan` says of them.

`python docs/outcomes.py` writes it into docs/validation.md, between `<!-- outcomes -->` and `<!-- end outcomes -->`;
with `--check` it exits with 1 where the page is out of date. Records are in tests/reference/outcomes.json.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shlex
import sys
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from actplan.cli.main import run
from actplan.memory.gpus import SLACK

ROOT = Path(__file__).parent.parent
REFERENCE = ROOT / "tests" / "reference"
PAGE = ROOT / "docs" / "validation.md"
SECTION = re.compile(r"(<!-- outcomes -->\n).*?(<!-- end outcomes -->)", flags=re.DOTALL)
VERDICTS = ("fits", "tight", "no")
FACTORS = (98, 100, 102, 104, 106, 108, 110, 112, 115)
"""Low ends that are compared, in percent of what is allocated."""


class Outcome(NamedTuple):
    """A published run: how it ended, and the row of sizes and the verdict that its command gives."""

    name: str
    ended: str
    source: str
    row: dict[str, Any]

    def needs(self, percent: int) -> int:
        """Return the least bytes of a device where the allocator can do with so much of what is allocated."""
        beside: int = self.row["device_low_bytes"] - self.row["reserved_low_bytes"]
        return int(self.row["total_bytes"]) * percent // 100 + beside


def outcomes() -> list[Outcome]:
    """Run every record's command as a sweep of one point, which looks for no remedies."""
    records = json.loads((REFERENCE / "outcomes.json").read_text(encoding="utf-8"))
    return [Outcome(one["id"], one["outcome"], one["source"], _row(one["command"])) for one in records]


def _row(command: str) -> dict[str, Any]:
    out, before = io.StringIO(), Path.cwd()
    os.chdir(REFERENCE)
    try:
        with contextlib.redirect_stdout(out):
            code = run(["sweep", *shlex.split(command)[1:], "--format", "json"])
    finally:
        os.chdir(before)
    if code != 0:
        raise RuntimeError(f"exit {code}: {command}")
    rows: list[dict[str, Any]] = json.loads(out.getvalue())["rows"]
    return rows[0]


def section(found: list[Outcome]) -> str:
    """The tables of the page."""
    counts = Counter((one.ended, one.row["verdict"]) for one in found)
    lines = ["| published | `fits` | `tight` | `no` |", "| :--- | ---: | ---: | ---: |"]
    for ended, words in (("ran", "ran"), ("oom", "ran out of memory")):
        lines.append(f"| {words} | " + " | ".join(str(counts[ended, verdict]) for verdict in VERDICTS) + " |")
    wrong = [one for one in found if (one.ended == "ran") == (one.row["verdict"] == "no")]
    lines += ["", "Runs on which the verdict is wrong:", ""]
    lines.append("| run | published | verdict | allocated, GiB | limit, GiB | source |")
    lines.append("| :--- | :--- | :--- | ---: | ---: | :--- |")
    for one in wrong:
        sizes = f"{one.row['total_bytes'] / 2**30:.2f} | {one.row['limit_bytes'] / 2**30:.2f}"
        ended = "ran" if one.ended == "ran" else "out of memory"
        lines.append(f"| {one.name} | {ended} | {one.row['verdict']} | {sizes} | {one.source} |")
    lines += ["", f"Where the low end lies, in percent of what is allocated ({SLACK.low} is used):", ""]
    lines += ["| low end | ran, but refused | out of memory, and refused |", "| ---: | ---: | ---: |"]
    totals = Counter(one.ended for one in found)
    for percent in FACTORS:
        no = Counter(one.ended for one in found if one.needs(percent) > one.row["limit_bytes"])
        lines.append(f"| {percent} % | {no['ran']} of {totals['ran']} | {no['oom']} of {totals['oom']} |")
    return "\n".join(lines) + "\n"


def page(found: list[Outcome]) -> str:
    """The whole page with the section of today."""
    text = PAGE.read_text(encoding="utf-8")
    return SECTION.sub(lambda match: match[1] + section(found) + match[2], text)


def main(arguments: list[str]) -> int:
    """Write the section, or say whether it is out of date."""
    made = page(outcomes())
    if arguments == ["--check"]:
        return int(made != PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(made, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
