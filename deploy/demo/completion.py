"""Responses in OpenAI's chat completion format, whole or as a stream of chunks."""

import hashlib
import json
import time
from collections.abc import Iterator

from deploy.demo.script import CallTool, Finish, Json, RunCommand, Say

USAGE: Json = {"prompt_tokens": 20, "completion_tokens": 10, "total_tokens": 30}
Reply = Say | CallTool | RunCommand | Finish


def completion(request: Json, reply: Reply) -> Json:
    """The whole response as one object."""
    message = {"role": "assistant", **message_body(request, reply)}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason(message)}
    return {**envelope(request, "chat.completion"), "choices": [choice], "usage": USAGE}


def chunks(request: Json, reply: Reply) -> Iterator[Json]:
    """The response in chunks. The last one has the usage, if the request includes it."""
    frame = envelope(request, "chat.completion.chunk")
    body = message_body(request, reply)
    for delta in deltas(body):
        yield {**frame, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]}
    yield {**frame, "choices": [{"index": 0, "delta": {}, "finish_reason": finish_reason(body)}]}
    if (request.get("stream_options") or {}).get("include_usage"):
        yield {**frame, "choices": [], "usage": USAGE}


def envelope(request: Json, kind: str) -> Json:
    """The fields common to whole responses and chunks. The id is the same for the same request."""
    return {
        "id": f"chatcmpl-{digest(request)}",
        "object": kind,
        "created": int(time.time()),
        "model": request.get("model"),
    }


def message_body(request: Json, reply: Reply) -> Json:
    """The content and the tool calls of the assistant's message."""
    if isinstance(reply, Say):
        return {"content": reply.text}
    call = reply if isinstance(reply, CallTool) else reply.call()
    function = {"name": call.name, "arguments": json.dumps(call.arguments)}
    tool_call = {"id": f"call_{digest(request)}", "type": "function", "function": function}
    return {"content": call.text or None, "tool_calls": [tool_call]}


def finish_reason(body: Json) -> str:
    """The finish reason of a message."""
    return "tool_calls" if body.get("tool_calls") else "stop"


def deltas(body: Json) -> Iterator[Json]:
    """The message in deltas. Arguments and text are split in two, as real providers split them."""
    yield {"role": "assistant", "content": ""}
    for piece in halves(body["content"] or ""):
        yield {"content": piece}
    for index, call in enumerate(body.get("tool_calls", [])):
        named = {"name": call["function"]["name"], "arguments": ""}
        yield {"tool_calls": [{**call, "index": index, "function": named}]}
        for piece in halves(call["function"]["arguments"]):
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}


def halves(text: str) -> list[str]:
    """The text in two halves, without empty ones."""
    middle = len(text) // 2
    return [piece for piece in (text[:middle], text[middle:]) if piece]


def digest(request: Json) -> str:
    """A digest of the request's content, so that a retry gets the same ids."""
    content = json.dumps(request.get("messages"), sort_keys=True, default=str)
    return hashlib.sha256(content.encode()).hexdigest()[:24]
