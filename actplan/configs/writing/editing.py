"""A user's own file with only the needed lines changed.

YAML is edited by the places of its values, as the parser gives them: every other byte stays, comments and all.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import yaml

from ...basics.errors import InputError
from ..files import parse_toml
from .text import scalar, toml
from .words import Settings

Path = tuple[str, ...]
_LOADER = yaml.SafeLoader


def edited(text: str, suffix: str, changes: Settings, where: str) -> str:
    """Return the text of a file with changes; None as a value takes a key away.

    Raises InputError for a file that cannot be edited so.
    """
    if suffix == ".json":
        return _json(text, changes)
    if suffix == ".toml":
        return _toml(text, changes, where)
    if suffix in (".yaml", ".yml"):
        for path, value in changes.items():
            text = _yaml(text, path, value, where)
        return text
    return _arguments(text, changes, where)


def _yaml(text: str, path: Path, value: object, where: str) -> str:
    root = yaml.compose(text, Loader=_LOADER)
    if root is None:
        return f"{text}{_line(path, value, 0)}"
    if not isinstance(root, yaml.MappingNode):
        raise InputError("holds no settings", where=where)
    for one in (path, (*path[:-1], f"fsdp_{path[-1]}")):  # accelerate's prefix, which Axolotl strips
        found = _find(root, one)
        if found is not None:
            return _replaced(text, *found, value)
    if value is None:
        return text
    return _added(text, root, path, value)


def _find(node: yaml.MappingNode, path: Path) -> tuple[yaml.MappingNode, yaml.Node, yaml.Node] | None:
    """(the mapping, the key, the value) of a path; the last of keys given twice."""
    found = None
    for key, value in node.value:
        if key.value == path[0]:
            if len(path) == 1:
                found = (node, key, value)
            elif isinstance(value, yaml.MappingNode):
                found = _find(value, path[1:])
    return found


def _replaced(text: str, parent: yaml.MappingNode, key: yaml.Node, value: yaml.Node, new: object) -> str:
    start, end = key.start_mark.index, value.end_mark.index
    block = isinstance(value, yaml.CollectionNode) and not value.flow_style
    if new is None and not parent.flow_style:
        first = text.rfind("\n", 0, start) + 1
        last = end if block else _line_end(text, end)
        return text[:first] + text[last:]
    if block:
        # the value ends where the next token begins: comments in front of that stay
        body = text[key.end_mark.index : end]
        kept = re.search(r"(?:\n[ \t]*(?:#[^\n]*)?)*\Z", body)
        tail = body[kept.start() :] if kept else ""
        tail = tail if tail.startswith("\n") else f"\n{tail}"
        return f"{text[: key.end_mark.index]}: {scalar(new)}{tail}{text[end:]}"
    if value.start_mark.index == value.end_mark.index:  # `key:` with nothing behind it
        at = text.index(":", key.end_mark.index) + 1
        return f"{text[:at]} {scalar(new)}{text[at:]}"
    return text[: value.start_mark.index] + scalar(new) + text[end:]


def _line_end(text: str, at: int) -> int:
    """Behind the end of the line, its comment with it."""
    found = text.find("\n", at)
    return len(text) if found < 0 else found + 1


def _added(text: str, root: yaml.MappingNode, path: Path, value: object) -> str:
    """The key at the end of its mapping; a mapping that is not there is added with it."""
    if len(path) > 1:
        inner = _find(root, path[:1])
        if inner is not None and isinstance(inner[2], yaml.MappingNode):
            return _into(text, inner[2], path[1:], value)
        if inner is not None:
            return _replaced(text, *inner, _wrapped(path[1:], value))
    return _into(text, root, path, value)


def _into(text: str, node: yaml.MappingNode, path: Path, value: object) -> str:
    if len(path) > 1:
        value, path = _wrapped(path[1:], value), path[:1]
    if node.flow_style:
        at = node.end_mark.index - 1
        comma = ", " if node.value else ""
        return f"{text[:at].rstrip()}{comma}{path[0]}: {scalar(value)}{text[at:]}"
    last = node.value[-1][1]
    at = last.end_mark.index
    if isinstance(last, yaml.CollectionNode) and not last.flow_style:
        at = len(text[:at].rstrip())
    at = _line_end(text, at)
    gap = "" if text[:at].endswith("\n") else "\n"
    return f"{text[:at]}{gap}{_line(path, value, node.value[0][0].start_mark.column)}{text[at:]}"


def _wrapped(path: Path, value: object) -> object:
    for part in reversed(path):
        value = {part: value}
    return value


def _line(path: Path, value: object, indent: int) -> str:
    return f"{' ' * indent}{path[0]}: {scalar(_wrapped(path[1:], value))}\n"


def _json(text: str, changes: Settings) -> str:
    values: dict[str, Any] = json.loads(text)
    for path, value in changes.items():
        at = values
        for part in path[:-1]:
            inner = at.get(part)
            if not isinstance(inner, dict):
                if value is None:
                    break
                at[part] = inner = {}
            at = inner
        else:
            if value is None:
                at.pop(path[-1], None)
            else:
                at[path[-1]] = value
    found = re.search(r"\n([ \t]+)\S", text)
    indent: str | int = found.group(1) if found else 2
    return json.dumps(values, indent=indent, ensure_ascii=False) + ("\n" if text.endswith("\n") else "")


def _toml(text: str, changes: Settings, where: str) -> str:
    for (section, key), value in changes.items():
        head = re.search(rf"^\[{re.escape(section)}\][^\n]*\n?", text, flags=re.MULTILINE)
        if head is None:
            text += "" if value is None else f"\n[{section}]\n{key} = {toml(value)}\n"
            continue
        end = re.compile(r"^\[", flags=re.MULTILINE).search(text, head.end())
        stop = end.start() if end else len(text)
        line = re.compile(rf"^(\s*{re.escape(key)}\s*=\s*)([^#\n]*?)(\s*(?:#[^\n]*)?)$", flags=re.MULTILINE)
        found = line.search(text, head.end(), stop)
        if found is not None:
            new = "" if value is None else f"{found.group(1)}{toml(value)}{found.group(3)}"
            text = text[: found.start()] + new + text[found.end() + (value is None) :]
        elif value is not None:
            text = f"{text[: head.end()]}{key} = {toml(value)}\n{text[head.end() :]}"
    parse_toml(text, where)
    return text


def _arguments(text: str, changes: Settings, where: str) -> str:
    """Arguments in a script: a value that stands behind its name is replaced; a name that is new follows another."""
    added: list[str] = []
    for (name,), value in changes.items():
        found = re.search(rf"(?<![\w-])--{re.escape(name)}(?![\w-])((?:[ \t]+(?!-)[^\s\\)#]+)*)", text)
        if found is None:
            if value is not None and value is not False:
                added.append(_argument(name, value))
            continue
        if "$" in found.group(1) and value is not None:
            raise InputError(
                f"--{name}{found.group(1)} is a variable", where=where, hint=f"set it to {_argument(name, value)}"
            )
        new = "" if value is None or value is False else _argument(name, value)
        text = _cut(text, found.start(), found.end()) if not new else text[: found.start()] + new + text[found.end() :]
    if added:
        last = list(
            re.finditer(r"(?<![\w-])--(?:seq-length|micro-batch-size|global-batch-size|num-layers)(?![\w-])", text)
        )
        if not last:
            raise InputError("has no argument behind which a new one could stand", where=where)
        at = last[0].start()
        text = text[:at] + "".join(f"{one} " for one in added) + text[at:]
    return text


def _cut(text: str, start: int, end: int) -> str:
    """The text without an argument, and without its line where it stood alone."""
    first, last = text.rfind("\n", 0, start) + 1, _line_end(text, end)
    line = text[first:start] + text[end:last]
    return text[:first] + text[last:] if not line.strip(" \t\\\n") else text[:start].rstrip(" ") + text[end:]


def _argument(name: str, value: object) -> str:
    if value is True:
        return f"--{name}"
    words: Mapping[int, object] | list[object] = value if isinstance(value, list) else [value]
    return " ".join([f"--{name}", *map(str, words)])
