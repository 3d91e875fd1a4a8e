"""A certificate authority for tests, and a TLS proxy in front of a plain server."""

import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

CHUNK = 65536


class Authority:
    """A certificate authority; `file` is its own certificate."""

    def __init__(self, directory: Path, name: str) -> None:
        self._directory, self._name = directory, name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(_pem(self._sign(name, self._key, x509.BasicConstraints(ca=True, path_length=None))))

    def issue(self, address: str) -> tuple[Path, Path]:
        """Issue a certificate for an IP address; return the files of the certificate and of its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternatives = x509.SubjectAlternativeName([x509.IPAddress(ip_address(address))])
        certificate_file, key_file = (self._directory / f"{self._name}-{address}.{kind}" for kind in ("crt", "key"))
        certificate_file.write_bytes(_pem(self._sign(address, key, alternatives)))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        key_file.chmod(0o600)
        return certificate_file, key_file

    def _sign(self, name: str, key: ec.EllipticCurvePrivateKey, extension: x509.ExtensionType) -> x509.Certificate:
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, self._name)])
        today = datetime.now(UTC)
        builder = (
            x509.CertificateBuilder(issuer, subject, key.public_key(), x509.random_serial_number())
            .not_valid_before(today - timedelta(days=1))
            .not_valid_after(today + timedelta(days=1))
            .add_extension(extension, critical=isinstance(extension, x509.BasicConstraints))
        )
        return builder.sign(self._key, hashes.SHA256())


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


@contextmanager
def speaking_tls(server: Path, certificate: Path, key: Path) -> Iterator[int]:
    """Run a TLS proxy in front of a server on a unix socket, for the length of the block; yield its port."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=_accept, args=(listener, context, server), daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def breaking_tls(authority: Authority, record: bytes) -> Iterator[str]:
    """Run a TLS server that sends these bytes to its first client, unencrypted, after the handshake; yield its URL."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority.issue("127.0.0.1"))
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=_break, args=(listener, context, record))
        thread.start()
        yield f"https://127.0.0.1:{listener.getsockname()[1]}"
        thread.join(10)


def _break(listener: socket.socket, context: ssl.SSLContext, record: bytes) -> None:
    client, _ = listener.accept()
    with suppress(OSError), context.wrap_socket(client, server_side=True) as secured:
        with socket.fromfd(secured.fileno(), socket.AF_INET, socket.SOCK_STREAM) as plain:
            plain.sendall(record)
        secured.recv(CHUNK)
        secured.recv(CHUNK)  # until the client closes the connection


def _accept(listener: socket.socket, context: ssl.SSLContext, server: Path) -> None:
    with suppress(OSError):
        while True:
            client, _ = listener.accept()
            threading.Thread(target=_serve, args=(client, context, server), daemon=True).start()


def _serve(client: socket.socket, context: ssl.SSLContext, server: Path) -> None:
    with (
        client,
        suppress(OSError),
        context.wrap_socket(client, server_side=True) as secured,
        socket.socket(socket.AF_UNIX) as behind,
    ):
        behind.connect(str(server))
        responses = threading.Thread(target=_pass, args=(behind, secured), daemon=True)
        responses.start()
        _pass(secured, behind)
        responses.join()


def _pass(source: socket.socket, target: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(CHUNK):
            target.sendall(data)
    with suppress(OSError):
        target.shutdown(socket.SHUT_RDWR)
