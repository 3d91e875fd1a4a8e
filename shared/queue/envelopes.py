"""Which items of a queue Kombu can read. Others must not reach it, because its error would end the process."""

from base64 import b64decode

from kombu.utils.json import loads


def is_envelope(item: bytes) -> bool:
    """Whether an item of a queue is a message: JSON with the fields that Kombu reads, and with a body of JSON."""
    try:
        match loads(item):
            case {
                "body": str(body),
                "content-type": "application/json",
                "content-encoding": "utf-8",
                "headers": dict(headers),
                "properties": {
                    "body_encoding": "base64",
                    "delivery_tag": str(tag),
                    "delivery_info": {"exchange": str(), "routing_key": str()},
                },
            } if tag.isascii() and "compression" not in headers:
                loads(b64decode(body))
                return True
    except Exception:  # noqa: BLE001 - Kombu decodes values of several types, each with errors of its own
        return False
    return False
