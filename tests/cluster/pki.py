"""The certificate authority of a test cluster.

One authority signs everything: serving certificates, which clients really verify, and one client
certificate per component, so that the Node authorizer, NodeRestriction and RBAC see who is who.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_VALIDITY = dt.timedelta(days=30)  # a kept demo cluster may stand for a while
_CLOCK_SKEW = dt.timedelta(minutes=5)


@dataclasses.dataclass(frozen=True, slots=True)
class KeyPair:
    """The files of a certificate and its private key, both PEM."""

    certificate: Path
    key: Path


class CertificateAuthority:
    """An authority whose files live in `directory` (``ca.crt``, ``ca.key``); made there when missing."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.files = KeyPair(directory / "ca.crt", directory / "ca.key")
        if self.files.key.exists():
            key = serialization.load_pem_private_key(self.files.key.read_bytes(), password=None)
            assert isinstance(key, ec.EllipticCurvePrivateKey)
            self._key = key
            self._certificate = x509.load_pem_x509_certificate(self.files.certificate.read_bytes())
            return
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = _name("gpupolicy-test-ca", ())
        self._certificate = (
            _builder(name, name, self._key.public_key())
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(authority=True), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        _write(self.files, self._certificate, self._key)

    def issue(
        self,
        file_name: str,
        common_name: str,
        organizations: Sequence[str] = (),
        *,
        dns_names: Sequence[str] = (),
        addresses: Sequence[str] = (),
    ) -> KeyPair:
        """Issue ``<file_name>.crt`` and ``.key``; for a server when it has names or addresses, else a client.

        Kubernetes reads the user from the common name and the groups from the organizations.
        """
        key = ec.generate_private_key(ec.SECP256R1())
        serves = bool(dns_names or addresses)
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if serves else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = (
            _builder(_name(common_name, organizations), self._certificate.subject, key.public_key())
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False
            )
        )
        if serves:
            names: list[x509.GeneralName] = [x509.DNSName(name) for name in dns_names]
            names += [x509.IPAddress(ipaddress.ip_address(address)) for address in addresses]
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        files = KeyPair(self.directory / f"{file_name}.crt", self.directory / f"{file_name}.key")
        _write(files, builder.sign(self._key, hashes.SHA256()), key)
        return files


def write_signing_key(directory: Path) -> KeyPair:
    """Make the key pair that signs service-account tokens (``certificate`` is the public key)."""
    key = ec.generate_private_key(ec.SECP256R1())
    files = KeyPair(directory / "service-account.pub", directory / "service-account.key")
    files.certificate.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    _write_key(files.key, key)
    return files


def _name(common_name: str, organizations: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in organizations]
    # X.509 bounds a common name at 64 characters; service-account and node names may be longer.
    attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, common_name, _validate=False))
    return x509.Name(attributes)


def _builder(
    subject: x509.Name, issuer: x509.Name, public_key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _CLOCK_SKEW)
        .not_valid_after(now + _VALIDITY)
    )


def _usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _write(files: KeyPair, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    files.certificate.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    _write_key(files.key, key)


def _write_key(path: Path, key: ec.EllipticCurvePrivateKey) -> None:
    path.touch(mode=0o600)
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
