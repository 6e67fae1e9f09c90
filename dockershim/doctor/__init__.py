"""``dockershim doctor``: checks a node for problems, and prints a fix for each.

``checks`` is the list of all checks. Each is a function of what it looks at, so that tests need no node.
``check_process`` runs them where a hung mount or engine cannot hold up the command; ``pod`` runs a real pod; ``report``
prints. Nothing that is read is trusted: all readings are bounded, and all texts are escaped before they are printed.
"""
