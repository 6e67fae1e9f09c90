"""``dockershim migrate``: moves a node from cri-dockerd while its pods run, and ``migrate --back`` returns it.

``facts`` reads the units and the files of the node, and ``plan`` makes steps of them; it is pure. ``changes`` does and
undoes the steps, by a journal that has the whole plan: so any later call goes on in either direction. ``endpoints``
finds the old socket in files, ``pods`` compares what both servers report, ``ready`` waits for the kubelet, ``way_back``
has what cri-dockerd needs of us. ``command`` puts it together.
"""
