"""A file as plain values, and whose file it is."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ..basics.errors import InputError, MissingExtraError
from ..basics.files import check_depth, parse_json, read_text, short_path
from ..basics.strict_yaml import Dialect, parse_yaml, plain_value_11
from .shell import Command, commands


@dataclass
class Source:
    """A file as it was parsed.

    values: its mapping. script, commands: whether it is one for a shell, and what it starts.
    twice: keys that stand in it twice, of which the
    last counts. path: where it lies, for the files that it names. others: the other files of the job.
    """

    path: Path
    where: str
    values: dict[str, object] = field(default_factory=dict)
    commands: list[Command] = field(default_factory=list)
    script: bool = False
    twice: list[str] = field(default_factory=list)
    others: tuple[Path, ...] = ()

    def named(self, reference: str) -> Path | None:
        """Return the file that this one names, None where it is not there: among the other files, from the working
        folder, or from this file's folder or one above it."""
        if not reference.strip() or "\0" in reference or len(reference) > 1000:
            return None
        tail = Path(reference).parts
        for other in self.others:
            if other.parts[-len(tail) :] == tail:
                return other
        folders = [Path(), *self.path.resolve().parents[:8]]
        return next((folder / reference for folder in folders if _is_file(folder / reference)), None)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def load(path: str | Path, others: tuple[Path, ...] = ()) -> Source:
    """Return a file's values by its ending, or by how it begins where the ending says nothing.

    Raises InputError for a file that is missing, too large, not text, or broken.
    """
    where = short_path(path)
    text = read_text(path)
    source = Source(Path(path), where, others=others)
    suffix = Path(path).suffix.lower()
    if suffix in (".json", ".json5") or (not suffix and text.lstrip().startswith("{")):
        source.values = _mapping(parse_json(text, where), where)
    elif suffix in (".yaml", ".yml"):
        source.values = _yaml(text, where, source.twice)
    elif suffix == ".toml":
        source.values = parse_toml(text, where)
    elif suffix in (".sh", ".bash", ".slurm", ".sbatch", ".cmd", ".txt", ""):
        source.script, source.commands = True, commands(text, where)
    else:
        raise InputError(
            f"a file that ends in {suffix[:20]!r} is not read",
            where=where,
            allowed=".yaml, .json, .toml, .sh (or no ending for a shell line)",
        )
    return source


def _yaml(text: str, where: str, twice: list[str]) -> dict[str, object]:
    return _mapping(parse_yaml(text, where, Dialect(plain_value_11, twice)), where)


def parse_toml(text: str, where: str) -> dict[str, object]:
    """Return the values of a TOML file."""
    if sys.version_info >= (3, 11):
        import tomllib
    else:
        try:
            import tomli as tomllib  # type: ignore[import-not-found, unused-ignore]
        except ImportError:
            raise MissingExtraError(
                f"{where}: TOML needs Python 3.11, or the package tomli: pip install 'actplan[configs]'"
            ) from None
    try:
        value: dict[str, object] = tomllib.loads(text)
    except RecursionError:
        raise InputError("is nested too deeply", where=where) from None
    except ValueError as error:
        raise InputError(f"is not valid TOML: {str(error)[:200]}", where=where) from None
    check_depth(value, where)
    return value


def _mapping(value: object, where: str) -> dict[str, object]:
    if not isinstance(value, Mapping):
        raise InputError("holds no settings", where=where, allowed="a mapping of names to values")
    return {str(key): one for key, one in value.items()}
