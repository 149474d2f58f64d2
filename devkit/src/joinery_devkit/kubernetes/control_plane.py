"""The command lines of the control plane: of etcd, the API server, the controllers and the scheduler."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from joinery_devkit.kubernetes.binaries import program
from joinery_devkit.kubernetes.certificates import Authority

SERVICE_NETWORK = "10.96.0.0/16"
_SERVICE_ADDRESS = "10.96.0.1"  # the first of the network: the Service `kubernetes`
_ISSUER = "https://kubernetes.default.svc.cluster.local"
_NAMES = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "kubernetes.default.svc.cluster.local")
ADMIN, CONTROLLERS, SCHEDULER = "admin", "controllers", "scheduler"


@dataclass(frozen=True, slots=True)
class ControlPlane:
    """A control plane: its state is in `directory`, the API server on `address`:`port`, etcd on loopback."""

    directory: Path
    address: str
    port: int
    etcd_port: int
    etcd_peer_port: int

    @property
    def url(self) -> str:
        return f"https://{self.address}:{self.port}"

    @property
    def pki(self) -> Path:
        return self.directory / "pki"

    def kubeconfig(self, client: str) -> Path:
        return self.directory / "kubeconfig" / client

    def make_logins(self, scheduler: bool) -> Authority:
        """Make the certificates and kubeconfigs of the components below, and the administrator's."""
        authority = Authority(self.pki)
        addresses = [f"IP:{address}" for address in dict.fromkeys(("127.0.0.1", self.address, _SERVICE_ADDRESS))]
        names = [f"DNS:{name}" for name in (*_NAMES, "localhost")]
        authority.server("apiserver", "/CN=kube-apiserver", [*names, *addresses])
        authority.client(ADMIN, "admin", ["system:masters"])
        authority.client(CONTROLLERS, "system:kube-controller-manager")
        if scheduler:
            authority.client(SCHEDULER, "system:kube-scheduler")
        for client in (ADMIN, CONTROLLERS, *([SCHEDULER] if scheduler else [])):
            authority.kubeconfig(client, self.url, self.kubeconfig(client))
        authority.signing_key("service-accounts")
        return authority

    def etcd(self) -> list[str]:
        clients, peers = (f"http://127.0.0.1:{port}" for port in (self.etcd_port, self.etcd_peer_port))
        return [
            str(program("etcd")),
            f"--data-dir={self.directory / 'etcd'}",
            "--unsafe-no-fsync",
            "--log-level=warn",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
        ]

    def api_server(self, *options: str) -> list[str]:
        return [
            str(program("kube-apiserver")),
            f"--etcd-servers=http://127.0.0.1:{self.etcd_port}",
            f"--bind-address={self.address}",
            f"--advertise-address={self.address}",
            f"--secure-port={self.port}",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            f"--client-ca-file={self.pki / 'ca.crt'}",
            f"--tls-cert-file={self.pki / 'apiserver.crt'}",
            f"--tls-private-key-file={self.pki / 'apiserver.key'}",
            f"--service-account-issuer={_ISSUER}",
            f"--service-account-key-file={self.pki / 'service-accounts.pub'}",
            f"--service-account-signing-key-file={self.pki / 'service-accounts.key'}",
            "--allow-privileged=true",
            "--profiling=false",
            *options,
        ]

    def controller_manager(self, controllers: Sequence[str]) -> list[str]:
        """Start the control plane; `controllers` are names of the controllers to run: "*" is all, "-name" all but that
        one."""
        return [
            str(program("kube-controller-manager")),
            *self._login_options(CONTROLLERS),
            "--secure-port=0",  # serves nobody: its effects show its state
            "--leader-elect=false",
            "--use-service-account-credentials",
            f"--service-account-private-key-file={self.pki / 'service-accounts.key'}",
            f"--root-ca-file={self.pki / 'ca.crt'}",
            f"--cluster-signing-cert-file={self.pki / 'ca.crt'}",
            f"--cluster-signing-key-file={self.pki / 'ca.key'}",
            f"--controllers={','.join(controllers)}",
        ]

    def scheduler(self) -> list[str]:
        return [
            str(program("kube-scheduler")),
            *self._login_options(SCHEDULER),
            "--secure-port=0",
            "--leader-elect=false",
        ]

    def _login_options(self, client: str) -> list[str]:
        options = ("kubeconfig", "authentication-kubeconfig", "authorization-kubeconfig")
        return [f"--{option}={self.kubeconfig(client)}" for option in options]
