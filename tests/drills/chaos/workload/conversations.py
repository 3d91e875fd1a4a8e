"""Requests about conversations: clients start, message, cancel and delete them, and agent servers report events."""

import random
import threading
import time
from collections.abc import Iterable
from typing import Any

from shared.ids import new_id
from tests.drills.chaos.bounds import bounds_of
from tests.drills.chaos.site import NODES
from tests.drills.chaos.workload.fleet import TRIES, AcknowledgedConversation, Fleet
from tests.drills.history import SANDBOXES
from tests.drills.requests import Outcome, Verb
from tests.factories import ApiUser

CONVERSATIONS = "/api/v1/app-conversations"
EVENTS = 5
MOSTLY = 0.8


class Conversations:
    """Sends requests about conversations, and checks their effects afterwards."""

    def __init__(self, fleet: Fleet) -> None:
        # The acknowledged events, as (conversation, event).
        self.reported: list[tuple[str, str]] = []
        self._fleet = fleet
        # The texts of acknowledged messages, by conversation. `_once`: those sent while there were no faults, which
        # must not be delivered twice.
        self._messages: dict[str, list[str]] = {}
        self._once: set[str] = set()
        # When each acknowledged message was first posted, in seconds since the epoch.
        self._posted_at: dict[str, float] = {}
        self._lock = threading.Lock()

    def start(self, rng: random.Random) -> None:
        """Start a conversation in a sandbox, mostly one that accepts conversations."""
        sandbox = self._any_sandbox(rng, accepting=rng.random() < MOSTLY)
        if sandbox is None:
            return
        sandbox_id, user = sandbox
        self._fleet.touch(sandbox_id)
        conversation_id = new_id()
        task_id = self._fleet.client(user).converse(sandbox_id, conversation_id)
        if task_id is not None:
            self._fleet.conversations[conversation_id] = AcknowledgedConversation(
                conversation_id, task_id, sandbox_id, user
            )

    def cancel(self, rng: random.Random) -> None:
        """Start a conversation and cancel the start at once."""
        sandbox = self._any_sandbox(rng, accepting=True)
        if sandbox is None:
            return
        sandbox_id, user = sandbox
        self._fleet.touch(sandbox_id)
        task_id = self._fleet.client(user).converse(sandbox_id, new_id())
        if task_id is not None:
            self._record(Verb.CANCEL, task_id, "POST", f"{CONVERSATIONS}/start-tasks/{task_id}/cancel", user)

    def delete(self, rng: random.Random) -> None:
        """Delete a conversation. The service may then delete its sandbox, if that has no other conversation."""
        conversation = self._any(rng)
        if conversation is None:
            return
        self._fleet.touch(conversation.sandbox_id)
        self._fleet.conversations.pop(conversation.id, None)
        with self._lock:
            self._messages.pop(conversation.id, None)
        self._record(
            Verb.FORGET, conversation.task_id, "DELETE", f"{CONVERSATIONS}/{conversation.id}", conversation.user
        )

    def post_message(self, rng: random.Random) -> None:
        """Post a pending message to a conversation, whether or not its sandbox runs."""
        conversation = self._any(rng)
        if conversation is not None:
            self._post_message(conversation)

    def post_once_to_all(self) -> None:
        """Post one message to each conversation while there are no faults, so none may be delivered twice."""
        for conversation in list(self._fleet.conversations.values()):
            if (text := self._post_message(conversation)) is not None:
                self._once.add(text)

    def report(self, user: ApiUser, sandbox_id: str) -> None:
        """Post events as the sandbox's agent server does: retry until they are accepted."""
        found = self._fleet.send("GET", f"{SANDBOXES}/{sandbox_id}", user.headers)
        key = found.json()["session_api_key"] if found is not None and found.is_success else None
        if key is None:
            return
        conversation_id, events = new_id(), [_event() for _ in range(EVENTS)]
        path, headers = f"/api/v1/webhooks/events/{conversation_id}", {"X-Session-API-Key": key}
        for _ in range(TRIES):
            response = self._fleet.send("POST", path, headers, json=events)
            if response is not None and response.is_success:
                self.reported += [(conversation_id, event["id"]) for event in events]
                self._fleet.count("report", Outcome.OK)
                # Send them again, as if the response had been lost.
                self._fleet.send("POST", path, headers, json=events)
                return

    def violations(self) -> list[str]:
        """Acknowledged messages that are neither delivered nor still pending, or that were delivered too often."""
        with self._lock:
            messages = {conversation_id: list(texts) for conversation_id, texts in self._messages.items()}
        listed = self._fleet.listed()
        conversations = [
            conversation
            for conversation in list(self._fleet.conversations.values())
            if conversation.sandbox_id in listed
        ]
        return [
            wrong
            for conversation in conversations
            for wrong in self._check(conversation, messages.get(conversation.id, []), listed)
        ]

    def _check(
        self, conversation: AcknowledgedConversation, texts: Iterable[str], listed: dict[str, Any]
    ) -> Iterable[str]:
        start = self._fleet.read(conversation.user, f"{CONVERSATIONS}/start-tasks", ids=conversation.task_id)[0]
        if start is None or start["status"] != "READY":
            return  # a failed start deletes its messages
        waiting, refused = self._pending(conversation)
        said, (_, sandbox) = self._read_stored_text(conversation), listed[conversation.sandbox_id]
        for text in texts:
            copies = said.count(text)
            is_leased = text in refused or (text in waiting and sandbox["status"] != "RUNNING")
            is_lost = copies == 0 and not is_leased
            if is_lost and (text in waiting or not self._has_disk_lost(conversation, text)):
                yield f"message {text} to {conversation.id} was acknowledged but not delivered, {len(waiting)} pending"
            if copies > 1:
                self._fleet.count("message", "delivered twice")
            if copies > 1 and text in self._once:
                yield f"message {text} to {conversation.id} was delivered {copies} times"

    def _pending(self, conversation: AcknowledgedConversation) -> tuple[set[str], set[str]]:
        """The texts that are pending, and those that the agent server refused."""
        items = self._fleet.read(conversation.user, _messages_path(conversation))
        texts = {item["content"][0]["text"]: item["refusal"] for item in items}
        return {text for text, refusal in texts.items() if not refusal}, {text for text in texts if texts[text]}

    def _read_stored_text(self, conversation: AcknowledgedConversation) -> str:
        """The conversation's events as the agent server stores them, read from the sandbox's disk."""
        site = self._fleet.site
        files = (
            bounds_of(site, node).read_file(conversation.sandbox_id, f"conversations/{conversation.id}/events")
            for node in NODES
        )
        return next(filter(None, files), "")

    def _has_disk_lost(self, conversation: AcknowledgedConversation, text: str) -> bool:
        """Whether the agent server may have stored the text before the sandbox's disk last lost what was written."""
        site, posted_at = self._fleet.site, self._posted_at[text]
        if all(bounds_of(site, node).lost_writes_until(conversation.sandbox_id) < posted_at for node in NODES):
            return False
        self._fleet.count("message", "lost with the disk")
        return True

    def _post_message(self, conversation: AcknowledgedConversation) -> str | None:
        text = f"say-{new_id()}"
        content = {"role": "user", "content": [{"type": "text", "text": text}]}
        headers, began = conversation.user.headers | {"Idempotency-Key": text}, time.time()
        for _ in range(TRIES):
            response = self._fleet.send("POST", _messages_path(conversation), headers, json=content)
            if response is None or response.status_code == 503:
                continue
            self._fleet.count("message", Outcome.OK if response.is_success else Outcome.FAILED)
            if not response.is_success:
                return None
            with self._lock:
                self._messages.setdefault(conversation.id, []).append(text)
                self._posted_at[text] = began
            return text
        return None

    def _record(self, verb: Verb, task_id: str, method: str, path: str, user: ApiUser) -> None:
        history = self._fleet.history
        call = history.invoke(verb, task_id)
        response = self._fleet.send(method, path, user.headers)
        if response is not None and response.status_code < 500:
            history.complete(call, Outcome.OK if response.is_success else Outcome.FAILED, verb, task_id)

    def _any(self, rng: random.Random) -> AcknowledgedConversation | None:
        conversations = sorted(self._fleet.conversations.values(), key=lambda conversation: conversation.id)
        return rng.choice(conversations) if conversations else None

    def _any_sandbox(self, rng: random.Random, *, accepting: bool) -> tuple[str, ApiUser] | None:
        alive = sorted(self._fleet.alive.items(), key=lambda item: item[0])
        if accepting:
            alive = [item for item in alive if item[0] in self._fleet.accepting]
        return rng.choice(alive) if alive else None


def _messages_path(conversation: AcknowledgedConversation) -> str:
    return f"/api/v1/conversations/{conversation.id}/pending-messages"


def _event() -> dict[str, Any]:
    return {"id": new_id(), "kind": "MessageEvent", "timestamp": "2026-01-01T00:00:00", "source": "agent"}
