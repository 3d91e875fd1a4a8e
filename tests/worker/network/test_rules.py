"""The text of the rules, and the parser of nft's listing."""

from dataclasses import replace
from ipaddress import IPv4Network
from typing import Any

from worker.network.rules import (
    FLOWS_PER_SECOND,
    MAX_FLOWS,
    Allowed,
    Bridge,
    RulesChange,
    changed,
    element,
    read_allowed,
    ruleset,
    without_elements,
)

BRIDGE = Bridge("br-aw0a1b2c3d", IPv4Network("10.9.0.0/24"))
ALLOWED = Allowed(
    services=frozenset({"10.9.0.1 . 3000"}),
    resolvers=frozenset({"9.9.9.9"}),
    sandboxes=frozenset({"10.9.0.2", "10.9.0.3"}),
    open=frozenset({"10.9.0.2"}),
    networks=frozenset({"10.9.0.3 . 192.168.0.0/16"}),
    models=frozenset({"10.9.0.3 . 192.168.1.5 . 8000"}),
)


def test_tables_are_replaced_in_one_transaction() -> None:
    text = ruleset(BRIDGE, ALLOWED)
    for family in ("inet", "bridge"):
        assert f"add table {family} {BRIDGE.name}\ndelete table {family} {BRIDGE.name}\n" in text
        assert f"\ntable {family} {BRIDGE.name} {{\n" in text
    assert "elements = { 10.9.0.2, 10.9.0.3 }" in text
    assert (
        "set networks { type ipv4_addr . ipv4_addr; flags interval; elements = { 10.9.0.3 . 192.168.0.0/16 } }" in text
    )
    assert not any(
        word in text for word in ("BRIDGE", "NETWORK", "GATEWAY", "LOCAL", "DENIED", "SETS", "PROXY", "USER")
    )


def test_final_rule_rejects_everything_else() -> None:
    text = ruleset(BRIDGE, Allowed())
    for chain in ("input", "forward"):
        body = text.partition(f"chain {chain} {{")[2].partition("}\n")[0] if chain == "forward" else text
        assert "goto refuse" in body
    assert text.index("ip daddr @denied goto refuse") < text.index("@networks accept")
    assert "elements = { 10." not in text.partition("set local")[0]


def test_metadata_service_in_a_public_range_is_reached_as_a_resolver_only() -> None:
    text = ruleset(BRIDGE, Allowed(resolvers=frozenset({"168.63.129.16"})))
    assert "168.63.129.16/32" in text.partition("set local")[2].partition("\n")[0]
    resolvers = "ip saddr @open ip daddr @resolvers meta l4proto { tcp, udp } th dport 53 accept"
    assert 0 < text.index(resolvers) < text.index("ip saddr @open ip daddr != @local accept")


def test_resolver_with_a_link_local_address_is_reached() -> None:
    """As on Google Cloud. The address has its metadata service, too."""
    text = ruleset(BRIDGE, Allowed(resolvers=frozenset({"169.254.169.254"}))).partition("chain from_sandboxes {")[2]
    resolvers = "ip saddr @open ip daddr @resolvers meta l4proto { tcp, udp } th dport 53 accept"
    assert 0 < text.index(resolvers) < text.index("ip daddr @denied goto refuse") < text.index("@networks accept")


def test_packets_to_sandboxes_leave_by_the_bridge_only() -> None:
    for user in (None, 999):
        text = ruleset(replace(BRIDGE, proxy_user=user), Allowed())
        [output] = [chain for chain in text.split("chain ") if chain.startswith("output {")]
        elsewhere = f'ip daddr 10.9.0.0/24 oifname != {{ "{BRIDGE.name}", "lo" }}'
        assert f"{elsewhere} reject" in output
        assert f"ip saddr {BRIDGE.gateway} {elsewhere} tcp flags syn / syn,ack reject with tcp reset" in output
        assert ("skuid 999 jump from_proxy" in output) == (user is not None)
        forward = text.partition("chain forward {")[2]
        assert forward.index("ip daddr 10.9.0.0/24 goto refuse") < forward.index(f'iifname != "{BRIDGE.name}" return')


def test_proxy_reaches_its_own_machine_for_names_only() -> None:
    text = ruleset(replace(BRIDGE, proxy_user=999), Allowed()).partition("chain from_proxy")[2]
    assert 0 < text.index("th dport 53 accept") < text.index("fib daddr type local goto refuse")
    assert "from_proxy" not in ruleset(BRIDGE, Allowed())


