"""Sub-conversations: a sandbox may report any conversation as the parent of its own."""

from shared.conversations import queries
from shared.db.database import Database
from shared.models import Conversation, Sandbox
from tests.factories import ApiUser, make_conversation, make_sandbox


def test_children_are_listed_and_of_the_same_owner(
    database: Database, user: ApiUser, other_user: ApiUser, sandbox: Sandbox, conversation: Conversation
) -> None:
    child = make_conversation(database, user, sandbox, parent_id=conversation.id)
    make_conversation(database, user, sandbox, parent_id=conversation.id, listed=False)
    make_conversation(database, other_user, make_sandbox(database, other_user), parent_id=conversation.id)
    with database.reading() as session:
        assert queries.children(session, [conversation.id], user.id) == {conversation.id: [child.id]}
