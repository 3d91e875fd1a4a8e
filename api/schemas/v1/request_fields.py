"""Types of fields of the requests that are about a conversation."""

from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from api.schemas.v1.texts import check_branch, check_repository


def _blank_is_none(value: Any) -> Any:
    return None if isinstance(value, str) and not value.strip() else value


Blank = BeforeValidator(_blank_is_none)
Line = Annotated[str, Field(max_length=500)]
Repository = Annotated[str, Field(max_length=500), AfterValidator(check_repository)]
Branch = Annotated[str, Field(max_length=255), AfterValidator(check_branch)]
