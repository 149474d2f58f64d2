"""Makes a cluster's certificate authority, certificates and kubeconfigs, with the openssl command."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from joinery_runtime.errors import EnvironmentProblem

_DAYS = 30
_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")


class Authority:
    """Signs certificates for the components of one cluster. All files are in `directory`, named after their owners."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
        extensions = ["basicConstraints=critical,CA:TRUE", "keyUsage=critical,keyCertSign,cRLSign"]
        self._request_certificate(
            "ca", "/CN=joinery-tests-ca", extensions, "-x509", "-days", str(_DAYS), out=self.certificate("ca")
        )

    def certificate(self, name: str) -> Path:
        return self.directory / f"{name}.crt"

    def key(self, name: str) -> Path:
        return self.directory / f"{name}.key"

    def server(self, name: str, subject: str, alternatives: Sequence[str]) -> None:
        """Make a certificate for serving under `alternatives`, such as "DNS:localhost" and "IP:127.0.0.1"."""
        self._sign_certificate(
            name, subject, ["extendedKeyUsage=serverAuth", f"subjectAltName={','.join(alternatives)}"]
        )

    def client(self, name: str, user: str, groups: Sequence[str] = ()) -> None:
        """Make a certificate with which `user`, a member of `groups`, logs in."""
        subject = "".join([*(f"/O={group}" for group in groups), f"/CN={user}"])
        self._sign_certificate(name, subject, ["extendedKeyUsage=clientAuth"])

    def signing_key(self, name: str) -> None:
        """Make a key pair without a certificate: `<name>.key`, with its public half in `<name>.pub`."""
        _run_openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", str(self.key(name)))
        public = str(self.directory / f"{name}.pub")
        _run_openssl("ec", "-in", str(self.key(name)), "-pubout", "-out", public)

    def kubeconfig(self, name: str, server: str, target: Path) -> Path:
        """Write a kubeconfig of the client `name` for the API server at `server`, such as https://127.0.0.1:6443."""
        login = {
            "client-certificate-data": _encode_file(self.certificate(name)),
            "client-key-data": _encode_file(self.key(name)),
        }
        return write_kubeconfig(target, server, _encode_file(self.certificate("ca")), login)

    def _sign_certificate(self, name: str, subject: str, extensions: Sequence[str]) -> None:
        common = ["basicConstraints=CA:FALSE", "keyUsage=digitalSignature,keyEncipherment"]
        request = self.directory / f"{name}.csr"
        self._request_certificate(name, subject, [*common, *extensions], out=request)
        ca = ["-CA", str(self.certificate("ca")), "-CAkey", str(self.key("ca")), "-CAcreateserial"]
        out = ["-days", str(_DAYS), "-copy_extensions", "copy", "-out", str(self.certificate(name))]
        _run_openssl("x509", "-req", "-in", str(request), *ca, *out)
        request.unlink()

    def _request_certificate(
        self, name: str, subject: str, extensions: Sequence[str], *options: str, out: Path
    ) -> None:
        added = [word for extension in extensions for word in ("-addext", extension)]
        files = ["-keyout", str(self.key(name)), "-out", str(out)]
        _run_openssl("req", "-new", *_CURVE, "-subj", subject, *added, *options, *files)


def write_kubeconfig(target: Path, server: str, authority: str, login: dict[str, str], namespace: str = "") -> Path:
    """Write a kubeconfig, as JSON, which is also YAML. `authority` is the CA's certificate in base64, `login` the
    fields of the user."""
    context = {"cluster": "tests", "user": "tests", **({"namespace": namespace} if namespace else {})}
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "tests",
        "contexts": [{"name": "tests", "context": context}],
        "clusters": [{"name": "tests", "cluster": {"server": server, "certificate-authority-data": authority}}],
        "users": [{"name": "tests", "user": login}],
    }
    target.parent.mkdir(parents=True, exist_ok=True)
    target.touch(mode=0o600)
    target.write_text(json.dumps(config, indent=1))
    return target


def _encode_file(path: Path) -> str:
    return base64.b64encode(path.read_bytes()).decode()


def _run_openssl(*arguments: str) -> None:
    tool = shutil.which("openssl")
    if tool is None:
        raise EnvironmentProblem(
            "The cluster's certificates cannot be made",
            facts="there is no `openssl` on PATH",
            todo="Install openssl 3 or newer",
        )
    done = subprocess.run([tool, *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise EnvironmentProblem(
            "The cluster's certificates cannot be made",
            facts=f"openssl {arguments[0]} said: {done.stderr.strip()}",
            todo="Install openssl 3 or newer",
        )
