"""Units, from what systemd 252 and 257 print."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from dockershim.doctor.units import Unit, parse

SHOWN = """\
ExecStart={ path=/usr/bin/cri-dockerd ; argv[]=%s ; ignore_errors=no ; start_time=[n/a] ; pid=12 }
MainPID=12
ExecMainStartTimestampMonotonic=2500000
Id=cri-docker.service
WantedBy=multi-user.target
TriggeredBy=cri-docker.socket
LoadState=loaded
ActiveState=active
FragmentPath=/usr/lib/systemd/system/cri-docker.service
DropInPaths=/etc/systemd/system/cri-docker.service.d/10-cni.conf /run/systemd/system/a.conf
UnitFileState=enabled

Id=cri-docker.socket
RequiredBy=cri-docker.service
LoadState=loaded
ActiveState=active
UnitFileState=enabled
Listen=/run/cri-dockerd.sock (Stream)
Listen=/run/other.sock (Stream)
SocketGroup=docker

Id=kubelet.service
LoadState=loaded
ActiveState=activating
UnitFileState=enabled
EnvironmentFiles=/var/lib/kubelet/kubeadm-flags.env (ignore_errors=yes)
EnvironmentFiles=/etc/default/kubelet (ignore_errors=yes)
MainPID=0

Id=cri-dockerd.service
LoadState=not-found
ActiveState=inactive
"""


def test_what_systemctl_show_prints() -> None:
    service, socket, kubelet = parse(SHOWN % "/usr/bin/cri-dockerd --container-runtime-endpoint fd://")
    assert service == Unit(
        name="cri-docker.service",
        state="active",
        enabled="enabled",
        pid=12,
        environment_files=[],
        listens=[],
        started=2.5,
        command=["/usr/bin/cri-dockerd", "--container-runtime-endpoint", "fd://"],
        files=[
            "/usr/lib/systemd/system/cri-docker.service",
            "/etc/systemd/system/cri-docker.service.d/10-cni.conf",
            "/run/systemd/system/a.conf",
        ],
        triggered_by=["cri-docker.socket"],
        needed_by=frozenset({"multi-user.target"}),
    )
    assert (socket.listens, socket.group) == (["/run/cri-dockerd.sock", "/run/other.sock"], "docker")
    assert kubelet.environment_files == ["/var/lib/kubelet/kubeadm-flags.env", "/etc/default/kubelet"]
    assert kubelet.is_active, "systemd is about to start it"
    assert not any(Unit("a", state=state).is_active for state in ("inactive", "failed"))


@given(st.text() | st.from_regex(r"(Id|LoadState|MainPID|ExecStart|Listen)=.{0,9}\n{0,2}"))
def test_any_text_is_units_or_none(text: str) -> None:
    for unit in parse(text):
        assert unit.name
