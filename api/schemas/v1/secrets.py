"""Custom secrets on the wire (wire contract 1.9): requests carry values, responses never do."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, SecretStr

from api.schemas.v1.fields import Strict, Text, Value
from shared.users.mcp_config import MASK
from shared.users.secrets import check_form, check_free


def _check_form(name: str) -> str:
    check_form([name])
    return name


def _check_free(name: str) -> str:
    check_free([_check_form(name)])
    return name


def _check_value(value: SecretStr) -> SecretStr:
    if value.get_secret_value() in ("", MASK):
        raise ValueError("the value must not be empty or masked")
    return value


NewName = Annotated[str, AfterValidator(_check_free)]


class CustomSecretInfo(BaseModel):
    """A secret without its value."""

    name: str
    description: str | None = None


class CustomSecretWithoutValue(Strict):
    """The new name and description of a secret."""

    name: Annotated[str, AfterValidator(_check_form)]
    description: Text | None = None


class CustomSecretCreate(Strict):
    """A secret to create, or to replace with a new value."""

    name: NewName
    description: Text | None = None
    value: Annotated[Value, AfterValidator(_check_value), Field(json_schema_extra={"writeOnly": True})]


class SecretNamesResponse(BaseModel):
    """The secrets that a sandbox may read."""

    secrets: list[CustomSecretInfo]
