"""A stand-in for the registry's debian:<release>-slim, made by debootstrap from this machine's own Debian mirror."""

from __future__ import annotations

import subprocess
import tempfile
from hashlib import sha256
from pathlib import Path

from joinery_devkit.images.store import ImageStore
from joinery_runtime.errors import EnvironmentProblem

SUITE = "bookworm"
RELEASE = "12.15"
_SOURCES = "etc/apt/sources.list.d/debian.sources"

# What the slim images exclude as well.
_EXCLUDED = ("/usr/share/doc/*", "/usr/share/info/*", "/usr/share/locale/*", "/usr/share/man/*")
_INCLUDED = ("/usr/share/doc/*/copyright",)
_DOCKERFILE = 'FROM scratch\nADD root.tar /\nCMD ["bash"]\n'


def base_image(store: ImageStore) -> str:
    """Return the base image's name; it is made when the store has none by this recipe."""
    name = f"localhost/joinery-debian:{SUITE}-{sha256(Path(__file__).read_bytes()).hexdigest()[:12]}"
    if not store.has(name):
        log = store.folder / "base.log"
        with tempfile.TemporaryDirectory(dir=store.folder) as scratch:
            context = Path(scratch)
            root_tar(context / "root.tar", log)
            (context / "Dockerfile").write_text(_DOCKERFILE)
            store.build(context / "Dockerfile", context, log, f"--tag={name}")
    return name


def root_tar(target: Path, log: Path) -> Path:
    """Write the root file system of a minimal Debian as a layer tar. Needs root."""
    sources = debian_sources()
    with tempfile.TemporaryDirectory(dir=target.parent) as scratch:
        root = Path(scratch) / "root"
        with log.open("w") as output:
            command = ["debootstrap", "--variant=minbase", SUITE, str(root), sources[SUITE]]
            done = subprocess.run(command, check=False, stdout=output, stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise EnvironmentProblem("There is no base image", facts="debootstrap failed", todo=f"Its log is {log}")
        _remove_caches(root, sources)
        subprocess.run(["tar", "--numeric-owner", "--sort=name", "-C", str(root), "-cf", str(target), "."], check=True)
    return target


def _remove_caches(root: Path, sources: dict[str, str]) -> None:
    (root / "etc/apt/sources.list").unlink()
    (root / _SOURCES).write_text(sources_text(sources))
    rules = [*(f"path-exclude {path}" for path in _EXCLUDED), *(f"path-include {path}" for path in _INCLUDED)]
    (root / "etc/dpkg/dpkg.cfg.d/slim").write_text("\n".join([*rules, ""]))
    for folder in ("share/info", "share/locale", "share/man"):
        subprocess.run(["find", str(root / "usr" / folder), "-mindepth", "1", "-delete"], check=True)
    subprocess.run(
        ["find", str(root / "usr/share/doc"), "-type", "f", "!", "-name", "copyright", "-delete"], check=True
    )
    for folder in ("var/cache/apt/archives", "var/lib/apt/lists", "var/log"):
        subprocess.run(["find", str(root / folder), "-type", "f", "-delete"], check=True)


def sources_text(sources: dict[str, str]) -> str:
    """Render apt's sources in the form of the registry's image, where the comment names the snapshot to read."""
    keyring = "/usr/share/keyrings/debian-archive-keyring.gpg"
    stanzas = (
        f"Types: deb\n# {address}\nURIs: {address}\nSuites: {suite}\nComponents: main\nSigned-By: {keyring}\n"
        for suite, address in sources.items()
    )
    return "\n".join(stanzas)


def debian_sources() -> dict[str, str]:
    """Return the address of each suite of the release, as this machine's apt is set up; the first suite is SUITE
    itself."""
    suites = (SUITE, f"{SUITE}-updates", f"{SUITE}-security")
    question = ["apt-get", "indextargets", "--format", "$(RELEASE) $(COMPONENT) $(REPO_URI)", "Created-By: Packages"]
    answer = subprocess.run(question, check=True, stdout=subprocess.PIPE, text=True).stdout
    targets = [line.split() for line in answer.splitlines()]
    addresses = {suite: address for suite, component, address in targets if suite in suites and component == "main"}
    if SUITE not in addresses:
        raise EnvironmentProblem(
            "There is no base image",
            facts=f"apt on this machine knows no mirror with the suite {SUITE}",
            todo=f"Run on Debian {SUITE}, or add its sources to apt",
        )
    return {suite: addresses[suite] for suite in suites if suite in addresses}
