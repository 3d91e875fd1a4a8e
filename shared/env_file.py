"""The file `var/env`, as a source of settings."""

from collections.abc import Mapping
from pathlib import Path

from dotenv import dotenv_values
from pydantic_settings import BaseSettings, DotEnvSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict


class FileSettings(BaseSettings):
    """Settings of which some may be in a file of `NAME=value` lines."""

    # An infinite duration has no end that a date, or a wait, could have.
    model_config = SettingsConfigDict(allow_inf_nan=False)

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
        found = dotenv_values(file_path, encoding="utf-8", interpolate=False)
        return {name.lower(): value for name, value in found.items()}
