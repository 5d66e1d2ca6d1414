"""The rules of the layout, read from the source: who imports whom, one door per dependency, and sizes."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCES = sorted(
    [*(ROOT / "decisions").rglob("*.py"), *(ROOT / "gateway").rglob("*.py"), *(ROOT / "bench").rglob("*.py")]
)
NAMES = [str(path.relative_to(ROOT)) for path in SOURCES]
TREES = {name: ast.parse((ROOT / name).read_text("utf-8")) for name in NAMES}

DOORS = {
    "starlette": ("gateway/app.py", "gateway/routes.py", "gateway/middleware.py", "bench/bare.py"),
    "uvicorn": ("gateway/serve.py", "gateway/connection.py"),
    "redis": ("gateway/inflight/",),
    "vllm": ("gateway/engines/vllm", "bench/gpu/"),
    "jinja2": ("decisions/template_language.py", "gateway/engines/tokenizer.py"),
    "jsonschema": ("decisions/schema.py",),
    "fastjsonschema": ("decisions/schema.py",),
    "prometheus_client": ("gateway/metrics.py",),
    "limits": ("gateway/rates.py",),
    "opentelemetry": ("gateway/tracing.py",),
    "zstandard": ("gateway/encodings.py",),
    "python_multipart": ("gateway/media.py",),
    "httpx": ("gateway/ask.py", "gateway/batch.py", "gateway/doctor.py", "gateway/engines/vllm_http.py"),
    "torch": ("gateway/engines/", "bench/gpu/", "bench/floor.py", "bench/peers/vllm.py"),
    "transformers": ("gateway/engines/",),
}
"""Each outside dependency may be imported only by files that begin so."""
NAMED = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
PURE = {"asyncio", "socket", "time", "datetime", "os", "threading", "subprocess", "http", "urllib", "secrets"}
"""What `decisions` does without. `random` is there for seeded generators only."""


def imported(name: str) -> Iterator[str]:
    """Every module that a file imports, wherever in it; own packages spelled out."""
    package = name.removesuffix(".py").replace("/__init__", "").split("/")
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            level = node.level - (1 if name.endswith("__init__.py") else 0)
            base = package[: len(package) - level] if node.level else []
            yield ".".join([*base, *(node.module or "").split(".")]).strip(".")


def functions(name: str) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a file, methods and nested ones too."""
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("decisions/")])
def test_decisions_is_pure_and_looks_at_nothing_above_it(name: str) -> None:
    """No gateway, no sockets, no clock, no environment, no `async`."""
    roots = {module.split(".")[0] for module in imported(name)}
    waits = [node for node in ast.walk(TREES[name]) if isinstance(node, ast.AsyncFunctionDef | ast.Await)]

    assert roots.isdisjoint(PURE | {"gateway", "bench", "tests"})
    assert not waits


def test_the_only_randomness_is_a_seeded_generator() -> None:
    """`random.Random(seed)`: nothing of the module's own, hidden generator."""
    used = [
        node.attr
        for name in NAMES
        if name.startswith("decisions/")
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "random"
    ]

    assert set(used) <= {"Random"}


def test_the_gateway_looks_at_nothing_above_it() -> None:
    """Neither benches nor tests; they ask it over HTTP, or import it."""
    above = {
        (name, module)
        for name in NAMES
        if name.startswith("gateway/")
        for module in imported(name)
        if module.split(".")[0] in {"bench", "tests"}
    }

    assert above == set()


@pytest.mark.parametrize("name", NAMES)
def test_every_dependency_has_one_door(name: str) -> None:
    """The table above; a new dependency needs a row."""
    for module in imported(name):
        doors = DOORS.get(module.split(".")[0])
        assert doors is None or name.startswith(doors), f"{name} imports {module}"


@pytest.mark.parametrize("name", NAMES)
def test_the_environment_is_read_in_one_place(name: str) -> None:
    """`gateway/config.py`. The vLLM adapter sets what vLLM reads; benches start processes."""
    if name == "gateway/config.py" or name.startswith(("gateway/engines/vllm", "bench/")):
        return
    read = [
        node
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "putenv"}
    ]
    assert not read


def test_modules_of_decisions_form_no_circle() -> None:
    """They can be read level by level."""
    graph = {
        name: {f"{module.replace('.', '/')}.py" for module in imported(name) if module.startswith("decisions")}
        for name in NAMES
        if name.startswith("decisions/")
    }
    while leaves := {name for name, needs in graph.items() if not needs & graph.keys()}:
        graph = {name: needs for name, needs in graph.items() if name not in leaves}

    assert not graph


@pytest.mark.parametrize("name", NAMES)
def test_files_and_functions_stay_small(name: str) -> None:
    """400 lines a file; 50 a function, its docstring not counted."""
    assert len((ROOT / name).read_text("utf-8").splitlines()) <= 400
    for function in functions(name):
        first = function.body[0]
        documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
        start = first.end_lineno if documented and first.end_lineno else function.lineno
        assert (function.end_lineno or start) - start <= 50, f"{name}: {function.name}"


@pytest.mark.parametrize("name", NAMES)
def test_nothing_catches_everything_but_the_outermost_handler(name: str) -> None:
    """It logs and answers 500; to clean up and raise again is not to catch."""
    handlers = [node for node in ast.walk(TREES[name]) if isinstance(node, ast.ExceptHandler) and not raises(node)]
    broad = [
        node
        for node in handlers
        if node.type is None
        or any(getattr(part, "id", "") in {"Exception", "BaseException"} for part in ast.walk(node.type))
    ]

    assert len(broad) <= (1 if name == "gateway/middleware.py" else 0)


def raises(handler: ast.ExceptHandler) -> bool:
    """Whether a handler ends by raising what it caught."""
    last = handler.body[-1]
    return isinstance(last, ast.Raise) and last.exc is None


@pytest.mark.parametrize("name", NAMES)
def test_every_module_and_public_name_says_what_it_is(name: str) -> None:
    """A docstring each."""
    tree = TREES[name]
    public = [node for node in tree.body if isinstance(node, NAMED) and not node.name.startswith("_")]
    for node in tuple(public):
        if isinstance(node, ast.ClassDef):
            public += [each for each in node.body if isinstance(each, NAMED) and not each.name.startswith("_")]

    assert ast.get_docstring(tree)
    assert [node.name for node in public if not ast.get_docstring(node)] == []
