"""Secrets at rest, through the rotation of their keys."""

import pytest

from shared.crypto import KEY_PREFIX, MissingKey, Vault, new_api_key, new_secret_key

OLD, NEW = new_secret_key(), new_secret_key()


@pytest.mark.parametrize("text", ["", "secret", "ü\x00\n", "x" * 100_000])
def test_text_is_encrypted_and_decrypted(text: str) -> None:
    vault = Vault([OLD])
    token = vault.encrypt(text)
    assert vault.decrypt(token) == text
    assert not text or text not in token


def test_same_text_has_a_different_token_each_time() -> None:
    vault = Vault([OLD])
    assert vault.encrypt("secret") != vault.encrypt("secret")


def test_new_key_encrypts_and_the_old_one_still_decrypts() -> None:
    before, after = Vault([OLD]), Vault([NEW, OLD])
    assert after.decrypt(before.encrypt("secret")) == "secret"
    assert Vault([NEW]).decrypt(after.encrypt("secret")) == "secret"
    with pytest.raises(ValueError, match="AW_SECRET_KEYS"):
        before.decrypt(after.encrypt("secret"))


def test_secrets_of_a_removed_key_cannot_be_decrypted() -> None:
    vault = Vault([NEW])
    assert vault.find_problem() is None
    with pytest.raises(MissingKey, match="AW_SECRET_KEYS"):
        vault.decrypt(Vault([OLD]).encrypt("secret"))
    assert "AW_SECRET_KEYS" in str(vault.find_problem())


@pytest.mark.parametrize("token", ["", "x", "gAAAAA", "ü"])
def test_damaged_token_is_rejected_without_being_shown(token: str) -> None:
    with pytest.raises(ValueError, match="cannot decrypt") as caught:
        Vault([OLD]).decrypt(token)
    assert caught.value.__suppress_context__
    assert not isinstance(caught.value, MissingKey)


def test_changed_token_is_rejected() -> None:
    token = Vault([OLD]).encrypt("secret")
    changed = token[:-5] + ("A" if token[-5] != "A" else "B") + token[-4:]
    with pytest.raises(ValueError, match="cannot decrypt"):
        Vault([OLD]).decrypt(changed)


def test_digests_are_stable_keyed_and_of_fixed_length() -> None:
    first, second = Vault([OLD]), Vault([NEW])
    assert first.digest("key") == Vault([OLD]).digest("key")
    assert first.digest("key") != second.digest("key")
    assert first.digest("key") != first.digest("Key")
    assert {len(first.digest(key)) for key in ("", "key", "k" * 1000)} == {64}


def test_rotated_vault_has_the_digests_of_both_keys() -> None:
    rotated = Vault([NEW, OLD])
    assert rotated.digests("key") == [Vault([NEW]).digest("key"), Vault([OLD]).digest("key")]
    assert rotated.digest("key") == rotated.digests("key")[0]


@pytest.mark.parametrize("keys", [[], [""], ["short"], [OLD, "short"]])
def test_vault_needs_well_formed_keys(keys: list[str]) -> None:
    with pytest.raises(ValueError, match="key"):
        Vault(keys)


def test_api_keys_are_long_and_unique() -> None:
    keys = {new_api_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith(KEY_PREFIX) and len(key) == len(KEY_PREFIX) + 43 for key in keys)
