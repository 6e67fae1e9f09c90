"""What setup reads in addition to doctor."""

from __future__ import annotations

import sys

from dockershim.setup.facts import routes

TABLE = """\
Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t0100A8C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
docker0\t000011AC\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
cni0\t0000580A\t00000000\t0001\t0\t0\t0\t0000FFFF\t0\t0\t0
odd\t1\t
odd\tx\t0\t0\t0\t0\t0\ty
"""


def test_routes_are_read_as_the_kernel_writes_them() -> None:
    assert sys.byteorder == "little", "the table is of such a machine"
    assert [str(route) for route in routes(TABLE)] == ["0.0.0.0/0", "172.17.0.0/16", "10.88.0.0/16"]
    assert list(routes("")) == []