def test_flows_are_counted_before_anything_is_accepted() -> None:
    text = ruleset(BRIDGE, ALLOWED)
    [counting] = [chain for chain in text.split("chain ") if chain.startswith("count_flows {")]
    assert f"add @flows {{ ip saddr ct count over {MAX_FLOWS} }} goto refuse" in counting
    rate = f"rate over {FLOWS_PER_SECOND}/second burst {MAX_FLOWS} packets"
    assert f"update @starts {{ ip saddr limit {rate} }} goto refuse" in counting
    [chain] = [chain for chain in text.split("chain ") if chain.startswith("from_sandboxes {")]
    # Otherwise packets from other addresses, which are refused anyway, could fill the sets.
    before, _, after = chain.partition("ip saddr 10.9.0.0/24 ct state new jump count_flows")
    assert after
    assert [line.strip() for line in before.splitlines() if "accept" in line] == [
        "ct direction reply ct state established accept"
    ]


def test_change_affects_its_elements_only() -> None:
    change = RulesChange(add=ALLOWED.of(frozenset({"10.9.0.3"})), remove=Allowed(open=frozenset({"10.9.0.2"})))
    assert changed(BRIDGE, change).splitlines() == [
        # Deleting a missing element would be an error, so it is added first.
        "add element inet br-aw0a1b2c3d open { 10.9.0.2 }",
        "delete element inet br-aw0a1b2c3d open { 10.9.0.2 }",
        "add element inet br-aw0a1b2c3d sandboxes { 10.9.0.3 }",
        "add element inet br-aw0a1b2c3d networks { 10.9.0.3 . 192.168.0.0/16 }",
        "add element inet br-aw0a1b2c3d models { 10.9.0.3 . 192.168.1.5 . 8000 }",
    ]


def test_change_for_one_sandbox_costs_the_same_among_a_thousand() -> None:
    many = Allowed(sandboxes=frozenset(f"10.9.{high}.{low}" for high in range(4) for low in range(250)))
    one = Allowed(sandboxes=frozenset({"10.9.9.9"}))
    assert len(changed(BRIDGE, RulesChange(add=(many | one) - many))) < 100


def test_elements_are_read_as_they_are_written() -> None:
    assert element("10.9.0.2", IPv4Network("8.8.8.8/32")) == "10.9.0.2 . 8.8.8.8"
    prefix = {"prefix": {"addr": "192.168.0.0", "len": 16}}
    listing: list[dict[str, Any]] = [
        {"metainfo": {"version": "1.0.6"}},
        {"set": {"name": "sandboxes", "elem": ["10.9.0.2", "10.9.0.3"], "handle": 4}},
        {"set": {"name": "networks", "elem": [{"concat": ["10.9.0.3", prefix]}]}},
        {"set": {"name": "models", "elem": [{"concat": ["10.9.0.3", "192.168.1.5", 8000]}]}},
        {"set": {"name": "services", "elem": [{"concat": ["10.9.0.1", 3000]}]}},
        {"set": {"name": "resolvers", "elem": ["9.9.9.9"]}},
        {"set": {"name": "open", "elem": ["10.9.0.2"]}},
    ]
    assert read_allowed(listing) == ALLOWED


def test_rules_are_compared_without_handles_and_elements() -> None:
    rule: dict[str, Any] = {"rule": {"chain": "forward", "handle": 7, "expr": [{"drop": None}]}}
    fixed: dict[str, Any] = {"set": {"name": "denied", "handle": 1, "elem": ["127.0.0.0"]}}
    sandboxes: dict[str, Any] = {"set": {"name": "sandboxes", "handle": 2, "elem": ["10.9.0.2"]}}
    element = {"elem": {"val": "10.9.0.2", "ct count": {"val": 4096, "inv": True}}}
    counted: dict[str, Any] = {"set": {"name": "flows", "handle": 3, "size": 65536, "elem": [element]}}
    found = without_elements([rule, fixed, sandboxes, counted])
    assert found == [
        {"rule": {"chain": "forward", "expr": [{"drop": None}]}},
        {"set": {"name": "denied", "elem": ["127.0.0.0"]}},
        {"set": {"name": "sandboxes"}},
        {"set": {"name": "flows", "size": 65536}},
    ]
    fixed["set"]["elem"] = []
    assert without_elements([rule, fixed, sandboxes, counted]) != found
