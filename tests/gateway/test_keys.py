"""Keys: the file that holds them, the command that keeps it, and a gateway that reads it again when it changes."""

from __future__ import annotations

import asyncio
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from decisions.errors import MissingKey, WrongKey
from gateway import keyring
from gateway.cli import main
from gateway.config import load
from gateway.keyring import Keyring
from gateway.keys import (
    Key,
    KeysFileError,
    digest_of,
    editing,
    new_key,
    parse_keys,
    parse_plain,
    read_keys,
    write_keys,
)
from gateway.serve import EXIT_FAILED
from tests.conftest import AppClient, Start
from tests.gateway.asking import PATH, asked

DIGEST = "ab" * 32


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where the keys are kept."""
    return tmp_path / "keys.json"


def run(path: Path, *arguments: str) -> Result:
    """`canvasgate keys` on this file."""
    command, *rest = arguments
    return CliRunner().invoke(main, ["keys", command, *rest, "--file", str(path)], env={"COLUMNS": "120"})


def made(path: Path, *arguments: str) -> str:
    """A new key."""
    result = run(path, "add", *arguments)
    assert 0 == result.exit_code, result.output
    return result.output.strip()


def bearer(key: str) -> dict[str, str]:
    """The header of a key."""
    return {"authorization": f"Bearer {key}"}


# --- The file ---------------------------------------------------------------------------------------------------------


def test_keys_are_read_as_they_were_written(path: Path) -> None:
    """Limits and expiry too; the file is for its owner alone, and no key stands in it."""
    keys = (Key("a", digest_of("k1")), Key("b", digest_of("k2"), 5, 1000, 2, 1_800_000_000.0))
    write_keys(path, keys)

    assert keys == read_keys(path)
    assert (0o600, [path]) == (path.stat().st_mode & 0o777, [*path.parent.iterdir()])


def test_a_file_that_is_there_keeps_its_mode_and_a_link_stays_a_link(path: Path, tmp_path: Path) -> None:
    """So that the gateway's user can go on reading what an administrator changes."""
    write_keys(path, [])
    path.chmod(0o640)
    link = tmp_path / "link.json"
    link.symlink_to(path)
    write_keys(link, [Key("a", digest_of("k"))])

    assert (0o640, True, "a") == (path.stat().st_mode & 0o777, link.is_symlink(), read_keys(path)[0].name)


