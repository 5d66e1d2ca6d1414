"""What a template would ask, found out without a server and without an engine."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from decisions.advice import advice
from decisions.errors import DecisionError, Fault, SchemaViolation, UnknownTemplate
from decisions.isolation import IsolationBounds
from decisions.plan import Plan, Planner
from decisions.reads import Read, Readout, Tokenizer
from decisions.template import BrokenTemplate, DecisionTemplate, expected_faults, told

from .app import defaults
from .config import Settings
from .engines.forms import family
from .engines.opening import open_stub
from .engines.vllm_http import describe
from .engines.weights import resolve
from .names import ServedNames
from .template_files import files_of, folders_of
from .templates import Catalogue, Index, load
from .wire import ShapeLimits, Wire, WireRequest

logging.getLogger("canvasgate").addHandler(logging.NullHandler())  # commands tell what is broken in their own words


class Unusable(Exception):
    """What was asked for cannot be shown; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Found:
    """One thing that `check` has to say of a file: an error, or advice."""

    error: bool
    text: str


@dataclass(frozen=True, slots=True)
class Bench:
    """What plans and checks requests here: the tokenizer's name tells how exact token counts are."""

    planner: Planner
    tokenizer: Tokenizer
    name: str


def catalogue_of(settings: Settings) -> Index:
    """The templates that a gateway with these settings would serve."""
    catalogue = Catalogue(folders_of(settings.templates_dir))
    catalogue.look()
    return catalogue.index


def find(name: str, settings: Settings) -> DecisionTemplate:
    """A template by `name`, `name@version`, or the path of its file. Raises `Unusable`."""
    if _is_path(name):
        try:
            return load(Path(name))
        except BrokenTemplate as error:
            lines = [f"  {told(fault)}" for fault in error.faults]
            raise Unusable("\n".join([f"{name} is no template:", *lines])) from None
        except ValueError as error:
            raise Unusable(f"{name}: {error}") from None
    return _found(name, catalogue_of(settings))


def _found(name: str, index: Index) -> DecisionTemplate:
    try:
        return index.find(name)
    except UnknownTemplate as error:
        bare = name.partition("@")[0]
        broken = [each for each in index.broken if Path(each.file).stem.partition("@")[0] == bare]
        message = error.message.replace("GET /v1/templates", "`canvasgate templates list`")
        if broken and bare not in index.templates:
            message = f"The file of template '{name}' cannot be used:"
        lines = [f"  {each.file}: {each.reason}" for each in broken]
        raise Unusable("\n".join([message, *lines])) from None


def paths_of(named: Sequence[str], settings: Settings) -> list[Path]:
    """The files that are named, by path or as templates; all of the operator's folder, or of ours, where none is.

    Raises `Unusable` where there are none.
    """
    folders = folders_of(settings.templates_dir)
    if not named:
        if not folders[-1].is_dir():
            raise Unusable(
                f"{folders[-1]} is no folder that can be read. Mend TEMPLATES_DIR, or name another with --dir."
            )
        return sorted(Path(path) for _, path in files_of(folders[-1])) or _no_files(folders[-1])
    return [path for name in named for path in ([Path(name)] if _is_path(name) else _files_named(name, settings))]


def _no_files(folder: Path) -> list[Path]:
    raise Unusable(f"There are no template files in {folder}. Name some, or a folder with --dir.")


def _is_path(name: str) -> bool:
    return name.endswith(".json") or "/" in name or Path(name).is_file()


def _files_named(name: str, settings: Settings) -> list[Path]:
    """The files of a template in all versions, or of the one that is pinned, in the folder that is served of it."""
    bare, same = name.partition("@")[0], list[Path]()
    for folder in reversed(folders_of(settings.templates_dir)):
        paths = sorted(Path(path) for _, path in files_of(folder))
        if pinned := [path for path in paths if "@" in name and path.stem == name]:
            return pinned
        if same := [path for path in paths if path.stem.partition("@")[0] == bare]:
            if "@" not in name:
                return same
            break
    found = _found(name, catalogue_of(settings))
    return [path for path in same if path.stem in {found.name, found.label}]


class _One:
    """A catalogue of a single template."""

    def __init__(self, template: DecisionTemplate) -> None:
        self._template = template

    def find(self, _: str) -> DecisionTemplate:
        """It."""
        return self._template


def wire_of(settings: Settings, template: DecisionTemplate) -> Wire:
    """The wire of a gateway with these settings that serves this template."""
    limits = ShapeLimits(settings.max_questions, settings.max_options, settings.max_levels)
    return Wire(limits, defaults(settings), ServedNames(settings.served_model_name or "model"), _One(template))


