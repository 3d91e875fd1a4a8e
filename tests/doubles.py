"""Stand-ins for the parts that a test does not want."""

from shared.broker import Publisher
from shared.jobs import Job


class RecordingPublisher(Publisher):
    """Keeps what was published, in order, and sends nothing."""

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def publish(self, *jobs: Job) -> None:
        self.jobs += jobs
