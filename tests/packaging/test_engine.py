"""docker/*.sh: when an engine is started and how, and which image is taken. docker and dockerd are stand-ins."""

from __future__ import annotations

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPTS = sorted((ROOT / "docker").rglob("*.sh"))

# `docker version` answers once `up` is there; images and what the registry has are lines of a file.
DOCKER = """
echo "docker $*" >>"$WORLD/calls"
case $1 in
  version) test -e "$WORLD/up" ;;
  image) grep -qxF "$3" "$WORLD/images" ;;
  manifest) grep -qxF "$3" "$WORLD/registry" ;;
  pull) echo "$3" >>"$WORLD/images" ;;
  build) while [ $# -gt 1 ]; do [ "$1" != --tag ] || echo "$2" >>"$WORLD/images"; shift; done ;;
esac
"""
# Works if it is called with all the flags that the kernel wants.
DOCKERD = """
echo "dockerd $*" >>"$WORLD/calls"
for flag in $(cat "$WORLD/wanted"); do
  case " $* " in *" $flag "*) ;; *) echo "cannot do without $flag" >&2; exit 1 ;; esac
done
touch "$WORLD/up"
"""
# Sources as apt lists them: origin, codename, address, release, component.
APT_GET = """
echo "apt-get $*" >>"$WORLD/calls"
case "$*" in indextargets*) cat "$WORLD/sources" ;; esac
"""


@dataclass
class World:
    """A machine: which commands it has, what they find."""

    folder: Path
    env: dict[str, str] = field(default_factory=dict)

    def command(self, name: str, script: str = "") -> None:
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/bash\n{script}")
        path.chmod(0o755)

    def has(self, name: str, *lines: str) -> None:
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines))

    def run(self, script: str) -> subprocess.CompletedProcess[str]:
        env = {
            "PATH": f"{self.folder / 'bin'}:/usr/bin:/bin",
            "WORLD": str(self.folder),
            "WINDROW_ENGINE_RUN": str(self.folder / "run"),
            "WINDROW_ENGINE_LOG": str(self.folder / "log"),
            "WINDROW_SYSTEMD": str(self.folder / "no-systemd"),
            **self.env,
        }
        return subprocess.run([ROOT / "docker" / script], env=env, capture_output=True, text=True)

    def calls(self, of: str) -> list[str]:
        lines = (self.folder / "calls").read_text().splitlines()
        return [line.removeprefix(f"{of} ") for line in lines if line.startswith(f"{of} ")]


@pytest.fixture
def world(tmp_path: Path) -> World:
    for folder in ("bin", "run"):
        (tmp_path / folder).mkdir()
    world = World(tmp_path)
    world.command("docker", DOCKER)
    world.command("dockerd", DOCKERD)
    world.command("id", "echo 0")
    world.command("apt-get", APT_GET)
    world.command("debootstrap", 'echo "debootstrap $*" >>"$WORLD/calls"; exit 1')
    for name in ("calls", "images", "registry", "wanted", "log", "sources"):
        world.has(name)
    return world


# -- the engine -----------------------------------------------------------------------------------------------------


def test_an_engine_that_answers_is_left_alone(world: World) -> None:
    world.has("up")
    assert world.run("engine.sh").returncode == 0
    assert world.calls("dockerd") == []


@pytest.mark.parametrize(
    ("wanted", "attempts"),
    [
        ("", 1),
        ("--iptables=false", 2),
        ("--bridge=none", 3),
        ("--storage-driver=vfs", 4),
        ("--storage-driver=vfs --bridge=none", 6),
    ],
)
def test_what_the_kernel_lacks_is_left_out(world: World, wanted: str, attempts: int) -> None:
    world.has("wanted", wanted)
    assert world.run("engine.sh").returncode == 0
    assert len(world.calls("dockerd")) == attempts
    assert all(flag in world.calls("dockerd")[-1].split() for flag in wanted.split())


def test_the_second_run_starts_nothing(world: World) -> None:
    assert world.run("engine.sh").returncode == 0
    assert world.run("engine.sh").returncode == 0
    assert len(world.calls("dockerd")) == 1


def test_an_engine_that_never_starts_is_said_loudly(world: World) -> None:
    world.has("wanted", "--a-miracle")
    ended = world.run("engine.sh")
    assert ended.returncode == 1
    assert "cannot do without --a-miracle" in ended.stderr
    assert "make test KAFKA=none" in ended.stderr


def test_who_is_not_root_is_informed_what_to_do(world: World) -> None:
    world.command("id", "echo 1000")
    ended = world.run("engine.sh")
    assert ended.returncode == 1
    assert "only root may start one" in ended.stderr
    assert "WINDROW_KAFKA=host:port" in ended.stderr
    assert world.calls("dockerd") == []


def test_somebody_elses_engine_is_not_started(world: World) -> None:
    world.env["DOCKER_HOST"] = "tcp://elsewhere:2375"
    ended = world.run("engine.sh")
    assert ended.returncode == 1
    assert "DOCKER_HOST=tcp://elsewhere:2375" in ended.stderr
    assert world.calls("dockerd") == []


@pytest.mark.parametrize("file", ["docker.pid", "docker/containerd/containerd.pid"])
def test_a_pid_file_is_removed_if_its_process_is_another_one(world: World, file: str) -> None:
    pid_file = world.folder / "run" / file
    pid_file.parent.mkdir(parents=True, exist_ok=True)
    pid_file.write_text(str(os.getpid()))  # alive, and no engine
    ended = world.run("engine.sh")
    assert ended.returncode == 0
    assert not pid_file.exists()
    assert "no longer runs" in ended.stderr