def request_of(wire: Wire, template: DecisionTemplate, variables: Mapping[str, Any]) -> WireRequest:
    """The request that a template spells, checked as the gateway checks it. Raises `Unusable` with every fault."""
    try:
        return _spelled(wire, template, variables)
    except SchemaViolation as error:
        lines = [f"  {_place(fault)}: {fault.msg}" for fault in error.faults]
        if all(fault.loc[1:2] != ("variables",) for fault in error.faults):
            raise Unusable("\n".join(["The request that this makes is not one that can be asked:", *lines])) from None
        raise Unusable("\n".join(["These variables do not fit:", *lines, _needed(template, error.faults)])) from None
    except DecisionError as error:
        raise Unusable(error.message) from None


def _spelled(wire: Wire, template: DecisionTemplate, variables: Mapping[str, Any]) -> WireRequest:
    return wire.parse_template(template.name, json.dumps({"variables": variables}).encode())


def _place(fault: Fault) -> str:
    return ".".join(map(str, fault.loc[1:]))


def _needed(template: DecisionTemplate, faults: Sequence[Fault]) -> str:
    """How to give the variables that must be given, and those that did not fit."""
    declared, schema = template.variables.declared, template.variables.schema()
    wrong = {fault.loc[2] for fault in faults if len(fault.loc) > 2}
    named = [name for name in declared if name in schema["required"] or name in wrong]
    texts = {name: declared[name].get("type") in {"string", None} for name in named}
    given = " ".join(f"-v {name}=VALUE" if texts[name] else f"-v {name}:='JSON'" for name in named) or "none is needed"
    return f"Give them so: {given}\n`canvasgate templates show {template.name}` lists them all."


def bench_of(settings: Settings) -> Bench:
    """A planner with the tokenizer of MODEL, or with the stub's where MODEL is unset: one token a byte."""
    bounds = IsolationBounds(settings.isolate_auto_max, settings.isolate_max_questions)
    stub = open_stub(settings)
    if not settings.model:
        return Bench(Planner(stub.tokenizer, stub.limits, stub.form, bounds), stub.tokenizer, "stub: a token a byte")
    try:
        served = describe(resolve(settings.model, settings.model_cache, lambda _: None), lambda _: None)
    except DecisionError as error:
        raise Unusable(error.message) from None
    limits = replace(
        stub.limits, context=min(settings.max_model_len, served.context), canvas=min(settings.canvas, served.canvas)
    )
    limits = limits if limits.canvas else replace(limits, slots=1)
    form = family(served.model.architecture).form
    return Bench(Planner(served.tokenizer, limits, form, bounds), served.tokenizer, served.model.name)


def rounds_of(plan: Plan) -> Iterator[tuple[Read, ...]]:
    """The rounds of a plan, answered evenly: which reads a later round has depends on real answers.

    A thought is as empty here as one can be.
    """
    if plan.thought is not None:
        plan.receive_thought(())
    while reads := plan.next_reads():
        yield reads
        plan.receive([Readout(tuple([_even(len(slot.label_ids)) for slot in read.slots])) for read in reads])


def _even(count: int) -> tuple[float, ...]:
    return (-math.log(count),) * count


def check(path: Path, settings: Settings, bench: Bench) -> Sequence[Found]:
    """Everything there is to say of a template's file: its schema, variables, examples, labels, likely mistakes."""
    try:
        template = load(path)
    except BrokenTemplate as error:
        return [Found(error=True, text=told(fault)) for fault in error.faults]
    except ValueError as error:
        return [Found(error=True, text=f"file {error}")]
    found = [Found(error=True, text=told(fault)) for fault in expected_faults(template)]
    if not found:
        found = _of_examples(template, settings, bench)
    if not found:
        found = [Found(error=False, text=f"{'.'.join(map(str, hint.loc))}: {hint.msg}") for hint in advice(template)]
    return found


def _of_examples(template: DecisionTemplate, settings: Settings, bench: Bench) -> list[Found]:
    """What a gateway would say to the examples: are they requests, do their labels hold, do they fit the context."""
    wire, found = wire_of(settings, template), []
    for example in template.examples:
        try:
            request = _spelled(wire, template, example["variables"])
            for _ in rounds_of(bench.planner.plan(request)):
                pass
        except SchemaViolation as error:
            told_so = [f"example '{example['name']}': {_place(fault)}: {fault.msg}" for fault in error.faults]
            found += [Found(error=True, text=text) for text in told_so]
        except DecisionError as error:
            found.append(Found(error=True, text=f"example '{example['name']}': {error.message}"))
    return found
