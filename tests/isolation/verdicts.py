"""The attacks that still succeed, and those that the project's machines cannot decide. Tests check both lists."""

EGRESS = "egress is open by default: a sandbox may send data to any public address, also inside names"
DISK = "disk input and output has a weight, but no limit"
EMBEDDED = "browsers also embed responses without the header; requests that another site embeds carry no login"
FACTS = "these facts about the kernel are readable in every container; another runtime hides them"
CORS = "the agent server itself allows it; this matters only if a browser reaches the server directly"
HOST = "every program on the machine reaches the addresses of its containers"
KERNEL = "the kernels of the project's machines lack the feature: the call or file does not exist, even for root"
ROOT = "root of the project's virtual machines may not do it either"

# If an attack becomes blocked, its test fails until it is removed here.
OPEN: dict[str, str] = {
    "spoofing and tunnels: asks its resolver for a name that contains data": EGRESS,
    "spoofing and tunnels: asks a public name server": EGRESS,
    "spoofing and tunnels: connects to a public address": EGRESS,
    "spoofing and tunnels: connects to a public address at an unusual port": EGRESS,
    "spoofing and tunnels: sends datagrams to a public address": EGRESS,
    "spoofing and tunnels: sends datagrams in fragments to a public address": EGRESS,
    "spoofing and tunnels: pings a public address": EGRESS,
    "limits: has no limit of disk writes": DISK,
    "browser: lets other sites embed the response": EMBEDDED,
    "kernel: reads the kernel's command line": FACTS,
    "kernel: reads the kernel's configuration": FACTS,
    "kernel: reads statistics of the node's disks": FACTS,
    "kernel: reads the node's load": FACTS,
    "agent server: lets a web page of this machine use the agent server": CORS,
    "host: another user reaches an agent server": HOST,
}
# If a machine can decide one of these attacks, a test demands that it is blocked.
UNDECIDABLE: dict[str, str] = {
    "network: opens an SCTP connection": KERNEL,
    "kernel: reads the kernel's memory": KERNEL,
    "kernel: reads memory directly": KERNEL,
    "kernel: reads firmware tables": KERNEL,
    "kernel: reads the kernel's trace events": KERNEL,
    "kernel: reads the kernel's debug files": KERNEL,
    "kernel: reads security settings": KERNEL,
    "kernel: triggers the kernel's SysRq commands": KERNEL,
    "kernel: sets the program that loads modules": KERNEL,
    "kernel: registers executable formats": KERNEL,
    "kernel: sets the program for hotplugged devices": KERNEL,
    "system calls: loads a module": KERNEL,
    "system calls: loads a module from a file": KERNEL,
    "system calls: unloads a module": KERNEL,
    "system calls: loads another kernel": KERNEL,
    "system calls: loads another kernel from a file": KERNEL,
    "system calls: uses I/O ports": KERNEL,
    "system calls: uses all I/O ports": KERNEL,
    "system calls: opens a socket of the kernel's crypto API": KERNEL,
    "system calls: opens a Bluetooth socket": KERNEL,
    "system calls: opens a CAN socket": KERNEL,
    "system calls: opens a socket of the IPsec key management": KERNEL,
    "system calls: opens an RDS socket": KERNEL,
    "system calls: opens a TIPC socket": KERNEL,
    "system calls: opens an AX.25 socket": KERNEL,
    "kernel: reads a disk of the node": ROOT,
    "kernel: protects itself from the OOM killer": ROOT,
    "kernel: raises its limit of open files": ROOT,
    "kernel: raises its limit of locked memory": ROOT,
}
