"""``dockershim migrate`` on a node of kubeadm with a real cri-dockerd and 20 pods: there, back, and killed on the way.

It has a guest of its own. No container is restarted, whatever happens to the command.
"""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

import pytest

from tests.engine import pods
from tests.kubernetes.programs import NEWEST
from tests.node.cache import say
from tests.two_nodes.cluster import PATIENCE, PAUSE, GuestCluster
from tests.vm import cri_dockerd
from tests.vm.guest import Ended, Guest
from tests.vm.image import provided
from tests.vm.machines import Machine
from tests.vm.running import site

COMMAND = "/opt/dockershim/bin/dockershim migrate"
OURS = "unix:///run/dockershim.sock"
PODS = 20
#: Seconds of NotReady at most, and for one call of the command.
NOT_READY = 30.0
SECONDS = 600.0
#: Of all that the command may change: names, modes, owners, and what is in it; states of units; sockets and mounts.
MACHINE = r"""
find /etc /var/lib/kubelet -xdev \( -path /var/lib/kubelet/pods -o -path /var/lib/kubelet/pki \) -prune -o \
  \( -path '/etc/*' -o -name '*.yaml' -o -name '*.env' \) -type f -printf '%p %m %U %G\n' -exec sha256sum {} + | sort
for unit in cri-docker.service cri-docker.socket dockershim.service dockershim.socket kubelet.service; do
  echo $unit $(systemctl is-enabled $unit) $(systemctl is-active $unit)
done
ls /run/*.sock; ls /run/netns
"""
#: Calls that are killed after a line that begins so, each with the next call: the node goes from side to side.
KILLED = (
    ("--yes", "note the pods", "--back"),
    ("--yes", "$ systemctl stop cri-docker", "--yes"),
    ("--back", "$ systemctl stop kubelet", "--yes"),
    ("--back", "undo: hand over", "--back"),
    ("--yes", "$ systemctl start dockershim", "--back"),
    ("--yes", "wait for the kubelet", "--yes"),
    ("--back", "$ systemctl start cri-docker", "--yes"),
    ("--back", "$ systemctl start kubelet", "--back"),
)
#: Runs the command in the background, and kills it after the line $1; what systemctl has begun goes on.
_KILL = """
rm -f /tmp/out; touch /tmp/out
%s >/tmp/out 2>&1 & pid=$!
while kill -0 $pid 2>/dev/null && ! awk -v begin="$1" 'index($0, begin) == 1 { found = 1 } END { exit !found }' /tmp/out
do sleep 0.02; done
kill -9 $pid; wait $pid; echo $? >&2; cat /tmp/out
"""


@dataclass(slots=True)
class Ready:
    """What the API server said of the Node, and when; read in a thread."""

    said: list[tuple[float, bool]] = field(default_factory=list)

    def seconds_not_ready(self, until: float) -> float:
        """The longest time without Ready."""
        longest, begin = 0.0, None
        for at, ready in [*self.said, (until, True)]:
            if not ready and begin is None:
                begin = at
            elif ready and begin is not None:
                longest, begin = max(longest, at - begin), None
        return longest


@pytest.fixture(scope="module")
def made(machine: Machine, request: pytest.FixtureRequest) -> Iterator[GuestCluster]:
    with cluster_on_cri_dockerd(machine, request.config.getoption("--guest-engine")) as cluster:
        yield cluster


