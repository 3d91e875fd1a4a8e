"""A git server that requires a user and a password: git's own `http-backend` behind a small HTTP server."""

import base64
import hmac
import os
import subprocess
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

IDENTITY = {
    "GIT_AUTHOR_NAME": "A. Uthor",
    "GIT_AUTHOR_EMAIL": "author@example.org",
    "GIT_COMMITTER_NAME": "A. Uthor",
    "GIT_COMMITTER_EMAIL": "author@example.org",
}


@dataclass
class GitServer:
    """A running server; `requests` are the methods and paths of requests with the right password."""

    root: Path
    url: str
    user: str
    password: str
    requests: list[str] = field(default_factory=list)

    def add_repository(self, name: str, commits: list[Mapping[str, str]], branches: tuple[str, ...] = ()) -> None:
        """Create the repository `name` with the branch `main`; each commit maps paths to contents."""
        work = self.root / "work" / name
        work.mkdir(parents=True)
        _git(work, "init", "--quiet", "--initial-branch=main")
        for number, files in enumerate(commits):
            for path, content in files.items():
                (work / path).parent.mkdir(parents=True, exist_ok=True)
                (work / path).write_text(content)
            _git(work, "add", "--all")
            _git(work, "commit", "--quiet", "--message", f"commit {number + 1}")
        for branch in branches:
            _git(work, "branch", branch)
        served = self.root / "served" / f"{name}.git"
        _git(self.root, "clone", "--quiet", "--bare", str(work), str(served))
        _git(served, "config", "http.receivepack", "true")

    def accepts(self, authorization: str | None) -> bool:
        """Whether the header has the user and the password."""
        wanted = base64.b64encode(f"{self.user}:{self.password}".encode()).decode()
        return hmac.compare_digest(authorization or "", f"Basic {wanted}")


@contextmanager
def running_git_server(
    root: Path, *, user: str = "x-access-token", password: str = "git-token", address: str = "127.0.0.1"
) -> Iterator[GitServer]:
    """Serve the repositories under `root` at a free port of the address."""
    with ThreadingHTTPServer((address, 0), _Handler) as http:
        server = GitServer(root, f"http://{address}:{http.server_address[1]}", user, password)
        http.git = server  # type: ignore[attr-defined]
        thread = threading.Thread(target=http.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self._serve(b"")

    def do_POST(self) -> None:
        self._serve(self.rfile.read(int(self.headers.get("Content-Length", 0))))

    def log_message(self, *_arguments: Any) -> None:
        """Log nothing."""

    def _serve(self, body: bytes) -> None:
        git: GitServer = self.server.git  # type: ignore[attr-defined]
        if not git.accepts(self.headers.get("Authorization")):
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.end_headers()
            return
        git.requests.append(f"{self.command} {self.path}")
        environment = self._environment(git, len(body))
        reply = subprocess.run(["git", "http-backend"], input=body, env=environment, capture_output=True, check=True)
        self._forward(reply.stdout)

    def _environment(self, git: GitServer, length: int) -> dict[str, str]:
        path, _, query = self.path.partition("?")
        return {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": str(git.root / "served"),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(length),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }

    def _forward(self, reply: bytes) -> None:
        head, _, content = reply.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines())
        self.send_response(int(headers.pop("Status", "200").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(content)


def _git(folder: Path, *arguments: str) -> None:
    environment = {**os.environ, **IDENTITY}
    subprocess.run(["git", *arguments], cwd=folder, env=environment, check=True, capture_output=True)
