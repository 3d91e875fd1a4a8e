"""The agent server's shell and files: behavior of the real and the tiny one, and the format of all responses."""

import pytest

from shared.agent_server.errors import AgentServerRefused
from tests.services.agent_servers import TargetServer

TEXTS = ["no newline", 'a "quoted" \\ one\n', "two\nlines\n\n", "tab\t and é\n", "$HOME `x`"]


@pytest.mark.parametrize("target", ["tiny", "real"], indirect=True)
class TestCommand:
    def test_command_returns_its_exit_code(self, target: TargetServer) -> None:
        assert target.server.run_command("exit 3").exit_code == 3

    def test_command_returns_both_streams(self, target: TargetServer) -> None:
        result = target.server.run_command("echo out; echo err >&2")
        assert (result.exit_code, result.stdout, result.stderr) == (0, "out\n", "err\n")

    @pytest.mark.parametrize(
        "text", ["no newline", 'a "quoted" \\ one\n', "two\nlines\n\n", "tab\t and é\n", "$HOME `x`"]
    )
    def test_output_is_unchanged(self, target: TargetServer, text: str) -> None:
        target.server.upload("/tmp/output", text.encode())
        assert target.server.run_command("cat /tmp/output").stdout == text

    def test_command_is_run_unchanged(self, target: TargetServer) -> None:
        command = 'name=\'a "b" \\ c\'\nfor word in one two; do\n\tprintf \'%s/%s\\n\' "$word" "$name"\ndone'
        assert target.server.run_command(command).stdout == 'one/a "b" \\ c\ntwo/a "b" \\ c\n'

    def test_command_runs_in_its_folder(self, target: TargetServer) -> None:
        assert target.server.run_command("pwd").stdout == "/workspace/project\n"
        assert target.server.run_command("pwd", cwd="/tmp").stdout == "/tmp\n"

    def test_command_in_a_missing_folder_fails(self, target: TargetServer) -> None:
        result = target.server.run_command("pwd", cwd="/nowhere")
        assert (result.exit_code, result.stdout, "/nowhere" in result.stderr) == (-1, "", True)

    def test_command_is_killed_at_its_timeout(self, target: TargetServer) -> None:
        result = target.server.run_command("echo begun; sleep 61; echo ended", timeout=1)
        assert (result.exit_code, result.stdout) == (-1, "begun\n")
        left = target.server.run_command("for name in /proc/[0-9]*/cmdline; do tr '\\0' ' ' <$name; echo; done")
        assert "sleep 61" not in left.stdout.splitlines()


@pytest.mark.parametrize("target", ["tiny", "real"], indirect=True)
class TestFile:
    @pytest.mark.parametrize("content", [b"content", b"", b"two\r\nlines\r\n", bytes(range(256)) * 40])
    def test_uploaded_file_has_its_content(self, target: TargetServer, content: bytes) -> None:
        target.server.upload("/tmp/aw contract/file", content)
        size = target.server.run_command("wc -c <'/tmp/aw contract/file'").stdout
        hexadecimal = target.server.run_command("od -An -v -tx1 '/tmp/aw contract/file' | tr -d ' \\n'").stdout
        assert (int(size), bytes.fromhex(hexadecimal)) == (len(content), content)


class TestResponse:
    @pytest.mark.parametrize("command", ["true", ":"])
    def test_silent_command_returns_no_streams(self, target: TargetServer, command: str) -> None:
        body = {"command": command, "cwd": None, "timeout": 5}
        response = target.request("POST", "/bash/execute_bash_command", json=body).json()
        assert response.items() >= {"exit_code": 0, "stdout": None, "stderr": None}.items()

    def test_file_without_a_folder_is_refused(self, target: TargetServer) -> None:
        with pytest.raises(AgentServerRefused, match="400"):
            target.server.upload("file", b"content")
