"""What people look at: the state of a node in one view, and where the starts of its pods spend their time.

``overview`` makes the view of what the CRI tells, for ``dockershim status`` and for the page. ``starts`` takes note of
the starts of pods, ``page`` writes HTML, ``page_server`` serves it (``--debug-bind-addr``).
"""
