"""The catalogue of decision templates: what lies in the folders, compiled; looked through again while serving.

A file that breaks keeps the last good version of what it held, and is reported. A file that goes away is given up at
the second look that misses it, because editors replace a file by removing it first. Readers take one immutable `Index`,
so no request sees half of a change.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import orjson

from decisions.errors import BodyTooLarge, Fault, SchemaViolation, UnknownTemplate
from decisions.excerpt import short
from decisions.template import BrokenTemplate, DecisionTemplate, told

from .body import parse_body
from .template_files import SHIPPED, files_of

log = logging.getLogger("canvasgate")

LOOK_INTERVAL = 0.8
"""Seconds between two looks at the folders."""
MISSES = 2
"""Looks in a row that must miss a file before it counts as removed."""
LARGEST_FILE = 4 * 1024 * 1024
"""Bytes of a template's file."""
LONGEST_REASON = 500
"""Characters of what is wrong with a file, in a log line and in `/ready`."""

Stamp = tuple[int, int, int, int]


@dataclass(frozen=True, slots=True)
class Broken:
    """A file that could not be used as it is now, by its path within its folder, and why."""

    file: str
    reason: str


@dataclass(frozen=True)
class Index:
    """What is served at one moment: name to version to template, highest version first; and what is broken."""

    templates: Mapping[str, Mapping[int, DecisionTemplate]] = field(default_factory=dict)
    folders: Mapping[str, str] = field(default_factory=dict)
    """Label of a template to the folder that its file lies in, which is its category."""
    broken: tuple[Broken, ...] = ()

    def find(self, name: str) -> DecisionTemplate:
        """The template of a `name` (its highest version) or of `name@version`. Raises `UnknownTemplate`."""
        versions = self.templates.get(name)
        if versions:
            return next(iter(versions.values()))
        bare, _, version = name.partition("@")
        versions = self.templates.get(bare, {})
        if version.isascii() and version.isdecimal() and len(version) < 9 and int(version) in versions:
            return versions[int(version)]
        raise UnknownTemplate(self._unknown(name, bare, versions))

    def _unknown(self, name: str, bare: str, versions: Mapping[int, DecisionTemplate]) -> str:
        if versions:
            served = ", ".join(template.label for template in versions.values())
            return f"Unknown template: '{short(name)}'. Of this name there is {served}."
        near = get_close_matches(bare[:64], self.templates, 3, 0.5)
        instead = f"Did you mean {' or '.join(near)}?" if near else "GET /v1/templates lists them all."
        return f"Unknown template: '{short(name)}'. {instead}"

    def counts(self) -> tuple[int, int]:
        """How many templates are served, all versions counted, and how many files are broken."""
        return sum(map(len, self.templates.values())), len(self.broken)

    def all(self) -> Iterator[DecisionTemplate]:
        """Every template in every version, by name."""
        for name in sorted(self.templates):
            yield from self.templates[name].values()


@dataclass(slots=True)
class _Entry:
    """One file, as it was last looked at; `template` is the last good one."""

    file: str
    stamp: Stamp | None = None
    template: DecisionTemplate | None = None
    reason: str = ""
    misses: int = 0


class Catalogue:
    """The templates of some folders; a later folder's stand above an earlier one's of the same name and version."""

    def __init__(self, folders: Iterable[Path]) -> None:
        self.folders = tuple(folders)
        self.index = Index()
        self._entries: dict[tuple[int, str], _Entry] = {}
        self._absent: list[Path] = []

    def find(self, name: str) -> DecisionTemplate:
        """The template of a `name` or `name@version`. Raises `UnknownTemplate`."""
        return self.index.find(name)

    def counts(self) -> tuple[int, int]:
        """How many templates are served now, all versions counted, and how many files are broken."""
        return self.index.counts()

    def look(self) -> bool:
        """Look through the folders, and use what has changed; whether anything has. Takes its time, in a thread.

        Not to be called twice at once.
        """
        found = {(place, file): path for place, folder in enumerate(self.folders) for file, path in files_of(folder)}
        changed = [self._look_at(key, path) for key, path in found.items()]
        gone = [self._miss(key) for key in self._entries.keys() - found.keys()]
        absent = [folder for folder in self.folders if folder != SHIPPED and not folder.is_dir()]
        if not (any(changed) or any(gone) or absent != self._absent):
            return False
        self._absent = absent
        before, self.index = self.index, self._indexed()
        for broken in self.index.broken:
            if broken not in before.broken:
                log.error("template file %s is not used: %s", broken.file, broken.reason)
        return True

    def _look_at(self, key: tuple[int, str], path: str) -> bool:
        entry = self._entries.setdefault(key, _Entry(key[1]))
        back = entry.misses > 0
        entry.misses = 0
        stamp = _stamp(path)
        if stamp is not None and stamp == entry.stamp:
            return back
        before, entry.stamp = entry.stamp, stamp
        try:
            entry.template, entry.reason = load(Path(path)), ""
        except BrokenTemplate as error:
            reason = short("; ".join(told(fault) for fault in error.faults), LONGEST_REASON)
        except ValueError as error:
            reason = short(str(error), LONGEST_REASON)
        else:
            if before is not None:
                log.info("template file %s is used as it is now: %s", entry.file, entry.template.label)
            return True
        kept = f"; {entry.template.label} stays as it was" if entry.template else ""
        changed = entry.reason != f"{reason}{kept}"
        entry.reason = f"{reason}{kept}"
        return changed or back

    def _miss(self, key: tuple[int, str]) -> bool:
        entry = self._entries[key]
        entry.misses += 1
        if entry.misses < MISSES:
            return entry.misses == 1  # another file may hold the same template by now
        log.info("template file %s is gone", entry.file)
        del self._entries[key]
        return True

    def _indexed(self) -> Index:
        """The templates of all files; of two that hold the same, the one that is there, of the later folder."""
        chosen: dict[str, tuple[int, _Entry]] = {}
        broken = [Broken(entry.file, entry.reason) for _, entry in sorted(self._entries.items()) if entry.reason]
        order = sorted(self._entries.items(), key=lambda item: (item[1].misses, -item[0][0], item[0][1]))
        for (place, file), entry in order:
            if entry.template is None:
                continue
            label = entry.template.label
            other = chosen.setdefault(label, (place, entry))
            if other[1] is not entry and other[0] == place and not entry.misses:
                broken.append(Broken(file, f"{label} is in {other[1].file} already"))
        templates: dict[str, dict[int, DecisionTemplate]] = {}
        for _, entry in chosen.values():
            if entry.template is not None:
                templates.setdefault(entry.template.name, {})[entry.template.version] = entry.template
        ordered = {name: dict(sorted(versions.items(), reverse=True)) for name, versions in templates.items()}
        folders = {label: Path(entry.file).parent.as_posix() for label, (_, entry) in chosen.items()}
        absent = [Broken("TEMPLATES_DIR", "it is no folder that can be read") for _ in self._absent]
        return Index(ordered, folders, (*absent, *broken))


