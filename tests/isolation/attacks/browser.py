"""Attacks on browsers by responses of a hostile agent server on the sandbox path, and attacks on the login cookie."""

from functools import partial
from urllib.parse import urlencode

from tests.isolation.attack import Attack, Attempt, at

attack = partial(Attack, "browser")

HOST = "host"
ALICE, COOKIE = {"Authorization": "Bearer $alice_key"}, {"Cookie": "$cookie"}
PATH, DIRECT = "$api/sandbox/$H_id", "http://$H_ip:8000"


def _header(name: str, header: str, value: str, shown: str = "", **more: str) -> Attack:
    """An attack by a response header. The control is the same request to the hostile server itself."""
    query = urlencode({header: value, **more})

    def send(root: str, headers: dict[str, str]) -> Attempt:
        arguments = {"url": f"{root}/evil?{query}", "header": header, "value": shown or value}
        return at(HOST, "http.shows_header", headers=headers, **arguments)

    return attack(name, send(PATH, ALICE), send(DIRECT, {}))


HEADERS = [
    _header("sets a cookie for the service", "Set-Cookie", "aw_session=theirs; Path=/"),
    _header("sets a cookie by the obsolete header", "Set-Cookie2", "aw_session=theirs"),
    _header("clears the service's data", "Clear-Site-Data", '"*"'),
    _header("redirects the browser by a refresh", "Refresh", "0; url=https://elsewhere.example/"),
    _header("makes the browser load resources of another host", "Link", "<https://elsewhere.example/>; rel=preload"),
    _header("replaces the content security policy", "Content-Security-Policy", "default-src *"),
    _header(
        "makes the browser report violations to another host",
        "Content-Security-Policy-Report-Only",
        "report-uri https://elsewhere.example/",
    ),
    _header("lets any web page read the response", "Access-Control-Allow-Origin", "*"),
    _header("lets web pages read the response with a login", "Access-Control-Allow-Credentials", "true"),
    _header("lets web pages read the response's headers", "Access-Control-Expose-Headers", "*"),
    _header("makes caches store the response", "Cache-Control", "public, max-age=31536000"),
    _header("names an alternative server", "Alt-Svc", 'h3="elsewhere.example:443"'),
    _header("names a source map on another host", "SourceMap", "https://elsewhere.example/"),
    _header("widens the scope of a service worker", "Service-Worker-Allowed", "/"),
    _header("makes the browser require TLS for the service", "Strict-Transport-Security", "max-age=31536000"),
    _header("makes the browser report network errors to another host", "NEL", '{"report_to":"a","max_age":1}'),
    _header("names report endpoints", "Report-To", '{"group":"a"}'),
    _header("names report endpoints by the newer header", "Reporting-Endpoints", 'a="https://elsewhere.example/"'),
    _header("asks for a password", "WWW-Authenticate", "Basic", status="401"),
    _header("turns off the check of the content type", "X-Content-Type-Options", "none"),
    _header("makes the browser prerender pages", "Speculation-Rules", '"/rules"'),
    _header("sends an origin-trial token", "Origin-Trial", "a"),
    _header("marks the user as signed out", "Set-Login", "logged-out"),
    _header("lets other sites embed the response", "Cross-Origin-Resource-Policy", "cross-origin"),
    _header("redirects to another host", "Location", "https://elsewhere.example/", status="302"),
    _header("redirects to another host without a scheme", "Location", "//elsewhere.example/", status="302"),
    _header("redirects to the service's logout", "Location", "/../../logout", "/../", status="302"),
    _header("redirects to a script", "Location", "javascript:alert(1)", status="302"),
    attack(
        "runs scripts on the service's origin",
        at(
            HOST,
            "http.lacks_header",
            url=f"{PATH}/evil",
            header="Content-Security-Policy",
            value="sandbox",
            headers=ALICE,
        ),
        at(HOST, "http.lacks_header", url=f"{DIRECT}/evil", header="Content-Security-Policy", value="sandbox"),
    ),
    attack(
        "makes the browser guess the content type",
        at(
            HOST,
            "http.lacks_header",
            url=f"{PATH}/evil",
            header="X-Content-Type-Options",
            value="nosniff",
            headers=ALICE,
        ),
        at(HOST, "http.lacks_header", url=f"{DIRECT}/evil", header="X-Content-Type-Options", value="nosniff"),
    ),
]


def _received(name: str, header: str, value: str, needle: str) -> Attack:
    def send(root: str) -> Attempt:
        return at(HOST, "http.echoes", url=f"{root}/echo", headers={**ALICE, header: value}, needle=needle)

    return attack(name, send(PATH), send(DIRECT))


