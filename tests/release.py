"""What the wheel and the source distribution hold, against the tree that they are built from.

    python tests/release.py dist/actplan-….whl dist/actplan-….tar.gz

A wheel is the package, what pyproject.toml maps into it, its metadata, and nothing else. A source distribution is what
a user needs to build, test and read. `.ci/run` builds both and runs this.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]
SOURCES = ("actplan/", "presets/", "docs/", "tests/", "README.md", "CHANGELOG.md", "CONTRIBUTING.md", "LICENSE")
METADATA = ("METADATA", "WHEEL", "RECORD", "entry_points.txt", "licenses/LICENSE")


def tracked() -> set[str]:
    """The files of the tree, as git has them."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(listed.stdout.splitlines())


def mapped() -> set[str]:
    """Where files from outside of the package lie in the wheel, as pyproject.toml maps them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    places: dict[str, str] = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    found = set()
    for source, place in places.items():
        inside = {name for name in tracked() if name == source or name.startswith(f"{source}/")}
        found |= {place + name.removeprefix(source) for name in inside}
    return found


def of_wheel(path: str) -> list[str]:
    """What is wrong with a wheel."""
    with zipfile.ZipFile(path) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        metadata = next(name for name in names if name.endswith("METADATA"))
        text = archive.read(metadata).decode()
    info = metadata.removesuffix("METADATA")
    package = {name for name in tracked() if name.startswith("actplan/")}
    found = differences(names, package | mapped() | {info + name for name in METADATA})
    wanted = ["Requires-Python: >=3.10", "License-Expression: Apache-2.0", "Requires-Dist: typer<0.29,>=0.26"]
    return found + [f"the metadata has no line {line!r}" for line in wanted if line not in text.splitlines()]


def of_sdist(path: str) -> list[str]:
    """What is wrong with a source distribution."""
    with tarfile.open(path) as archive:
        names = {member.name.partition("/")[2] for member in archive.getmembers() if member.isfile()}
    wanted = {name for name in tracked() if name.startswith(SOURCES)}
    return differences(names, wanted | {"PKG-INFO", "pyproject.toml", ".gitignore"})


def differences(names: set[str], wanted: set[str]) -> list[str]:
    """What is missing and what should not be there."""
    return [f"missing: {name}" for name in sorted(wanted - names)] + [
        f"extra: {name}" for name in sorted(names - wanted)
    ]


def main() -> int:
    """Check every file named; 1 where one is not as it should be."""
    found = []
    for path in sys.argv[1:]:
        wrong = of_wheel(path) if path.endswith(".whl") else of_sdist(path)
        found += [f"{Path(path).name}: {line}" for line in wrong]
    print("\n".join(found) or f"{len(sys.argv) - 1} distributions hold what they should")
    return 1 if found or len(sys.argv) < 3 else 0


if __name__ == "__main__":
    sys.exit(main())