def load(path: Path) -> DecisionTemplate:
    """The template in a file. Raises `BrokenTemplate`, or `ValueError` for what is no file of a template at all."""
    try:
        with path.open("rb") as opened:
            body = opened.read(LARGEST_FILE + 1)
    except OSError as error:
        raise ValueError(f"cannot be read: {os.strerror(error.errno or 0)}") from None
    if len(body) > LARGEST_FILE:
        raise ValueError(f"has more than {LARGEST_FILE} bytes")
    try:
        document = parse_body(body)
        orjson.dumps(document)
        template = DecisionTemplate(document)
    except SchemaViolation as error:
        raise BrokenTemplate([_in_file(fault, body) for fault in error.faults]) from None
    except BodyTooLarge as error:
        raise ValueError(error.message) from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except TypeError:  # orjson's, for what the parser keeps as text
        raise ValueError("holds a number beyond 64 bits") from None
    if path.stem not in {template.name, template.label}:
        raise ValueError(f"holds {template.label}, so the file must be {template.name}.json or {template.label}.json")
    return template


def _in_file(fault: Fault, body: bytes) -> Fault:
    """A fault of the JSON itself at its line and column, where a body's is told at its character."""
    place = fault.loc[-1]
    if fault.type != "json_invalid" or not isinstance(place, int):
        return fault
    before = body.decode("utf-8-sig", "replace")[:place]
    line, column = before.count("\n") + 1, place - before.rfind("\n")
    return replace(fault, loc=("template", f"line {line}, column {column}"))


def _stamp(path: str) -> Stamp | None:
    """What changes when a file does; None where it cannot be told."""
    try:
        seen = os.stat(path)  # noqa: PTH116 - see `files_of`
    except OSError:
        return None
    return seen.st_mtime_ns, seen.st_ctime_ns, seen.st_size, seen.st_ino


class Watcher:
    """Looks through a catalogue's folders again and again, and at once when asked to; off the event loop."""

    def __init__(self, catalogue: Catalogue, interval: float = LOOK_INTERVAL) -> None:
        """`interval` is in seconds."""
        self._catalogue = catalogue
        self._interval = interval
        self._asked = asyncio.Event()

    def look_now(self) -> None:
        """Look without waiting for the next turn."""
        self._asked.set()

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._interval):
                    await self._asked.wait()
            self._asked.clear()
            await asyncio.to_thread(self._catalogue.look)


# --- What the routes show ---------------------------------------------------------------------------------------------


def listing(index: Index) -> dict[str, Any]:
    """The body of `GET /v1/templates`: a row per name, in its highest version."""
    rows = []
    for name in sorted(index.templates):
        template = index.find(name)
        rows.append({**_head(index, template), "variables": [*template.variables.declared]})
    return {"templates": rows}


def detail(index: Index, template: DecisionTemplate) -> dict[str, Any]:
    """The body of `GET /v1/templates/{name}`: everything that is in the file, variables as one JSON Schema."""
    document = template.document
    return {
        **_head(index, template),
        "variables": template.variables.schema(),
        **{part: document[part] for part in ("state", "instructions", "questions") if part in document},
        "settings": dict(template.settings),
        "examples": list(template.examples),
    }


def _head(index: Index, template: DecisionTemplate) -> dict[str, Any]:
    return {
        "name": template.name,
        "version": template.version,
        "versions": [*index.templates.get(template.name, {template.version: template})],
        "folder": index.folders.get(template.label, "."),
        "title": template.title,
        "description": template.description,
    }


def state_of(index: Index) -> dict[str, Any]:
    """What `/ready` says of templates; a broken file is reported, but makes nothing unready."""
    broken: Sequence[Broken] = index.broken
    return {
        "served": index.counts()[0],
        "broken": [{"file": each.file, "reason": each.reason} for each in broken],
    }
