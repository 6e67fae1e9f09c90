"""The guests themselves: what a test may ask of one, several on one network, and what they leave."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.node.cache import REPOSITORY
from tests.vm.guest import Guest, GuestError
from tests.vm.leftovers import left_by, processes_of
from tests.vm.machines import QEMU, Machine
from tests.vm.running import Site, site

CONTROLLERS = {"cpuset", "cpu", "io", "memory", "pids"}


@pytest.mark.guest
def test_a_command_has_its_output_and_its_exit_code(guest: Guest) -> None:
    ended = guest.ended("cat; echo oops >&2; exit 7", input="words\n")
    assert (ended.code, ended.output, ended.errors) == (7, "words\n", "oops\n")
    with pytest.raises(GuestError, match="ended with 7:\noops"):
        guest.sh("echo oops >&2; exit 7")


def test_files_come_in_and_out_as_they_are(guest: Guest, tmp_path: Path) -> None:
    content = os.urandom(30_000_000)  # more than a network that loses every long packet carries in time
    (tmp_path / "in").write_bytes(content)
    guest.copy(tmp_path / "in", "/srv/file")
    guest.fetch("/srv/file", tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == content


@pytest.mark.guest
def test_the_guest_has_cgroup_v2_with_a_kubelets_controllers(guest: Guest, machine: Machine) -> None:
    controllers = set(guest.read("/sys/fs/cgroup/cgroup.controllers").split())
    assert controllers >= CONTROLLERS
    # What has the mark `qemu` stands on this.
    assert ("hugetlb" in controllers) == (machine is QEMU)
    assert guest.run("systemctl", "is-system-running").strip() == "running"
    assert "docker-default (enforce)" in guest.read("/sys/kernel/security/apparmor/profiles")


def test_a_power_cut_loses_what_was_not_written_to_the_disk(place: Site) -> None:
    guest = place.add("cut")
    guest.boot()
    guest.sh("echo old >/srv/old; sync /srv/old; echo new >/srv/new")
    before = guest.boot_id()
    assert processes_of(guest.folder) != []
    guest.cut_power()
    assert processes_of(guest.folder) == []
    guest.boot()
    assert guest.boot_id() != before
    assert guest.read("/srv/old") == "old"
    assert guest.sh("cat /srv/new 2>/dev/null", check=False) == ""
    guest.cut_power()


def test_guests_reach_each_other(place: Site) -> None:
    some = [place.add(name) for name in ("one", "two")]
    for guest in some:
        guest.switch_on()
    for guest in some:
        guest.wait_up()
    assert [guest.read("/proc/sys/kernel/hostname") for guest in some] == ["one", "two"]
    assert len({guest.read("/etc/machine-id") for guest in some}) == 2
    for here, there in (some, reversed(some)):
        here.run("ping", "-c", "3", "-w", "20", there.port.address)
        assert " ssh-ed25519 " in here.sh(f"ssh-keyscan -t ed25519 {there.port.address} 2>/dev/null")
    for guest in some:
        guest.cut_power()


def test_the_end_of_a_block_leaves_nothing(machine: Machine) -> None:
    with site(machine) as place:
        namespace = place.network.namespace.readlink()
        guest = place.add()
        guest.switch_on()
        time.sleep(3)
        assert left_by(place, namespace) != []
        assert guest.console.exists()
    assert left_by(place, namespace) == []


def test_a_run_that_is_killed_leaves_no_process_and_the_next_one_removes_its_folder(machine: Machine) -> None:
    words = [sys.executable, "-m", "tests.vm", f"--guest={machine.name}", "--", "sleep", "1000"]
    with subprocess.Popen(words, cwd=REPOSITORY, stderr=subprocess.PIPE, text=True) as run:
        assert run.stderr is not None
        told = next(line for line in run.stderr if line.startswith("the guest is up"))
        folder = Path(told.split()[told.split().index("-S") + 1]).parent
        run.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 10
    while processes := processes_of(folder):
        assert time.monotonic() < deadline, processes
        time.sleep(0.1)
    assert folder.parent.exists()
    with site(machine):
        assert not folder.parent.exists()
