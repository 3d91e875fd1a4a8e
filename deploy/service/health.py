"""`python -m deploy.service.health`: whether this machine's API is ready, as its exit status."""

import sys

from deploy.service.announce import is_ready, local_url
from shared.settings import Settings

if __name__ == "__main__":
    sys.exit(not is_ready(local_url(Settings())))
