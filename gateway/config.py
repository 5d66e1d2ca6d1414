"""Every setting of the gateway, declared once; the environment is read here, once, and nowhere else.

A field of `Settings` is a setting: its name in capitals is the environment variable, and its default, what is allowed
and its help stand beside it. `canvasgate settings`, `canvasgate serve --help` and the README's table come from these
declarations. `load` reads them all and names every fault at once.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal, TypeVar

from decisions.protocol import CatchAll, Debias, Isolation, Layout, SeedToken, Temperatures

from .kinds import (
    Kind,
    auto_or,
    canvas_width,
    file,
    flag,
    folder,
    json_object,
    listed,
    member_of,
    number,
    one_of,
    redis_url,
    sample_count,
    temperatures,
    text,
    whole,
)

T = TypeVar("T")

MASK = "********"
MIB = 1024 * 1024


class Role(StrEnum):
    """Which of dgem's two roles the environment was written for; both are served by the one process."""

    DEFAULT = "default"
    DECISION_INDEX = "decision-index"


class EngineChoice(StrEnum):
    """Which engine reads; `auto` is vllm where it is installed and a CUDA device is there, else reference."""

    AUTO = "auto"
    VLLM = "vllm"
    VLLM_HTTP = "vllm_http"
    REFERENCE = "reference"
    STUB = "stub"


class ImageUrls(StrEnum):
    """Whether an image may be named by an http(s) URL, which the engine would then fetch."""

    DENY = "deny"
    ALLOW = "allow"


class LogFormat(StrEnum):
    """How log lines are written."""

    JSON = "json"
    TEXT = "text"


class InvalidSettings(Exception):
    """The environment holds values that are not allowed; the message lists all of them, a line each."""

    def __init__(self, faults: Iterable[str]) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults))


# --- The settings ---------------------------------------------------------------------------------------------------


