"""Files of records: which format one is in, where its configurations lie, and those that ship with the project."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

from ..basics.errors import InputError
from ..basics.files import parse_json, read_text, short_path
from .records import Fields, Record

SHARED = (
    *("autograd.json", "executed.json", "executed_distributed.json", "megatron_autograd.json"),
    *("torchtitan_autograd.json", "megatron_golden.json", "measured.json"),
)
"""The records that are run where no file is named."""
Config = Callable[[str], str]
"""A configuration's name -> the path that `--model` takes."""
Reader = Callable[[Fields, Config], Record]
FORMATS: Mapping[str, tuple[str, ...]] = {
    "autograd": ("config", "num_layers", "attn", "saved_bytes"),
    "executed": ("config", "args", "truth", "area"),
    "traces": ("id", "args", "versions", "layer_saved_bytes", "peak_backward_bytes"),
    "megatron_runs": ("case", "golden", "args", "static_bytes", "peak_bytes"),
    "measured": ("id", "source", "kind", "metric", "confidence"),
}
"""Reader's module -> the fields by which its format is known; the first that has all is taken."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where a file of records lies."""

    path: Path

    def config(self, name: str) -> str:
        """Return the path of a configuration: in `<stem>_configs/`, `configs/` or `../configs/` beside the file.

        Raises InputError where it is in none of them.
        """
        beside = self.path.parent
        folders = (beside / f"{self.path.stem}_configs", beside / "configs", beside.parent / "configs")
        for folder in folders:
            if Path(name).name == name and (folder / name).is_file():
                return str(folder / name)
        looked = ", ".join(short_path(folder) for folder in folders)
        raise InputError(f"no configuration {name[:64]!r}", where=short_path(self.path), allowed=f"a file in {looked}")


def read_records(path: str | Path) -> list[Record]:
    """Return the records of a file, each mapped to a run or with the reason why it is not.

    Raises InputError for a file that cannot be read, is in no known format, or lacks a field of its format.
    """
    where = short_path(path)
    found = parse_json(read_text(path), where)
    if not isinstance(found, list) or not found or not all(isinstance(one, dict) for one in found):
        raise InputError("is no list of records", where=where, allowed=f"the format of {', '.join(SHARED)}")
    place = Place(Path(path))
    return [
        _reader(one, f"{where}[{number}]")(Fields(one, f"{where}[{number}]"), place.config)
        for number, one in enumerate(found)
    ]


def _reader(record: Mapping[str, object], where: str) -> Reader:
    for name, fields in FORMATS.items():
        if all(field in record for field in fields):
            reader: Reader = import_module(f".{name}", __package__).read
            return reader
    kinds = "; ".join(", ".join(fields) for fields in FORMATS.values())
    raise InputError("is in no format that is known", where=where, allowed=f"one with the fields {kinds}")


def shared_records() -> Iterator[list[Record]]:
    """Return the records of each file that ships with the project."""
    folder = shared_folder()
    return (read_records(folder / name) for name in SHARED)


def shared_folder() -> Path:
    """Return `actplan/records` of an installed wheel, or `tests/reference` of a checkout."""
    package = Path(__file__).resolve().parents[1]
    inside = package / "records"
    return inside if inside.is_dir() else package.parent / "tests" / "reference"
