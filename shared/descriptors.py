"""The number of files and connections that this process may have open at a time."""

import resource
from contextlib import suppress

# More would only enlarge the kernel's table of this process.
MAX_DESCRIPTORS = 1_048_576


def raise_limit() -> int:
    """Raise the limit of this process as far as its user may, at most to `MAX_DESCRIPTORS`; return it.

    The usual limit of 1024 is for programs that use `select`, which this service does not.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if _bounded(soft) < _bounded(hard):
        with suppress(OSError):  # the kernel allows less than the hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (_bounded(hard), hard))
    return _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def _bounded(limit: int) -> int:
    return MAX_DESCRIPTORS if limit == resource.RLIM_INFINITY else min(limit, MAX_DESCRIPTORS)
