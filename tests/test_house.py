"""How the package is built: arrows between its rooms point down, no circles, small modules, torch in one room only.

Measured from the code's own imports, those for types only and those inside functions included. Each measure is shown
able to fail on a small package that is made up here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parent.parent / "actplan"
ROOMS = (
    *("basics", "report", "model", "training", "autograd", "ops", "compiled", "stacks", "profile", "checkpointing"),
    *("memory", "notes", "loading", "answers", "sweeps", "configs", "validation", "render", "trace", "library"),
    *("", "cli"),
    "__main__",
)
"""The rooms from the lowest up: a module imports from its own room and those before it. The empty one is the package's
own `__init__`, what a library user imports."""
MOST_LINES = {"module": 400, "function": 80}


class Arrow(NamedTuple):
    """One import: where it stands, and the module that it names."""

    importer: str
    line: int
    imported: str

    def __str__(self) -> str:
        return f"{self.importer}:{self.line} imports {self.imported}"


class House:
    """A package, read from its files and never imported."""

    def __init__(self, folder: Path) -> None:
        self.name = folder.name
        self.files = {_dotted(path, folder.parent): path for path in sorted(folder.rglob("*.py"))}
        self.trees = {module: ast.parse(path.read_text(encoding="utf-8")) for module, path in self.files.items()}

    @cached_property
    def arrows(self) -> list[Arrow]:
        """Every import in the package, of its own modules and of others'."""
        return [arrow for module in self.files for arrow in self._arrows(module)]

    def _arrows(self, module: str) -> Iterator[Arrow]:
        for node in ast.walk(self.trees[module]):
            if isinstance(node, ast.Import):
                yield from (Arrow(module, node.lineno, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                source = self._source(module, node)
                for alias in node.names:
                    inside = f"{source}.{alias.name}"
                    yield Arrow(module, node.lineno, inside if inside in self.files else source)

    def _source(self, module: str, node: ast.ImportFrom) -> str:
        """The absolute name of what stands between `from` and `import`."""
        if not node.level:
            return node.module or ""
        parts = module.split(".")
        up = node.level - (self.files[module].name == "__init__.py")
        return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])

    @cached_property
    def own(self) -> Mapping[str, list[Arrow]]:
        """The imports of each module from the package itself."""
        found: dict[str, list[Arrow]] = {module: [] for module in self.files}
        for arrow in self.arrows:
            if arrow.imported in self.files and arrow.imported != arrow.importer:
                found[arrow.importer].append(arrow)
        return found

    def room(self, module: str) -> str:
        """The first part of a module's name inside the package."""
        return module.removeprefix(self.name).lstrip(".").partition(".")[0]

    def circles(self) -> list[str]:
        """The imports by which a module reaches itself: the shortest way around for each module that has one."""
        circles: dict[frozenset[Arrow], tuple[Arrow, ...]] = {}
        for module in self.files:
            way = self._way_back(module)
            if way:
                circles.setdefault(frozenset(way), way)
        return [", ".join(map(str, way)) for way in circles.values()]

    def _way_back(self, module: str) -> tuple[Arrow, ...]:
        ways: list[tuple[Arrow, ...]] = [()]
        seen: set[str] = set()
        for way in ways:  # grows while it is walked: breadth first
            for arrow in self.own[way[-1].imported if way else module]:
                if arrow.imported == module:
                    return (*way, arrow)
                if arrow.imported not in seen:
                    seen.add(arrow.imported)
                    ways.append((*way, arrow))
        return ()

    def upward(self, rooms: tuple[str, ...]) -> list[str]:
        """The imports of a room above, and the modules in a room that has no place in `rooms`."""
        level = {room: number for number, room in enumerate(rooms)}
        homeless = [f"{module} is in no room" for module in self.files if self.room(module) not in level]
        arrows = [arrow for arrows in self.own.values() for arrow in arrows]
        return homeless + [
            str(arrow)
            for arrow in arrows
            if level.get(self.room(arrow.imported), -1) > level.get(self.room(arrow.importer), len(rooms))
        ]

    def outside(self, package: str, room: str) -> list[str]:
        """The imports of another package that stand in any room but that one."""
        return [
            str(arrow)
            for arrow in self.arrows
            if arrow.imported.partition(".")[0] == package and self.room(arrow.importer) != room
        ]

    def long(self, most: Mapping[str, int]) -> list[str]:
        """Modules and functions of more lines than they may have."""
        lines = {module: len(path.read_text(encoding="utf-8").splitlines()) for module, path in self.files.items()}
        found = [f"{module} has {count} lines" for module, count in lines.items() if count > most["module"]]
        for module, tree in self.trees.items():
            for node in ast.walk(tree):
                if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
                    count = (node.end_lineno or node.lineno) - node.lineno + 1
                    if count > most["function"]:
                        found.append(f"{module}.{node.name} has {count} lines")
        return found


def _dotted(path: Path, root: Path) -> str:
    return ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")


@pytest.fixture(scope="module")
def house() -> House:
    return House(PACKAGE)


def test_no_circle_between_modules(house: House) -> None:
    assert house.circles() == []


def test_imports_point_down(house: House) -> None:
    assert house.upward(ROOMS) == []


def test_torch_is_imported_in_the_trace_room_only(house: House) -> None:
    assert house.outside("torch", "trace") == []


def test_modules_and_functions_are_short(house: House) -> None:
    assert house.long(MOST_LINES) == []


def test_every_room_in_the_order_is_there(house: House) -> None:
    assert {house.room(module) for module in house.files} == set(ROOMS)


@pytest.fixture
def made_up(tmp_path: Path) -> House:
    """A package of three rooms that breaks every rule."""
    files = {
        "__init__.py": "",
        "low/__init__.py": "from .first import one\n",
        "low/first.py": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .second import Two\n",
        "low/second.py": "def two():\n    from . import third\n",
        "low/third.py": "import small.low.first\n",
        "low/alone.py": "from ..high.top import name\n\n\ndef long():\n    a = 1\n    return a\n",
        "high/__init__.py": "",
        "high/top.py": "from ..low import alone\nfrom torch import nn\nimport torchvision\n",
        "attic/box.py": "import torch.nn\n",
    }
    for name, text in files.items():
        path = tmp_path / "small" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return House(tmp_path / "small")


def test_the_guard_finds_circles(made_up: House) -> None:
    """Through a type, an import in a function and a plain one; and one between two rooms."""
    assert made_up.circles() == [
        "small.high.top:1 imports small.low.alone, small.low.alone:1 imports small.high.top",
        "small.low.first:3 imports small.low.second, small.low.second:2 imports small.low.third, "
        "small.low.third:1 imports small.low.first",
    ]


def test_the_guard_finds_imports_that_point_up(made_up: House) -> None:
    assert made_up.upward(("", "low", "high")) == [
        "small.attic.box is in no room",
        "small.low.alone:1 imports small.high.top",
    ]


def test_the_guard_finds_torch(made_up: House) -> None:
    assert made_up.outside("torch", "high") == ["small.attic.box:1 imports torch.nn"]
    assert made_up.outside("torch", "attic") == ["small.high.top:2 imports torch"]


def test_the_guard_finds_what_is_long(made_up: House) -> None:
    assert made_up.long({"module": 5, "function": 2}) == [
        "small.low.alone has 6 lines",
        "small.low.alone.long has 3 lines",
    ]