@contextmanager
def cluster_on_cri_dockerd(machine: Machine, engine: str) -> Iterator[GuestCluster]:
    """A cluster of one guest with 20 pods in addition to those of kubeadm."""
    with site(machine, provided(cri_dockerd.kind(), engine)) as place:
        guest = place.add()
        guest.boot()
        folder = place.folder / "cluster"
        folder.mkdir()
        programs = str(NEWEST.provide("kubectl").parent)
        cluster = GuestCluster(
            programs, place.network, guest, connections=folder / "admin.conf", logs=folder, pause=PAUSE
        )
        # The add-ons are not needed, and a guest has little of a busy machine's processors.
        skipped = {"skipPhases": ["preflight", "addon/coredns", "addon/kube-proxy"]}
        cluster.timed("kubeadm init", lambda: cluster.init(cri_dockerd.ENDPOINT, **skipped))
        cluster.wait(lambda: cluster.ready() == {guest.name}, PATIENCE, "the node")
        # All at once they would take the control plane's time.
        for replicas in range(PODS // 5, PODS + 1, PODS // 5):
            cluster.timed(f"{replicas} pods", partial(deploy, cluster, "steady", replicas))
        cluster.wait(cluster.runs_all, PATIENCE, "the pods of kube-system")
        yield cluster


def deploy(cluster: GuestCluster, name: str, replicas: int) -> None:
    """A Deployment whose pods sleep, and end at once."""
    labels = {"app": name}
    command = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 1000 & wait $!; done"]
    spec = {
        "containers": [{"name": "main", "image": pods.BUSYBOX, "command": command}],
        "terminationGracePeriodSeconds": 1,
        "tolerations": [{"operator": "Exists"}],
    }
    manifest = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps(manifest))
    cluster.rolled_out(f"deployment/{name}", PATIENCE)


def remove(cluster: GuestCluster, name: str) -> None:
    cluster.kubectl("delete", f"deployment/{name}", "--cascade=foreground", "--wait")


def containers(guest: Guest) -> dict[str, str]:
    """Each container that runs, by its id, with its process and when it was started."""
    lines = guest.sh("docker inspect --format '{{.Id}} {{.State.Pid}} {{.State.StartedAt}}' $(docker ps -q)")
    return {line.split()[0]: line for line in lines.splitlines()}


def of_api(cluster: GuestCluster) -> dict[str, tuple[str, int]]:
    """What the API server has of each pod: its address, and how often its containers were restarted."""
    return {
        pod["metadata"]["name"]: (
            pod["status"].get("podIP", ""),
            sum(one["restartCount"] for one in pod["status"].get("containerStatuses", [])),
        )
        for pod in cluster.pods("--all-namespaces")
    }


@contextmanager
def nothing_is_restarted(cluster: GuestCluster) -> Iterator[None]:
    guest = cluster.control
    before, pods_before = containers(guest), of_api(cluster)
    assert len(before) >= 2 * PODS
    yield
    cluster.wait(lambda: cluster.ready() == {guest.name}, PATIENCE, "the node")
    assert before.items() <= containers(guest).items()
    assert pods_before.items() <= of_api(cluster).items()


@contextmanager
def watched(cluster: GuestCluster) -> Iterator[Ready]:
    """A block in which the Node's condition is followed."""
    condition = '{.status.conditions[?(@.type=="Ready")].status}{"\\n"}'
    words = cluster.kubectl_command("get", "node", cluster.control.name, "--watch", "-o", f"jsonpath={condition}")
    found = Ready()

    def read(process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            found.said.append((time.monotonic(), line.strip() == "True"))

    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=cluster.environment()) as process:
        thread = threading.Thread(target=read, args=(process,))
        thread.start()
        try:
            yield found
        finally:
            process.kill()
            thread.join()


def migrate(guest: Guest, *flags: str) -> Ended:
    return guest.ended(f"{COMMAND} {' '.join(flags)}", timeout=SECONDS)


def moved(cluster: GuestCluster, *flags: str) -> str:
    """Call the command, which must succeed; the node is never NotReady for long. What it printed."""
    with nothing_is_restarted(cluster), watched(cluster) as ready:
        began = time.monotonic()
        ended = migrate(cluster.control, *flags)
        took = time.monotonic() - began
        assert (ended.code, ended.errors) == (0, ""), ended.output
        longest = ready.seconds_not_ready(time.monotonic())
        say(f"migrate {' '.join(flags)}: {took:.0f} s, NotReady for {longest:.1f} s")
        assert longest < NOT_READY, ready.said
    return ended.output


