"""Names of secrets: usable, malformed and reserved ones."""

import pytest

from shared.users.secrets import (
    RESERVED_NAMES,
    RESERVED_PREFIXES,
    check_form,
    check_free,
    check_requested,
    is_usable,
)

MALFORMED = ["", "1ST", "no-dashes", "two words", "line\n", "café", "N" * 257]
TAKEN = [*sorted(RESERVED_NAMES), *(f"{prefix}X" for prefix in RESERVED_PREFIXES), "vscode", "llm_api_key"]
SHELLS = [
    *("PATH", "HOME", "IFS", "SHELL", "PWD", "USER", "BASH_ENV", "LD_PRELOAD", "LD_LIBRARY_PATH", "PYTHONPATH"),
    *("BASH", "BASHOPTS", "SHELLOPTS", "ENV", "PS4", "PROMPT_COMMAND", "FUNCNEST", "GLOBIGNORE", "POSIXLY_CORRECT"),
]
FINE = [
    "A",
    "_",
    "a1",
    "N" * 256,
    "GITHUB_TOKEN",
    "MY_LLM_KEY",
    "VSCODE_TOKEN",
    "path",
    "home",
    "ENV_NAME",
    "MY_PATH",
    "PATH_KEY",
]


@pytest.mark.parametrize("name", FINE)
def test_usable_names_are_accepted(name: str) -> None:
    check_requested([name])
    assert is_usable(name)


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_name_is_rejected_and_not_quoted(name: str) -> None:
    for check in (check_form, check_requested):
        with pytest.raises(ValueError, match="a name is") as error:
            check(["FINE", name])
        assert not name or name not in str(error.value)
    assert not is_usable(name)


@pytest.mark.parametrize("name", [*TAKEN, *SHELLS])
def test_rejection_names_the_reserved_name(name: str) -> None:
    for check in (check_free, check_requested):
        with pytest.raises(ValueError, match=f"reserved names: {name}$"):
            check(["FINE", name])
    assert not is_usable(name)


def test_more_than_fifty_secrets_are_rejected() -> None:
    check_requested([f"S{number}" for number in range(50)])
    with pytest.raises(ValueError, match="got 51"):
        check_requested([f"S{number}" for number in range(51)])
