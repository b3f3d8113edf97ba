"""TLS in front of the gateway: a good client is served, plain HTTP and a stalled handshake are not."""

from __future__ import annotations

import datetime
import http.client
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from gateway_run import base, gateway
from loopback import Exchange, answer, serving

from dynamometer.errors import UsageError
from dynamometer.gateway.config import Config, Side, Tls
from dynamometer.gateway.run import run


def certificate(folder: Path) -> None:
    """A self-signed one for localhost."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
    now = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder().subject_name(name).issuer_name(name).public_key(key.public_key())
    built = built.serial_number(1).not_valid_before(now).not_valid_after(now + datetime.timedelta(days=1))
    built = built.add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
    form = serialization.Encoding.PEM
    (folder / "cert.pem").write_bytes(built.sign(key, hashes.SHA256()).public_bytes(form))
    secret = key.private_bytes(form, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    (folder / "key.pem").write_bytes(secret)


async def good(exchange: Exchange) -> None:
    await exchange.send(answer("ok", "."))


def test_tls_serves_verified_clients_and_closes_on_the_rest(tmp_path: Path) -> None:
    certificate(tmp_path)
    more = '[tls]\ncert = "cert.pem"\nkey = "key.pem"\n[limits]\nrequest_s = 0.5\n'
    with serving(good) as engine, gateway(tmp_path, f'[baseline]\nurls = ["{base(engine.url)}"]\n{more}') as up:
        context = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        connection = http.client.HTTPSConnection("localhost", up.port, context=context, timeout=10)
        connection.request("POST", "/v1/chat/completions", b'{"stream":true}')
        assert connection.getresponse().read().endswith(b"[DONE]\n\n")
        connection.close()
        with up.raw() as plain:
            plain.sendall(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert not plain.recv(100).startswith(b"HTTP")
        with up.raw() as stalls:
            assert stalls.recv(100) == b""  # closed by us


def test_a_certificate_that_cannot_be_used_stops_the_start(tmp_path: Path) -> None:
    (tmp_path / "c").write_text("no certificate")
    tls = Tls(str(tmp_path / "c"), str(tmp_path / "c"))
    with pytest.raises(UsageError, match="certificate"):
        run(Config(Side(("http://127.0.0.1:1",)), tls=tls, folder=str(tmp_path / "s")), print)
