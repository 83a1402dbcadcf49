"""What a command costs: start-up by module, one estimate, a sweep of 1,000 points. Prints; asserts nothing.

    python tests/bench/bench_start_up.py

CPU seconds of child processes, the least of several runs, beside a bare interpreter's: quote the ratios.
"""

from __future__ import annotations

import resource
import subprocess
import sys

REPEATS = 7
COMMANDS = {
    "bare interpreter": ["-c", "pass"],
    "actplan --version": ["-m", "actplan", "--version"],
    "estimate, dense": ["-m", "actplan", "estimate", "--preset", "llama-3-8b", "--format", "json"],
    "estimate, hybrid": ["-m", "actplan", "estimate", "--preset", "qwen-27b", "--format", "json"],
    "plan": ["-m", "actplan", "plan", "--limit", "40GiB", "--format", "json"],
}
SWEEPS = {
    "sweep of 1,000 points, dense": ["--preset", "llama-3-8b"],
    "sweep of 1,000 points, hybrid": ["--preset", "qwen-27b"],
}


def cpu_seconds(arguments: list[str]) -> float:
    """CPU seconds of one run."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], stdout=subprocess.DEVNULL, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Print the table."""
    bare = min(cpu_seconds(COMMANDS["bare interpreter"]) for _ in range(REPEATS))
    for name, arguments in COMMANDS.items():
        seconds = min(cpu_seconds(arguments) for _ in range(REPEATS))
        print(f"{name:32} {1000 * seconds:7.0f} ms  {seconds / bare:6.1f} × bare")
    for name, words in SWEEPS.items():
        seconds = cpu_seconds(["-m", "actplan", "sweep", *words, "--seq", "1000..20980:+20", "--format", "csv"])
        print(f"{name:32} {seconds:7.1f} s")


if __name__ == "__main__":
    main()
