"""Settings: declared once, read once, and refused with everything that is wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest

from decisions.protocol import Isolation, Temperatures
from gateway.config import (
    MASK,
    Declaration,
    EngineChoice,
    InvalidSettings,
    Settings,
    declarations,
    help_lines,
    load,
    markdown_table,
    shown,
)

THIRD_SEED = {
    "ROLE": "default",
    "PORT": "8080",
    "TEMPERATURE": "1.0",
    "API_KEY": "",
    "DGEM_SERVER_KEY": "",
    "DGEM_IMAGE_URLS": "deny",
    "CANVAS": "128",
    "MODEL": "",
    "MODEL_HF": "nvidia/diffusiongemma-26B-A4B-it-NVFP4",
    "DEFAULT_SAMPLES": "1",
    "MAX_INFLIGHT": "auto",
    "MAX_MODEL_LEN": "4096",
    "DEFAULT_ISOLATE": "auto",
    "ISOLATE_AUTO_MAX": "3",
    "ISOLATE_MAX_QUESTIONS": "8",
    "HTTP_IDLE_TIMEOUT": "120",
    "DEFAULT_SEED_TOKEN": "random",
    "DEFAULT_LAYOUT": "document_first",
    "DISABLE_MM": "0",
}
"""Names and defaults that users of dgem bring along; the design says where they differ from dgem's."""

BAD = {
    "PORT": ["0", "65536", "eighty", "8080.0", "-1"],
    "TEMPERATURE": ["0", "-1", "21", "nan", "inf", "true", "[1]", '{"choice":0}', '{"word":1}', '{"noul":"x"}'],
    "CANVAS": ["0", "17", "2048", "x"],
    "DEFAULT_SAMPLES": ["0", "33", "many"],
    "MAX_INFLIGHT": ["-1", "all"],
    "DEFAULT_ISOLATE": ["some"],
    "DISABLE_MM": ["2", "maybe"],
    "QUEUE_TIMEOUT": ["0", "-1", "nan", "inf", "soon"],
    "ENGINE": ["gpu"],
    "DTYPE": ["int4"],
    "EXTRA_ARGS": ["[1]", "{", "1"],
    "STUB_MISSING_SLOT": ["1.1", "-0.1"],
    "MAX_LEVELS": ["11"],
}


def test_the_default_configuration_is_what_an_empty_environment_gives() -> None:
    """Nothing needs to be set."""
    assert load({}) == Settings()


@pytest.mark.parametrize(("variable", "default"), THIRD_SEED.items())
def test_names_and_defaults_of_the_third_seed_are_kept(variable: str, default: str) -> None:
    """A deployment written for dgem's image keeps its meaning."""
    assert {setting.variable: setting.default for setting in declarations()}[variable] == default


def test_values_arrive_typed() -> None:
    """Each setting has the type that its users need, so that none of them parses text."""
    settings = load(
        {
            "ENGINE": "STUB",
            "PORT": " 9000 ",
            "DGEM_SERVER_KEY": "new, old,",
            "DEFAULT_ISOLATE": "noul",
            "DISABLE_MM": "true",
            "MODEL_CACHE": "/tmp/models",
            "EXTRA_ARGS": '{"seed": 1}',
        }
    )

    assert settings.engine is EngineChoice.STUB
    assert settings.port == 9000
    assert settings.dgem_server_key == ("new", "old")
    assert settings.default_isolate is Isolation.NOUL
    assert settings.disable_mm is True
    assert settings.model_cache == Path("/tmp/models")
    assert settings.extra_args == {"seed": 1}


@pytest.mark.parametrize("variable", [setting.variable for setting in declarations()])
def test_an_empty_variable_is_an_unset_one(variable: str) -> None:
    """Container tools pass empty variables for what their user left out."""
    assert load({variable: ""}) == Settings()


