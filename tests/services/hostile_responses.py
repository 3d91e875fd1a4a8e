"""Responses that no honest server sends, byte for byte: each must end as one of the project's own errors."""

from tests.services.hostile_server import Mode

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
EMPTY = b"Content-Length: 2\r\n\r\n[]"


def moved(place: bytes, status: int = 307) -> bytes:
    """A redirect to this place."""
    return b"HTTP/1.1 %d Moved\r\nContent-Length: 0\r\nLocation: %s\r\n\r\n" % (status, place)


def failed(content: bytes, *headers: bytes) -> bytes:
    """A refusal with this content."""
    head = b"\r\n".join([b"HTTP/1.1 400 No", b"Content-Length: %d" % len(content), *headers, b"", b""])
    return head + content


RESPONSES = {
    "moved to no host": moved(b"foo:bar"),
    "moved to an address": moved(b"mailto:x", 301),
    "moved far": moved(b"\xff" * 30_000, 302),
    "moved to no name": moved(b"http://xn--/", 303),
    "moved to half a name": moved(b"http://[::1", 308),
    "moved to a port": moved(b"http://a:99999999/"),
    "moved to a label": moved(b"http://" + b"a" * 70 + b".com/"),
    "moved to a symbol": moved("http://\u2100.com/".encode()),
    "moved to a user": moved(b"http://a:b@/"),
    "zero in a place": moved(b"\0"),
    "moved to no place": moved(b""),
    "encoding without ASCII": OK + b"Content-Encoding: \xff\r\n" + EMPTY,
    "no gzip": OK + b"Content-Encoding: gzip\r\n" + EMPTY,
    "no zstd": OK + b"Content-Encoding: zstd\r\n" + EMPTY,
    "unknown charset": OK + b"Content-Type: text/html; charset=nope\r\nContent-Length: 2\r\n\r\n\xff\xff",
    "refusal in an unknown charset": failed(b"\xff\xff", b"Content-Type: text/html; charset=nope"),
    "negative length": OK + b"Content-Length: -1\r\n\r\n[]",
    "length without digits": OK + b"Content-Length: x\r\n\r\n[]",
    "long length": OK + b"Content-Length: " + b"9" * 5000 + b"\r\n\r\n[]",
    "length of other digits": OK + "Content-Length: \u0662\r\n\r\n[]".encode(),
    "two lengths": OK + b"Content-Length: 1\r\n" + EMPTY,
    "cut off": OK + b"Content-Length: 100\r\n\r\n[]",
    "unknown coding": OK + b"Transfer-Encoding: x\r\n\r\n[]",
    "negative chunk": CHUNKED + b"-1\r\n[]",
    "long chunk": CHUNKED + b"f" * 2000 + b"\r\n[]",
    "cut off chunk": CHUNKED + b"5\r\n[]",
    "status zero": b"HTTP/1.1 000 No\r\n\r\n",
    "status 99": b"HTTP/1.1 099 No\r\n\r\n",
    "status 999": b"HTTP/1.1 999 No\r\nContent-Length: 0\r\n\r\n",
    "status 1000": b"HTTP/1.1 1000 No\r\n\r\n",
    "other protocol": b"HTTP/1.1 101 Go\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\nabc",
    "hint alone": b"HTTP/1.1 103 Go\r\nLocation: foo:bar\r\n\r\n",
    "nothing": b"",
    "no HTTP": b"SSH-2.0-x\r\n",
    "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "HTTP/9": b"HTTP/9.9 200 OK\r\n\r\n",
    "reason of two lines": b"HTTP/1.1 200 a\rb\r\n\r\n",
    "zero in a header": OK + b"X: a\0b\r\n" + EMPTY,
    "name without ASCII": OK + b"\xff: x\r\n" + EMPTY,
    "no colon": OK + b"abc\r\n" + EMPTY,
    "fold before a header": OK + b" b\r\n" + EMPTY,
    "space after a name": OK + b"X : a\r\n" + EMPTY,
    "many headers": OK + b"a: b\r\n" * 5000 + b"Content-Length: 1\r\n\r\n[",
    "odd cookie": OK + b"Set-Cookie: a=b; expires=\xff; max-age=nan; domain=\xff; port=x\r\nContent-Length: 1\r\n\r\n[",
    "odd old cookie": OK + b'Set-Cookie2: a=b; Version=x; Port="x"; Max-Age=9e9\r\nContent-Length: 1\r\n\r\n[',
    "odd link": OK + b"Link: <\xff>; rel=\xff, <, ;;;=\r\nContent-Length: 1\r\n\r\n[",
    "not UTF-8": OK + b'Content-Length: 3\r\n\r\n"\xff"',
    "long number": OK + b"Content-Length: 5000\r\n\r\n" + b"9" * 5000,
    "refusal with a long number": failed(b"9" * 5000),
    "nested refusal": failed(b"[" * 10_000),
    "refusal with half a pair": failed(b'{"detail": "\\ud800"}'),
}


def sending(name: str) -> Mode:
    """Send one of these responses, and close the connection."""
    return lambda _ended: iter([RESPONSES[name]])