RECEIVED = [
    _received("receives the login cookie", "Cookie", "$cookie", "$cookie"),
    _received("receives its user's API key", "X-Other", "y", "$alice_key"),
    _received("receives a forged host name of the service", "Forwarded", "host=elsewhere.example", "elsewhere.example"),
    _received("receives the password of a proxy", "Proxy-Authorization", "Basic c2VjcmV0", "c2VjcmV0"),
]


def _framed(name: str, path: str) -> Attack:
    value = "frame-ancestors 'none'"
    return attack(
        name,
        at(HOST, "http.lacks_header", url=f"$api{path}", header="Content-Security-Policy", value=value),
        at(HOST, "http.lacks_header", url=f"{DIRECT}/evil", header="Content-Security-Policy", value=value),
    )


def _posts(name: str, headers: dict[str, str]) -> Attack:
    def send(more: dict[str, str]) -> Attempt:
        content = {"Content-Type": "application/json", **COOKIE, **more}
        return at(HOST, "http.request", url="$api/api/keys", method="POST", headers=content, body='{"name": "x"}')

    return attack(name, send(headers), send({"Origin": "$api", "Sec-Fetch-Site": "same-origin"}))


LOGIN = [
    _framed("frames the login page", "/login"),
    _framed("frames the page of device logins", "/oauth/device/verify"),
    _framed("frames the interface's documentation", "/docs"),
    _posts("creates a key from a sandbox's page", {"Origin": "http://$H_ip:8000", "Sec-Fetch-Site": "cross-site"}),
    _posts(
        "creates a key from a page on another port of the service's host",
        {"Origin": "http://127.0.0.1:9", "Sec-Fetch-Site": "same-site"},
    ),
    _posts("creates a key from a page without an origin", {"Origin": "null", "Sec-Fetch-Site": "cross-site"}),
    _posts("creates a key from a page that hides its origin", {"Sec-Fetch-Site": "cross-site"}),
    _posts("creates a key from an origin that begins like the service's", {"Origin": "$api.elsewhere.example"}),
    attack(
        "reaches a sandbox from another site by the login cookie alone",
        at(HOST, "http.request", url=f"{PATH}/evil", headers={**COOKIE, "Sec-Fetch-Site": "cross-site"}),
        at(HOST, "http.request", url=f"{PATH}/evil", headers=ALICE),
    ),
    attack(
        "uses the login cookie from inside a sandbox",
        at("A", "http.request", url="$service/api/v1/users/me", headers=COOKIE),
        at(HOST, "http.request", url="$api/api/v1/users/me", headers=COOKIE),
    ),
    attack(
        "has its port published on the node",
        at(HOST, "host.publishes", docker="$docker", container="$A_container"),
        at(HOST, "host.publishes", docker="$docker", container="peer"),
    ),
    attack(
        "lets a foreign origin read the API",
        at(
            HOST,
            "http.shows_header",
            url="$api/api/v1/users/me",
            header="Access-Control-Allow-Origin",
            headers={**COOKIE, "Origin": "http://$H_ip:8000"},
        ),
        at(HOST, "http.shows_header", url="$api/api/v1/users/me", header="Content-Type", headers=COOKIE),
    ),
]


def _asks(host: str, path: str, contains: str = "") -> Attempt:
    """A request by the cloud proxy, which forwards requests of the web UI to agent servers of the user's sandboxes."""
    body = f'{{"host": "{host}", "path": "{path}", "headers": {{"X-Session-API-Key": "$A_key"}}}}'
    headers = {**ALICE, "Content-Type": "application/json"}
    return at(
        HOST, "http.request", url="$api/api/cloud-proxy", method="POST", headers=headers, body=body, contains=contains
    )


def _asked(name: str, host: str, path: str, contains: str = "") -> Attack:
    return attack(
        f"makes the API request {name}", _asks(host, path, contains), _asks("$api/sandbox/$A_id", "/server_info")
    )


PROXIED = [
    _asked("the metadata service", "http://$metadata", "/"),
    _asked("a neighbour", "http://$B_ip:8000", "/health"),
    _asked("itself", "$api", "/api/keys"),
    _asked("a port of the node", "http://127.0.0.1:$loopback_port", "/"),
    _asked("another sandbox by dots", "$api/sandbox/$A_id", "/../$B_id/server_info", "uptime"),
    _asked("another sandbox with one's own key", "$api/sandbox/$B_id", "/server_info"),
    _asked("another host by an at sign", "$api/sandbox/$A_id@$B_ip:8000", "/server_info"),
]
ATTACKS = [*HEADERS, *RECEIVED, *LOGIN, *PROXIED]
