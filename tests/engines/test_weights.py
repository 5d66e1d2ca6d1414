"""Finding a model: folders and hub ids pass, the demonstration model is fetched, checked and converted once."""

from __future__ import annotations

import subprocess
import sys
import threading
from hashlib import sha256
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from decisions.errors import EngineUnavailable
from gateway.engines import weights
from gateway.engines.weights import ModelSource, choose, demonstration, fetch, installer, resolve


def quiet(message: str) -> None:
    """Progress for nobody."""


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An installed package with a small file in the model's place, and a conversion that only notes its runs."""
    file = tmp_path / "site" / weights.GGUF_NAME
    file.parent.mkdir()
    file.write_bytes(b"gguf")
    monkeypatch.setattr(weights, "GGUF_SHA256", sha256(b"gguf").hexdigest())
    spec = type("Spec", (), {"origin": str(file.parent / "__init__.py")})()
    monkeypatch.setattr(weights, "find_spec", lambda name: spec)
    monkeypatch.setattr(weights, "convert", lambda gguf, folder: (folder / "config.json").write_text("{}"))
    return file


def test_a_folder_with_a_configuration_is_served_under_its_own_name(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")

    assert resolve(str(tmp_path), tmp_path, quiet) == ModelSource(str(tmp_path), tmp_path.name)


@pytest.mark.parametrize("model", ["/nowhere/at/all", "./here", "~/models/x", "a/b/c"])
def test_a_path_without_a_model_is_refused_and_never_taken_for_a_hub_id(model: str, tmp_path: Path) -> None:
    with pytest.raises(EngineUnavailable, match=r"config\.json"):
        resolve(model, tmp_path, quiet)


def test_a_hub_id_is_left_to_the_engine(tmp_path: Path) -> None:
    assert resolve("owner/model", tmp_path, quiet).model == "owner/model"


def test_no_model_means_the_demonstration_only_without_a_gpu() -> None:
    assert choose("", "owner/large", gpu=False) == ""
    assert choose("", "owner/large", gpu=True) == "owner/large"
    assert choose("mine", "owner/large", gpu=True) == "mine"


@pytest.mark.usefixtures("package")
def test_the_second_start_neither_fetches_nor_converts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    first = demonstration(tmp_path, quiet)
    monkeypatch.setattr(weights, "fetch", None)

    assert demonstration(tmp_path, quiet) == first
    assert first.demonstration
    assert Path(first.model, "config.json").is_file()


@pytest.mark.usefixtures("package")
def test_two_starts_at_once_convert_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    runs: list[Path] = []
    told: list[str] = []
    go = threading.Event()

    def convert(gguf: Path, folder: Path) -> None:
        runs.append(folder)
        go.wait(5)

    def progress(message: str) -> None:
        told.append(message)
        if "waiting" in message:
            go.set()

    monkeypatch.setattr(weights, "convert", convert)
    starts = [threading.Thread(target=demonstration, args=(tmp_path, progress)) for _ in range(2)]
    for start in starts:
        start.start()
    for start in starts:
        start.join()

    assert len(runs) == 1
    assert any("waiting" in message for message in told)


@pytest.mark.usefixtures("package")
def test_a_conversion_that_fails_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def full(gguf: Path, folder: Path) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(weights, "convert", full)
    with pytest.raises(EngineUnavailable, match="MODEL_CACHE"):
        demonstration(tmp_path, quiet)

    assert [path.suffix for path in (tmp_path / "models").iterdir()] == [".lock"]


@pytest.mark.usefixtures("package")
def test_what_a_killed_process_left_is_swept_away(tmp_path: Path) -> None:
    folder = Path(demonstration(tmp_path, quiet).model)
    left = folder.with_name(f"{folder.name}.x1.partial")
    folder.rename(left)

    demonstration(tmp_path, quiet)

    assert not left.exists()


def test_a_file_with_another_digest_is_refused(package: Path, tmp_path: Path) -> None:
    package.write_bytes(b"something else")

    with pytest.raises(EngineUnavailable, match="SHA-256"):
        fetch(tmp_path, quiet)


def test_an_unreachable_registry_is_told_with_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def fail(command: list[str], **settings: Any) -> None:
        raise subprocess.CalledProcessError(1, command, stderr="ERROR: a\nERROR: No matching distribution found")

    monkeypatch.setattr(weights, "find_spec", lambda name: None)
    monkeypatch.setattr(weights, "has_pip", lambda: True)
    monkeypatch.setattr("subprocess.run", fail)

    with pytest.raises(EngineUnavailable, match=r"No matching distribution found.*set MODEL"):
        fetch(tmp_path, quiet)


def test_uv_installs_where_there_is_no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "has_pip", lambda: False)
    monkeypatch.setattr("shutil.which", lambda name: "/bin/uv")
    assert installer()[:3] == ["/bin/uv", "pip", "install"]
    assert sys.executable in installer()

    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(EngineUnavailable, match="ensurepip"):
        installer()


def test_pip_is_found_without_a_warning_from_setuptools() -> None:
    """Whose hook warns when the module is looked for after any distutils was imported; warnings are errors here."""
    assert weights.has_pip() == ("pip" in {found.name for found in metadata.distributions()})


def test_tensors_get_the_names_of_a_llama_checkpoint() -> None:
    assert weights.weight_name("blk.3.attn_q.weight") == "model.layers.3.self_attn.q_proj.weight"
    assert weights.weight_name("token_embd.weight") == "model.embed_tokens.weight"


def test_the_halves_of_a_rotary_head_are_put_apart() -> None:
    numpy = pytest.importorskip("numpy")

    assert weights.halves_apart(numpy.arange(8), heads=2).tolist() == [0, 2, 1, 3, 4, 6, 5, 7]


@pytest.mark.model
def test_the_converted_model_knows_its_turns_and_splits_digits(tmp_path: Path) -> None:
    from gateway.engines.tokenizer import HfTokenizer

    source = resolve("", Path("~/.cache/canvasgate").expanduser(), quiet)
    tokenizer = HfTokenizer.open(source.model)

    assert tokenizer.vocabulary == 49152
    assert tokenizer.decode((tokenizer.turn_close,)) == "<|im_end|>"
    assert len(tokenizer.encode("2026")) == 4
    assert "named SmolLM" in tokenizer.decode(tokenizer.frame(("user",)).parts[0])
    for token in tokenizer.control:
        assert set(tokenizer.control.values()).isdisjoint(tokenizer.encode(f"a{token}b"))
