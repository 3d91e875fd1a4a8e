"""All limits of one process. Each process counts for itself."""

from api.caller_slots import CallerSlots
from api.limits.bodies import BodyLimit
from api.limits.buffers import BufferLimit
from api.limits.concurrency import ConcurrencyLimit
from api.limits.rates import RateLimit
from shared.settings import Settings

ADDRESS = "this address"
# How many bodies of the maximum size may be sent at a time. However many sandboxes or connections a user has, they must
# not fill the memory.
WEBHOOKS_OF_OWNER, BODIES_OF_USER = 4, 8
# The largest message takes up to 80 MiB: a character takes four bytes if the message contains one that needs them.
WEBSOCKET_BYTES = 128 * 1024 * 1024
# Requests of a user, and webhooks of all of a user's sandboxes, that run in threads at a time. A page of large events,
# or a webhook of them, takes a second of processor time. There are ten connections to the database, and eight for
# writing, of which a caller gets half.
THREADS_OF_USER, THREADS_OF_WEBHOOKS = 8, 4
# Of the four threads that build lists.
LIST_THREADS_OF_USER = 3


class ProcessLimits:
    def __init__(self, settings: Settings) -> None:
        self.logins = RateLimit("login", settings.rate_logins, of=ADDRESS)
        self.device_starts = RateLimit("device-start", settings.rate_device_starts, of=ADDRESS)
        self.device_polls = RateLimit("device-poll", settings.rate_device_polls, of=ADDRESS)
        self.keyless = RateLimit("keyless", settings.rate_keyless, of=ADDRESS)
        self.wrong_keys = RateLimit("wrong-key", settings.rate_wrong_keys, of=ADDRESS)
        self.webhooks = RateLimit("webhook", settings.rate_webhooks, of="this sandbox")
        self.webhook_bodies = BodyLimit(settings.max_webhook_bytes, of="this sandbox")
        self.owner_webhook_bodies = BodyLimit(
            settings.max_webhook_bytes, of="this user's sandboxes", bodies=WEBHOOKS_OF_OWNER
        )
        self.user_threads = CallerSlots(THREADS_OF_USER)
        self.list_threads = CallerSlots(LIST_THREADS_OF_USER)
        self.webhook_threads = CallerSlots(THREADS_OF_WEBHOOKS)
        self.user_bodies = BodyLimit(settings.max_body_bytes, of="this user", bodies=BODIES_OF_USER)
        self.streams = ConcurrencyLimit("streams", of_user=settings.user_streams, of_process=settings.max_streams)
        self.downloads = ConcurrencyLimit(
            "downloads", of_user=settings.user_downloads, of_process=settings.max_downloads
        )
        self.websockets = ConcurrencyLimit(
            "websockets", of_user=settings.user_websockets, of_process=settings.max_websockets
        )
        self.websocket_bytes = BufferLimit(WEBSOCKET_BYTES)
        self.proxied = ConcurrencyLimit(
            "requests to sandboxes", of_user=settings.user_proxied, of_process=settings.max_proxied
        )
        self.waiting = ConcurrencyLimit(
            "requests that wait for sandboxes", of_user=settings.user_waiting, of_process=settings.wake_max_waiting
        )