@pytest.mark.parametrize(
    ("written", "told"),
    [
        (b"{", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[" * 100_000, "not JSON"),
        (b"[]", 'a list "keys"'),
        (b"{}", 'a list "keys"'),
        ({"keys": [1]}, "keys[0] is not an object"),
        ({"keys": [{"name": "a", "sha256": DIGEST, "requests_per_secnd": 1}]}, "unknown field 'requests_per_secnd'"),
        ({"keys": [{"name": "a b", "sha256": DIGEST}]}, "keys[0].name"),
        ({"keys": [{"sha256": DIGEST}]}, "keys[0].name"),
        ({"keys": [{"name": "a", "sha256": "secret"}]}, "keys[0].sha256"),
        ({"keys": [{"name": "a", "sha256": DIGEST, "concurrent": 0}]}, "keys[0].concurrent"),
        ({"keys": [{"name": "a", "sha256": DIGEST, "concurrent": True}]}, "keys[0].concurrent"),
        ({"keys": [{"name": "a", "sha256": DIGEST, "tokens_per_minute": 1.5}]}, "keys[0].tokens_per_minute"),
        ({"keys": [{"name": "a", "sha256": DIGEST, "expires": "soon"}]}, "keys[0].expires"),
        ({"keys": [{"name": "a", "sha256": DIGEST}, {"name": "a", "sha256": "cd" * 32}]}, "the same name"),
        ({"keys": [{"name": "a", "sha256": DIGEST}, {"name": "b", "sha256": DIGEST}]}, "the same digest"),
    ],
)
def test_a_file_that_is_not_right_is_refused_with_the_place(written: Any, told: str) -> None:
    """Also a limit that is spelled wrongly, which would not hold; never with what may be a key."""
    with pytest.raises(KeysFileError) as caught:
        parse_keys(written if isinstance(written, bytes) else json.dumps(written).encode())

    assert told in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("written", "told"), [(b"", "no key"), (b"\n \n", "no key"), (b"a b", "key 1"), (b"a\n\xff", "ASCII")]
)
def test_a_plain_file_holds_a_key_on_each_line(written: bytes, told: str) -> None:
    """An empty one would let nobody in, or everybody."""
    assert ("new", "old") == parse_plain(b"new\r\n\nold\n")
    with pytest.raises(KeysFileError, match=told):
        parse_plain(written)


# --- The command ------------------------------------------------------------------------------------------------------


def test_keys_are_added_listed_and_revoked(path: Path) -> None:
    """A key is printed once; the list shows everything but the key."""
    first = made(path, "acme", "--requests-per-second", "20", "--expires", "2999-01-31")
    second = made(path, "old", "--expires", "2020-01-01T00:00:00Z")
    listed = run(path, "list").output
    revoked = run(path, "revoke", "acme")

    assert first != second
    assert all(word in listed for word in ("acme", "20", "2999-01-31 00:00 UTC", "2020-01-01 00:00 UTC, expired"))
    assert first not in listed + path.read_text()
    assert (0, ["old"]) == (revoked.exit_code, [key.name for key in read_keys(path)])


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["add", "acme"], "already"),
        (["add", "a b"], "letters"),
        (["add", "b", "--concurrent", "0"], "range"),
        (["add", "b", "--expires", "soon"], "2027-01-31"),
        (["revoke", "nobody"], "no key 'nobody'"),
    ],
)
def test_the_command_says_what_is_wrong_and_changes_nothing(path: Path, arguments: list[str], told: str) -> None:
    """With exit code 1 or 2."""
    made(path, "acme")
    before = path.read_bytes()
    result = run(path, *arguments)

    assert result.exit_code in {1, 2}
    assert told in result.output
    assert before == path.read_bytes()


@pytest.mark.parametrize("command", [["list"], ["add", "x"], ["revoke", "x"]])
def test_a_broken_file_is_never_written_over(path: Path, command: list[str]) -> None:
    """Nor one that cannot be there."""
    path.write_text("{")

    assert "not JSON" in run(path, *command).output
    assert "{" == path.read_text()
    assert 1 == run(path / "below", *command).exit_code


# --- What is accepted -------------------------------------------------------------------------------------------------


def test_each_source_of_bearer_keys_lets_in(path: Path, tmp_path: Path) -> None:
    """`API_KEY`, its file, and the file of named keys; only the last gives a name."""
    (tmp_path / "plain").write_text("from-file\n")
    named = made(path, "acme")
    ring = Keyring(
        load({"API_KEY": "fixed", "API_KEY_FILE": str(tmp_path / "plain"), "API_KEYS_FILE": str(path)}),
    )
    names = [ring.check(f"Bearer {key}", "") for key in ("fixed", "from-file", named)]

    assert [None, None, "acme"] == [key and key.name for key in names]
    for wrong in ("", "Bearer ", f"Basic {named}"):
        with pytest.raises(MissingKey):
            ring.check(wrong, "")
    for wrong in (new_key(), named[:-1], digest_of(named).hex(), "é"):
        with pytest.raises(WrongKey):
            ring.check(f"Bearer {wrong}", "")


def test_a_file_without_keys_lets_nobody_in(path: Path) -> None:
    """It was set so that keys are asked for."""
    write_keys(path, [])

    with pytest.raises(WrongKey):
        Keyring(load({"API_KEYS_FILE": str(path)})).check("Bearer x", "")


def test_a_key_ends_at_its_expiry(path: Path) -> None:
    """401 from then on."""
    write_keys(path, [Key("a", digest_of("k1"), expires=time.time() - 1), Key("b", digest_of("k2"), expires=9e9)])
    ring = Keyring(load({"API_KEYS_FILE": str(path)}))
    still = ring.check("Bearer k2", "")

    assert still is not None
    with pytest.raises(WrongKey, match="expired"):
        ring.check("Bearer k1", "")


