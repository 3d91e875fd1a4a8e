"""The file `var/env`, as a source of settings."""

import errno
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dotenv import dotenv_values
from dotenv.parser import Binding, parse_stream
from pydantic_settings import BaseSettings, DotEnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

ENCODING = "utf-8"


class FileSettings(BaseSettings):
    """Settings of which some may be in a file of `NAME=value` lines."""

    # An infinite duration has no end that a date, or a wait, could have.
    model_config = SettingsConfigDict(allow_inf_nan=False)

    def __init__(self, **values: Any) -> None:
        """Read the settings.

        Raises:
            ValidationError: one of them is wrong.
            OSError: the file cannot be read, or is not text.
        """
        try:
            super().__init__(**values)
        except UnicodeDecodeError:
            raise OSError(errno.EILSEQ, "it is not text in UTF-8", str(self.model_config["env_file"])) from None

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - given by name
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Read the file's values as they are written."""
        assert isinstance(dotenv_settings, DotEnvSettingsSource)  # noqa: S101 - the library makes no other
        return init_settings, env_settings, _LiteralFile(settings_cls, dotenv_settings.env_file)


class _LiteralFile(DotEnvSettingsSource):
    """Replaces no `${NAME}`, which may be part of a password. A container's environment and systemd replace none."""

    def _read_env_file(self, file_path: Path) -> Mapping[str, str | None]:
        found = dotenv_values(file_path, encoding=ENCODING, interpolate=False)
        return {name.lower(): value for name, value in found.items()}


def read_lines(file: Path) -> Sequence[Binding]:
    """The settings in a file, and its lines that set nothing."""
    with file.open(encoding=ENCODING) as stream:
        return list(parse_stream(stream))
