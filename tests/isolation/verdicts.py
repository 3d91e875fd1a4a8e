"""Which attacks still succeed, and which this project's machines can't decide. Tests hold both lists to the truth."""

EGRESS = "open egress, the default: what a sandbox reads may go to any public address, also in names"
DISK = "input and output have a weight, and no limit"
EMBEDDED = "browsers embed what lacks the header, too; what another site embeds is requested without a login"
FACTS = "the kernel's own facts are readable in every container; another runtime hides them"
CORS = "the agent server's own rule; it matters only where a browser reaches the server itself"
HOST = "containers have addresses that every program of their machine reaches"
KERNEL = "the project's machines have kernels without it: the call or file does not exist, for root neither"
ROOT = "root of the project's machines, which are virtual, may not do it either"

# An attack that is blocked by now turns its test red, until it is removed here.
OPEN: dict[str, str] = {
    "spoofing and tunnels: asks its resolver for a name that carries data": EGRESS,
    "spoofing and tunnels: asks a public name server": EGRESS,
    "spoofing and tunnels: connects to a public address": EGRESS,
    "spoofing and tunnels: connects to a public address at an unusual port": EGRESS,
    "spoofing and tunnels: sends datagrams to a public address": EGRESS,
    "spoofing and tunnels: sends datagrams in fragments to a public address": EGRESS,
    "spoofing and tunnels: pings a public address": EGRESS,
    "limits: has no limit of writes to disks": DISK,
    "browser: lets other sites embed it": EMBEDDED,
    "kernel: reads the kernel's command line": FACTS,
    "kernel: reads the kernel's configuration": FACTS,
    "kernel: reads statistics of the node's disks": FACTS,
    "kernel: reads the node's load": FACTS,
    "agent server: lets a web page of this machine use the agent server": CORS,
    "host: another user reaches an agent server": HOST,
}
# A machine that can decide one of these must block it: a test says so.
UNDECIDABLE: dict[str, str] = {
    "network: opens a connection of SCTP": KERNEL,
    "kernel: reads the kernel's memory": KERNEL,
    "kernel: reads memory directly": KERNEL,
    "kernel: reads firmware tables": KERNEL,
    "kernel: reads events of the kernel": KERNEL,
    "kernel: reads the kernel's debug files": KERNEL,
    "kernel: reads security settings": KERNEL,
    "kernel: writes the kernel's keyboard commands": KERNEL,
    "kernel: sets the program that loads modules": KERNEL,
    "kernel: registers formats of programs": KERNEL,
    "kernel: sets the program for hotplugged devices": KERNEL,
    "system calls: loads a module": KERNEL,
    "system calls: loads a module of a file": KERNEL,
    "system calls: unloads a module": KERNEL,
    "system calls: loads another kernel": KERNEL,
    "system calls: loads another kernel of a file": KERNEL,
    "system calls: uses ports of the hardware": KERNEL,
    "system calls: uses all ports of the hardware": KERNEL,
    "system calls: opens a socket of the kernel's ciphers": KERNEL,
    "system calls: opens a socket of Bluetooth": KERNEL,
    "system calls: opens a socket of a car's bus": KERNEL,
    "system calls: opens a socket of the kernel's key management": KERNEL,
    "system calls: opens a socket of RDS": KERNEL,
    "system calls: opens a socket of TIPC": KERNEL,
    "system calls: opens a socket of the amateur radio (AX.25)": KERNEL,
    "kernel: reads a disk of the node": ROOT,
    "kernel: protects itself from the memory killer": ROOT,
    "kernel: raises its limit of open files": ROOT,
    "kernel: raises its limit of locked memory": ROOT,
}
