"""How long `actplan plan` takes: the solver's part, and the whole command.

    python tests/bench/bench_plan.py [--preset qwen-27b]

Seconds of CPU, the best of three. The frontier of whole layers is what the solver is measured by (64 stages under
50 ms on an idle machine); single outputs multiply the choices of every layer.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from actplan.checkpointing.candidates import Candidates
from actplan.checkpointing.frameworks import FRAMEWORKS
from actplan.checkpointing.solvers import frontier
from actplan.model.reading import load_model
from actplan.profile import Profile
from actplan.training import Run

ANY = FRAMEWORKS["any"]


def best(run: Callable[[], object], times: int = 3) -> float:
    """The least seconds of CPU."""
    found = []
    for _ in range(times):
        started = time.process_time()
        run()
        found.append(time.process_time() - started)
    return min(found)


def command(*arguments: str) -> float:
    """Seconds of CPU of the installed command."""

    def spent() -> float:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return used.ru_utime + used.ru_stime

    found = []
    for _ in range(3):
        before = spent()
        actplan = str(Path(sys.executable).with_name("actplan"))
        subprocess.run([actplan, *arguments], check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found.append(spent() - before)
    return min(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", default="qwen-27b")
    preset = parser.parse_args().preset
    model, run = load_model(preset, preset=True), Run()
    about = Profile(model, run)
    chain = about.chain(checkpointed=True, first_stored=False)
    print(f"{preset}: {len(chain)} stages")
    rows: list[tuple[str, float]] = [
        ("profile", best(lambda: Profile(model, run).measured)),
        ("frontier of the chain, whole layers", best(lambda: frontier(chain))),
        (
            "all points, whole layers, both cases of the first layer",
            best(lambda: Candidates(about, ANY, per_op=False).points),
        ),
        ("all points, single outputs too", best(lambda: Candidates(about, ANY, per_op=True).points)),
        ("the lowest peak alone", best(lambda: Candidates(about, ANY, per_op=True).lowest)),
        ("actplan estimate", command("estimate", "--preset", preset, "--format", "json")),
        ("actplan plan --limit 40GiB", command("plan", "--preset", preset, "--limit", "40GiB", "--format", "json")),
        ("actplan plan --no-per-op", command("plan", "--preset", preset, "--limit", "40GiB", "--no-per-op")),
        ("actplan plan, nothing fits", command("plan", "--preset", preset, "--limit", "1GiB")),
        ("actplan plan --frontier", command("plan", "--preset", preset, "--frontier")),
        ("actplan plan --max seq", command("plan", "--preset", preset, "--limit", "80GiB", "--max", "seq")),
    ]
    for name, seconds in rows:
        print(f"  {name:58} {seconds * 1000:8.0f} ms")


if __name__ == "__main__":
    main()
