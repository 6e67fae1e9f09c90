"""``dockershim setup``: makes a Docker host ready for a kubelet, and ``setup --undo`` takes it back.

``plan`` decides what to change, of what ``dockershim doctor`` complains about and ``facts`` reads; it is pure.
``changes`` does and undoes the steps. ``daemon_json`` merges the engine's configuration, ``files`` makes the others,
``report`` prints, ``command`` puts it together.
"""
