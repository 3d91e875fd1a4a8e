"""The facts that attackers know or guess: addresses, ids and keys, by their names in the arguments of probes."""

import hashlib
import json
import secrets
import subprocess
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import urlsplit

from shared.agent_server.door import open_access
from shared.ids import new_id
from shared.models import Sandbox
from tests.api.agent_reports import conversation_report
from tests.factories import SECRET_KEY, make_conversation, make_event
from tests.isolation.surroundings import METADATA, PUBLIC, Lan, listening, route_to
from tests.services import http
from tests.services.client import Client
from tests.services.deployment import Deployment
from tests.services.ports import Port
from tests.services.private_engine import PrivateEngine
from worker.sandboxes.container_spec import CONFIG_PATH

Facts = Mapping[str, str]
STREAMS, DATAGRAMS, MULTICASTS = 5000, 5001, 5353
KEY_PREFIX = 3


def facts_of_service(service: Deployment, engine: PrivateEngine) -> dict[str, str]:
    """The addresses, files and processes of the service."""
    database = Path(urlsplit(service.environment["AW_DATABASE_URL"]).path)
    return {
        "api": service.url,
        "api_port": str(service.port),
        "api_pid": str(service.pid("api")),
        "worker_pid": str(service.pid("worker")),
        "var": service.environment["AW_VAR_DIR"],
        "database": database.name,
        "database_folder": str(Path("/") / database.parent.relative_to(database.anchor)),
        "broker": str(Path(urlsplit(service.environment["AW_REDIS_URL"]).path).parent),
        "docker": engine.host,
        "engine": str(engine.data.parent),
        "node_address": engine.address,
        "door_port": str(service.door_port),
        "door_token": open_access(service.vault).token,
        "secret_key": SECRET_KEY,
        "metadata": METADATA,
        "public": PUBLIC,
        "heard": "/tmp/heard",
        "token": secrets.token_hex(6),
    }


def facts_of_sandboxes(service: Deployment, engine: PrivateEngine, ids: Mapping[str, str]) -> dict[str, str]:
    """The addresses, ids and keys of sandboxes, and the service's addresses for them."""
    facts: dict[str, str] = {}
    with service.database.reading() as session:
        for name, sandbox_id in ids.items():
            key = service.vault.decrypt(session.get_one(Sandbox, sandbox_id).session_key)
            facts |= {f"{name}_id": sandbox_id, f"{name}_key": key, f"{name}_wrong": key[:-1] + "-"}
            facts |= {f"{name}_container": f"aw-{sandbox_id}", f"{name}_length": str(len(key))}
            facts |= {f"{name}_digest": hashlib.sha256(key.encode()).hexdigest(), f"{name}_prefix": key[:KEY_PREFIX]}
    for name in (*ids, "plain", "peer"):
        [shown] = json.loads(engine.docker("inspect", facts.get(f"{name}_container", name)))
        [network] = shown["NetworkSettings"]["Networks"].values()
        address = str(network["IPAddress"])
        facts |= {f"{name}_ip": address, f"{name}_gateway": network["Gateway"]}
        facts[f"{name}_broadcast"] = f"{address.rpartition('.')[0]}.255"
    # Read the hostile server's configuration: the real image's server removes the file.
    config = json.loads(engine.docker("exec", "--user=0", facts["H_container"], "cat", CONFIG_PATH))
    listener = urlsplit(config["webhooks"][0]["base_url"])
    host, port = str(listener.hostname), str(listener.port or 80)
    return facts | {
        "service": f"http://{host}:{port}",
        "service_host": host,
        "service_port": port,
        "config": CONFIG_PATH,
        "config_folder": str(Path(CONFIG_PATH).parent),
    }


def store_work(service: Deployment, engine: PrivateEngine, alice: Client, bob: Client, facts: Facts) -> dict[str, str]:
    """Store secrets, conversations and files of both users; pause one sandbox and delete another."""
    stored = {"cookie": _sign_in(service, alice)}
    for name, client in (("alice", alice), ("bob", bob)):
        secret = f"secret-of-{name}-{secrets.token_hex(8)}"
        response = client.post("/api/v1/secrets", json={"name": f"{name.upper()}_SECRET", "value": secret})
        assert response.is_success, response.text
        stored |= {f"{name}_secret": secret, f"{name}_key": client.user.key}
    for name, client in (("A", alice), ("B", bob), ("H", alice)):
        with service.database.reading() as session:
            row = session.get_one(Sandbox, facts[f"{name}_id"])
        conversation = make_conversation(service.database, client.user, row)
        make_event(service.database, conversation)
        stored |= {f"{name}_conversation": conversation.id, f"report_of_{name}": _report(conversation.id)}
    for name in ("A", "A2", "B"):
        command = f"echo of-{name} >/workspace/project/of-{name}"
        engine.docker("exec", facts[f"{name}_container"], "sh", "-c", command)
    assert alice.post(f"/api/v1/sandboxes/{facts['paused_id']}/pause", params={"wait": 60}).is_success
    assert alice.delete(f"/api/v1/sandboxes/{facts['deleted_id']}", params={"wait": 60}).is_success
    return stored | {"report_of_new": _report(new_id())}


def start_surroundings(stack: ExitStack, engine: PrivateEngine, facts: Facts, lan: Lan) -> dict[str, str]:
    """Start listeners on this machine, in sandboxes and beside them."""
    names = ("any_port", "loopback_port", "gateway_port", "ipv6_port", "silent_port")
    ports = {name: stack.enter_context(Port()) for name in names}
    bridge = str(route_to(facts["A_ip"])["dev"])
    listeners = [
        ("tcp", "0.0.0.0", ports["any_port"]),
        ("tcp", "127.0.0.1", ports["loopback_port"]),
        ("tcp", facts["A_gateway"], ports["gateway_port"]),
        ("tcp", "::", ports["ipv6_port"]),
        ("silent", "127.0.0.1", ports["silent_port"]),
        ("udp", "0.0.0.0", ports["any_port"]),
        ("dns", facts["A_gateway"], 53),
    ]
    heard = Path(f"/tmp/aw-heard-{ports['any_port']}")
    stack.enter_context(listening([], listeners, heard))
    own = [
        ("tcp", "0.0.0.0", STREAMS),
        ("udp", "0.0.0.0", DATAGRAMS),
        ("udp", "0.0.0.0", MULTICASTS),
        ("lite", "0.0.0.0", DATAGRAMS),
    ]
    for container in (facts["A_container"], facts["B_container"], "peer"):
        command = ["docker", "--host", engine.host, "exec", container]
        stack.enter_context(listening(command, own, Path(facts["heard"])))
    return {
        **{name: str(port) for name, port in ports.items()},
        "heard_on_host": str(heard),
        "planted": str(heard),
        "lan": lan.address,
        "host_on_lan": lan.host,
        "bridge": bridge,
        "link_local": _link_local(bridge),
    }


def _sign_in(service: Deployment, alice: Client) -> str:
    """Log in as a browser does; return the cookie."""
    response = http.post(f"{service.url}/login", data={"api_key": alice.user.key}, headers={"Origin": service.url})
    return response.headers["Set-Cookie"].partition(";")[0]


def _report(conversation_id: str) -> str:
    return json.dumps(conversation_report(conversation_id))


def _link_local(device: str) -> str:
    """The IPv6 link-local address of a device, or an unused one if it has none."""
    command = ["ip", "-6", "-json", "address", "show", "dev", device, "scope", "link"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    addresses = [entry["local"] for link in found for entry in link.get("addr_info", [])]
    return addresses[0] if addresses else "fe80::1"