def killed(guest: Guest, flags: str, line: str) -> str:
    """Call the command, and kill it after a line. What it printed."""
    ended = guest.ended(f"set -- '{line}'; {_KILL % f'{COMMAND} {flags}'}", timeout=SECONDS)
    assert ended.errors.split()[-1] == "137", ended.output + ended.errors
    return ended.output


def is_served_by(guest: Guest) -> str:
    states = guest.sh("systemctl is-active cri-docker.service dockershim.service", check=False).split()
    return {("active", "inactive"): "cri-dockerd", ("inactive", "active"): "dockershim"}.get(
        (states[0], states[1]), "?"
    )


def test_there_and_back(made: GuestCluster) -> None:
    guest = made.control
    machine = guest.sh(MACHINE, check=False)
    planned = migrate(guest)
    assert (planned.code, planned.errors) == (0, ""), planned.output
    assert f"+containerRuntimeEndpoint: {OURS}" in planned.output
    assert 'cni_bin_dir = ["/opt/cni/bin", "/usr/lib/cni"]' in planned.output
    assert guest.sh(MACHINE, check=False) == machine

    printed = moved(made, "--yes")
    assert is_served_by(guest) == "dockershim"
    assert "is Ready" in printed
    assert guest.sh(f"crictl --runtime-endpoint {OURS} pods --state=ready -q").count("\n") >= PODS
    again = migrate(guest, "--yes")
    assert (again.code, again.output.partition(":")[0]) == (0, "nothing to do")
    deploy(made, "ours", 1)

    printed = moved(made, "--back")
    assert is_served_by(guest) == "cri-dockerd"
    assert "write no more to kubectl logs" in printed
    assert guest.sh(MACHINE, check=False) == machine
    remove(made, "ours")
    deploy(made, "theirs", 1)
    remove(made, "theirs")


def test_there_and_back_with_the_old_socket(made: GuestCluster) -> None:
    guest = made.control
    machine = guest.sh(MACHINE, check=False)
    moved(made, "--yes", "--keep-socket")
    assert is_served_by(guest) == "dockershim"
    assert guest.sh("stat -c '%a %G' /run/cri-dockerd.sock") == "660 docker\n"
    deploy(made, "ours", 1)
    remove(made, "ours")
    moved(made, "--back")
    assert guest.sh(MACHINE, check=False) == machine


def test_killed_on_the_way_one_more_call_brings_it_to_either_side(made: GuestCluster) -> None:
    guest = made.control
    machine = guest.sh(MACHINE, check=False)
    with nothing_is_restarted(made):
        for flags, line, then in KILLED:
            killed(guest, flags, line)
            assert "a move was interrupted" in migrate(guest).output
            ended = migrate(guest, then)
            assert ended.code == 0, f"{flags} killed after {line!r}: {ended.output}{ended.errors}"
            assert is_served_by(guest) == ("dockershim" if then == "--yes" else "cri-dockerd")
            if then == "--back":
                assert guest.sh(MACHINE, check=False) == machine, f"{flags} killed after {line!r}"


def test_it_returns_by_itself_if_dockershim_does_not_start(made: GuestCluster) -> None:
    guest = made.control
    folder = "/run/systemd/system/dockershim.service.d"
    broken = "ExecStart=/bin/false serve --container-runtime-endpoint=fd://"
    guest.sh(f"mkdir -p {folder}; printf '[Service]\nExecStart=\n{broken}\n' >{folder}/99-broken.conf")
    guest.run("systemctl", "daemon-reload")
    machine = guest.sh(MACHINE, check=False)
    with nothing_is_restarted(made):
        ended = migrate(guest, "--yes")
    assert ended.code == 1, ended.output
    assert "systemctl start dockershim" in ended.errors
    assert "The node returns to cri-dockerd" in ended.errors
    assert is_served_by(guest) == "cri-dockerd"
    assert guest.sh(MACHINE, check=False) == machine
    guest.sh(f"rm -r {folder}; systemctl daemon-reload")
