"""What the engine and its containerd keep on disk, read there because no call of the engine tells it, or only slowly.

Where each thing is depends on versions and configuration, so it is known here and nowhere else.
"""