def _setting(default: str, kind: Kind[T], help: str, *, secret: bool = False) -> T:
    """A field whose default is written as in the environment, so that tables show it as a user would write it."""
    metadata = {"default": default, "kind": kind, "help": help, "secret": secret}
    return field(default_factory=lambda: kind.parse(default), repr=not secret, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """All settings, checked. `Settings()` is the default configuration; secrets do not show in its repr."""

    # Serving
    role: Role = _setting("default", member_of(Role), "dgem's role; both are served alike")
    host: str = _setting("0.0.0.0", text("an address"), "Address to listen on")  # noqa: S104 - a server is to be reached
    port: int = _setting("8080", whole(1, 65535), "HTTP port")
    http_idle_timeout: int = _setting(
        "120", whole(0, 86400), "Seconds before an idle keep-alive connection is closed; 0 is never"
    )
    drain_delay: float = _setting("5", number(0, 3600), "Seconds that a stopping gateway serves on, unready")
    drain_timeout: int = _setting("30", whole(0, 3600), "Seconds that requests have to finish after that")
    max_body: int = _setting(str(32 * MIB), whole(1024, 1024 * MIB), "Bytes of a body, as sent and decompressed")
    cors_origins: tuple[str, ...] = _setting(
        "", listed("origins between commas, or *"), "Origins that browsers may call from; none when empty"
    )

    # Access
    api_key: str = _setting("", text(), "Bearer key that callers must send; open when empty", secret=True)
    dgem_server_key: tuple[str, ...] = _setting(
        "", listed("keys between commas"), "Keys of which callers must send one as X-DGem-Key", secret=True
    )
    api_key_file: Path | None = _setting(
        "", file(), "File of such bearer keys, one a line; read again when it changes, to rotate them"
    )
    dgem_server_key_file: Path | None = _setting(
        "", file(), "File of such X-DGem-Keys, one a line; read again when it changes, to rotate them"
    )
    api_keys_file: Path | None = _setting(
        "",
        file(),
        "File of hashed bearer keys with name, limits and expiry, which `canvasgate keys` writes; "
        "read again when it changes",
    )
    dgem_image_urls: ImageUrls = _setting("deny", member_of(ImageUrls), "Images by http(s) URL: refused unless allow")

    # Engine and model
    engine: EngineChoice = _setting(
        "auto", member_of(EngineChoice), "What reads; auto is vllm where it can run on a GPU, else reference"
    )
    model: str = _setting(
        "",
        text("a folder or a hub id"),
        "Model folder or hub id; unset: with a GPU /mnt/gcs/dgemma if it is there, else MODEL_HF; without one the "
        "small demonstration model",
    )
    model_hf: str = _setting(
        "nvidia/diffusiongemma-26B-A4B-it-NVFP4", text("a hub id"), "Hub id that is fetched when MODEL is unset"
    )
    served_model_name: str = _setting("", text(), "Name that requests and answers use; the model's own when empty")
    model_cache: Path = _setting("~/.cache/canvasgate", folder(), "Folder for fetched and converted models")
    max_model_len: int = _setting("4096", whole(128, 1048576), "Tokens of prompt and canvas; longer is refused")
    canvas: int = _setting("128", canvas_width(), "Tokens of the widest canvas of a diffusion model")
    constrained: bool = _setting(
        "0",
        flag(),
        "1 reads canvases over the labels alone; a request for diagnostics, which tell the label mass, is read over "
        "the whole vocabulary all the same. No faster on an H200 in bfloat16",
    )
    disable_mm: bool = _setting("0", flag(), "1 serves a multimodal model without its vision tower")
    dtype: str = _setting(
        "auto", one_of("auto", "float32", "bfloat16", "float16"), "Number format of weights; auto is the model's own"
    )
    threads: int | None = _setting("auto", auto_or(whole(1, 1024)), "CPU threads of the reference engine")
    gpu_util: float = _setting("0.85", number(0.05, 0.99), "Share of the GPU's memory that vLLM takes")
    max_seqs: int | None = _setting("auto", auto_or(whole(1, 4096)), "Reads that the engine works on at once")
    attn: str = _setting("auto", text("auto, or a vLLM attention backend"), "vLLM's attention backend")
    vllm_url: str = _setting("", text("an http(s) address"), "Root of a separate `vllm serve`, for ENGINE=vllm_http")
    vllm_key: str = _setting("", text(), "Bearer key of that server", secret=True)
    enforce_eager: bool = _setting("0", flag(), "1 runs vLLM without captured graphs: quicker start, slower reads")
    extra_args: Mapping[str, Any] = _setting("", json_object(), "JSON object of further vLLM engine arguments")

    # How questions are read when the request does not say
    temperature: Temperatures = _setting("1.0", temperatures(), "Temperature of answers; 1 leaves them as read")
    default_samples: int | Literal["auto"] = _setting("1", sample_count(), "Noise draws of a canvas")
    default_isolate: Isolation = _setting("auto", member_of(Isolation), "Which questions are read alone")
    isolate_auto_max: int = _setting("3", whole(0, 512), "Most questions of a request that auto isolates in")
    isolate_max_questions: int = _setting("8", whole(0, 512), "Most questions of a request that noul isolates in")
    default_seed_token: SeedToken = _setting("random", member_of(SeedToken), "What stands in an open canvas slot")
    default_layout: Layout = _setting("document_first", member_of(Layout), "Where the state stands in the prompt")
    default_debias: Debias = _setting("none", member_of(Debias), "Orders of a choice's options that are read")
    catch_all: CatchAll = _setting(
        "off",
        member_of(CatchAll),
        "What a choice read in brackets does with options such as 'none of these': off, like any other; final, only in "
        "the final; both, in a bracket and the final; verify, the winner is read against them",
    )

    # Templates
    templates_dir: str = _setting(
        "", text("a folder"), "Decision templates of your own, above ours of the same name and version"
    )

    # Limits of a request
    max_questions: int = _setting("512", whole(1, 65536), "Questions of a request")
    max_options: int = _setting("255", whole(1, 65536), "Options of a choice")
    max_levels: int = _setting("10", whole(1, 10), "Levels of a score")

    # Queue
    max_inflight: int | None = _setting(
        "auto", auto_or(whole(0, 65536)), "Decisions worked on at once; auto and 0: as many as the engine's reads allow"
    )
    max_queue: int = _setting("256", whole(0, 1048576), "Decisions that may wait; more are refused with 529")
    queue_timeout: float = _setting("8", number(0.001, 3600), "Seconds that a decision may wait")
    request_timeout: float = _setting("120", number(0.001, 3600), "Seconds that a decision may take in all")

    answer_cache_seconds: float = _setting(
        "0", number(0, 86400), "Seconds that an answer also serves identical requests that come later; 0 is never"
    )
    redis_url: str = _setting(
        "",
        redis_url(),
        "The Redis whose replicas share their work; in memory, and alone, when empty. No Sentinel, no Redis Cluster",
        secret=True,
    )
    redis_prefix: str = _setting("canvasgate:", text(), "What every key in Redis begins with")
    redis_required: bool = _setting("0", flag(), "1 answers 503 while Redis is away; 0 goes on alone")
    redis_payloads: bool = _setting(
        "1", flag(), "0 keeps requests and answers out of Redis: replicas then share figures only, and no work"
    )
    redis_lease: float = _setting("5", number(0.5, 300), "Seconds after which a dead replica's work is taken over")
    redis_timeout: float = _setting("1", number(0.01, 60), "Seconds after which Redis counts as away")

    # Logs
    log_level: str = _setting("info", one_of("debug", "info", "warning", "error"), "Least severe lines that are logged")
    log_format: LogFormat = _setting("json", member_of(LogFormat), "How log lines are written")

    otel_exporter_otlp_endpoint: str = _setting(
        "", text("an http(s) address"), "Collector that takes OpenTelemetry spans (OTLP over HTTP); none when empty"
    )

    # Stub engine
    stub_delay_ms: float = _setting("0", number(0, 600000), "Milliseconds that each call of the stub engine takes")
    stub_slot_bias: float = _setting("0", number(0, 100), "Nats that the stub adds by an option's place")
    stub_coupling: float = _setting("0", number(0, 100), "Nats that the stub adds by a canvas' other questions")
    stub_noise: float = _setting("0", number(0, 100), "Nats that the stub adds by a slot's noise token")
    stub_missing_slot: float = _setting("0", number(0, 1), "Share of the stub's readouts that lack a slot")
    stub_missing_label: float = _setting("0", number(0, 1), "Share of the stub's readouts that lack a label")
    stub_not_finite: float = _setting("0", number(0, 1), "Share of the stub's readouts that hold a NaN")
    stub_lasting: bool = _setting("0", flag(), "1 breaks the same readouts again when they are read again")
    stub_dead: bool = _setting("0", flag(), "1 makes the stub engine dead")


# --- What is made of the declarations -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Declaration:
    """One setting as it was declared. `default` is written as in the environment; empty means unset."""

    variable: str
    default: str
    allowed: str
    help: str
    secret: bool
    kind: Kind[Any]

    @property
    def field(self) -> str:
        """Name of the field of `Settings`."""
        return self.variable.lower()


def declarations() -> tuple[Declaration, ...]:
    """Every setting, in the order of declaration."""
    return tuple(
        Declaration(variable=each.name.upper(), allowed=each.metadata["kind"].allowed, **each.metadata)
        for each in fields(Settings)
    )


def load(environ: Mapping[str, str] | None = None, overrides: Mapping[str, str] | None = None) -> Settings:
    """The settings of `environ` (the process' environment when None), under `overrides` by variable name.

    An empty variable counts as unset, as container tools pass them. Raises `InvalidSettings` with every fault.
    """
    given = {**(os.environ if environ is None else environ), **(overrides or {})}
    values: dict[str, Any] = {}
    faults: list[str] = []
    for setting in declarations():
        written = given.get(setting.variable, "").strip()
        if not written:
            continue
        try:
            values[setting.field] = setting.kind.parse(written)
        except (ValueError, TypeError, OverflowError):
            shown = MASK if setting.secret else repr(written)
            faults.append(f"{setting.variable} is {shown}; allowed is {setting.allowed}.")
    settings = Settings(**values)
    faults += _disagreements(settings)
    if faults:
        raise InvalidSettings(faults)
    return settings


def _disagreements(settings: Settings) -> list[str]:
    """Faults of settings that are allowed each by itself but not together."""
    faults = []
    if settings.canvas >= settings.max_model_len:
        faults.append(f"CANVAS is {settings.canvas}; allowed is less than MAX_MODEL_LEN ({settings.max_model_len}).")
    if settings.stub_missing_slot + settings.stub_missing_label + settings.stub_not_finite > 1:
        faults.append("STUB_MISSING_SLOT, STUB_MISSING_LABEL and STUB_NOT_FINITE add up to more than 1.")
    return faults


def shown(settings: Settings) -> dict[str, str]:
    """Variable to value, written as in the environment; a secret that is set shows only that it is."""
    values = {}
    for setting in declarations():
        value = setting.kind.show(getattr(settings, setting.field))
        values[setting.variable] = MASK if setting.secret and value else value
    return values


def help_lines() -> list[str]:
    """A line per setting, for `canvasgate serve --help`."""
    width = max(len(setting.variable) for setting in declarations())
    return [
        f"{setting.variable:<{width}}  {setting.help} ({setting.allowed}; default {setting.default or 'unset'})"
        for setting in declarations()
    ]


def markdown_table() -> str:
    """The README's settings table."""
    rows = ["| variable | default | allowed | what it does |", "|---|---|---|---|"]
    for setting in declarations():
        default = f"`{setting.default}`" if setting.default else "unset"
        rows.append(f"| `{setting.variable}` | {default} | {setting.allowed} | {setting.help} |")
    return "\n".join(rows) + "\n"
