"""Certificates of clients, with names of any kind, signed by an authority of `trustme`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import CertificateIssuerPrivateKeyTypes
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Issued:
    """A certificate, its key, and the files of both."""

    cert: bytes
    key: bytes
    cert_file: str
    key_file: str

    @property
    def files(self) -> tuple[str, str]:
        return self.cert_file, self.key_file


def issue(
    folder: Path,
    authority: trustme.CA,
    label: str,
    names: Sequence[x509.GeneralName] = (),
    *,
    organization: str = "Acme, Inc.",
    ends_at: datetime | None = None,
) -> Issued:
    """A certificate of `CN=LABEL` with these alternative names."""
    signer = serialization.load_pem_private_key(authority.private_key_pem.bytes(), None)
    assert isinstance(signer, CertificateIssuerPrivateKeyTypes)
    issuer = x509.load_pem_x509_certificate(authority.cert_pem.bytes())
    key = ec.generate_private_key(ec.SECP256R1())
    subject = [
        x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization),
        x509.NameAttribute(NameOID.COMMON_NAME, label),
    ]
    now = datetime.now(UTC)
    builder = (
        x509.CertificateBuilder()
        .subject_name(x509.Name(subject))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(ends_at or now + timedelta(days=30))
        .add_extension(x509.ExtendedKeyUsage([x509.ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer.public_key()), critical=False)  # type: ignore[arg-type]
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
    cert = builder.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    secret = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    cert_file, key_file = folder / f"{label}.client.pem", folder / f"{label}.client.key"
    cert_file.write_bytes(cert)
    key_file.write_bytes(secret)
    return Issued(cert, secret, str(cert_file), str(key_file))
