"""Custom secrets on the wire (wire contract 1.9): values come in and never go out."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from api.schemas.v1.fields import Strict, Text, Value
from shared.users.mcp_config import MASK
from shared.users.secret_names import check_form, check_free


def _check_form(name: str) -> str:
    check_form([name])
    return name


def _check_free(name: str) -> str:
    check_free([_check_form(name)])
    return name


def _check_value(value: SecretStr) -> SecretStr:
    if value.get_secret_value() in ("", MASK):
        raise ValueError("a value is needed")
    return value


NewName = Annotated[str, AfterValidator(_check_free)]


class CustomSecretInfo(BaseModel):
    """A secret without its value."""

    name: str
    description: str | None = None


class CustomSecretWithoutValue(Strict):
    """What a secret is to be called, and what it is for."""

    name: Annotated[str, AfterValidator(_check_form)]
    description: Text | None = None


class CustomSecretCreate(Strict):
    """A secret, new or with a new value."""

    name: NewName
    description: Text | None = None
    value: Annotated[Value, AfterValidator(_check_value), Field(json_schema_extra={"writeOnly": True})]


class SecretNamesResponse(BaseModel):
    """What a sandbox may ask for."""

    secrets: list[CustomSecretInfo]