# -- images ---------------------------------------------------------------------------------------------------------


def test_the_image_that_is_named_is_taken(world: World) -> None:
    world.env["WINDROW_KAFKA_IMAGE"] = "mine:1"
    assert world.run("kafka-image.sh").stdout == "mine:1\n"


def test_kafkas_own_image_is_taken_where_it_is(world: World) -> None:
    world.has("up")
    world.has("images", "apache/kafka:4.1.0")
    assert world.run("kafka-image.sh").stdout == "apache/kafka:4.1.0\n"
    assert "manifest" not in "".join(world.calls("docker"))


def test_kafkas_own_image_is_pulled_where_a_registry_has_it(world: World) -> None:
    world.has("up")
    world.has("registry", "apache/kafka:4.1.0")
    assert world.run("kafka-image.sh").stdout == "apache/kafka:4.1.0\n"
    assert "pull --quiet apache/kafka:4.1.0" in world.calls("docker")


def test_without_a_registry_an_image_is_built_from_debians_base_and_mavens_jars_once(world: World) -> None:
    world.has("up")
    world.command("mvn", 'echo "mvn $*" >>"$WORLD/calls"')
    world.has("images", base := debian(world))
    built = world.run("kafka-image.sh").stdout.strip()
    assert built.startswith("windrow/kafka:4.1.0-")
    [build] = [call for call in world.calls("docker") if call.startswith("build ")]
    assert f"BASE={base}" in build and f"--tag {built}" in build
    assert len(world.calls("mvn")) == 1

    world.has("images", base, built)
    assert world.run("kafka-image.sh").stdout.strip() == built
    assert len(world.calls("mvn")) == 1


def test_of_two_runs_at_once_the_second_finds_what_the_first_has_built(world: World) -> None:
    world.has("up")
    world.command("mvn", 'sleep 0.3; echo "mvn $*" >>"$WORLD/calls"')
    world.has("images", debian(world))
    with ThreadPoolExecutor(2) as both:
        first, second = both.map(world.run, ["kafka-image.sh"] * 2)
    assert first.stdout == second.stdout != ""
    assert len(world.calls("mvn")) == 1


def debian(world: World) -> str:
    """The name that debian.sh looks for."""
    world.run("debian.sh")
    return next(call.split()[2] for call in world.calls("docker") if "inspect windrow/debian:" in call)


def test_debians_base_comes_from_the_machines_own_source(world: World) -> None:
    code = next(
        line.split("=")[1].strip().strip('"')
        for line in Path("/etc/os-release").read_text().splitlines()
        if line.startswith("VERSION_CODENAME=")
    )
    world.has(
        "sources",
        f"Others|{code}|http://others/|{code}|main",
        f"Debian|{code}-security|http://mirror/security/|{code}-security|main",
        f"Debian|{code}|http://mirror/debian/|{code}|main",
    )
    assert world.run("debian.sh").returncode == 1  # the stand-in of debootstrap builds nothing
    [call] = world.calls("debootstrap")
    assert call.split()[-3] == code and call.split()[-1] == "http://mirror/debian/"


def test_a_machine_without_a_debian_source_learns_it(world: World) -> None:
    ended = world.run("debian.sh")
    assert ended.returncode == 1
    assert "apt knows no Debian source" in ended.stderr


def test_without_an_engine_no_image_is_named(world: World) -> None:
    ended = world.run("kafka-image.sh")
    assert (ended.returncode, ended.stdout) == (1, "")
    assert "run docker/engine.sh first" in ended.stderr


def test_the_version_of_kafka_is_the_same_everywhere() -> None:
    from windrow.testing import broker

    assert (
        f"<kafka.version>{broker.IMAGE.split(':')[1]}</kafka.version>"
        in (ROOT / "docker/kafka/pom.xml").read_text()
    )
    assert broker.IMAGE in (ROOT / "docker/compose.yaml").read_text()


# -- the broker's settings ------------------------------------------------------------------------------------------


def test_the_images_variables_become_properties(tmp_path: Path) -> None:
    """entrypoint.sh, with its folder and java exchanged."""
    (tmp_path / "java").write_text('#!/bin/bash\necho "$*"\n')
    (tmp_path / "java").chmod(0o755)
    script = (ROOT / "docker/kafka/entrypoint.sh").read_text().replace("/opt/kafka/config", str(tmp_path))
    env = {
        "PATH": f"{tmp_path}:/usr/bin:/bin",
        "KAFKA_NODE_ID": "1",
        "KAFKA_A__B_C___D": "x=y z",
        "KAFKA_HEAP_OPTS": "-Xmx1m",
        "OTHER": "not Kafka's",
    }
    ran = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert sorted((tmp_path / "server.properties").read_text().splitlines()) == [
        "a_b.c-d=x=y z",
        "log.dirs=/var/lib/kafka/data",
        "node.id=1",
    ]
    formatted, broker = ran.stdout.splitlines()
    assert "StorageTool format --ignore-formatted" in formatted
    assert broker.startswith("-Xmx1m ") and "kafka.Kafka" in broker

    (tmp_path / "meta.properties").touch()
    env["KAFKA_LOG_DIRS"] = str(tmp_path)
    again = subprocess.run(["bash", "-c", script], env=env, capture_output=True, text=True, check=True)
    assert again.stdout.splitlines() == [broker]


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_parse_and_stop_at_the_first_error(script: Path) -> None:
    subprocess.run(["bash", "-n", script], check=True)
    assert script.name == "lib.sh" or "set -euo pipefail" in script.read_text()
