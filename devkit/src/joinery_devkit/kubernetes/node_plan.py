"""What the whole node consists of: addresses, logins, settings files, and the command line of each service."""

from __future__ import annotations

import shutil
import string
import tempfile
from dataclasses import dataclass
from pathlib import Path

from joinery_devkit.images.archive import oci_archive
from joinery_devkit.kubernetes.binaries import program
from joinery_devkit.kubernetes.control_plane import SERVICE_NETWORK, ControlPlane
from joinery_devkit.kubernetes.packages import CNI_PROGRAMS

NODE_NAME = "node1"
PAUSE_IMAGE, COREDNS_IMAGE = "localhost/pause:1", "localhost/coredns:1"
HOST_ADDRESS, NODE_ADDRESS = "10.200.0.1", "10.200.0.2"  # the two ends of the cable to the node
POD_NETWORK = "10.244.0.0/24"
_DNS_ADDRESS = "10.96.0.10"  # of the service network
_API_PORT, _ETCD_PORT, _ETCD_PEER_PORT = 6443, 2379, 2380  # nobody else is in the node's network
_TEMPLATES = Path(__file__).with_name("node_config")
_KUBELET, _KUBE_PROXY, _KUBE_ROUTER, _TO_KUBELET = "kubelet", "kube-proxy", "kube-router", "apiserver-to-kubelet"


@dataclass(frozen=True, slots=True)
class NodePlan:
    """The processes of a node whose state is in `directory`."""

    directory: Path

    @property
    def plane(self) -> ControlPlane:
        return ControlPlane(self.directory, NODE_ADDRESS, _API_PORT, _ETCD_PORT, _ETCD_PEER_PORT)

    @property
    def coredns(self) -> Path:
        """The manifest of the cluster's DNS."""
        return self._settings / "coredns.yaml"

    @property
    def kube_router(self) -> Path:
        """The manifest of the NetworkPolicy controller's read rights."""
        return self._settings / "kube-router.yaml"

    def write(self) -> None:
        """Write the logins and settings that the services read."""
        authority, user = self.plane.make_logins(scheduler=True), f"system:node:{NODE_NAME}"
        authority.server("kubelet-serving", f"/O=system:nodes/CN={user}", [f"DNS:{NODE_NAME}", f"IP:{NODE_ADDRESS}"])
        authority.client(_KUBELET, user, ["system:nodes"])
        authority.client(_KUBE_PROXY, "system:kube-proxy")
        authority.client(_KUBE_ROUTER, "kube-router")
        authority.client(_TO_KUBELET, "apiserver-to-kubelet", ["system:masters"])
        for client in (_KUBELET, _KUBE_PROXY, _KUBE_ROUTER):
            authority.kubeconfig(client, self.plane.url, self.plane.kubeconfig(client))
        values = {
            "pause_image": PAUSE_IMAGE,
            "coredns_image": COREDNS_IMAGE,
            "cni_programs": str(CNI_PROGRAMS),
            "cni_config": str(self._settings),
            "pod_network": POD_NETWORK,
            "dns_address": _DNS_ADDRESS,
            "resolv_conf": str(self._settings / "resolv.conf"),
            "pki": str(self.plane.pki),
            "kubeconfig": str(self.plane.kubeconfig(_KUBE_PROXY)),
            "node": NODE_NAME,
        }
        self._settings.mkdir()
        for template in _TEMPLATES.iterdir():
            text = string.Template(template.read_text()).substitute(values)
            (self._settings / template.name).write_text(text)

    def first_services(self) -> dict[str, list[str]]:
        """Return the services that wait for no other, by name."""
        pki = self.plane.pki
        to_kubelet = [
            f"--kubelet-client-certificate={pki / f'{_TO_KUBELET}.crt'}",
            f"--kubelet-client-key={pki / f'{_TO_KUBELET}.key'}",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            "--kubelet-preferred-address-types=InternalIP",
        ]
        return {
            "etcd": self.plane.etcd(),
            "kube-apiserver": self.plane.api_server(*to_kubelet),
            "containerd": ["containerd", f"--config={self._settings / 'containerd.toml'}"],
        }

    def second_services(self) -> dict[str, list[str]]:
        """Return the services that need the first ones to be ready."""
        return {
            "kube-controller-manager": self.plane.controller_manager(["*"]),
            "kube-scheduler": self.plane.scheduler(),
            "kubelet": [
                str(program("kubelet")),
                f"--config={self._settings / 'kubelet.yaml'}",
                f"--kubeconfig={self.plane.kubeconfig(_KUBELET)}",
                f"--hostname-override={NODE_NAME}",
                f"--node-ip={NODE_ADDRESS}",
            ],
            "kube-proxy": [str(program("kube-proxy")), f"--config={self._settings / 'kube-proxy.yaml'}"],
        }

    def third_services(self) -> dict[str, list[str]]:
        """Return the services that need a node."""
        return {
            "kube-router": [
                str(program("kube-router")),
                f"--kubeconfig={self.plane.kubeconfig(_KUBE_ROUTER)}",
                f"--hostname-override={NODE_NAME}",
                f"--service-cluster-ip-range={SERVICE_NETWORK}",
            ],
        }

    @property
    def _settings(self) -> Path:
        return self.directory / "settings"


def node_images(directory: Path) -> list[Path]:
    """Archive, in `directory`, of the images that a node needs before its first pod."""
    return [_program_image(PAUSE_IMAGE, "pause", directory), _program_image(COREDNS_IMAGE, "coredns", directory)]


def _program_image(image: str, name: str, directory: Path) -> Path:
    """Return the archive of an image that has one program in its root, and starts it."""
    with tempfile.TemporaryDirectory(dir=directory) as work:
        layer = Path(work) / "layer"
        layer.mkdir(mode=0o755)
        shutil.copy(program(name), layer / name)
        return oci_archive(image, directory / f"{name}.tar", [layer], entrypoint=[f"/{name}"])