@pytest.mark.parametrize(("variable", "value"), [(name, value) for name in BAD for value in BAD[name]])
def test_a_bad_value_is_named_with_what_is_allowed(variable: str, value: str) -> None:
    """The message alone is enough to repair the environment."""
    allowed = {setting.variable: setting.allowed for setting in declarations()}[variable]
    with pytest.raises(InvalidSettings) as caught:
        load({variable: value})

    assert caught.value.faults == (f"{variable} is {value!r}; allowed is {allowed}.",)


def test_all_faults_come_at_once() -> None:
    """Nobody repairs one variable per start."""
    with pytest.raises(InvalidSettings) as caught:
        load({"PORT": "x", "CANVAS": "128", "MAX_MODEL_LEN": "128", "ENGINE": "gpu"})

    assert [fault.split()[0] for fault in caught.value.faults] == ["PORT", "ENGINE", "CANVAS"]
    assert str(caught.value).count("\n") == 2


def test_shares_of_broken_readouts_add_up_to_one_at_most() -> None:
    """A readout is broken in one way, so the shares are parts of one whole."""
    with pytest.raises(InvalidSettings, match="more than 1"):
        load({"STUB_MISSING_SLOT": "0.6", "STUB_NOT_FINITE": "0.6"})


def test_overrides_win_over_the_environment() -> None:
    """The command line says it last."""
    assert load({"PORT": "1"}, {"PORT": "2"}).port == 2


def test_the_process_environment_is_read_when_none_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """`load()` is the one place that does so."""
    monkeypatch.setenv("PORT", "9001")

    assert load().port == 9001


def test_a_temperature_is_one_number_or_one_per_type() -> None:
    """A type that the object leaves out keeps 1."""
    assert load({"TEMPERATURE": "1.3"}).temperature == Temperatures(noul=1.3, choice=1.3, score=1.3)
    assert load({"TEMPERATURE": '{"noul": 3}'}).temperature == Temperatures(noul=3.0)


@pytest.mark.parametrize(("written", "value"), [("auto", None), ("0", 0), ("8", 8)])
def test_auto_is_left_to_whoever_uses_the_setting(written: str, value: int | None) -> None:
    """`auto` is None, never a number that somebody might count with."""
    assert load({"MAX_INFLIGHT": written}).max_inflight == value


def test_secrets_show_neither_in_print_nor_in_repr_nor_in_faults() -> None:
    """A key that is set shows only that it is set."""
    settings = load({"API_KEY": "hunter2", "DGEM_SERVER_KEY": "swordfish,b"})

    assert shown(settings)["API_KEY"] == shown(settings)["DGEM_SERVER_KEY"] == MASK
    assert shown(Settings())["API_KEY"] == ""
    assert "hunter2" not in repr(settings)
    assert "swordfish" not in repr(settings)


def test_what_is_shown_can_be_loaded_again() -> None:
    """`canvasgate settings` prints an environment."""
    settings = load(
        {
            "TEMPERATURE": '{"noul": 3, "choice": 1.25}',
            "DEFAULT_SAMPLES": "auto",
            "MAX_SEQS": "64",
            "CORS_ORIGINS": "https://a.example, https://b.example",
            "EXTRA_ARGS": '{"kv_cache_dtype": "fp8"}',
            "STUB_DEAD": "1",
            "QUEUE_TIMEOUT": "0.25",
        }
    )

    assert load(shown(settings)) == settings


@pytest.mark.parametrize("setting", declarations(), ids=lambda setting: setting.variable)
def test_help_and_table_name_every_setting(setting: Declaration) -> None:
    """A setting that is not documented does not exist for its user."""
    variable = setting.variable

    assert any(line.split()[0] == variable for line in help_lines())
    assert f"| `{variable}` |" in markdown_table()


@pytest.mark.parametrize("line", markdown_table().splitlines())
def test_every_row_of_the_table_has_four_cells(line: str) -> None:
    """No help text holds a bar that would break the table."""
    assert line.count("|") == 5
