"""Attacks on the kernel by /proc, /sys and /dev, and by the privileges of a process."""

import resource
from functools import partial

from tests.isolation.attack import Attack, at

attack = partial(Attack, "kernel")

INSIDE, HOST, PLAIN = "A", "host", "plain"


def _same(name: str, function: str, control: str = HOST, /, **arguments: object) -> Attack:
    return attack(name, at(INSIDE, f"kernel.{function}", **arguments), at(control, f"kernel.{function}", **arguments))


def _opens(name: str, path: str, flags: str = "r", control: str = HOST) -> Attack:
    return _same(name, "open_path", control, path=path, flags=flags)


RIGHTS = [
    _same("is root", "status_field", PLAIN, name="Uid", harmless=["10001"]),
    _same("has effective capabilities", "status_field", PLAIN, name="CapEff", harmless=["0000000000000000"]),
    _same("has capabilities in its bounding set", "status_field", PLAIN, name="CapBnd", harmless=["0000000000000000"]),
    _same("may gain privileges by executing programs", "status_field", PLAIN, name="NoNewPrivs", harmless=["1"]),
    _same("has no system call filter", "status_field", PLAIN, name="Seccomp", harmless=["2"]),
    _same("becomes root", "become", PLAIN, user=0),
    _same("becomes another user", "become", PLAIN, user=10002),
    _same("gains privileges by a setuid program", "run_setuid"),
    _same("finds setuid programs", "setuid_programs"),
]
READS = [
    _opens("reads the kernel's log", "/dev/kmsg"),
    _opens("reads the kernel's memory", "/proc/kcore"),
    _opens("reads the kernel's log in /proc", "/proc/kmsg"),
    _opens("reads keys of other processes", "/proc/keys"),
    _opens("reads the kernel's memory areas", "/proc/vmallocinfo"),
    _opens("reads the kernel's timers", "/proc/timer_list"),
    _opens("reads the kernel's caches", "/proc/slabinfo"),
    _opens("reads memory directly", "/dev/mem"),
    _opens("reads a disk of the node", "/dev/vda"),
    _opens("reads firmware tables", "/sys/firmware/dmi/tables/DMI"),
    _opens("reads the kernel's trace events", "/sys/kernel/tracing/README"),
    _opens("reads the kernel's debug files", "/sys/kernel/debug/sleep_time"),
    _opens("reads security settings", "/sys/kernel/security/lsm"),
    _same("sees kernel addresses", "kernel_addresses"),
    _same("sees processes of the node", "processes_of_host"),
    _same("sees kernel threads", "kernel_thread_visible"),
    _same("has devices of the node", "devices"),
    _opens("reads the kernel's command line", "/proc/cmdline"),
    _opens("reads the kernel's configuration", "/proc/config.gz"),
    _opens("reads statistics of the node's disks", "/proc/diskstats"),
    _opens("reads the node's load", "/proc/loadavg"),
]
WRITES = [
    _opens("triggers the kernel's SysRq commands", "/proc/sysrq-trigger", "w"),
    _opens("sets the program that receives core dumps", "/proc/sys/kernel/core_pattern", "w"),
    _opens("sets the program that loads modules", "/proc/sys/kernel/modprobe", "w"),
    _opens("drops the node's caches", "/proc/sys/vm/drop_caches", "w"),
    _opens("turns off address randomization", "/proc/sys/kernel/randomize_va_space", "w"),
    _opens("sets the host name", "/proc/sys/kernel/hostname", "w"),
    _opens("sets the maximum pid", "/proc/sys/kernel/pid_max", "w"),
    _opens("registers executable formats", "/proc/sys/fs/binfmt_misc/register", "w"),
    _opens("sets interrupts' processors", "/proc/irq/default_smp_affinity", "w"),
    _opens("writes to the kernel's log", "/dev/kmsg", "w"),
    _opens("sets the program for hotplugged devices", "/sys/kernel/uevent_helper", "w"),
    _opens("sets a block device's scheduler", "/sys/block/vda/queue/scheduler", "w"),
    _opens("turns processors off", "/sys/devices/system/cpu/cpu1/online", "w"),
    _opens("sets profiling", "/sys/kernel/profiling", "w"),
    _opens("writes huge pages' settings", "/sys/kernel/mm/transparent_hugepage/enabled", "w"),
    _opens("raises its limit of processes", "/sys/fs/cgroup/pids/pids.max|/sys/fs/cgroup/pids/*/pids.max", "w"),
    _opens("raises its limit of memory", "/sys/fs/cgroup/memory/memory.limit_in_bytes", "w"),
    _opens("allows itself devices", "/sys/fs/cgroup/devices/devices.allow", "w"),
    _opens("sets the release agent of a cgroup", "/sys/fs/cgroup/*/release_agent", "w"),
    _opens("unfreezes itself", "/sys/fs/cgroup/freezer/freezer.state|/sys/fs/cgroup/freezer/*/freezer.state", "w"),
    _same("joins another cgroup", "join_cgroup"),
    _same("creates a cgroup", "make_cgroup"),
    _same("protects itself from the OOM killer", "lower_score"),
    _same("raises its priority", "raise_priority"),
    _same("takes real-time priority", "real_time"),
    _same("raises its limit of open files", "raise_limit", kind=resource.RLIMIT_NOFILE),
    _same("raises its limit of locked memory", "raise_limit", kind=resource.RLIMIT_MEMLOCK),
]
ATTACKS = [*RIGHTS, *READS, *WRITES]
