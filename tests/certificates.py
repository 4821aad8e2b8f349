"""Certificates for tests, made by the `openssl` command: an authority, and what it signs."""

import itertools
import subprocess
from dataclasses import dataclass
from pathlib import Path

LOOPBACK = ("127.0.0.1", "::1", "localhost")


@dataclass(frozen=True)
class Certificate:
    cert: str  # files
    key: str
    password: str = ""


class Authority:
    """Makes keys and certificates in `directory`. `ca` is the file of its own certificate."""

    def __init__(self, directory: Path, name: str = "Test authority") -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._numbers = itertools.count()
        self._key = _new_key(directory / "ca-key.pem")
        self.ca = str(directory / "ca.pem")
        _openssl(
            *("req", "-new", "-x509", "-key", self._key, "-subj", f"/CN={name}"),
            *("-days", "36500", "-out", self.ca),
        )

    def issue(
        self, *names: str, days: int = 36_500, password: str = "", rsa: bool = False
    ) -> Certificate:
        """For servers or clients of these names or addresses; `days` may be negative."""
        stem = self._directory / f"issued-{next(self._numbers)}"
        names = names or LOOPBACK
        key = _new_key(Path(f"{stem}-key.pem"), rsa)
        extensions, request, cert = f"{stem}.ext", f"{stem}.csr", f"{stem}.pem"
        alternatives = ",".join(f"{_kind(name)}:{name}" for name in names)
        Path(extensions).write_text(f"subjectAltName={alternatives}\n")
        _openssl("req", "-new", "-key", key, "-subj", "/CN=issued", "-out", request)
        _openssl(
            *("x509", "-req", "-in", request, "-CA", self.ca, "-CAkey", self._key),
            *("-CAcreateserial", "-days", str(days), "-extfile", extensions, "-out", cert),
        )
        if password:
            sealed = f"{stem}-sealed.pem"
            _openssl("pkcs8", "-topk8", "-in", key, "-out", sealed, "-passout", f"pass:{password}")
            key = sealed
        return Certificate(cert, key, password)


def _kind(name: str) -> str:
    is_address = ":" in name or name.replace(".", "").isdigit()
    return "IP" if is_address else "DNS"


def _new_key(path: Path, rsa: bool = False) -> str:
    kind = ("RSA",) if rsa else ("EC", "-pkeyopt", "ec_paramgen_curve:prime256v1")
    _openssl("genpkey", "-algorithm", *kind, "-out", str(path))
    return str(path)


def _openssl(*arguments: str) -> None:
    subprocess.run(["openssl", *arguments], check=True, capture_output=True)
