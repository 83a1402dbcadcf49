"""Where a model's specification is found: presets, files, folders, the local Hugging Face cache."""

from __future__ import annotations

import re
from pathlib import Path

from ...basics.errors import InputError, nearest
from ...basics.files import short_path

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9._-]+\Z")
_MODEL_FILES = ("config.json", "model.yaml", "model.yml")
_PRESET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*\Z")


def presets_folder(kind: str = "models") -> Path:
    """`actplan/presets/…` of an installed wheel, or `presets/…` beside the package in a checkout."""
    package = Path(__file__).resolve().parents[2]
    inside = package / "presets" / kind
    return inside if inside.is_dir() else package.parent / "presets" / kind


def preset_names() -> list[str]:
    """The names that `--preset` takes."""
    return sorted(path.stem for path in presets_folder().glob("*.yaml"))


def preset_file(name: str) -> Path:
    """The file of a preset."""
    path = presets_folder() / f"{name}.yaml" if _PRESET_NAME.match(name) else None
    if path is None or not _is_file(path):
        raise InputError(f"unknown preset {name[:64]!r}", where="--preset", choices=preset_names(), got=name[:64])
    return path


def model_file(reference: str, hub_cache: Path | None) -> Path:
    """The file that a `--model` reference means: itself, a folder's, or a hub id's in the local cache."""
    path = Path(reference)
    if not reference.strip() or "\0" in reference:
        raise InputError(
            f"{short_path(reference)!r} names no model",
            where="--model",
            allowed="a file, a folder or a hub id",
        )
    if _is_folder(path):
        return _in_folder(path)
    if exists(path):
        return path
    if _HUB_ID.match(reference) and not reference.endswith((".json", ".yaml", ".yml")):
        return _in_hub_cache(reference, hub_cache)
    raise InputError("no such file", where=short_path(reference), hint=_preset_hint(reference))


def _preset_hint(reference: str) -> str | None:
    near = nearest(reference[:64], preset_names())
    return f"presets are named by --preset: --preset {near}" if near else None


def _in_folder(folder: Path) -> Path:
    for name in _MODEL_FILES:
        if exists(folder / name):
            return folder / name
    raise InputError(
        "the folder has no config.json", where=short_path(folder), allowed=f"one of {', '.join(_MODEL_FILES)}"
    )


def _in_hub_cache(hub_id: str, cache: Path | None) -> Path:
    """models--ORG--NAME/snapshots/REVISION/config.json: the revision of refs/main, else the newest one."""
    hint = f"fetch it first: hf download {hub_id} config.json"
    if cache is None:
        raise InputError("no such file, and no local Hugging Face cache to look in", where=hub_id, hint=hint)
    root = cache / ("models--" + hub_id.replace("/", "--"))
    snapshots = root / "snapshots"
    main = _revision(root / "refs" / "main")
    if main and exists(snapshots / main / "config.json"):
        return snapshots / main / "config.json"
    try:
        found = sorted(snapshots.glob("*/config.json"), key=lambda path: path.stat().st_mtime)
    except OSError:
        found = []
    if not found:
        raise InputError(f"no such file, and no config.json in the local cache {cache}", where=hub_id, hint=hint)
    return found[-1]


def _revision(ref: Path) -> str | None:
    try:
        with ref.open("rb") as stream:
            text = stream.read(100).decode("ascii", "replace").strip()
    except (OSError, ValueError):
        return None
    return text if re.fullmatch(r"[A-Za-z0-9._-]+", text) else None


def exists(path: Path) -> bool:
    """Whether something is there; a name that cannot be one is nothing."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def _is_folder(path: Path) -> bool:
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False
