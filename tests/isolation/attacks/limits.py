"""Attacks on limits: one sandbox takes resources that others need."""

from functools import partial

from tests.isolation.attack import Attack, at

attack = partial(Attack, "limits")

# The sandboxes' specs give 1 GiB of memory, 256 processes and a small disk: see `testbed.LIMITS`.
INSIDE, HOST, PLAIN = "A2", "host", "plain"
GROUPS = "/sys/fs/cgroup"


def _takes(name: str, function: str, /, **arguments: object) -> Attack:
    return attack(name, at(INSIDE, f"limits.{function}", **arguments), at(HOST, f"limits.{function}", **arguments))


def _disk(name: str, folder: str, megabytes: int) -> Attack:
    return attack(
        name,
        at(INSIDE, "limits.take_disk", folder=folder, megabytes=megabytes),
        at(HOST, "limits.take_disk", folder="/tmp", megabytes=megabytes),
    )


def _lacks(name: str, files: list[str], unlimited: list[str]) -> Attack:
    paths = [f"{GROUPS}/{file}" for file in files]
    return attack(
        name,
        at(INSIDE, "limits.lacks_limit", paths=paths, unlimited=unlimited),
        at(PLAIN, "limits.lacks_limit", paths=paths, unlimited=unlimited),
    )


ATTACKS = [
    _takes("takes more processes than its spec gives", "take_processes", count=300),
    _takes("takes more zombie processes than its spec gives", "take_zombies", count=300),
    _takes("takes more threads than its spec gives processes", "take_threads", count=300),
    _takes("takes more memory than its spec gives", "take_memory", megabytes=1100),
    _takes("takes more memory than its spec gives by files in memory", "take_memory", megabytes=1100, by="memfd"),
    _takes("takes more memory than its spec gives by shared pages", "take_memory", megabytes=1100, by="shared"),
    _disk("fills the node's disk by its workspace", "/workspace", 1024),
    _disk("fills the node's disk by its home", "/home/agent", 1024),
    _disk("fills the node's disk by temporary files", "/tmp", 1024),
    _disk("fills the node's disk by files in /var/tmp", "/var/tmp", 1024),
    _disk("fills the node's memory by files in /dev/shm", "/dev/shm", 512),
    attack(
        "uses up the node's inodes by its workspace",
        at(INSIDE, "limits.take_inodes", folder="/workspace", count=40_000),
        at(HOST, "limits.take_inodes", folder="/tmp", count=40_000),
    ),
    attack(
        "uses up the node's inodes by temporary files",
        at(INSIDE, "limits.take_inodes", folder="/tmp", count=40_000),
        at(HOST, "limits.take_inodes", folder="/tmp", count=40_000),
    ),
    attack(
        "opens files without a limit",
        at(INSIDE, "limits.may_open", count=16_384),
        at(PLAIN, "limits.may_open", count=16_384),
    ),
    _lacks("has no limit of processor time", ["cpu/cpu.cfs_quota_us", "cpu.max"], ["-1", "max"]),
    _lacks("has no limit of memory", ["memory/memory.limit_in_bytes", "memory.max"], ["9223372", "max"]),
    _lacks("has no limit of swap", ["memory/memory.memsw.limit_in_bytes", "memory.swap.max"], ["9223372", "max"]),
    _lacks("has no limit of processes", ["pids/pids.max", "pids.max"], ["max"]),
    _lacks("has no limit of disk writes", ["blkio/blkio.throttle.write_bps_device", "io.max"], [""]),
]