def test_files_are_read_again_when_they_change(path: Path, tmp_path: Path) -> None:
    """A key is rotated without a moment in which neither the old nor the new one holds."""
    plain, server = tmp_path / "plain", tmp_path / "server"
    plain.write_text("old")
    server.write_text("s-old")
    write_keys(path, [])
    ring = Keyring(
        load({"API_KEY_FILE": str(plain), "DGEM_SERVER_KEY_FILE": str(server), "API_KEYS_FILE": str(path)}),
    )
    ring.check("Bearer old", "s-old")
    plain.write_text("new\nold")
    server.write_text("s-new\ns-old")
    ring.reload()
    ring.check("Bearer new", "s-old")
    ring.check("Bearer old", "s-new")
    plain.write_text("new")
    added = made(path, "acme")
    ring.reload()

    assert ring.check(f"Bearer {added}", "s-new") is not None
    with pytest.raises(WrongKey):
        ring.check("Bearer old", "s-new")


@pytest.mark.parametrize("broken", ["{", '{"keys": [{}]}', None])
def test_a_broken_file_leaves_the_keys_as_they_were(
    path: Path, broken: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    """The log says so once; when the file is right again, it holds."""
    key = made(path, "acme")
    ring = Keyring(load({"API_KEYS_FILE": str(path)}))
    right = path.read_text()
    path.unlink() if broken is None else path.write_text(broken)
    ring.reload()
    ring.reload()
    ring.check(f"Bearer {key}", "")
    errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    path.write_text(right.replace("acme", "other-name"))
    ring.reload()
    found = ring.check(f"Bearer {key}", "")

    assert 1 == len(errors)
    assert "the keys read before still hold" in errors[0]
    assert found is not None
    assert "other-name" == found.name


@pytest.mark.parametrize("variable", ["API_KEYS_FILE", "API_KEY_FILE", "DGEM_SERVER_KEY_FILE"])
def test_keys_that_are_not_there_at_the_start_are_an_error(variable: str) -> None:
    """It names the setting."""
    with pytest.raises(KeysFileError, match=f"{variable} /nowhere/keys: No such file"):
        Keyring(load({variable: "/nowhere/keys"}))


def test_a_gateway_does_not_start_with_a_broken_file_of_keys(start_server: Start, path: Path) -> None:
    """It would be closed to all; the log says what is wrong."""
    path.write_text("{")
    server = start_server(ready=False, ENGINE="stub", API_KEYS_FILE=str(path))

    assert EXIT_FAILED == server.process.wait(20)
    assert f"API_KEYS_FILE {path}: not JSON" in server.log.read_text()


# --- Served -----------------------------------------------------------------------------------------------------------


async def test_decisions_are_counted_by_the_name_of_the_key(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The queue is fair between names; the key itself is nowhere."""
    key = made(path, "acme")
    async with AppClient(API_KEYS_FILE=str(path), LOG_LEVEL="info") as client:
        status = (await client.post(PATH, json=asked(), headers=bearer(key))).status_code
        metrics = (await client.get("/metrics")).text

    assert 200 == status
    assert 'canvasgate_decisions_total{key="acme"} 1.0' in metrics
    assert key not in metrics + caplog.text
    assert digest_of(key).hex() not in metrics + caplog.text


async def test_a_running_gateway_takes_over_what_the_command_writes(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Added and revoked while it serves."""
    monkeypatch.setattr(keyring, "LOOK_INTERVAL", 0.01)
    write_keys(path, [])
    async with AppClient(API_KEYS_FILE=str(path)) as client:

        async def until_answered(status: int) -> None:
            while status != (await client.post(PATH, json=asked(), headers=bearer(key))).status_code:  # noqa: ASYNC110 - a file tells nobody of its change
                await asyncio.sleep(0.01)

        key = await asyncio.to_thread(made, path, "acme")
        await until_answered(200)
        await asyncio.to_thread(run, path, "revoke", "acme")
        await until_answered(401)


def test_two_that_add_at_once_lose_no_key(path: Path) -> None:
    """They take turns."""

    def add(number: int) -> None:
        with editing(path):
            write_keys(path, [*read_keys(path), Key(f"k{number}", os.urandom(32))])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(add, range(40)))

    assert {f"k{number}" for number in range(40)} == {key.name for key in read_keys(path)}
