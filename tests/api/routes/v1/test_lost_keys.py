"""Rows whose secret key was lost: they must not keep their owner from seeing all others."""

from fastapi.testclient import TestClient

from shared.crypto import Vault, new_secret_key
from shared.db.database import Database
from tests.factories import ApiUser, make_conversation, make_sandbox

OTHER_KEY = Vault([new_secret_key()])


def test_lists_show_sandboxes_whose_session_key_cannot_be_decrypted(
    client: TestClient, user: ApiUser, database: Database
) -> None:
    sandbox = make_sandbox(database, user, session_key=OTHER_KEY.encrypt("lost"))
    conversation = make_conversation(database, user, sandbox)
    for path, shown in (("sandboxes", sandbox.id), ("app-conversations", conversation.id)):
        [item] = client.get(f"/api/v1/{path}/search", headers=user.headers).json()["items"]
        assert (item["id"], item["session_api_key"]) == (shown, None)
