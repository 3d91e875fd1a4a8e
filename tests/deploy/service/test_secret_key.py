"""Processes without a usable secret key: their log names its place, in one line without the key."""

from pathlib import Path

import pytest

from shared.backup.keys import read_vault
from shared.cli.local.installation import LocalInstallation
from shared.errors import Invalid
from shared.settings import Settings
from tests.services.directories import REPOSITORY
from tests.services.interpreters import Interpreters

MALFORMED, MISSING = "a-secret-key-is-malformed-or-a-secret-cannot-be-decrypted", "the-secret-key-is-gone"


@pytest.mark.parametrize(
    ("module", "keys", "entry"),
    [
        ("api", "hush", MALFORMED),
        ("worker", "hush", MALFORMED),
        ("deploy.door", "hush", MALFORMED),
        ("deploy.door", "", MISSING),
    ],
)
def test_process_without_a_secret_key_names_its_place(
    interpreters: Interpreters, tmp_path: Path, module: str, keys: str, entry: str
) -> None:
    settings = Settings(var_dir=tmp_path / "var")
    LocalInstallation(settings).migrate()
    settings.secret_key_file.unlink()
    environment = {"PYTHONPATH": str(REPOSITORY), "AW_VAR_DIR": "var", "AW_SECRET_KEYS": keys}
    done = interpreters.run("-m", module, cwd=tmp_path, env=environment)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"AW_SECRET_KEYS, or {settings.secret_key_file.relative_to(tmp_path)}" in done.stderr
    assert (f"explain {entry})" in done.stderr, "hush" in done.stderr) == (True, False)


def test_file_that_is_no_text_is_a_malformed_key(tmp_path: Path) -> None:
    settings = Settings(var_dir=tmp_path)
    settings.secret_key_file.write_bytes(b"\xff\xfe")
    with pytest.raises(Invalid, match=MALFORMED):
        read_vault(settings)


def test_file_that_can_not_be_read_is_not_a_lost_key(tmp_path: Path) -> None:
    settings = Settings(var_dir=tmp_path)
    settings.secret_key_file.mkdir()
    with pytest.raises(Invalid, match=rf"{settings.secret_key_file} cannot be read: Is a directory$"):
        read_vault(settings)
