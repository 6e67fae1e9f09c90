"""Changes of the machine that can be undone, also after a crash in the middle of any of them.

A change is a list of ``steps``: write a file, set a value of the kernel, run a command. ``perform`` does them one by
one. Before it does a step, it writes into the ``journal`` what the step will do and what was there before. So whatever
ends the program, the next one either finishes the step or undoes it. ``disk`` has the few operations on files.

This package knows nothing of Docker and Kubernetes: ``setup`` has what to change.
"""
